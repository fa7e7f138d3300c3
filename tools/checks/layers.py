# Layers: every #include arrow between folders must stand in tools/layers.txt; no file asks which backends there are.
import fnmatch
import re

from checks.files import ROOT, cxx, includes, rows, text, tracked

ASKS_FOR_CUDA = ()


def table():
    """Rows of tools/layers.txt as (folder, file pattern, allowed folders), longest folder first."""
    parsed = []
    for row in rows("tools/layers.txt"):
        left, allowed = row.split(":", 1)
        folder, _, pattern = left.strip().partition(" ")
        parsed.append((folder, pattern.strip() or "*", allowed.split()))
    return sorted(parsed, key=lambda row: -len(row[0]))


def inside(path, folder):
    return path.startswith(folder + "/")


def folder_of(path, folders):
    return next((folder for folder in folders if inside(path, folder)), None)


def allowed_from(path, layers):
    """The rows of the most specific folder that holds the path, joined."""
    folder = folder_of(path, [row[0] for row in layers])
    allowed = [folder]
    for row_folder, pattern, names in layers:
        # A special row of an outer folder (ops *_cpu.cc) holds for its inner folders as well.
        outer = pattern != "*" and inside(path, row_folder)
        if (row_folder == folder or outer) and fnmatch.fnmatch(path, pattern):
            allowed += names
    return folder, allowed


def run():
    layers = table()
    folders = [row[0] for row in layers]
    wrong = []
    for name in cxx():
        path = name.removeprefix("src/")
        folder, allowed = allowed_from(path, layers)
        if folder is None:
            if name.startswith("src/"):
                wrong.append(f"{name}:1: this folder has no row in tools/layers.txt")
            continue
        for line, delimiter, target in includes(name):
            if delimiter == "<" or not ((ROOT / "src" / target).exists() or (ROOT / target).exists()):
                continue
            other = folder_of(target, folders)
            is_test = name.endswith(("_test.cc", "_bench.cc", "_fuzz.cc"))
            if other == folder or "all" in allowed or (other == "tests" and is_test):
                continue
            if not any(inside(target, one) for one in allowed):
                wrong.append(f"{name}:{line}: {folder} may not include {target} (allowed: {' '.join(allowed[1:])})")
    for name in tracked():
        if name.startswith("src/") and re.search(r"TRIREME_CUDA\b", text(name)) and name not in ASKS_FOR_CUDA:
            wrong.append(f"{name}:1: name the file toolkit_* instead of asking for TRIREME_CUDA")
    return wrong
