"""Convolutions of training steps beside PyTorch on the same CPU, layer by layer, alternating.

bench/conv_train.py [--binary build/release/bench_conv_train] [--threads 1] [--rounds 9] [--alone]
                    [--set resnet18|resnet50|small|forms|all] [--layers PART]
One line per layer and direction: our kernel, milliseconds of both, ratio (PyTorch / ours), GFLOP/s, share of peak.
"""

import argparse
import json
import math
import subprocess
import time

import pytorch
from report import share

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


# What networks have beside dense 3 x 3 and 1 x 1 layers, by published shapes: name, what bench_conv_train reads.
FORMS = {
    "resnext_56_g32x4": "n=8,x=56x56,c=128,oc=128,k=3,p=1,g=32",
    "resnext_56_g32x8_s2": "n=8,x=56x56,c=256,oc=256,k=3,s=2,p=1,g=32",
    "resnext_14_g32x16": "n=8,x=14x14,c=512,oc=512,k=3,p=1,g=32",
    "resnext_28_g32x16_s2": "n=8,x=28x28,c=512,oc=512,k=3,s=2,p=1,g=32",
    "regnet_28_g13x8": "n=8,x=28x28,c=104,oc=104,k=3,p=1,g=13",
    "regnet_56_g8x24_s2": "n=8,x=56x56,c=192,oc=192,k=3,s=2,p=1,g=8",
    "regnet_28_g8x56_s2": "n=8,x=28x28,c=448,oc=448,k=3,s=2,p=1,g=8",
    "resnest_28_g2x64": "n=8,x=28x28,c=128,oc=256,k=3,p=1,g=2",
    "group_28_g4x64": "n=8,x=28x28,c=256,oc=256,k=3,p=1,g=4",
    "mobile_112_dw3": "n=8,x=112x112,c=32,oc=32,k=3,p=1,g=32",
    "mobile_56_dw3_s2": "n=8,x=56x56,c=144,oc=144,k=3,s=2,p=1,g=144",
    "mobile_14_dw3": "n=8,x=14x14,c=512,oc=512,k=3,p=1,g=512",
    "efficient_28_dw5": "n=8,x=28x28,c=240,oc=240,k=5,p=2,g=240",
    "efficient_28_dw5_s2": "n=8,x=28x28,c=240,oc=240,k=5,s=2,p=2,g=240",
    "convnext_56_dw7": "n=8,x=56x56,c=96,oc=96,k=7,p=3,g=96",
    "convnext_14_dw7": "n=8,x=14x14,c=384,oc=384,k=7,p=3,g=384",
    "convmixer_32_dw9": "n=2,x=32x32,c=768,oc=768,k=9,p=4,g=768",
    "replk_14_dw31": "n=2,x=14x14,c=256,oc=256,k=31,p=15,g=256",
    "dw3_28_d2": "n=8,x=28x28,c=192,oc=192,k=3,p=2,d=2,g=192",
    "deeplab_28_d2": "n=4,x=28x28,c=256,oc=256,k=3,p=2,d=2",
    "deeplab_28_d6": "n=4,x=28x28,c=256,oc=256,k=3,p=6,d=6",
    "dilated_28_d2_s2": "n=4,x=28x28,c=64,oc=64,k=3,s=2,p=2,d=2",
    "conformer_1d_dw31": "n=8,x=400,c=256,oc=256,k=31,p=15,g=256",
    "wav2vec_1d_first": "n=4,x=16000,c=1,oc=512,k=10,s=5",
    "wav2vec_1d_k3_s2": "n=4,x=1599,c=512,oc=512,k=3,s=2",
    "wav2vec_1d_k2_s2": "n=4,x=399,c=512,oc=512,k=2,s=2",
    "wav2vec_1d_positions": "n=2,x=99,c=768,oc=768,k=128,p=64,g=16",
    "tcn_1d_k3_d4": "n=8,x=512,c=128,oc=128,k=3,p=4,d=4",
    "whisper_1d_k3": "n=4,x=1500,c=80,oc=384,k=3,p=1",
    "video_3x3x3": "n=1,x=16x28x28,c=64,oc=64,k=3,p=1",
    "video_3x3x3_s2": "n=1,x=16x28x28,c=64,oc=128,k=3,s=2,p=1",
    "video_1x3x3": "n=1,x=16x28x28,c=64,oc=128,k=1x3x3,p=0x1x1",
    "video_3x1x1": "n=1,x=16x28x28,c=128,oc=64,k=3x1x1,p=1x0x0",
    "video_first": "n=1,x=16x112x112,c=3,oc=64,k=3x7x7,s=1x2x2,p=1x3x3",
    "x3d_dw3": "n=1,x=16x28x28,c=108,oc=108,k=3,p=1,g=108",
    "video_grouped": "n=1,x=8x28x28,c=128,oc=128,k=3,p=1,g=32",
    "patch_16_3": "n=4,x=224x224,c=3,oc=768,k=16,s=16,nchw=1",
    "patch_32_3": "n=4,x=224x224,c=3,oc=768,k=32,s=32,nchw=1",
    "patch_14_3": "n=4,x=224x224,c=3,oc=384,k=14,s=14,nchw=1",
    "patch_4_3": "n=4,x=224x224,c=3,oc=96,k=4,s=4,nchw=1",
    "patch_7_s4_3": "n=4,x=224x224,c=3,oc=64,k=7,s=4,p=3,nchw=1",
    "patch_2_96": "n=8,x=56x56,c=96,oc=192,k=2,s=2",
    "patch_video": "n=1,x=16x112x112,c=3,oc=384,k=2x16x16,s=2x16x16",
    "unet_up_2_s2": "n=4,x=28x28,c=256,oc=128,k=2,s=2,transposed=1",
    "dcgan_4_s2": "n=16,x=16x16,c=256,oc=128,k=4,s=2,p=1,transposed=1",
    "vae_3_s1": "n=4,x=28x28,c=64,oc=64,k=3,p=1,transposed=1",
    "unet_3d_up": "n=1,x=8x16x16,c=64,oc=32,k=2,s=2,transposed=1",
    "demucs_1d_up": "n=4,x=500,c=128,oc=64,k=8,s=4,transposed=1",
}


