# Files of rows against pyarrow, numpy, json and csv; and through a real server of S3: written, read, slowed, killed.
# tier: all
# timeout: 300
# `./dev test --all` installs the server below .venv; without it the cases that need it are skipped.
import base64
import csv
import datetime
import decimal
import gzip
import io
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tarfile
import threading
import time

import numpy
from _batch import Job
from _s3 import S3
from _serving import ROOT, run_cases, temporary

TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))
folder = temporary()
rng = random.Random(7)
WORDS = ["sail", "oar", "ä", "quote \" here", "comma, there", "line\nbreak", "🚣", "{\"json\": 1}", "", "last"]


def rows(path, *words, environment=None, code=0):
    """What `trireme data rows --json` says of one path."""
    done = subprocess.run([TRIREME, "data", "rows", str(path), "--json", *map(str, words)], capture_output=True,
                          text=True, timeout=120, env=dict(os.environ, **(environment or {})))
    assert done.returncode == code, (path, done.returncode, done.stderr[-800:])
    return json.loads(done.stdout) if done.stdout else done.stderr


def convert(source, target, *words, **options):
    said = rows(source, "--write", target, "--span-rows", 97, *words, **options)
    assert said["written"]["rows"] == sum(f["rows"] - f["failed"] for f in said["files"]), said["written"]
    return said


def lines_of(path):
    opened = gzip.open(path, "rt") if str(path).endswith(".gz") else open(path)
    with opened as file:
        return [json.loads(line) for line in file.read().split("\n") if line]


def table(count):
    import pyarrow
    missing = lambda make: [None if rng.random() < 0.1 else make() for _ in range(count)]  # noqa: E731
    small = lambda: rng.randrange(100)  # noqa: E731
    text = lambda: " ".join(rng.choices(WORDS, k=4))  # noqa: E731
    columns = {
        "id": pyarrow.array(range(count), pyarrow.int32()),
        "text": pyarrow.array(missing(text)),
        "large": pyarrow.array(missing(text), pyarrow.large_string()),
        "word": pyarrow.array(missing(lambda: rng.choice(WORDS))).dictionary_encode(),
        "raw": pyarrow.array(missing(lambda: rng.randbytes(5))),
        "flag": pyarrow.array(missing(lambda: rng.random() < 0.5)),
        "f16": pyarrow.array(numpy.array([small() / 4 for _ in range(count)], numpy.float16)),
        "f32": pyarrow.array(missing(lambda: small() / 7), pyarrow.float32()),
        "f64": pyarrow.array(missing(lambda: small() / 7)),
        "u8": pyarrow.array(missing(small), pyarrow.uint8()),
        "when": pyarrow.array(missing(lambda: 10**15 + small()), pyarrow.timestamp("us")),
        "list": pyarrow.array(missing(lambda: [small() for _ in range(small() % 4)]), pyarrow.list_(pyarrow.int64())),
        "fixed": pyarrow.array([[small(), small()] for _ in range(count)], pyarrow.list_(pyarrow.float32(), 2)),
        "deep": pyarrow.array([[[small()] * 2] * (1 + i % 3) for i in range(count)],
                              pyarrow.list_(pyarrow.list_(pyarrow.int16()))),
        "part": pyarrow.array([{"a": small(), "b": text()} for _ in range(count)]),
        "price": pyarrow.array([decimal.Decimal(small()) / 4 for _ in range(count)], pyarrow.decimal128(9, 2)),
    }
    return pyarrow.table(columns)


def as_json(value):
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime):
        return round(value.replace(tzinfo=datetime.timezone.utc).timestamp() * 1e6)
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, numpy.floating):
        return float(value)
    return value


def expected(arrow_table):
    made = []
    for row in arrow_table.to_pylist():
        flat = {}
        for name, value in row.items():
            if isinstance(value, dict):
                flat |= {f"{name}.{inner}": as_json(v) for inner, v in value.items()}
            else:
                flat[name] = as_json(value)
        made.append(flat)
    return made


def same(ours, theirs):
    assert len(ours) == len(theirs), (len(ours), len(theirs))
    for place, (a, b) in enumerate(zip(ours, theirs)):
        for name, value in b.items():
            wanted = numpy.float32(value) if name == "f32" and value is not None else value
            got = numpy.float32(a[name]) if name == "f32" and a[name] is not None else a[name]
            assert got == wanted, (place, name, a[name], value)


