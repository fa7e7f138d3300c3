# Headers: third-party headers stay in sources, unless tools/third_party.txt names the place and the reason.
import fnmatch

from checks.files import ROOT, cxx, includes, rows, text

POSIX = {"unistd.h", "fcntl.h", "poll.h", "pthread.h", "sched.h", "signal.h", "dirent.h", "dlfcn.h", "immintrin.h",
         "cpuid.h", "ucontext.h", "x86intrin.h", "stdint.h", "stddef.h", "sys/", "linux/", "netinet/", "arpa/", "netdb.h"}


def is_standard(target):
    if "." not in target and "/" not in target:
        return True  # <vector>, <cstdint>
    return any(target == one or (one.endswith("/") and target.startswith(one)) for one in POSIX)


def permits():
    """(where, header prefix) pairs."""
    return [tuple(row.split()[:2]) for row in rows("tools/third_party.txt")]


def permitted(name, target):
    return any((fnmatch.fnmatch(name, where) or name.startswith(where)) and target.startswith(prefix)
               for where, prefix in permits())


def run():
    wrong = []
    for name in cxx():
        if not name.endswith((".h", ".cuh")):
            continue
        for line, _, target in includes(name):
            ours = (ROOT / "src" / target).exists() or (ROOT / target).exists()
            if not ours and not is_standard(target) and not permitted(name, target):
                wrong.append(f"{name}:{line}: third-party header {target} in a header; move it to the .cc")
        if "#pragma once" not in text(name) and not name.endswith("inl.h"):
            wrong.append(f"{name}:1: no #pragma once")
    return wrong
