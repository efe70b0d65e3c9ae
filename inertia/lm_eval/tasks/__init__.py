"""Our benchmarks as lm-eval tasks, one per (task, length): kv_ruler_niah_single_1_1k, kv_longbench_qasper..."""