def spec_of(layer):
    _, n, h, c, oc, k, s, p = layer
    return f"n={n},x={h}x{h},c={c},oc={oc},k={k},s={s},p={p}" + (",nchw=1" if c == 3 else "")


def now(threads):
    return time.thread_time() if threads == 1 else time.perf_counter()


def median_of(call, rounds, threads):
    call()
    times, begun = [], now(threads)
    while len(times) < rounds and (not times or now(threads) - begun < 2):
        begin = now(threads)
        call()
        times.append(now(threads) - begin)
    return 1e3 * sorted(times)[len(times) // 2]


def peer(spec, rounds, threads):
    """Milliseconds of forward, gradient towards x and towards w, channels-last as PyTorch recommends on CPUs."""
    import torch
    given = dict(part.split("=") for part in spec.split(","))
    x_extents = [int(v) for v in given["x"].split("x")]
    axes = len(x_extents)

    def for_axes(key, default):
        values = [int(v) for v in given.get(key, default).split("x")]
        return values * axes if len(values) == 1 else values

    k, s, p, d = for_axes("k", "1"), for_axes("s", "1"), for_axes("p", "0"), for_axes("d", "1")
    n, c, oc, groups = (int(given.get(key, 1)) for key in ("n", "c", "oc", "g"))
    is_transposed = given.get("transposed") == "1"
    formats = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}
    x = torch.randn(n, c, *x_extents).to(memory_format=formats[axes])
    pairs = (c, oc // groups) if is_transposed else (oc, c // groups)
    w = torch.randn(*pairs, *k).to(memory_format=formats[axes])

    def forward():
        return torch.ops.aten.convolution(x, w, None, s, p, d, is_transposed, [0] * axes, groups)

    def backward(mask):
        return torch.ops.aten.convolution_backward(
            dy, x, w, None, s, p, d, is_transposed, [0] * axes, groups, mask)

    with torch.no_grad():
        dy = torch.randn_like(forward())
        return [median_of(call, rounds, threads) for call in
                (forward, lambda: backward([True, False, False]), lambda: backward([False, True, False]))]


DIRECTION = {"conv_nhwc": 0, "conv_transpose": 0, "conv_nhwc_grad_x": 1, "conv": 1, "conv_nhwc_grad_w": 2,
             "conv_grad_w": 2}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="build/release/bench_conv_train")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--set", choices=["resnet18", "resnet50", "small", "forms", "all"], default="resnet18")
    parser.add_argument("--layers", default="", help="only those whose name or shape holds this")
    parser.add_argument("--alone", action="store_true", help="without PyTorch")
    args = parser.parse_args()
    if not args.alone:
        pytorch.restart_with_paths()
        import torch
        torch.set_num_threads(args.threads)
    dense = {"resnet18": RESNET18, "resnet50": RESNET50, "small": SMALL, "forms": [],
             "all": RESNET18 + RESNET50 + SMALL}[args.set]
    layers = [(layer[0], spec_of(layer), spec_of(layer)) for layer in dense]
    if args.set in ("forms", "all"):
        layers += [(1, name, spec) for name, spec in FORMS.items()]
    total = {}
    for count, name, spec in layers:
        if args.layers not in name:
            continue
        command = [args.binary, "--layer", spec, "--threads", str(args.threads), "--rounds", str(args.rounds)]
        ours = [json.loads(line) for line in subprocess.run(
            command, check=True, capture_output=True, text=True).stdout.splitlines()]
        theirs = None if args.alone else peer(spec, args.rounds, args.threads)
        for row in ours:
            if row["kernel"] == "none":
                print(f"{name:28} {row['op']:17} no kernel: runs as simpler nodes", flush=True)
                continue
            other = theirs[DIRECTION[row["op"]]] if theirs else math.nan
            sums = total.setdefault(row["op"], [0.0, 0.0])
            sums[0] += count * row["ms"]
            sums[1] += count * other
            print(f"{name:28} {row['op']:17} {row['kernel']:18} {row['ms']:8.2f} {other:8.2f} "
                  f"x{other / row['ms']:5.2f} {row['gflops']:7.1f} GF/s {share(row['of_peak']):>3} % "
                  f"{row['workspace_mb']:6.1f} MiB", flush=True)
    for op, (mine, other) in total.items():
        print(f"all layers                   {op:17} {mine:10.1f} ms {other:10.1f} ms x{other / mine:5.2f}")


if __name__ == "__main__":
    main()