def parquet_and_arrow_of_pyarrow():
    import pyarrow.feather
    import pyarrow.parquet
    made = table(1000)
    files = {}
    for packing in ("none", "snappy", "zstd"):
        files[folder / f"{packing}.parquet"] = lambda path, p=packing: pyarrow.parquet.write_table(
            made, path, row_group_size=150, compression=p, write_page_checksum=p == "zstd", data_page_version="2.0")
    files[folder / "big_group.parquet"] = lambda path: pyarrow.parquet.write_table(made, path, data_page_size=500)
    files[folder / "x.arrow"] = lambda path: pyarrow.feather.write_feather(made, str(path), compression="uncompressed",
                                                                         chunksize=130)
    files[folder / "x.feather"] = lambda path: pyarrow.feather.write_feather(made, str(path), compression="zstd",
                                                                           chunksize=130)
    wanted = expected(made)
    for path, write in files.items():
        write(path)
        target = folder / "out.jsonl"
        seen = convert(path, target)["files"][0]
        assert seen["rows"] == 1000 and seen["failed"] == 0, seen["errors"]
        assert all(0 < span["rows"] <= 2 * 97 for span in seen["spans"]), path
        same(lines_of(target), wanted)
        # Carried through, columns are what they were, exactly.
        for ending, read in ((".parquet", pyarrow.parquet.read_table), (".arrow", pyarrow.feather.read_table)):
            copy = folder / ("copy" + ending)
            convert(path, copy)
            flat = made.set_column(3, "word", made["word"].cast(pyarrow.string())).flatten()
            ours = read(str(copy))
            assert ours.schema.equals(flat.schema), (ours.schema, flat.schema)
            assert ours.equals(flat), (path, ending)


def lines_and_cells():
    import pyarrow.parquet
    objects = [{"n": i, "x": rng.random(), "t": " ".join(rng.choices(WORDS, k=5)), "v": [i, i / 2, 3.0],
                "ok": i % 2 == 0, "ids": list(range(i % 4)), "more": {"k": [i]}} for i in range(500)]
    source, target = folder / "in.jsonl", folder / "from.parquet"
    source.write_text("\r\n".join(json.dumps(o) for o in objects) + "\n\n")
    convert(source, target, "--compression", "zstd")
    read = pyarrow.parquet.read_table(target)
    assert str(read.schema.field("v").type).startswith("fixed_size_list") and len(read) == 500, read.schema
    for ours, wanted in zip(read.to_pylist(), objects):
        assert ours["n"] == wanted["n"] and ours["t"] == wanted["t"] and ours["ok"] == wanted["ok"], ours
        assert ours["x"] == wanted["x"] and ours["v"] == wanted["v"] and ours["ids"] == wanted["ids"]
        assert json.loads(ours["more"]) == wanted["more"]
    convert(target, folder / "back.jsonl.gz")
    for ours, wanted in zip(lines_of(folder / "back.jsonl.gz"), objects):
        assert ours["n"] == wanted["n"] and ours["t"] == wanted["t"] and ours["v"] == wanted["v"], ours
    convert(target, folder / "cells.csv", "--columns", "n", "--columns", "t", "--columns", "x")
    with open(folder / "cells.csv", newline="") as file:
        cells = list(csv.reader(file))
    assert cells[0] == ["n", "t", "x"] and [int(c[0]) for c in cells[1:]] == list(range(500))
    assert [c[1] for c in cells[1:]] == [o["t"] for o in objects]
    assert [float(c[2]) for c in cells[1:]] == [o["x"] for o in objects]
    with open(folder / "theirs.csv", "w", newline="") as file:
        csv.writer(file).writerows(cells)
    convert(folder / "theirs.csv", folder / "cells.jsonl")
    assert [(o["n"], o["t"]) for o in lines_of(folder / "cells.jsonl")] == [(o["n"], o["t"]) for o in objects]
    convert(target, folder / "v.npy", "--columns", "v")
    assert numpy.array_equal(numpy.load(folder / "v.npy"), numpy.array([o["v"] for o in objects], numpy.float32))
    numpy.save(folder / "cube.npy", numpy.arange(60, dtype=numpy.int16).reshape(10, 3, 2))
    convert(folder / "cube.npy", folder / "cube.jsonl")
    assert [o["array"] for o in lines_of(folder / "cube.jsonl")] == numpy.load(folder / "cube.npy").tolist()


