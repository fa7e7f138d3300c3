# `trireme data inspect` on small data sets made here: counts, types, shares of classes, first samples, broken ones.
import io
import json
import os
import random
import struct
import subprocess
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))

passed = 0
failed = 0


def expect(what, holds, seen=""):
    global passed, failed
    if holds:
        passed += 1
    else:
        failed += 1
        print(f"{what}: {seen}")


def inspect(*words):
    done = subprocess.run([TRIREME, "data", "inspect", *map(str, words)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def write_idx(folder):
    folder.mkdir()
    images = b"\0\0\x08\x03" + struct.pack(">III", 6, 2, 2) + bytes(range(24))
    (folder / "train-images-idx3-ubyte").write_bytes(images)
    (folder / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 6) + bytes([0, 1, 1, 2, 1, 0]))


def write_tar(path, members):
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def swelling_parquet(path):
    """A column of equal values takes the file a few bytes a page, whatever it takes in memory."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return
    writer = pyarrow.parquet.ParquetWriter(path, pyarrow.schema([("x", pyarrow.int64())]))
    for _ in range(30):
        writer.write_table(pyarrow.table({"x": pyarrow.repeat(pyarrow.scalar(7, pyarrow.int64()), 1_000_000)}))
    writer.close()
    code, _, error = inspect(path, "--max-unpacked", "16MiB")
    if "reads no Parquet" in error:
        return
    size = path.stat().st_size
    expect("240 MB in a small Parquet file", size < 1 << 20 and code == 5, (size, code, error))
    code, out, error = inspect(path, "--samples", 1)
    expect("the same where it is allowed", code == 0 and "30000000" in out.replace(",", ""), (out, error))
    damaged_parquet(path.with_name("damaged.parquet"))


def damaged_parquet(path):
    """Bytes changed, cut off and doubled: read, or refused in words."""
    import pyarrow
    import pyarrow.parquet
    rows = {"n": [1, 2, None], "s": ["a", "b", "c"], "v": [[1.5], [], [2.5, 3.5]], "t": [{"k": 1}, None, {"k": 2}]}
    pyarrow.parquet.write_table(pyarrow.table(rows), path, compression="gzip")
    whole, rng, wrong = path.read_bytes(), random.Random(5), []
    for i in range(60):
        bad = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        if i % 4 == 1:
            del bad[rng.randrange(len(bad)):]
        if i % 4 == 2:
            at = rng.randrange(len(bad))
            bad[at:at] = bad[at:at + rng.randint(1, 64)]
        path.write_bytes(bad)
        code, _, error = inspect(path, "--max-unpacked", "16MiB", "--labels", 0)
        if code not in (0, 1, 2, 4, 5) or (code > 1 and len(error.splitlines()) != 1):
            wrong.append((i, code, error[-200:]))
    expect("damaged Parquet files", not wrong, wrong)


def main():
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        write_idx(root / "digits")
        code, out, error = inspect(root / "digits", "--json", "--samples", 2)
        expect("idx exits 0", code == 0, error)
        report = json.loads(out)
        expect("idx count", report["samples"] == 6 and report["format"] == "idx", out)
        expect("idx fields", [f["type"] for f in report["fields"]] == ["u8[2,2,1]", "i64[]"], out)
        expect("idx classes", [(c["label"], c["count"]) for c in report["labels"]] == [(0, 2), (1, 3), (2, 1)], out)
        expect("idx samples", [s["index"] for s in report["first"]] == [0, 1], out)
        again = json.loads(inspect(root / "digits", "--json")[1])
        expect("the fingerprint is the content's", again["fingerprint"] == report["fingerprint"], again)
        code, out, _ = inspect(root / "digits")
        expect("idx as text", code == 0 and "labels of 6 samples: 3 classes" in out and "50.0 %" in out, out)

        write_tar(root / "a.tar", [("1.txt", b"a line"), ("1.cls", b"3"), ("2.txt", b"more"), ("2.cls", b"no number")])
        code, out, error = inspect(root / "a.tar", "--labels", 0)
        expect("a broken sample is shown, and exits 1", code == 1 and "broken: member .cls" in out, (code, out, error))
        expect("the others too", '"a line"' in out, out)

        (root / "rows.jsonl").write_text('{"text": "x", "n": 1}\n{"text": "y", "n": 2}\n')
        code, out, _ = inspect(root / "rows.jsonl", "--label-field", "n")
        expect("rows", code == 0 and "label" in out and "(target)" in out, out)
        code, _, error = inspect(root / "rows.jsonl", "--format", "jsnl")
        expect("an unknown format names the nearest", code == 2 and "'jsonl'" in error, error)
        code, _, error = inspect(root / "rows.jsonl", "--context", 4)
        expect("an option of another format", code == 2 and "jsonl has no option 'context'" in error, error)
        code, _, error = inspect(root / "absent.jsonl")
        expect("a missing file", code == 3 and len(error.splitlines()) == 1, error)
        swelling_parquet(root / "swelling.parquet")
        (root / "text.txt").write_text("hello hello " * 50)
        code, out, _ = inspect(root / "text.txt", "--context", 8, "--samples", 1)
        expect("characters", code == 0 and '"hello he"' in out and '"ello hel"' in out, out)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    raise SystemExit(1 if failed else 0)


main()
