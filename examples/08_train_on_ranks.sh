#!/usr/bin/env bash
# Trains one network on 1, 2 and 4 ranks to the same bits, kills a rank on the way, goes on with fewer ranks, and runs
# the model straight from the checkpoint that four ranks wrote. What happens inside: docs/scaling.md.
#   ./dev build && examples/08_train_on_ranks.sh
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
trireme=${TRIREME:-$here/../build/release/trireme}
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

settings=(--quiet --set run.name=clothes --set model.source=zoo:mlp --set data.path=fashion-mnist
  --set validation.split=test --set batch.global=128 --set batch.micro=16 --set schedule.lr=0.002
  --set schedule.total=25600 --set checkpoint.every=50 --set log.progress=0s)
train() { # DIRECTORY more settings
  "$trireme" train "${settings[@]}" --set run.directory="$runs/$1" "${@:2}"
}

echo "== 150 steps on one rank, on two that share out the optimizer, on four that share out everything"
train one --run.steps 150
train two --run.steps 150 --dp 2 --zero 1
train four --run.steps 150 --strategy "$here/train/strategy_zero3.yaml"
cmp "$runs"/one/model/clothes/1/model.onnx "$runs"/two/model/clothes/1/model.onnx
cmp "$runs"/one/model/clothes/1/model.onnx "$runs"/four/model/clothes/1/model.onnx
echo "equal, bit for bit"

echo "== the same under a launcher; the trainer is killed when it has saved step 50, and two ranks finish the job"
"$trireme" launch -n 4 --shrink -- "$trireme" train "${settings[@]}" --set run.directory="$runs/killed" --zero 2 \
  --run.steps 150 &
launcher=$!
until [[ -e $runs/killed/checkpoints/latest ]]; do sleep 0.01; done
kill -9 "$(cat /proc/$launcher/task/$launcher/children)" || true # the run may be quicker than we are
wait $launcher
cmp "$runs"/one/model/clothes/1/model.onnx "$runs"/killed/model/clothes/1/model.onnx
echo "still equal"
grep -h '"event":"restarted"' "$runs/killed/log.jsonl" || true

echo "== the checkpoint of four ranks is a model as it lies"
ls "$runs/four/checkpoints/step-00000150"
"$trireme" run "$runs/four" --batch 32 --repeat 20