def broken_rows():
    path = folder / "broken.jsonl"
    path.write_text('{"a": 1}\nnot json\n{"a": 2}\n')
    said = rows(path, "--write", folder / "good.jsonl", code=1)
    assert said["files"][0]["failed"] == 1 and said["written"]["rows"] == 2, said
    assert "row 1: line at byte 9" in said["files"][0]["errors"][0], said["files"][0]["errors"]
    assert lines_of(folder / "good.jsonl") == [{"a": 1}, {"a": 2}]


def archives():
    with tarfile.open(folder / "shard.tgz", "w:gz") as archive:
        for i in range(200):
            for ending, content in (("cls", str(i).encode()), ("txt", f"sample {i}".encode())):
                entry = tarfile.TarInfo(f"{'deep/' * (i % 40)}{i:04}.{ending}")  # long names have headers of their own
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    convert(folder / "shard.tgz", folder / "shard.jsonl")
    got = lines_of(folder / "shard.jsonl")
    assert [(o["label"], o["text"]) for o in got] == [(i, f"sample {i}") for i in range(200)]
    assert got[41]["__key__"] == "deep/0041", got[41]


class Slow:
    """Passes bytes between a client and the server, an answer's with a pause before each part."""

    def __init__(self, port, pause_s):
        self.to, self.pause_s, self.connections = port, pause_s, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                client.close()
                continue
            threading.Thread(target=self.pump, args=(client, server, 0), daemon=True).start()
            threading.Thread(target=self.pump, args=(server, client, self.pause_s), daemon=True).start()

    def pump(self, source, target, pause_s):
        try:
            while part := source.recv(1 << 16):
                time.sleep(pause_s)
                target.sendall(part)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def with_s3(body):
    def case():
        server = S3()
        try:
            body(server)
        finally:
            server.end()
    case.__name__ = body.__name__
    return case


def numbered(count):
    return "".join(json.dumps({"n": i, "t": f"row {i}"}) + "\n" for i in range(count)).encode()


@with_s3
def through_s3(server):
    import pyarrow.parquet
    environment = server.environment()
    server.call("PUT", "bucket/in/year%3D2024/a.jsonl", numbered(3000))
    server.call("PUT", "bucket/in/year%3D2025/b.jsonl.gz", gzip.compress(numbered(2000)))
    server.call("PUT", "bucket/in/_tmp/c.jsonl", numbered(5))
    said = rows("s3://bucket/in", "--check", environment=environment)
    names = ["year=2024/a.jsonl", "year=2025/b.jsonl.gz"]
    assert [f["path"] for f in said["files"]] == ["s3://bucket/in/" + name for name in names], said
    assert [f["rows"] for f in said["files"]] == [3000, 2000]
    local = folder / "same.jsonl"
    local.write_bytes(numbered(3000))
    assert rows(local)["files"][0]["content_id"] == said["files"][0]["content_id"], "content is told by its place"
    convert("s3://bucket/**/*.jsonl*", "s3://bucket/out/all.parquet", environment=environment)
    read = pyarrow.parquet.read_table(io.BytesIO(server.call("GET", "bucket/out/all.parquet")))
    assert read["n"].to_pylist() == [*range(3000), *range(2000)]
    # A file of several parts, from pieces that fit no part: 12 MB.
    big = folder / "big.jsonl"
    big.write_bytes(numbered(500_000))
    convert(big, "s3://bucket/out/big.jsonl", environment=environment)
    convert(big, folder / "copy.jsonl")
    assert server.call("GET", "bucket/out/big.jsonl") == (folder / "copy.jsonl").read_bytes()
    options = f"?region=eu-west-1&endpoint_override=http%3A%2F%2F127.0.0.1%3A{server.port}"
    keys = {name: value for name, value in environment.items() if name != "AWS_ENDPOINT_URL"}
    assert rows("s3://bucket/out/all.parquet" + options, environment=keys)["files"][0]["rows"] == 5000
    for missing in ("s3://bucket/none.jsonl", "s3://nowhere/none.jsonl", "s3://bucket/none/*.jsonl"):
        assert "not_found" in rows(missing, environment=environment, code=3), missing
    assert "unknown option" in rows("s3://bucket/x.jsonl?region=eu&colour=red", environment=environment, code=2)


