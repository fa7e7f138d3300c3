# Format: clang-format 14 has nothing to change; ./dev fmt mends it.
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

from checks.files import ROOT, cxx


def unformatted(names):
    done = subprocess.run(["clang-format-14", "--dry-run", "--ferror-limit=1", *names], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return re.findall(r"^([^:\n]+:\d+):\d+: warning", done.stdout, re.M)


def run():
    names = cxx()
    chunks = [names[start:start + 16] for start in range(0, len(names), 16)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return [f"{place}: not formatted; run ./dev fmt" for found in pool.map(unformatted, chunks) for place in found]
