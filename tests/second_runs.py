# tools/run_tests.py --second-runs: what passes when it runs once more is UNSTEADY, and nothing else is excused.
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from _checks import check, finish

RUNNER = Path(__file__).resolve().parent.parent / "tools/run_tests.py"
ONCE = "import pathlib, sys\nhere = pathlib.Path(__file__ + '.ran')\nfirst = not here.exists()\nhere.touch()\n"
JOURNEYS = {
    "steady": "print('2 passed, 0 failed, 1 skipped')",
    "unsteady": ONCE + "print(f'{3 - first} passed, {int(first)} failed, 0 skipped')\nsys.exit(first)",
    "broken": "import sys\nprint('1 passed, 1 failed, 0 skipped')\nsys.exit(1)",
    "raises": ONCE + "assert not first\nprint('1 passed, 0 failed, 0 skipped')",
    "crashes": ONCE + "import os\nif first: os.abort()\nprint('1 passed, 0 failed, 0 skipped')",
    "hangs": "# timeout: 1\n" + ONCE + "import time\nif first: time.sleep(60)\nprint('1 passed, 0 failed, 0 skipped')",
}
BINARY = """#!/usr/bin/env python3
import json, pathlib, sys
words = dict(word.split("=", 1) for word in sys.argv[1:])
first = "--gtest_filter" not in words
case = lambda name, bad: {"classname": "Suite", "name": name, "status": "RUN", "failures": ["no"] if bad else []}
cases = [case("Good", False)] * first + [case("Bad", first)]
pathlib.Path(words["--gtest_output"].split(":", 1)[1]).write_text(json.dumps({"testsuites": [{"testsuite": cases}]}))
assert first or words["--gtest_filter"] == "Suite.Bad"
sys.exit(first)
"""


def outcome(names, second_runs, binary=False):
    """(exit code, last line, names after UNSTEADY) of a run over such journeys in a tree of their own."""
    with tempfile.TemporaryDirectory() as room:
        room = Path(room)
        for folder in ("tools", "tests", "build"):
            (room / folder).mkdir()
        shutil.copy(RUNNER, room / "tools")
        for name in names:
            (room / f"tests/{name}.py").write_text(JOURNEYS[name])
        if binary:
            (room / "build/test_suite").write_text(BINARY)
            (room / "build/test_suite").chmod(0o755)
        done = subprocess.run([sys.executable, room / "tools/run_tests.py", "--build", "build", "--second-runs",
                               str(second_runs)], stdout=subprocess.PIPE, text=True, env=os.environ)
        lines = done.stdout.splitlines()
        said = [line.split(":")[0].removeprefix("UNSTEADY ") for line in lines if line.startswith("UNSTEADY ")]
        return done.returncode, lines[-1], said


def main():
    for what, got, want in (
            ("without the option it fails", outcome(["steady", "unsteady"], 0),
             (1, "4 passed, 1 failed, 1 skipped", [])),
            ("it passes when it runs once more", outcome(["steady", "unsteady"], 2),
             (0, "5 passed, 0 failed, 1 skipped", ["tests/unsteady.py"])),
            ("an exception is a failure like others", outcome(["raises"], 2),
             (0, "1 passed, 0 failed, 0 skipped", ["tests/raises.py"])),
            ("what fails twice fails", outcome(["broken"], 2), (1, "1 passed, 1 failed, 0 skipped", [])),
            ("one that is excused excuses no other", outcome(["broken", "unsteady"], 2),
             (1, "4 passed, 1 failed, 0 skipped", ["tests/unsteady.py"])),
            ("more failures than second runs", outcome(["raises", "unsteady"], 1),
             (1, "2 passed, 2 failed, 0 skipped", [])),
            ("a crash is not run again", outcome(["crashes"], 2), (1, "0 passed, 1 failed, 0 skipped", [])),
            ("a hang is not run again", outcome(["hangs"], 2), (1, "0 passed, 1 failed, 0 skipped", [])),
            ("of a binary the failed cases are", outcome([], 2, binary=True),
             (0, "2 passed, 0 failed, 0 skipped", ["test_suite Suite.Bad"]))):
        check(what, got == want, f"{got}, not {want}")
    finish()


main()