@with_s3
def markers_of_directories(server):
    """Empty objects named like directories, as Hadoop, consoles and Arrow's own client leave them, are no files: not
    for readers, not for a job that writes there, and not for `verify`."""
    environment = server.environment()
    for marker in ("in/", "in/year%3D2024/", "in/year%3D2025/", "empty/"):
        server.call("PUT", f"bucket/{marker}", b"")
    for year, count in ((2024, 30), (2025, 20)):
        server.call("PUT", f"bucket/in/year%3D{year}/a.jsonl", numbered(count))
    wanted = [f"s3://bucket/in/year={year}/a.jsonl" for year in (2024, 2025)]
    for place in ("s3://bucket/in", "s3://bucket/in/", "s3://bucket/in/*/*", "s3://bucket/in/**"):
        said = rows(place, environment=environment)
        assert [(f["path"], f["rows"]) for f in said["files"]] == list(zip(wanted, (30, 20))), (place, said)
    assert "not_found" in rows("s3://bucket/empty", environment=environment, code=3)
    job = Job(folder / "job", state=str(folder / "job/state"))
    job.file.write_text(job.file.read_text().replace(str(job.output), "s3://bucket/jobs/out"))
    job.output = folder / "job/state"  # where `verify` looks
    os.environ.update(environment)
    for marker in ("jobs/", "jobs/out/"):
        server.call("PUT", f"bucket/{marker}", b"")
    job.run()
    server.call("PUT", "bucket/jobs/out/errors/", b"")
    found = json.loads(job.look("verify", "--json"))
    assert found["whole"] and found["rows"] == 500, found
    job.run()
    said = rows("s3://bucket/jobs/out", environment=environment)
    assert sum(f["rows"] for f in said["files"]) == 500 and len(said["files"]) == 10, said


@with_s3
def a_slow_server_is_waited_for(server):
    server.call("PUT", "bucket/a.jsonl", numbered(20_000))
    slow = Slow(server.port, 0.2)
    start = time.monotonic()
    said = rows("s3://bucket/a.jsonl", "--check", environment=server.environment(slow.port))
    assert said["files"][0]["rows"] == 20_000, said
    assert slow.connections > 0
    assert time.monotonic() - start > 0.4, "nothing was slow"


@with_s3
def a_silent_server_is_unavailable(server):
    server.call("PUT", "bucket/a.jsonl", numbered(10))
    server.process.send_signal(signal.SIGSTOP)
    start = time.monotonic()
    said = rows("s3://bucket/a.jsonl", environment=server.environment(), code=6)
    assert "unavailable: 's3://bucket/a.jsonl'" in said and time.monotonic() - start < 60, said


@with_s3
def a_killed_server_is_unavailable(server):
    server.call("PUT", "bucket/a.jsonl", numbered(200_000))
    slow = Slow(server.port, 0.3)
    environment = server.environment(slow.port)
    words = [TRIREME, "data", "rows", "s3://bucket/a.jsonl", "--write", "s3://bucket/half.jsonl"]
    running = subprocess.Popen(words, env=dict(os.environ, **environment), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    assert running.poll() is None, "it ended before the server was killed"
    server.process.kill()
    start = time.monotonic()
    _, said = running.communicate(timeout=100)
    assert running.returncode == 6 and "unavailable" in said, (running.returncode, said)
    assert time.monotonic() - start < 60
    assert "unavailable" in rows("s3://bucket/a.jsonl", environment=server.environment(), code=6)


CASES = [parquet_and_arrow_of_pyarrow, lines_and_cells, broken_rows, archives, through_s3, markers_of_directories,
         a_slow_server_is_waited_for, a_silent_server_is_unavailable, a_killed_server_is_unavailable]
try:
    run_cases([(case.__name__, case) for case in CASES])
finally:
    shutil.rmtree(folder, ignore_errors=True)
