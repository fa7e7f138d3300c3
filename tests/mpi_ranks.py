# The conformance suite of communicators on MPI ranks, two to four processes on this machine.
# timeout: 240
import sys

import _ranks


def main():
    reason = _ranks.why_no_mpi()
    if reason:
        print(f"skipped: {reason}")
        print("0 passed, 0 failed, 1 skipped")
        return
    passed = failed = 0
    for ranks in (2, 3, 4):
        code, output = _ranks.run(ranks, [_ranks.TEST_COMM, "--gtest_filter=Mpi/*", "--gtest_color=no"])
        good, bad = _ranks.conformance(ranks, code, output)
        print(f"{ranks} ranks: {good} cases passed, {bad} failed")
        if bad:
            print(output[-8000:])
        passed += good
        failed += bad
    print(f"{passed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


main()
