# Folders: each folder of sources says in a README.md what belongs there and what does not, and names only what exists.
import re

from checks.files import ROOT, text, tracked

SOURCES = (".cc", ".h", ".cu", ".cuh", ".inc", ".proto")
MOST_LINES = 15


def folders():
    return sorted({name.rpartition("/")[0] for name in tracked() if name.startswith("src/") and name.endswith(SOURCES)})


def unknown_names(folder, words):
    """Names in backticks without wildcards that are no file or folder beside the page, above it or below it."""
    places = [ROOT / folder, *(ROOT / folder).parents][:len(folder.split("/")) + 1]
    for name in re.findall(r"`([^`]+)`", words):
        if re.fullmatch(r"\w[\w./-]*", name) and not any((place / name).exists() for place in places):
            yield name


def complaints(folder, words):
    """What is wrong with a folder's page; `words` is None if it has none."""
    page = f"{folder}/README.md"
    if words is None:
        return [f"{folder}:1: no README.md says what belongs into this folder"]
    lines = words.splitlines()
    wrong = []
    if lines[:1] != [f"# {folder}"]:
        wrong.append(f"{page}:1: the first line should be `# {folder}`")
    if not 3 <= len(lines) <= MOST_LINES:
        wrong.append(f"{page}:1: {len(lines)} lines, between 3 and {MOST_LINES} are wanted")
    return wrong + [f"{page}:1: there is no `{name}` here" for name in unknown_names(folder, words)]


def run():
    pages = {folder: f"{folder}/README.md" for folder in folders()}
    return [message for folder, page in pages.items()
            for message in complaints(folder, text(page) if (ROOT / page).is_file() else None)]
