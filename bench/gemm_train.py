"""Products of training steps beside PyTorch on the same CPU, shape by shape, alternating.

bench/gemm_train.py [--binary build/release/bench_gemm] [--threads 1] [--rounds 7] [--type f32|bf16]
One line per direction and shape: GFLOP/s of both, ratio, share of the multiply-add peak measured in the same minute.
With one thread both are timed by that thread's processor time, which a busy machine does not stretch.
"""

import argparse
import json
import os
import subprocess
import time

import pytorch
from report import share

pytorch.restart_with_paths()
import torch  # noqa: E402


def now(threads):
    return time.thread_time() if threads == 1 else time.perf_counter()


def median_of(call, rounds, threads):
    call()
    times = []
    for _ in range(rounds):
        begin = now(threads)
        call()
        times.append(now(threads) - begin)
    return sorted(times)[len(times) // 2]


def peer(form, m, k, n, dtype):
    """y = x w', dx = dy w or dw = dy' x with w [n, k], as torch.nn.Linear has it."""
    x, w, dy = (torch.randn(*s).to(dtype) for s in ((m, k), (n, k), (m, n)))
    return {"forward": lambda: x @ w.t(), "grad_x": lambda: dy @ w, "grad_w": lambda: dy.t() @ x}[form]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="build/release/bench_gemm")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--type", choices=["f32", "bf16"], default="f32")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype = torch.float32 if args.type == "f32" else torch.bfloat16
    command = [args.binary, "--set", "training", "--threads", str(args.threads), "--rounds", str(args.rounds),
               "--type", args.type]
    env = dict(os.environ, OMP_NUM_THREADS=str(args.threads), OMP_PROC_BIND="true")
    ours_ns, theirs_ns = 0.0, 0.0
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in process.stdout]
    for row in rows:
        if "layer" not in row:
            continue
        form, shape = row["layer"].split()
        m, k, n = map(int, shape.split("x"))
        flop = 2.0 * m * k * n
        with torch.no_grad():
            other = flop * 1e-9 / median_of(peer(form, m, k, n, dtype), args.rounds, args.threads)
        ours_ns += flop / row["gflops"]
        theirs_ns += flop / other
        print(f"{form:8} {shape:15} {row['gflops']:7.1f} GF/s, PyTorch {other:7.1f} x{row['gflops'] / other:5.2f} "
              f"{share(row['share']):>3} % of peak {row['peak']:.0f}", flush=True)
    print(f"all      x{theirs_ns / ours_ns:5.2f}")


if __name__ == "__main__":
    main()
