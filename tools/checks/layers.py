# Layers: every #include arrow between rooms must stand in tools/layers.txt, whose arrows form no cycle; no file asks
# which backends there are.
import fnmatch
import re

from checks.files import ROOT, cxx, includes, rows, text, tracked

ASKS_FOR_CUDA = ()
TABLE = "tools/layers.txt"
TESTS = ("_test.cc", "_bench.cc", "_fuzz.cc")


def table():
    """Rows of tools/layers.txt as (folder, file pattern, allowed folders), longest folder first."""
    parsed = []
    for row in rows(TABLE):
        left, allowed = row.split(":", 1)
        folder, _, pattern = left.strip().partition(" ")
        parsed.append((folder, pattern.strip() or "*", allowed.split()))
    return sorted(parsed, key=lambda row: -len(row[0]))


def inside(path, folder):
    return path.startswith(folder + "/")


def folder_of(path, folders):
    return next((folder for folder in folders if inside(path, folder)), None)


def is_divided(folder, layers):
    """Whether the folder is several rooms: a row stands for one of its subfolders."""
    return any(inside(row[0], folder) for row in layers)


def names_for(room, path, layers):
    """What the rows say for a file of `room`: its own, and those of the folders around it."""
    for folder, pattern, names in layers:
        if folder != room and not inside(room, folder) or not fnmatch.fnmatch(path, pattern):
            continue
        for name in names:
            # The row of a divided folder opens its own rooms to the files directly in it.
            if folder == room or pattern != "*" or not (name == folder or inside(name, folder)):
                yield name


def means(name, room, target, layers):
    """Whether `name`, in a row that counts for `room`, allows the file `target`."""
    if inside(room, name) and is_divided(name, layers):
        return target.rpartition("/")[0] == name  # seen from its rooms, a divided folder is the files directly in it
    return inside(target, name)


def homeless(path, room, layers):
    """Why a file stands in no room, or None."""
    if room is None:
        return "this folder has no row in tools/layers.txt"
    if path.rpartition("/")[0] != room and is_divided(room, layers):
        return f"subfolders of {room} have rows in tools/layers.txt, this one has none"
    return None


def arrows(layers):
    """{room: rooms it may include}, of all files but tests, which nobody includes."""
    rooms = {row[0] for row in layers}
    found = {room: set() for room in rooms}
    for room in rooms:
        for folder, pattern, _ in layers:
            if (folder == room or inside(room, folder)) and not pattern.endswith(TESTS):
                for name in names_for(room, pattern, [row for row in layers if row[:2] == (folder, pattern)]):
                    found[room] |= {other for other in rooms if means(name, room, other + "/x", layers)} - {room}
    return found


def outermost(arrows_):
    """The same arrows between whole folders."""
    def whole(room):
        return min((one for one in arrows_ if room == one or inside(room, one)), key=len)

    found = {whole(room): set() for room in arrows_}
    for room, others in arrows_.items():
        found[whole(room)] |= {whole(other) for other in others} - {whole(room)}
    return found


def cycle(arrows_):
    """One cycle as a list of rooms, the first again at its end; or None."""
    done, path = set(), []

    def visit(room):
        if room in path:
            return path[path.index(room):] + [room]
        if room in done:
            return None
        path.append(room)
        for other in sorted(arrows_[room]):
            found = visit(other)
            if found:
                return found
        done.add(path.pop())
        return None

    return next((found for found in map(visit, sorted(arrows_)) if found), None)


def wrong_table(layers):
    rooms = {row[0] for row in layers}
    for folder, _, names in layers:
        for name in names:
            if name != "all" and name not in rooms:
                yield f"{TABLE}:1: {folder} names {name}, which has no row"
    between = arrows(layers)
    found = cycle(between) or cycle(outermost(between))
    if found:
        yield f"{TABLE}:1: cycle: {' -> '.join(found)}"


def wrong_includes(name, layers):
    path = name.removeprefix("src/")
    room = folder_of(path, [row[0] for row in layers])
    why = homeless(path, room, layers)
    if why and name.startswith("src/"):
        yield f"{name}:1: {why}"
    if why:
        return
    allowed = list(names_for(room, path, layers))
    for line, delimiter, target in includes(name):
        if delimiter == "<" or not ((ROOT / "src" / target).exists() or (ROOT / target).exists()):
            continue
        other = folder_of(target, [row[0] for row in layers])
        if other == room or "all" in allowed or (other == "tests" and name.endswith(TESTS)):
            continue
        if not any(means(one, room, target, layers) for one in allowed):
            yield f"{name}:{line}: {room} may not include {target} (allowed: {' '.join(allowed)})"


def run():
    layers = table()
    wrong = list(wrong_table(layers))
    for name in cxx():
        wrong += wrong_includes(name, layers)
    for name in tracked():
        if name.startswith("src/") and re.search(r"TRIREME_CUDA\b", text(name)) and name not in ASKS_FOR_CUDA:
            wrong.append(f"{name}:1: name the file toolkit_* instead of asking for TRIREME_CUDA")
    return wrong
