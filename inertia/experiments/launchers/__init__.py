"""Where groups of cells run: in this process, as Slurm jobs, or as tasks of a Ray cluster.

`settings` are the options, `payload` is what is shipped, `submitit_jobs` and `ray_tasks` ship it, `polling` waits for
it, `progress` counts what it has recorded, and `launch` decides.
"""
