# The memory of a batch worker does not grow with rows and row groups: Parquet in and out, a model of hardly any work.
# timeout: 180
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from onnx import TensorProto, helper, numpy_helper

import _batch
from _serving import TRIREME, run_cases, save, value

# Groups and chunks that 10,000 rows fill too: then the number of rows is all in which the jobs differ.
WIDTH, GROUP = 16, 4096
MOST = 1.05  # what more rows may take beside fewer
scratch = Path(tempfile.mkdtemp(prefix="trireme-batch-memory-"))


def make_model(path):
    weights = np.random.default_rng(2).standard_normal((WIDTH, 4)).astype(np.float32)
    save([helper.make_node("MatMul", ["x", "w"], ["y"])], [value("x", TensorProto.FLOAT, ["rows", WIDTH])],
         [value("y", TensorProto.FLOAT, ["rows", 4])], path, [numpy_helper.from_array(weights, "w")])


def make_rows(path, rows, group):
    schema = pyarrow.schema([("x", pyarrow.list_(pyarrow.float32(), WIDTH))])
    values = np.random.default_rng(1).standard_normal(group * WIDTH).astype(np.float32)
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for begin in range(0, rows, group):
            count = min(rows - begin, group)
            array = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values[:count * WIDTH]), WIDTH)
            writer.write_table(pyarrow.table([array], schema=schema))


def peak_of_job(rows, group=GROUP):
    """The largest resident set of a job over so many rows; the least of two runs, since machines add to it."""
    data, found = scratch / f"{rows}.parquet", []
    make_rows(data, rows, group)
    for turn in range(2):
        output = scratch / f"out-{rows}-{turn}"
        words = [TRIREME, "batch", write_job(rows, data, output), "--chunk-rows", str(GROUP)]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        found.append(_batch.peak_mib(process))
        assert process.returncode == 0, process.stderr.read()[-1500:]
        shutil.rmtree(output)
    data.unlink()
    return min(found)


def write_job(rows, data, output):
    path = scratch / f"{rows}.yaml"
    path.write_text(f"model: {scratch}/linear.onnx\nthreads: 2\ninput: {{files: [{data}]}}\n"
                    f"output: {{directory: {output}}}\n", encoding="utf-8")
    return path


def flat():
    make_model(scratch / "linear.onnx")
    small, large = peak_of_job(10_000), peak_of_job(1_000_000)
    print(f"10,000 rows {small:.1f} MiB, 1,000,000 rows {large:.1f} MiB")
    assert large <= MOST * small, (small, large)


def many_groups():
    """What describes a row group is decoded for the groups in hand: Arrow's objects of all of them would be 7 MiB."""
    make_model(scratch / "linear.onnx")
    few, many = peak_of_job(10_000, group=64), peak_of_job(400_000, group=64)
    print(f"157 row groups {few:.1f} MiB, 6,250 row groups {many:.1f} MiB")
    assert many <= MOST * few, (few, many)


try:
    run_cases([("flat", flat), ("many_groups", many_groups)])
finally:
    shutil.rmtree(scratch, ignore_errors=True)
