"""A Slurm of one node without accounting, as many small clusters run: munged, slurmctld and slurmd in a folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
SECONDS = 60


def missing() -> str | None:
    """Return why no Slurm can be started here, None where one can."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if lacking:
        return f"{', '.join(lacking)} not installed (Debian: slurm-wlm, munge)"
    return None if os.geteuid() == 0 else "slurmd needs root"


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Run the daemons inside the block; yields the environment in which the commands find them."""
    # A socket's path holds at most 107 bytes.
    socket_path, host = folder / "munge.socket", socket.gethostname().split(".")[0]
    folder.chmod(0o755)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(
        f"ClusterName=one\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nAuthType=auth/munge\n"
        f"AuthInfo=socket={socket_path}\nCredType=cred/munge\n"
        f"SlurmctldPort={free_port()}\nSlurmdPort={free_port()}\n"
        f"StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\n"
        f"SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd.pid\n"
        "ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n"
        "AccountingStorageType=accounting_storage/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n"
        "MpiDefault=none\nSwitchType=switch/none\nReturnToService=2\nSchedulerParameters=sched_interval=2\n"
        f"NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000 State=UNKNOWN\n"
        f"PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP\n"
    )
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    files = {"key-file": "key", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "seed"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    daemons = (
        ["munged", "--foreground", "--force", f"--socket={socket_path}", *options],
        ["slurmctld", "-D", "-i", "-L", str(folder / "slurmctld.log")],
        ["slurmd", "-D", "-N", host, "-L", str(folder / "slurmd.log")],
    )
    with ExitStack() as stack:
        for command in daemons:
            log = stack.enter_context((folder / f"{command[0]}.out").open("wb"))
            daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(daemon.wait, timeout=SECONDS)
            stack.callback(daemon.terminate)
            if command[0] == "munged":
                wait_for(socket_path.exists)
        wait_for(lambda: "idle" in run(environment, "sinfo", "--noheader", "--format=%T"))
        try:
            yield environment
        finally:
            run(environment, "scancel", "--user=root")


def run(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.stdout


def wait_for(ready) -> None:
    deadline = time.monotonic() + SECONDS
    while not ready():
        assert time.monotonic() < deadline, "the daemons of Slurm did not come up"
        time.sleep(0.2)
