# Asks the built program for the tables and pages that it generates.
import subprocess

from checks.files import ROOT

PROGRAM = ROOT / "build/release/trireme"


def ask(*words):
    return subprocess.run([PROGRAM, *words], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def has_verb(verb):
    """True when the program is built and its help lists the verb at the start of a line."""
    if not PROGRAM.exists():
        return False
    return any(line.split()[:1] == [verb] or line.split()[:2] == ["trireme", verb]
               for line in ask("help").stdout.splitlines())
