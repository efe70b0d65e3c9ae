#!/usr/bin/env bash
# GSM8K by generation under several policies, through lm-eval: chains of thought of hundreds of decode steps, where the
# evicted tokens are the model's own. For models of 7B and more (a 135M model solves next to nothing).
#
#   scripts/lm_eval_gsm8k.sh [BACKBONE] [OUT] [further lm-eval arguments, such as --limit 100]
#
# BACKBONE is a name in configs/backbone or a YAML file. The data come from the Hub (openai/gsm8k). PYTHON names the
# interpreter.
set -euo pipefail

backbone="${1:-qwen2.5-7b-instruct}"
out="${2:-${INERTIA_RESULTS:-results}/lm_eval/gsm8k}"
shift $(($# < 2 ? $# : 2))

policies=(
  full_cache
  inertiakv,tokens=256
  inertiakv,tokens=128
  tova_decode,tokens=128
  h2o,tokens=128
  streaming_llm_decode,tokens=128
  random,tokens=128
)
for policy in "${policies[@]}"; do
  "${PYTHON:-python}" -m inertia.lm_eval --model inertia --model_args "backbone=$backbone,method=$policy" \
    --tasks gsm8k_cot_zeroshot --apply_chat_template --gen_kwargs do_sample=False,max_gen_toks=1024 \
    --log_samples --output_path "$out" "$@"
done
