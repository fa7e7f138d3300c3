# Journeys of many single checks: what is not as it should be is said and counted, and the journey goes on.
import subprocess
import sys

from _serving import TRIREME

passed, failures, skips = 0, [], []


def check(what, ok, detail=""):
    global passed
    passed += bool(ok)
    if not ok:
        failures.append(f"{what}: {detail}"[:2000])
        print("FAILED", failures[-1], flush=True)


def skip(why):
    skips.append(why)
    print("skipped:", why, flush=True)


def trireme(*words, code=0):
    """Runs the program and checks how it ends; gives what it wrote, with its errors where it is to fail."""
    done = subprocess.run([TRIREME, *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    check("exit code of " + " ".join(map(str, words))[:150], done.returncode == code,
          f"{done.returncode}, want {code}: {done.stderr[-800:]}")
    return done.stdout + (done.stderr if code else "")


def finish():
    print(f"{passed} passed, {len(failures)} failed, {len(skips)} skipped")
    sys.exit(1 if failures else 0)
