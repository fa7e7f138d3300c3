# Sizes: limits on functions, files, headers, lines, parameters, members of a class and C++ files of a folder.
# tools/exceptions.txt lists who may pass, and why.
from collections import Counter

from checks.files import cxx, rows, text, tracked
from checks.source_scan import classes, scan

LIMITS = {"function": 80, "file": 800, "header": 200, "line": 110, "parameters": 5, "class": 40, "folder": 40}


def exceptions():
    """{(file or file:function, limit): value}; a row without a reason is an error."""
    allowed, wrong = {}, []
    for row in rows("tools/exceptions.txt"):
        words = row.split(None, 3)
        if len(words) < 4 or words[1] not in LIMITS or not words[2].isdigit():
            wrong.append(f"tools/exceptions.txt:1: want `path[:function] limit value reason`, got: {row}")
        else:
            allowed[words[0], words[1]] = int(words[2])
    return allowed, wrong


def measured(name):
    """Yields (key for exceptions, line, limit, value) of everything over its limit in a file."""
    lines = text(name).splitlines()
    if len(lines) > LIMITS["file"]:
        yield name, 1, "file", len(lines)
    if name.endswith((".h", ".cuh")) and len(lines) > LIMITS["header"]:
        yield name, 1, "header", len(lines)
    for number, line in enumerate(lines, 1):
        if len(line) > LIMITS["line"]:
            yield name, number, "line", len(line)
    for function in scan(text(name)):
        key = f"{name}:{function.name}"
        if function.lines > LIMITS["function"]:
            yield key, function.line, "function", function.lines
        if function.parameters > LIMITS["parameters"]:
            yield key, function.line, "parameters", function.parameters
    for class_name, line, members in classes(text(name)):
        if members > LIMITS["class"]:
            yield f"{name}:{class_name}", line, "class", members


def crowded(names):
    """Yields (folder, line, limit, value) of every folder with too many C++ files directly in it."""
    for folder, count in Counter(name.rpartition("/")[0] for name in names).items():
        if count > LIMITS["folder"]:
            yield folder, 1, "folder", count


def run():
    allowed, wrong = exceptions()
    used = set()
    found = [(name, *one) for name in cxx() for one in measured(name)]
    found += [(folder, folder, *rest) for folder, *rest in crowded(cxx())]
    for name, key, line, limit, value in found:
        ceiling = allowed.get((key, limit), LIMITS[limit])
        used.add((key, limit))
        if value > ceiling:
            what = key if key != name else limit
            wrong.append(f"{name}:{line}: {what}: {limit} {value}, limit {ceiling}")
    for key, limit in allowed.keys() - used:
        wrong.append(f"tools/exceptions.txt:1: {key} {limit} is not needed any more")
    for name in tracked():
        if name.endswith((".py", ".sh", ".cmake", "dev")) and not name.startswith("docs/"):
            for number, line in enumerate(text(name).splitlines(), 1):
                if len(line) > 120 and not line.lstrip().startswith(('"', "'")):  # test strings may be long
                    wrong.append(f"{name}:{number}: line {len(line)}, limit 120")
    return wrong
