# Packs programs of the cuda build with the libraries that a machine with a GPU may lack.
import json
import lzma
import pathlib
import shutil
import subprocess
import tarfile

from gpu import device_tests, traced

PROGRAMS = ["trireme", "test_backend_cuda", "test_ops", "test_runtime", "test_engine", "test_comm", "bench_train"]
# Of the machine itself: libc and the compiler's libraries fit newer systems; the driver and NVIDIA's come from there.
FROM_THE_MACHINE = ("linux-vdso", "ld-linux", "libc.so", "libm.so", "libpthread", "libdl", "librt", "libcuda",
                    "libcublas", "libcudnn", "libnccl", "libnvrtc", "libgcc_s", "libstdc++")
MOST_BYTES = 48 << 20  # as a compressed file
# Most of each program is the same library and the same device code: a window that spans several programs finds it.
SHARED = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 4, "dict_size": 512 << 20}]


def libraries(program):
    """Shared libraries that the program needs, all the way down, by path."""
    found = {}
    for line in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow and rest.startswith("/") and not name.startswith(FROM_THE_MACHINE):
            found[name] = pathlib.Path(rest.split(" (")[0]).resolve()
    return found


def commit(root):
    described = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return described.stdout.strip()


def pack(root, options):
    build = options.build or root / "build/cuda"
    if options.build is None:
        subprocess.run([root / "dev", "build", "cuda", *PROGRAMS], check=True)
    bundle = options.bundle
    shutil.rmtree(bundle, ignore_errors=True)
    (bundle / "tree/bin").mkdir(parents=True)
    (bundle / "tree/lib").mkdir()
    for name in PROGRAMS:
        subprocess.run(["strip", "-o", bundle / "tree/bin" / name, build / name], check=True)
        for library, path in libraries(build / name).items():
            if not (bundle / "tree/lib" / library).exists():
                subprocess.run(["strip", "--strip-unneeded", "-o", bundle / "tree/lib" / library, path], check=True)
    if not traced.build(bundle / "tree/lib"):
        print("no CUPTI: the check will count kernels by ncu")
    (bundle / "tree/commit").write_text(commit(root))
    (bundle / "tree/suites.json").write_text(json.dumps(device_tests.device_suites(root)))
    with (lzma.open(bundle / "programs.tar.xz", "w", filters=SHARED) as file,
          tarfile.open(fileobj=file, mode="w") as archive):
        archive.add(bundle / "tree", arcname=".")
    shutil.rmtree(bundle / "tree")
    size = (bundle / "programs.tar.xz").stat().st_size
    print(f"{bundle / 'programs.tar.xz'}: {size / 2**20:.1f} MiB")
    if size > MOST_BYTES:
        print(f"more than {MOST_BYTES >> 20} MiB: build for one architecture (-DCMAKE_CUDA_ARCHITECTURES=90)")
        return 1
    return 0


def unpack(bundle, to):
    with tarfile.open(bundle / "programs.tar.xz") as archive:
        archive.extractall(to)
    return (to / "commit").read_text()
