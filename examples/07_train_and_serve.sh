#!/usr/bin/env bash
# Trains a small network on Fashion-MNIST, stops it half way, resumes it to the same bits, and runs the result.
#   ./dev build && examples/07_train_and_serve.sh
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
trireme=${TRIREME:-$here/../build/release/trireme}
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

train() { # DIRECTORY more settings
  local directory=$1
  shift
  "$trireme" train --quiet --set run.directory="$directory" --set run.name=clothes --set model.source=zoo:mlp \
    --set data.path=fashion-mnist --set validation.split=test --set batch.global=128 --set schedule.lr=0.002 \
    --set schedule.total=25600 --set log.progress=0s "$@"
}

echo "== 200 steps in one go"
train "$runs/whole" --set run.steps=200

echo "== the same, stopped after 120 steps and resumed"
train "$runs/parts" --set run.steps=120
train "$runs/parts" --set run.steps=200 --resume auto
cmp "$runs"/whole/model/clothes/1/model.onnx "$runs"/parts/model/clothes/1/model.onnx
echo "equal, bit for bit"

echo "== what was trained is a model for every verb"
"$trireme" run "$runs/parts/model/clothes/1/model.onnx" --batch 32 --repeat 20
ls "$runs/parts"
