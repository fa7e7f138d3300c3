# Runs the tests of device code, suite by suite, each in a process of its own: a kernel that faults takes the GPU away
# from its process, and would make every test behind it fail too. What failed is run again by itself.
import concurrent.futures
import json
import os
import re
import shutil

# Programs, which of their suites are the device's, and what their environment says.
PROGRAMS = [("test_ops", "*Cuda*", {}), ("test_backend_cuda", "*", {}), ("test_runtime", "*Cuda*:*Device*", {}),
            ("test_comm", "*Nccl*:Staged*", {}), ("test_engine", "*Cuda*:*Device*", {})]
SESSIONS = [("test_engine", "*Session*:*Precision*:*Generator*:*DataParallel*")]
MOST_AGAIN, MOST_SANITIZED = 48, 8


def suites_in(root, pattern):
    """Names of suites in the sources that lie beside the check."""
    found = set()
    for path in root.glob(f"src/{pattern}"):
        found |= set(re.findall(r"^(?:TYPED_)?TEST(?:_[PF])?\((\w+),", path.read_text(), re.MULTILINE))
    return found


def device_suites(root):
    """Suites of device code whose names do not say so, by program."""
    return {"test_ops": sorted(suites_in(root, "ops/**/*_cuda_test.cc")),
            "test_runtime": sorted(suites_in(root, "runtime/*device*_test.cc"))}


def list_tests(check, program, only):
    """Full names of tests by suite; empty where the program is not there or does not start."""
    if not check.program(program).exists():
        check.verdict("tests", "skipped", program=program, why="the bundle does not have it")
        return {}
    listed = check.run([check.program(program), "--gtest_list_tests", f"--gtest_filter={only}"], 60)
    suites, suite = {}, None
    for line in listed.lines:
        name = line.split("#")[0].rstrip()
        if not line.startswith(" ") and name.endswith("."):
            suite = name
        elif suite is not None and line.startswith("  "):
            suites.setdefault(suite, []).append(suite + name.strip())
    if not suites and listed.code != 0:
        check.verdict("tests", "failed", program=program, why=listed.why())
    return suites


class Job:
    """Tests of one program that run in one process."""

    def __init__(self, program, tests, env, limit_s=90):
        self.program, self.tests, self.env, self.limit_s = program, tests, env, limit_s
        self.done, self.passed, self.skipped = None, set(), set()

    def run(self, check):
        command = [check.program(self.program), "--gtest_filter=" + ":".join(self.tests), "--gtest_brief=0"]
        self.done = check.run(command, self.limit_s, env={**check.env, **self.env})
        for line in self.done.lines:
            for mark, to in (("[       OK ] ", self.passed), ("[  SKIPPED ] ", self.skipped)):
                name = line.removeprefix(mark).split(" (")[0]
                if line.startswith(mark) and name in self.tests:
                    to.add(name)
        return self

    def failed(self):
        return [name for name in self.tests if name not in self.passed | self.skipped]

    def words(self, name):
        """What a test printed from its start on."""
        lines = self.done.lines
        start = next((i + 1 for i, line in enumerate(lines) if line == f"[ RUN      ] {name}"), len(lines))
        end = next((i for i in range(start, len(lines)) if lines[i].startswith("[  FAILED  ]")), len(lines))
        return ("\n".join(lines[start:end])[:1200] + " " + self.done.why(600)).strip()


def in_parallel(check, jobs):
    workers = max(1, min(6, (os.cpu_count() or 2) // 2))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for job in concurrent.futures.as_completed([pool.submit(job.run, check) for job in jobs]):
            yield job.result()


def run_jobs(check, part, jobs):
    """Counts, and names what fails by itself; what fails only behind others is told apart."""
    total = sum(len(job.tests) for job in jobs)
    failed, seen = [], {"passed": 0, "skipped": 0}
    for job in in_parallel(check, jobs):
        seen["passed"] += len(job.passed)
        seen["skipped"] += len(job.skipped)
        failed += [(name, job) for name in job.failed()]
        if job.failed():
            check.add(part, program=job.program, suite=job.tests[0].split(".")[0], failed_here=len(job.failed()),
                      why=job.done.why(400))
    env = {"CUDA_LAUNCH_BLOCKING": "1"}  # an error is then reported by the launch that caused it
    again = [Job(job.program, [name], {**job.env, **env}, 30) for name, job in failed[:MOST_AGAIN]]
    names = []
    for job in in_parallel(check, again):
        if job.failed():
            names.append(job.tests[0])
            check.add(part, test=job.tests[0], program=job.program, alone="failed", why=job.words(job.tests[0]))
        else:
            check.add(part, test=job.tests[0], program=job.program, alone="passed",
                      why="fails behind other tests of its suite only")
    check.counts["passed"] += seen["passed"]
    check.counts["skipped"] += seen["skipped"]
    check.counts["failed"] += len(failed)
    check.add(part, summary=f"{seen['passed']} of {total} passed, {seen['skipped']} skipped, {len(failed)} failed, "
              f"{len(names)} of {len(again)} also alone", failed=sorted(names))
    return [job for job in again if job.failed()]


def tests(check):
    """Every test of device code, with the kernels compiled for this GPU."""
    jobs = []
    packed = check.scratch / "suites.json"  # sources need not lie beside a bundle
    more = json.loads(packed.read_text()) if packed.exists() else device_suites(check.root)
    for program, only, env in PROGRAMS:
        only += "".join(f":*{suite}*" for suite in more.get(program, ()))
        jobs += [Job(program, names, env) for names in list_tests(check, program, only).values()]
    check.failing = run_jobs(check, "tests", jobs)


def sessions(check):
    """Sessions, decoding and training of the CPU's own tests, on the device: each by itself, for a few are long."""
    jobs = []
    # A CPU's rows never depend on their batch; a GPU's do not when it is asked for one order of sums.
    env = {"TRIREME_TEST_DEVICE": check.device, "TRIREME_CUDA_DETERMINISTIC": "1"}
    for program, only in SESSIONS:
        jobs += [Job(program, [name], env) for names in list_tests(check, program, only).values() for name in names]
    run_jobs(check, "sessions", jobs)


def sanitize(check):
    """Failing tests under the memory checker; where none failed, suites whose kernels index most."""
    tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if tool is None:
        return check.verdict("sanitize", "skipped", why="no compute-sanitizer")
    jobs = [(job.program, job.tests[0]) for job in getattr(check, "failing", [])[:MOST_SANITIZED]]
    jobs = jobs or [("test_ops", f"*{suite}*") for suite in ("Attention", "Paged", "Index", "Sample", "Optimizers")]
    for program, only in jobs:
        if check.left() < 15:
            return check.verdict("sanitize", "skipped", why="the budget is spent")
        done = check.run([tool, "--tool", "memcheck", "--print-limit", "3", "--error-exitcode", "9",
                          check.program(program), f"--gtest_filter={only}"], 60)
        found = [line for line in done.lines if line.startswith("=========") and line.strip("= ")]
        clean = any("ERROR SUMMARY: 0 errors" in line for line in found)
        check.verdict("sanitize", "passed" if clean else "skipped" if done.timed_out else "failed", tests=only,
                      why="" if clean else "\n".join(found[:30])[:2500] or done.why())
