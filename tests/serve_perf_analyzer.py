# NVIDIA's perf_analyzer against the server: concurrency and request rate, HTTP and gRPC, streams, sequences, strings.
# tier: all
# timeout: 300
# `./dev test --all` installs it below .venv; without it each case is skipped.
import csv
import os
import shutil
import subprocess
from pathlib import Path

import _triton_models as models
from _serving import ROOT, Server, Skip, run_cases, temporary

HOME = Path(os.environ.get("TRIREME_PERF_ANALYZER", ROOT / ".venv" / "perf_analyzer"))
PROGRAM = HOME / "bin" / "perf_analyzer"
repository = temporary()
models.add_seven(repository)
models.add_repeat(repository)
server = None


def analyze(model, protocol, *options):
    """Runs it with short windows; gives the rows of its table, one for each load."""
    table = repository / "table.csv"
    table.unlink(missing_ok=True)
    address = server.address if protocol == "http" else server.grpc_address
    environment = dict(os.environ, LD_LIBRARY_PATH=str(HOME / "nvidia" / "cuda_runtime" / "lib"))
    done = subprocess.run([PROGRAM, "-m", model, "-u", address, "-i", protocol, "-p", "300", "-r", "3",
                           "--stability-percentage", "999", "-f", table, *options],
                          capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-500:]
    rows = list(csv.DictReader(table.open()))
    assert rows and all(float(row["Inferences/Second"]) > 0 for row in rows), rows
    assert all(float(row["p99 latency"]) >= float(row["p50 latency"]) > 0 for row in rows), rows
    # Its differences of our statistics: the server's part is no longer than the whole.
    parts = ("Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output")
    assert all(0 <= float(row[part]) <= float(row["p99 latency"]) for row in rows for part in parts), rows
    return rows


def concurrency():
    for protocol in ("http", "grpc"):
        rows = analyze("simple", protocol, "--concurrency-range", "1:3:2", "-b", "2")
        assert sorted(row["Concurrency"] for row in rows) == ["1", "3"], rows
    analyze("simple", "grpc", "--async", "--concurrency-range", "2")
    analyze("simple", "grpc", "--streaming", "--concurrency-range", "2")


def request_rate():
    for protocol in ("http", "grpc"):
        for distribution in ("constant", "poisson"):
            rows = analyze("simple", protocol, "--request-rate-range", "40", "--request-distribution", distribution,
                           "-p", "1000")
            assert abs(float(rows[0]["Inferences/Second"]) - 40) < 25, rows


def shared_memory():
    for protocol in ("http", "grpc"):
        analyze("simple", protocol, "--shared-memory", "system", "--concurrency-range", "2")


def models_of_every_kind():
    analyze("simple_string", "http", "--string-data", "7")
    analyze("simple_identity", "grpc", "--shape", "INPUT0:3", "--string-length", "40")
    analyze("simple_sequence", "grpc", "--streaming", "--num-of-sequences", "2", "--sequence-length", "5")
    analyze("simple_dyna_sequence", "http", "--sequence-length", "5")
    analyze("repeat_int32", "grpc", "--streaming", "--shape", "IN:3", "--shape", "DELAY:3")


def can_run():
    if not PROGRAM.exists():
        raise Skip("perf_analyzer is not installed (./dev test --all installs it)")
    environment = dict(os.environ, LD_LIBRARY_PATH=str(HOME / "nvidia" / "cuda_runtime" / "lib"))
    done = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise Skip("perf_analyzer does not start: " + done.stderr.strip()[-120:])


CASES = [concurrency, request_rate, shared_memory, models_of_every_kind]
try:
    can_run()
    server = Server(repository, "--threads", "2", "--allow-client-shm")
except Skip as reason:
    run_cases([(case.__name__, lambda why=reason: (_ for _ in ()).throw(why)) for case in CASES])
try:
    run_cases([(case.__name__, case) for case in CASES])
finally:
    if server.process.poll() is None:
        server.stop()
    shutil.rmtree(repository, ignore_errors=True)
