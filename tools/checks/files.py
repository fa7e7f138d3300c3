# The files that checks look at, and small readers they share.
import re
import subprocess
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CXX = (".cc", ".h", ".cu", ".cuh", ".inc")


@lru_cache(maxsize=None)
def tracked():
    """Relative paths of the files in git and of new files that git does not ignore."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, text=True,
                           stdout=subprocess.PIPE).stdout.splitlines()
    return [name for name in sorted(set(names)) if (ROOT / name).is_file()]


def cxx():
    return [name for name in tracked() if name.endswith(CXX)]


@lru_cache(maxsize=None)
def text(name):
    return (ROOT / name).read_text(errors="replace")


def rows(name):
    """Lines of a table file without comments and blanks."""
    lines = (line.strip() for line in text(name).splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def includes(name):
    """(line, delimiter, path) of every #include."""
    pattern = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
    for number, line in enumerate(text(name).splitlines(), 1):
        match = pattern.match(line)
        if match:
            yield number, match[1], match[2]
