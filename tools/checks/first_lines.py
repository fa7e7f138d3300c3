# First lines: each source file opens with a comment that says what it is for.
from checks.files import text, tracked


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
    return wrong
