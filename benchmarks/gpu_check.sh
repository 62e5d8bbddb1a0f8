#!/usr/bin/env bash
# What the exact tier is worth on a CUDA device: the tests marked gpu, the verdicts and their cost,
# and exact match against transformers' generate on the embedded pair. A few minutes.
#
#     benchmarks/gpu_check.sh [FOLDER FOR THE FIGURES] [PYTHON]
#
# MODELS=... TARGET=... DRAFT=... name other models, QUESTIONS=... Spec-Bench's question.jsonl.
set -uo pipefail
cd "$(dirname "$0")/.."

out=${1:-gpu-check}
python=${2:-python}
models=${MODELS:-src/draftproof/models}
target=${TARGET:-demo_target}
draft=${DRAFT:-demo_draft}
mkdir -p "$out"
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
failed=0

step() {  # NAME COMMAND...: output to a file of that name as well
    local name=$1 start=$SECONDS
    shift
    "$@" 2>&1 | tee "$out/$name.txt" || failed=1
    printf -- '-- %s: %d s\n' "$name" $((SECONDS - start))
}

"$python" -c 'import torch; assert torch.cuda.is_available(), "no CUDA device"' || exit 2
step tests "$python" -m pytest -m gpu -q -rA -p no:cacheprovider tests/gpu
# exit code 1 of doctor: one format is not promised, which is a finding and no failure
"$python" -m draftproof doctor --target "$models/$target" --device cuda --fresh | tee "$out/doctor.txt"
questions=${QUESTIONS:-}
if [ -z "$questions" ]; then  # the selection takes every 20th line from the 8th on
    questions=$out/question.jsonl
    "$python" - >"$questions" <<'END'
import json

from draftproof.models import DEMO_PROMPTS

for number in range(180):
    text = DEMO_PROMPTS[number // 20 % len(DEMO_PROMPTS)]
    print(json.dumps({"turns": [text]}))
END
fi
for dtype in float32 bfloat16; do
    step "exactness-$dtype" "$python" benchmarks/exactness.py "$models" --target "$target" \
        --draft "$draft" --device cuda --dtype "$dtype" --input "$questions" --prompts 8 \
        --max-new-tokens 48 --batch-sizes 1,4,8 --num-speculative-tokens 4 --cost \
        --output "$out/exactness-$dtype.jsonl"
done
exit $failed
