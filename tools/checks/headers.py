# Lone headers: each header compiles alone. What compiled before and did not change is not compiled again.
import hashlib
import json
import os
import re
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor

from checks.files import ROOT, cxx, includes, text

CACHE = ROOT / "build/lone_headers.json"


def flags():
    """The release build's flags for our library, without its file names and the headers that are compiled before."""
    for entry in json.loads((ROOT / "build/release/compile_commands.json").read_text()):
        if "trireme_core" not in entry["command"]:
            continue
        words = shlex.split(entry["command"])
        compiler = next(at for at, word in enumerate(words) if re.search(r"\+\+(-\d+)?$", word))
        words = words[compiler:words.index("-o")]
        while "-include" in words:
            at = words.index("-include")
            del words[at:at + 2]
        return [word for word in words if word != "-Winvalid-pch"] + ["-I", str(ROOT)]
    raise SystemExit("build/release/compile_commands.json does not name trireme_core")


def closure(name, seen):
    """The header and every file of ours that it includes."""
    if name in seen:
        return seen
    seen.add(name)
    for _, _, target in includes(name):
        for candidate in (f"src/{target}", target):
            if (ROOT / candidate).is_file():
                closure(candidate, seen)
    return seen


def key(name, command):
    digest = hashlib.sha256(" ".join(command).encode())
    for one in sorted(closure(name, set())):
        digest.update(text(one).encode())
    return digest.hexdigest()


def compile_alone(name, command):
    """Gives the first error, or nothing. A main file may not say #pragma once, so a stand-in includes it."""
    done = subprocess.run([*command, "-fsyntax-only", "-x", "c++", "-"], input=f'#include "{name}"\n', cwd=ROOT,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode == 0:
        return None
    errors = [line for line in done.stdout.splitlines() if "error" in line]
    return errors[0].replace(f"{ROOT}/", "") if errors else done.stdout[:200]


def run():
    if not (ROOT / "build/release/compile_commands.json").exists():
        return "no release build"
    command = flags()
    headers = [name for name in cxx() if name.endswith(".h")]
    known = set(json.loads(CACHE.read_text())) if CACHE.exists() else set()
    keys = {name: key(name, command) for name in headers}
    due = [name for name in headers if keys[name] not in known]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        errors = dict(zip(due, pool.map(lambda name: compile_alone(name, command), due)))
    CACHE.write_text(json.dumps(sorted(keys[name] for name in headers if not errors.get(name))))
    return [f"{name}:1: does not compile alone: {error}" for name, error in errors.items() if error]
