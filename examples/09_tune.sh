#!/usr/bin/env bash
# Finds how to serve a small network for a goal, shows what was predicted beside what was measured, and serves it.
#   ./dev build && examples/09_tune.sh [DIRECTORY]     DIRECTORY keeps the reports and the tuned repository
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
trireme=${TRIREME:-$here/../build/release/trireme}
work=$(mktemp -d)
out=${1:-$work/tuned}
trap 'rm -rf "$work"' EXIT

"$trireme" export zoo:cnn "$work/cnn.onnx"

# As many requests a second as go with 99 % of the answers within 250 ms. The budgets are small so that this takes
# seconds; leave --probe, --passes, --trial and --stability out for figures to rely on.
tune=("$trireme" tune "$work/cnn.onnx" --p99 250ms --instances 1,2 --threads 1,2 --max-batch 1,4,16
      --window 0 --window 2ms --probe 10ms --passes 1 --trial 200ms --stability 50 --top 1 --out "$out")
"${tune[@]}" 2>/dev/null || [[ $? == 1 ]] # 1: this machine is too slow for the goal, or too busy

printf '\n# What the server is told:\n'
cat "$out/repository/cnn/config.pbtxt"

printf '\n# Again: everything comes from the journal.\n'
{ "${tune[@]}" 2>/dev/null || [[ $? == 1 ]]; } | tail -2
