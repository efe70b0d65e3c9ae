"""lm-eval under a KV-cache policy: `python -m inertia.lm_eval --model inertia --model_args ... --tasks ...`."""
