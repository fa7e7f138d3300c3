# Lone headers: each header compiles alone. What compiled before and did not change is not compiled again.
#
# Most of a header's time goes into the same few others, so the most shared ones are compiled once and read from there
# (precompiled). A header is given only what it includes itself, directly or through others, and those are judged alone
# as well: it sees what it would see without them.
import hashlib
import heapq
import json
import os
import re
import shlex
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from checks.files import ROOT, cxx, includes, text

CACHE = ROOT / "build/lone_headers.json"
MOST_SHARED = 24  # each takes seconds and some 60 MB while the check runs
USERS = 12  # a header with fewer users is not worth being compiled once more


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


def closure(name, known):
    """The header and everything that it includes, directly or through others: names of ours, <names> of others."""
    if name in known:
        return known[name]
    found = known[name] = {name}
    for _, _, target in includes(name):
        ours = [one for one in (f"src/{target}", target) if (ROOT / one).is_file()]
        found |= closure(ours[0], known) if ours else {f"<{target}>"}
    return found


def key(files, command):
    digest = hashlib.sha256(" ".join(command).encode())
    for one in sorted(files):
        digest.update(one.encode() if one.startswith("<") else text(one).encode())
    return digest.hexdigest()


def most_shared(due, closures):
    """What each of those due is given precompiled: of the few sets of headers that they have in common most. A set is
    what one of our headers includes, or the part of it that is not ours."""
    bit = {name: 1 << at for at, name in enumerate(sorted(set().union(*closures.values())))}
    foreign = sum(one for name, one in bit.items() if name.startswith("<"))
    held = {name: sum(bit[one] for one in files) for name, files in closures.items()}
    users = {}
    for candidate in {*held.values(), *(files & foreign for files in held.values())}:
        names = [name for name in due if candidate & ~held[name] == 0 and candidate != held[name]]
        if len(names) >= USERS:
            users[candidate] = names
    given = dict.fromkeys(due, 0)

    def gain(files):
        return sum(max(0, files.bit_count() - given[name].bit_count()) for name in users[files])

    queue = sorted((-gain(files), files) for files in users)
    chosen = 0
    while queue and chosen < MOST_SHARED:
        gained, files = heapq.heappop(queue)
        now = -gain(files)  # what was chosen since can only have lowered it
        if gained < now < 0:
            heapq.heappush(queue, (now, files))
        elif now < 0:
            chosen += 1
            for name in users[files]:
                given[name] = max(given[name], files, key=int.bit_count)
    return {name: frozenset(one for one in closures[name] if bit[one] & files) for name, files in given.items()}


def precompile(files, at, folder, command):
    """Gives a header that includes these and is read precompiled, or nothing where they do not compile."""
    stand_in = folder / f"shared{at}.h"
    stand_in.write_text("".join(f"#include {one if one[0] == '<' else json.dumps(one)}\n" for one in sorted(files)))
    done = subprocess.run([*command, "-x", "c++-header", stand_in, "-o", f"{stand_in}.gch"], cwd=ROOT,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return stand_in if done.returncode == 0 else None


def compile_alone(name, given, command):
    """Gives the first error, or nothing. A main file may not say #pragma once, so a stand-in includes it."""
    before = ["-include", given] if given else []
    done = subprocess.run([*command, *before, "-fsyntax-only", "-x", "c++", "-"], input=f'#include "{name}"\n',
                          cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
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
    closures = {}
    keys = {name: key(closure(name, closures), command) for name in headers}
    due = [name for name in headers if keys[name] not in known]
    given = most_shared(due, closures) if len(due) > USERS else dict.fromkeys(due, frozenset())
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool, tempfile.TemporaryDirectory() as folder:
        shared = sorted(filter(None, set(given.values())), key=sorted)
        stand_ins = dict(zip(shared, pool.map(lambda files, at: precompile(files, at, Path(folder), command), shared,
                                              range(len(shared)))))
        errors = dict(zip(due, pool.map(lambda name: compile_alone(name, stand_ins.get(given[name]), command), due)))
    CACHE.write_text(json.dumps(sorted(keys[name] for name in headers if not errors.get(name))))
    return [f"{name}:1: does not compile alone: {error}" for name, error in errors.items() if error]
