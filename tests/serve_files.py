# Model files and pictures of strangers, through the server: checkpoints that lie about their types, that name models
# elsewhere, and pictures that cost more than their bytes.
import os
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from _checkpoints import tensor, write_checkpoint
from _serving import Server, add_simple, run_cases, save, temporary, value


def post(url, body=b"", headers=None):
    """Status and text, as a page in a browser can send it: no header that would ask for leave first."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers or {"Content-Type": "text/plain"}),
                                    timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def packed_types():
    """Elements of half a byte, read a byte each, left the memory of their tensor: one load of one model."""
    repository = temporary()
    add_simple(repository)
    content = bytes(range(256)) * 392  # [256, 784] elements of half a byte
    for dtype in ("i4", "u4", "f4e2m1", "i2", "u2"):
        part = content[:256 * 784 // (4 if dtype in ("i2", "u2") else 2)]
        write_checkpoint(repository / dtype, [tensor("fc1.weight", dtype, [256, 784], part)], content=part)
    with Server(repository, "--model-control", "explicit", "--load-model", "simple") as server:
        for dtype in ("i4", "u4", "f4e2m1", "i2", "u2"):
            status, text = post(f"{server.url}/v2/repository/models/{dtype}/load", b"{}")
            assert status == 400 and "share bytes" in text, (dtype, status, text)
        assert triton.InferenceServerClient(server.address).is_model_ready("simple")


def models_elsewhere():
    """A checkpoint names the model that it was trained from: the server opens it in its repository only."""
    outside, repository = temporary(), temporary()
    add_simple(repository)
    add_simple(outside, "secret")
    (repository / "link").mkdir()
    (repository / "link" / "inner").symlink_to(outside / "secret")
    secret = outside / "secret" / "1" / "model.onnx"
    content = bytes(4)
    for name, source in (("absolute", secret), ("up", f"../../{outside.name}/secret/1/model.onnx"),
                         ("linked", "link/inner/1/model.onnx"), ("host", "/etc/hostname"),
                         ("inside", "simple/1/model.onnx")):
        write_checkpoint(repository / name, [tensor("w", "f32", [1], content)], str(source), content)
    with Server(repository, "--model-control", "explicit", "--load-model", "simple") as server:
        for name in ("absolute", "up", "linked", "host"):
            status, text = post(f"{server.url}/v2/repository/models/{name}/load", b"{}")
            assert status == 400 and "model.source" in text, (name, status, text)
        # In the repository it is opened, and then does not fit.
        status, text = post(f"{server.url}/v2/repository/models/inside/load", b"{}")
        assert status == 400 and "holds no parameter" in text, (status, text)


def progressive_jpeg(side, scans):
    """A grey picture whose scans after the first say nothing: fourteen bytes each for up to 16384 blocks."""
    def segment(marker, content):
        return bytes([0xff, marker]) + (len(content) + 2).to_bytes(2, "big") + content

    def table(number, symbol):
        return segment(0xc4, bytes([number, 1, *[0] * 15, symbol]))

    blocks, extent = (side // 8) ** 2, side.to_bytes(2, "big")
    parts = [b"\xff\xd8", segment(0xdb, b"\0" + b"\1" * 64), segment(0xc2, b"\x08" + extent * 2 + b"\1\1\x11\0"),
             table(0, 0), table(0x10, 0xe0), segment(0xda, b"\1\1\0\0\0\0") + bytes((blocks + 7) // 8)]
    runs = (blocks + 16383) // 16384
    parts += [segment(0xda, b"\1\1\0\1\x3f\0") + bytes((runs * 15 + 7) // 8)] * (scans - 1)
    return b"".join(parts) + b"\xff\xd9"


CONFIG = """max_batch_size: 8
input { name: "x" data_type: TYPE_STRING dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: [ 8, 8, 3 ] }
parameters { key: "image_input" value { string_value: "unit" } }
"""


def picture_repository():
    repository = temporary()
    save([helper.make_node("Identity", ["x"], ["y"])], [value("x", TensorProto.FLOAT, ["batch", 8, 8, 3])],
         [value("y", TensorProto.FLOAT, ["batch", 8, 8, 3])], repository / "pictures" / "1" / "model.onnx")
    (repository / "pictures" / "config.pbtxt").write_text(CONFIG)
    return repository


def ask(server, *files):
    x = triton.InferInput("x", [len(files), 1], "BYTES")
    x.set_data_from_numpy(np.array([[f] for f in files], dtype=np.object_))
    client = triton.InferenceServerClient(server.address, network_timeout=120, connection_timeout=120)
    return client.infer("pictures", [x]).as_numpy("y")


def cpu_seconds(server):
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def scans_are_bounded():
    with Server(picture_repository(), "--http-threads", "1") as server:
        assert ask(server, progressive_jpeg(64, 10)).shape == (1, 8, 8, 3)
        start = cpu_seconds(server)
        for side in (64, 1024, 7000 // 8 * 8):
            try:
                ask(server, progressive_jpeg(side, 495))
                raise AssertionError("decoded")
            except InferenceServerException as error:
                assert "scans" in str(error) or "cut off" in str(error), error
        assert cpu_seconds(server) - start < 5


def decoding_holds_up_nobody():
    """While pictures are decoded, the one thread that reads sockets answers others."""
    heavy = progressive_jpeg(7000 // 8 * 8, 10)
    with Server(picture_repository(), "--http-threads", "1") as server:
        ask(server, heavy)
        done = threading.Event()

        def load():
            ask(server, *[heavy] * 8)
            done.set()

        worker = threading.Thread(target=load)
        worker.start()
        answered = 0
        while not done.is_set():
            with urllib.request.urlopen(f"{server.url}/v2/health/live", timeout=60) as answer:
                assert answer.status == 200
            answered += 1
            time.sleep(0.01)
        worker.join()
        # A thread that decoded would answer none between the first picture and the last.
        print(f"{answered} answers while eight pictures were decoded")
        assert answered > 5, answered


run_cases([(case.__name__, case) for case in (
    packed_types, models_elsewhere, scans_are_bounded, decoding_holds_up_nobody)])
