#!/usr/bin/env bash
# Writes ResNet-18 (random weights) as an ONNX file, runs it, times it, and shows its memory plan and kernel choices.
#   ./dev build && examples/01_run_a_model.sh
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
trireme=${TRIREME:-$here/../build/release/trireme}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

show() {  # prints a command, then its first lines
  local lines=$1
  shift
  printf '\n$ trireme %s\n' "${*//$work\//}"
  "$trireme" "$@" >"$work/output"
  head -n "$lines" "$work/output"
}

show 5 export zoo:resnet18 "$work/resnet18.onnx"
ls -l "$work/resnet18.onnx" | awk '{ printf "resnet18.onnx: %.1f MB\n", $5 / 1e6 }'

# A batch of 2 random images; --output writes each result as a NumPy file. Same seed, same numbers.
show 5 run "$work/resnet18.onnx" --batch 2 --seed 7 --output "$work/out"
ls "$work/out"

# Median and spread of 10 runs. --threads 1 makes runs comparable between machines with other core counts.
show 5 run "$work/resnet18.onnx" --repeat 10 --threads 1

# The same graph three ways: what the passes did, where every byte lies, which kernel runs each step and why.
show 26 inspect "$work/resnet18.onnx" --passes
show 6 inspect "$work/resnet18.onnx" --memory
show 8 inspect "$work/resnet18.onnx" --why
