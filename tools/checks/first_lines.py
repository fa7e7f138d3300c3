# First lines: each source file opens with a comment that says what it is for; counts comments as a hint.
from checks.files import cxx, text, tracked


def run():
    wrong = []
    for name in tracked():
        if not text(name).strip():
            continue
        lines = text(name).splitlines()
        if name.endswith((".cc", ".h", ".cu", ".cuh")):
            comment = lines[0].startswith("// ") and len(lines[0]) > 12
        elif name.endswith((".py", ".sh", ".cmake")) or name in ("dev", ".ci/run", "CMakeLists.txt"):
            first = lines[1] if lines[0].startswith("#!") and len(lines) > 1 else lines[0]
            comment = (first.startswith("# ") and len(first) > 12) or first.startswith('"""')
        else:
            continue
        if not comment:
            wrong.append(f"{name}:1: the first line should say what the file is for")
    return wrong + thin_comments()


def thin_comments():
    """Fails only far below the aim of 12-20 %: a file of 150 lines and more with less than 3 %."""
    wrong = []
    for name in cxx():
        lines = [line.strip() for line in text(name).splitlines() if line.strip()]
        comments = sum(line.startswith("//") or " // " in line for line in lines)
        if len(lines) >= 150 and comments < 0.03 * len(lines) and not name.endswith(("_test.cc", "_bench.cc")):
            wrong.append(f"{name}:1: {comments} comment lines in {len(lines)}: say why, units, shapes, invariants")
    return wrong
