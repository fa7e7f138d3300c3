#!/usr/bin/env bash
# Serves ResNet-18 and loads it: latency against concurrency, then a fixed rate that must meet goals.
#   ./dev build && examples/06_load_test.sh [PAGE.html]     PAGE.html gets plots of the fixed rate
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
trireme=${TRIREME:-$here/../build/release/trireme}
page=${1:-}
work=$(mktemp -d)
server=
stop() {
  [[ -z $server ]] || kill "$server" 2>/dev/null || true
  wait
  rm -rf "$work"
}
trap stop EXIT

mkdir -p "$work/models/resnet18/1"
"$trireme" export zoo:resnet18 "$work/models/resnet18/1/model.onnx"

# A batch waits at most 2 ms for company and holds at most 4 images.
"$trireme" serve --model-repository "$work/models" --host 127.0.0.1 --http-port 0 --grpc-port 0 --max-batch 4 \
  --batch-window 2ms --buckets 1,2,4 2>"$work/log" &
server=$!
until grep -q ' ready ' "$work/log"; do
  kill -0 "$server" 2>/dev/null || { cat "$work/log"; exit 1; }
  sleep 0.05
done
port=$(sed -n 's/.* listening .*port=\([0-9]*\).*/\1/p' "$work/log")

printf '\n# Closed loop: each of N clients sends, waits for the answer, and sends again.\n'
"$trireme" load "http://127.0.0.1:$port" --model resnet18 --sweep 1,2,4,8 --duration 1s --warmup 300ms

printf '\n# Open loop: requests leave on schedule whatever the server does, and are timed from when they were due.\n'
printf '# The goals are the exit code: 1 if one is missed.\n'
"$trireme" load "http://127.0.0.1:$port" --model resnet18 --rate 10 --duration 2s --warmup 300ms \
  --slo p99=1s --slo errors=0% --title "ResNet-18, 10 requests a second" ${page:+--html "$page"}

printf '\n# What the server counted (mean batch = requests / executions).\n'
exec 3<>"/dev/tcp/127.0.0.1/$port"
printf 'GET /v2/models/resnet18/stats HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
sed -n '$p' <&3 | grep -o '"\(inference\|execution\)_count":[0-9]*' | sort -u
