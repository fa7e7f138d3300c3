# Runs the checks of tools/checks: `check.py [name...]`. Each prints what is wrong as file:line: message.
#
# A check is a module with run() -> list of messages, or a string: the reason why it cannot run yet (a skip).
import importlib
import sys
import time

CHECKS = ["layers", "sizes", "first_lines", "module_names", "includes", "leaks", "format", "headers", "ops_table",
          "op_names", "folders", "generated", "empty_tests", "figures", "onnx"]


def main():
    wanted = sys.argv[1:] or CHECKS
    unknown = [name for name in wanted if name not in CHECKS]
    if unknown:
        sys.exit(f"unknown check {unknown[0]}; there are {' '.join(CHECKS)}")
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name in wanted:
        start = time.monotonic()
        found = importlib.import_module(f"checks.{name}").run()
        seconds = time.monotonic() - start
        outcome = "skipped" if isinstance(found, str) else "failed" if found else "passed"
        counts[outcome] += 1
        print(f"{name:12} {outcome} {seconds:6.1f} s{'  ' + found if isinstance(found, str) else ''}", flush=True)
        for message in [] if isinstance(found, str) else found:
            print(f"  {message}", flush=True)
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    sys.exit(1 if counts["failed"] else 0)


main()
