"""Convolutions of training steps beside PyTorch on the same CPU, layer by layer, alternating.

bench/conv_train.py [--binary build/release/bench_conv_train] [--threads 1] [--rounds 9]
                    [--set resnet18|resnet50|small|all]
One line per layer and direction: our kernel, milliseconds of both, ratio (PyTorch / ours), GFLOP/s, share of peak.
"""

import argparse
import json
import subprocess
import time

import pytorch
from report import share

pytorch.restart_with_paths()
import torch  # noqa: E402

# count in the network, n, side, channels in and out, kernel, stride, padding
RESNET18 = [
    (1, 32, 224, 3, 64, 7, 2, 3), (4, 32, 56, 64, 64, 3, 1, 1), (1, 32, 56, 64, 128, 3, 2, 1),
    (1, 32, 56, 64, 128, 1, 2, 0), (3, 32, 28, 128, 128, 3, 1, 1), (1, 32, 28, 128, 256, 3, 2, 1),
    (1, 32, 28, 128, 256, 1, 2, 0), (3, 32, 14, 256, 256, 3, 1, 1), (1, 32, 14, 256, 512, 3, 2, 1),
    (1, 32, 14, 256, 512, 1, 2, 0), (3, 32, 7, 512, 512, 3, 1, 1),
]
RESNET50 = [
    (1, 16, 224, 3, 64, 7, 2, 3), (1, 16, 56, 64, 64, 1, 1, 0), (3, 16, 56, 64, 64, 3, 1, 1),
    (4, 16, 56, 64, 256, 1, 1, 0), (2, 16, 56, 256, 64, 1, 1, 0), (1, 16, 56, 256, 128, 1, 1, 0),
    (1, 16, 56, 128, 128, 3, 2, 1), (1, 16, 56, 256, 512, 1, 2, 0), (4, 16, 28, 128, 512, 1, 1, 0),
    (3, 16, 28, 512, 128, 1, 1, 0), (3, 16, 28, 128, 128, 3, 1, 1), (1, 16, 28, 512, 256, 1, 1, 0),
    (1, 16, 28, 256, 256, 3, 2, 1), (1, 16, 28, 512, 1024, 1, 2, 0), (6, 16, 14, 256, 1024, 1, 1, 0),
    (5, 16, 14, 1024, 256, 1, 1, 0), (5, 16, 14, 256, 256, 3, 1, 1), (1, 16, 14, 1024, 512, 1, 1, 0),
    (1, 16, 14, 512, 512, 3, 2, 1), (1, 16, 14, 1024, 2048, 1, 2, 0), (3, 16, 7, 512, 2048, 1, 1, 0),
    (2, 16, 7, 2048, 512, 1, 1, 0), (2, 16, 7, 512, 512, 3, 1, 1),
]

# Small networks: two layers of an MNIST classifier, a residual network of 16 to 64 channels at 28 x 28.
SMALL = [
    (1, 64, 28, 1, 32, 3, 1, 1), (1, 64, 28, 32, 64, 3, 1, 1), (1, 64, 14, 32, 64, 3, 1, 1),
    (1, 64, 28, 1, 16, 5, 1, 2),
    (1, 128, 28, 16, 16, 3, 1, 1), (1, 128, 28, 16, 32, 3, 2, 1), (1, 128, 14, 32, 32, 3, 1, 1),
    (1, 128, 14, 32, 64, 3, 2, 1), (1, 128, 7, 64, 64, 3, 1, 1), (1, 128, 28, 1, 16, 3, 1, 1),
]


def now(threads):
    return time.thread_time() if threads == 1 else time.perf_counter()


def median_of(call, rounds, threads):
    call()
    times = []
    for _ in range(rounds):
        begin = now(threads)
        call()
        times.append(now(threads) - begin)
    return 1e3 * sorted(times)[len(times) // 2]


def peer(layer, rounds, threads):
    """Milliseconds of forward, gradient towards x and towards w, channels-last as PyTorch recommends on CPUs."""
    _, n, h, c, oc, k, s, p = layer
    x = torch.randn(n, c, h, h).to(memory_format=torch.channels_last)
    w = torch.randn(oc, c, k, k).to(memory_format=torch.channels_last)
    y = torch.nn.functional.conv2d(x, w, stride=s, padding=p)
    dy = torch.randn_like(y)

    def backward(mask):
        return torch.ops.aten.convolution_backward(dy, x, w, None, [s, s], [p, p], [1, 1], False, [0, 0], 1, mask)

    with torch.no_grad():
        return {
            "conv_nhwc": median_of(lambda: torch.nn.functional.conv2d(x, w, stride=s, padding=p), rounds, threads),
            "conv_nhwc_grad_x": median_of(lambda: backward([True, False, False]), rounds, threads),
            "conv_nhwc_grad_w": median_of(lambda: backward([False, True, False]), rounds, threads),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="build/release/bench_conv_train")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--set", choices=["resnet18", "resnet50", "small", "all"], default="resnet18")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    layers = {"resnet18": RESNET18, "resnet50": RESNET50, "small": SMALL,
              "all": RESNET18 + RESNET50 + SMALL}[args.set]
    total = {}
    for layer in layers:
        count, shape = layer[0], ",".join(map(str, layer[1:]))
        first = ["--nchw"] if layer[3] == 3 else []
        command = [args.binary, "--layer", shape, "--threads", str(args.threads), "--rounds", str(args.rounds)]
        ours = [json.loads(line) for line in subprocess.run(
            command + first, check=True, capture_output=True, text=True).stdout.splitlines()]
        theirs = peer(layer, args.rounds, args.threads)
        for row in ours:
            other = theirs[row["op"]]
            sums = total.setdefault(row["op"], [0.0, 0.0])
            sums[0] += count * row["ms"]
            sums[1] += count * other
            print(f"{shape:28} {row['op']:17} {row['kernel']:18} {row['ms']:8.2f} {other:8.2f} "
                  f"x{other / row['ms']:5.2f} {row['gflops']:7.1f} GF/s {share(row['of_peak']):>3} % "
                  f"{row['workspace_mb']:6.1f} MiB", flush=True)
    for op, (mine, other) in total.items():
        print(f"all layers                   {op:17} {mine:10.1f} ms {other:10.1f} ms x{other / mine:5.2f}")


if __name__ == "__main__":
    main()
