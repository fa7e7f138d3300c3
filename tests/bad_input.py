# Broken, hostile and misplaced files against the program: a documented exit code and one line, never a crash or a hang.
# timeout: 280
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from _checkpoints import tensor, write_checkpoint

ROOT = Path(__file__).resolve().parent.parent
TRIREME = os.environ.get("TRIREME", str(ROOT / "build/release/trireme"))
SANITIZED = "asan" in TRIREME or "tsan" in TRIREME
LIMIT_S = 60 if SANITIZED else 20
MEMORY_BYTES = 4 << 30  # of address space: what asks for more is a bug, and must not take the machine
CODES = {0, 2, 3, 4, 5, 6}

passed = 0
failures = []
skips = []


def limit_memory():
    import resource
    if not SANITIZED:  # sanitizers reserve terabytes of address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def trireme(*args, **how):
    """Runs the program; gives (exit code or None when killed, stderr)."""
    try:
        done = subprocess.run([TRIREME, *map(str, args)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              timeout=LIMIT_S, preexec_fn=limit_memory, **{"stdout": subprocess.PIPE, **how})
    except subprocess.TimeoutExpired:
        return None, "hangs"
    return done.returncode, done.stderr.decode(errors="replace")


def complaint(code, stderr, allowed):
    """What is wrong with this end of the program, or nothing."""
    if code not in allowed:
        return f"exit {code}, not one of {sorted(allowed)}: {stderr[-300:]}"
    if code == 0:
        return ""
    lines = stderr.strip().splitlines()
    if len(lines) != 1 or not lines[0].startswith("trireme: "):
        return f"exit {code} without exactly one line: {stderr[:300]!r}"
    return "" if len(lines[0]) < 2000 else f"a line of {len(lines[0])} characters"


def expect(what, args, allowed, **how):
    global passed
    wrong = complaint(*trireme(*args, **how), set(allowed))
    if wrong:
        failures.append(f"{what}: {wrong}")
    else:
        passed += 1


# Small real models, built here.
def value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def save(path, nodes, initializers=(), inputs=None, outputs=None, opset=21):
    graph = helper.make_graph(nodes, "g", [value("x", [1, 3, 8, 8])] if inputs is None else inputs,
                              outputs or [value("y", None)], list(initializers))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def constant(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def small_network(path):
    random_values = np.random.default_rng(1)
    weight = random_values.standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["m", "shape"], ["f"]),
        helper.make_node("Gemm", ["f", "w2"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"], axis=-1),
    ]
    return save(path, nodes, [constant("w", weight), constant("b", np.zeros(4, np.float32)),
                              constant("shape", np.array([1, -1])),
                              constant("w2", random_values.standard_normal((16, 5)).astype(np.float32))])


def control_network(path):
    def body(name, op):
        return helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [value(name, None)])
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["p"]),
        helper.make_node("If", ["p"], ["i"], then_branch=body("t", "Relu"), else_branch=body("e", "Neg")),
        helper.make_node("NonZero", ["i"], ["n"]),
        helper.make_node("Gather", ["n", "first"], ["y"], axis=0),
    ]
    return save(path, nodes, [constant("zero", np.float32(0)), constant("first", np.array([0]))])


def quantized_network(path):
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["dw"], axis=0),
        helper.make_node("Conv", ["d", "dw"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["q2"]),
        helper.make_node("DequantizeLinear", ["q2", "s", "z"], ["y"]),
    ]
    return save(path, nodes, [constant("s", np.float32(0.1)), constant("z", np.uint8(128)),
                              constant("w", np.arange(12, dtype=np.int8).reshape(4, 3, 1, 1)),
                              constant("ws", np.full(4, 0.1, np.float32)), constant("wz", np.zeros(4, np.int8))])


# Well-formed files that ask for absurd things.
HUGE = 1 << 40


def shape_of(*dims):
    return constant("shape", np.array(dims, np.int64))


def nested_model(path, depth):
    """If in If in If …, by hand: the onnx package refuses to write what is this deep."""
    def field(number, content):
        length, size = b"", len(content)
        while size > 127:
            length += bytes([size & 127 | 128])
            size >>= 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + content
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["t"])], "n", [], [value("t", None)]).SerializeToString()
    for _ in range(depth):
        branches = b"".join(field(5, field(1, name) + field(6, graph) + b"\xa0\x01\x05") for name in
                            ([b"then_branch", b"else_branch"] if len(graph) < 100000 else [b"then_branch"]))
        node = field(1, b"p") + field(2, b"t") + field(4, b"If") + branches
        graph = field(1, node) + field(2, b"n") + field(12, value("t", None).SerializeToString())
    opset = b"\x42\x02\x10\x15"
    path.write_bytes(b"\x08\x08" + opset + field(7, graph))
    return path


def hostile_models(directory):
    """(path, exit codes) of models that are well-formed and mean harm."""
    def one(name, nodes, initializers=(), allowed=(2, 4, 5), **how):
        return save(directory / f"{name}.onnx", nodes, initializers, **how), allowed
    x = [value("x", [4])]
    add = helper.make_node("Add", ["x", "c"], ["y"])
    yield one("constant_of_shape", [helper.make_node("ConstantOfShape", ["shape"], ["c"]), add],
              [shape_of(HUGE)], inputs=x)
    yield one("constant_of_shape_overflow", [helper.make_node("ConstantOfShape", ["shape"], ["c"]), add],
              [shape_of(HUGE, HUGE, HUGE)], inputs=x)
    yield one("expand", [helper.make_node("Expand", ["x", "shape"], ["y"])], [shape_of(HUGE, 4)], inputs=x)
    yield one("expand_constant", [helper.make_node("Expand", ["one", "shape"], ["c"]), add],
              [shape_of(1 << 36, 4), constant("one", np.float32(1))], inputs=x)
    yield one("tile", [helper.make_node("Tile", ["x", "shape"], ["y"])], [shape_of(HUGE)], inputs=x)
    yield one("tile_again", [helper.make_node("Tile", ["x" if i == 0 else f"t{i}", "shape"], [f"t{i + 1}"])
                             for i in range(9)] + [helper.make_node("Identity", ["t9"], ["y"])],
              [shape_of(1 << 20)], inputs=x)
    yield one("pad", [helper.make_node("Pad", ["x", "shape"], ["y"])], [shape_of(HUGE, HUGE)], inputs=x)
    yield one("range", [helper.make_node("Range", ["a", "b", "d"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])],
              [constant("a", np.float32(0)), constant("b", np.float32(1e30)), constant("d", np.float32(1))], inputs=x)
    yield one("range_zero", [helper.make_node("Range", ["a", "b", "d"], ["y"])],
              [constant("a", np.int64(0)), constant("b", np.int64(9)), constant("d", np.int64(0))], inputs=x)
    yield one("resize", [helper.make_node("Resize", ["x", "", "", "shape"], ["y"])], [shape_of(HUGE)], inputs=x)
    yield one("one_hot", [helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
                          helper.make_node("OneHot", ["i", "depth", "v"], ["y"])],
              [constant("depth", np.int64(HUGE)), constant("v", np.zeros(2, np.float32))], inputs=x)
    yield one("eye", [helper.make_node("EyeLike", ["c"], ["y"]), helper.make_node("ConstantOfShape", ["shape"], ["c"])]
              [::-1], [shape_of(1 << 30, 1 << 30)], inputs=x)
    yield one("input_overflows", [helper.make_node("Relu", ["x"], ["y"])], inputs=[value("x", [HUGE, HUGE])])
    yield one("input_huge", [helper.make_node("Relu", ["x"], ["y"])], inputs=[value("x", [HUGE])])
    yield one("pool_kernel", [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[1 << 40, 1 << 40])],
              inputs=[value("x", [1, 1, 8, 8])])
    yield one("pool_dilation",
              [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], dilations=[1 << 62] * 2)],
              inputs=[value("x", [1, 1, 8, 8])])
    yield one("conv_pads", [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1 << 40] * 4)],
              [constant("w", np.ones((1, 1, 2, 2), np.float32))], inputs=[value("x", [1, 1, 8, 8])])
    yield one("conv_negative", [helper.make_node("Conv", ["x", "w"], ["y"], pads=[-(1 << 62)] * 4, strides=[-1, 0])],
              [constant("w", np.ones((1, 1, 2, 2), np.float32))], inputs=[value("x", [1, 1, 8, 8])])
    yield one("conv_group", [helper.make_node("Conv", ["x", "w"], ["y"], group=0)],
              [constant("w", np.ones((1, 1, 2, 2), np.float32))], inputs=[value("x", [1, 1, 8, 8])])
    yield one("gather_out", [helper.make_node("Gather", ["x", "i"], ["y"])],
              [constant("i", np.array([1 << 40]))], inputs=x)
    yield one("scatter_out", [helper.make_node("ScatterElements", ["x", "i", "u"], ["y"])],
              [constant("i", np.array([-(1 << 40)])), constant("u", np.ones(1, np.float32))], inputs=x)
    yield one("axis", [helper.make_node("Softmax", ["x"], ["y"], axis=1 << 40)], inputs=x)
    yield one("perm", [helper.make_node("Transpose", ["x"], ["y"], perm=[7, -1])], inputs=[value("x", [2, 2])])
    yield one("split_zero", [helper.make_node("Split", ["x"], ["y", "z"], num_outputs=1 << 40)], inputs=x)
    yield one("slice", [helper.make_node("Slice", ["x", "a", "b", "ax", "st"], ["y"])],
              [constant("a", np.array([-(1 << 63)])), constant("b", np.array([(1 << 63) - 1])),
               constant("ax", np.array([0])), constant("st", np.array([-(1 << 63)]))], inputs=x, allowed=(0, 2, 4, 5))
    yield one("reshape", [helper.make_node("Reshape", ["x", "shape"], ["y"])], [shape_of(-1, -1)], inputs=x)
    yield one("reshape_zero", [helper.make_node("Reshape", ["x", "shape"], ["y"])], [shape_of(-1, 0)],
              inputs=x, allowed=(0, 2, 4, 5))
    yield one("cycle", [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
                        helper.make_node("Relu", ["b"], ["y"])], inputs=x)
    yield one("twice", [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])], inputs=x)
    yield one("wrong_type", [helper.make_node("Conv", ["x", "x"], ["y"])], inputs=[value("x", [4], TensorProto.INT64)])
    yield one("wrong_count", [helper.make_node("Add", ["x"] * 5, ["y"])], inputs=x)
    yield one("no_inputs", [helper.make_node("Conv", [], ["y"])], inputs=x)
    yield one("newer", [helper.make_node("Relu", ["x"], ["y"])], inputs=x, opset=1000)
    yield one("unknown", [helper.make_node("Frobnicate", ["x"], ["y"])], inputs=x)
    yield one("integer_zero", [helper.make_node("Div", ["x", "c"], ["y"])], [constant("c", np.zeros(4, np.int32))],
              inputs=[value("x", [4], TensorProto.INT32)], allowed=(0, 2))
    yield one("shift", [helper.make_node("BitShift", ["x", "c"], ["y"], direction="LEFT")],
              [constant("c", np.full(4, 200, np.uint32))], inputs=[value("x", [4], TensorProto.UINT32)],
              allowed=(0, 2))
    yield nested_model(directory / "nested.onnx", 2000), (2, 4, 5)
    loop = helper.make_graph([helper.make_node("Identity", ["go"], ["on"]),
                              helper.make_node("Concat", ["v", "v"], ["w"], axis=0)],
                             "b", [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL),
                                   value("v", None)],
                             [value("on", [], TensorProto.BOOL), value("w", None)])
    yield one("doubling_loop", [helper.make_node("Loop", ["n", "", "x"], ["y"], body=loop)],
              [constant("n", np.int64(60))], inputs=x)


def long_models(directory):
    """Ten thousand nodes: what is quadratic shows."""
    def chain(name, ops, *more, **attributes):
        nodes = [helper.make_node(ops[i % len(ops)], ["x" if i == 0 else f"v{i}", *more],
                                  ["y" if i == 9999 else f"v{i + 1}"], **attributes) for i in range(10000)]
        weights = [constant("c", np.ones(4, np.float32))]
        return save(directory / f"{name}.onnx", nodes, weights, inputs=[value("x", [4])])
    yield chain("relu", ["Relu"])
    yield chain("identity", ["Identity"])
    yield chain("gated", ["Sigmoid", "Identity", "Neg"])
    yield chain("add", ["Add", "Mul"], "c")


def safetensors_file(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def encoder_directory(directory):
    """A BERT of one layer and 8 numbers a token, written by hand."""
    directory.mkdir()
    h, inner, words = 8, 16, 12
    config = {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": h, "num_hidden_layers": 1,
              "num_attention_heads": 2, "intermediate_size": inner, "vocab_size": words, "type_vocab_size": 2,
              "max_position_embeddings": 16, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "pad_token_id": 0,
              "position_embedding_type": "absolute"}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]) + "\n")
    layer = "encoder.layer.0."
    shapes = {"embeddings.word_embeddings.weight": [words, h], "embeddings.position_embeddings.weight": [16, h],
              "embeddings.token_type_embeddings.weight": [2, h], "embeddings.LayerNorm.weight": [h],
              "embeddings.LayerNorm.bias": [h]}
    dense = {"attention.self.query": [h, h], "attention.self.key": [h, h], "attention.self.value": [h, h],
             "attention.output.dense": [h, h], "intermediate.dense": [inner, h], "output.dense": [h, inner]}
    for name, shape in dense.items():
        shapes[f"{layer}{name}.weight"] = shape
        shapes[f"{layer}{name}.bias"] = shape[:1]
    for name in ("attention.output.LayerNorm", "output.LayerNorm"):
        shapes[f"{layer}{name}.weight"] = [h]
        shapes[f"{layer}{name}.bias"] = [h]
    shapes |= {"pooler.dense.weight": [h, h], "pooler.dense.bias": [h]}
    header, data = {}, b""
    for name, shape in shapes.items():
        block = np.full(shape, 0.1, np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(block)]}
        data += block
    (directory / "model.safetensors").write_bytes(safetensors_file(header, data))
    return directory, header, data


# Mutations of files.
def mutants(data, count, rng):
    """Truncations, bit flips, spliced runs and length fields blown up."""
    for i in range(count):
        bad = bytearray(data)
        kind = i % 5
        at = rng.randrange(len(bad))
        if kind == 0:
            del bad[at:]
        elif kind == 1:
            for _ in range(rng.choice([1, 1, 2, 8])):
                bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        elif kind == 2:
            bad[at:at + rng.randrange(1, 10)] = b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
        elif kind == 3:
            length = rng.randrange(1, 40)
            source = rng.randrange(len(bad))
            bad[at:at + length] = bad[source:source + length]
        else:
            bad[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 6)))
        yield kind, bytes(bad)


def mutate_file(pool, directory, name, original, verb, count):
    rng = random.Random(name)
    jobs = []
    for i, (kind, bad) in enumerate(mutants(original, count, rng)):
        path = directory / f"{name}_{i}.onnx"
        path.write_bytes(bad)
        jobs.append(pool.submit(mutant, f"{name} mutant {i} (kind {kind})", [*verb, path], path))
    return jobs


def mutant(what, args, path):
    before = len(failures)
    expect(what, args, CODES)
    if len(failures) == before:
        path.unlink()


def mutate_encoder(pool, root, count):
    directory, header, data = encoder_directory(root / "encoder")
    expect("the small encoder is good", ["inspect", directory], {0})
    rng = random.Random(5)
    first = next(iter(header))

    def variant(name, **files):
        place = root / name
        shutil.copytree(directory, place)
        for file, content in files.items():
            (place / file.replace("_json", ".json").replace("_safetensors", ".safetensors")).write_bytes(content)
        return pool.submit(expect, f"encoder {name}", ["inspect", place, "--program", "--dim", "tokens=4"], CODES)

    def with_entry(**change):
        return safetensors_file(header | {first: header[first] | change}, data)
    bad = {"offsets_reversed": with_entry(data_offsets=[400, 0]), "offsets_far": with_entry(data_offsets=[0, 1 << 62]),
           "offsets_negative": with_entry(data_offsets=[-8, 8]), "shape_overflow": with_entry(shape=[1 << 40, 1 << 40]),
           "shape_negative": with_entry(shape=[-1, 8]), "type_unknown": with_entry(dtype="F33"),
           "type_other": with_entry(dtype="I32"), "shape_text": with_entry(shape="abc"),
           "header_long": struct.pack("<Q", 1 << 63) + b"{}", "header_deep": safetensors_file(b"[" * 200000, b""),
           "empty": b"", "seven": b"1234567"}
    jobs = [variant(f"tensors_{name}", model_safetensors=content) for name, content in bad.items()]
    weights = (directory / "model.safetensors").read_bytes()
    for i, (_, content) in enumerate(mutants(weights[:3000] + weights[-64:], count, rng)):
        jobs.append(variant(f"tensors_mutant{i}", model_safetensors=content))
    config = (directory / "config.json").read_bytes()
    for i, (_, content) in enumerate(mutants(config, count, rng)):
        jobs.append(variant(f"config_mutant{i}", config_json=content))
    for key, bad_value in (("hidden_size", 1 << 60), ("hidden_size", -1), ("num_attention_heads", 0),
                           ("num_hidden_layers", 1 << 40), ("vocab_size", "many"), ("hidden_act", 7)):
        content = json.dumps(json.loads(config) | {key: bad_value}).encode()
        jobs.append(variant(f"config_{key}_{str(bad_value)[:5]}", config_json=content))
    return jobs


# Paths.
def external_model(path, location, **more):
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, text in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=str(text))
    return save(path, [helper.make_node("Add", ["x", "w"], ["y"])], [tensor], inputs=[value("x", [4])])


def paths(root):
    inside = root / "inside"
    inside.mkdir()
    (root / "secret.bin").write_bytes(bytes(64))
    (inside / "w.bin").write_bytes(bytes(64))
    (inside / "link.bin").symlink_to(root / "secret.bin")
    good = external_model(inside / "good.onnx", "w.bin", offset=0, length=16)
    expect("external data inside", ["run", good], {0})
    for i, location in enumerate(["../secret.bin", str(root / "secret.bin"), "a/../../secret.bin", "link.bin", "",
                                  "missing.bin", ".", "w.bin\0x", "/dev/zero", "x" * 5000]):
        path = external_model(inside / f"out{i}.onnx", location)
        expect(f"external data at {location[:40]!r}", ["run", path], {2, 3, 4})
    for i, more in enumerate([{"offset": 1 << 62}, {"offset": -4}, {"length": 1 << 62}, {"offset": 60, "length": 16},
                              {"length": "many"}, {"offset": "9" * 40}, {"length": 12}]):
        expect(f"external data with {more}", ["run", external_model(inside / f"range{i}.onnx", "w.bin", **more)], {2})
    for what in [root / "missing.onnx", root, "/dev/null", inside / "w.bin", "", "zoo:nothing", good / "below",
                 root / ("n" * 300)]:
        for verb in ("run", "inspect"):
            expect(f"{verb} {str(what)[-40:]!r}", [verb, what], {2, 3, 4})
    if os.geteuid() == 0:
        skips.append("an unreadable file: root reads every file")
    else:
        good.chmod(0)
        expect("unreadable file", ["run", good], {2, 3})
        good.chmod(0o644)
    inputs(root, good)
    shards(root)
    checkpoints(root)


def shards(root):
    """The files that the index of a Hugging Face directory names lie in that directory."""
    directory, header, data = encoder_directory(root / "shards")
    whole = directory / "model.safetensors"
    (root / "elsewhere.safetensors").write_bytes(whole.read_bytes())
    (directory / "link").symlink_to(root / "elsewhere.safetensors")
    whole.rename(directory / "part")

    def index(name):
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(header, name)}))

    index("part")
    expect("a shard inside", ["inspect", directory], {0})
    for name in ("../elsewhere.safetensors", str(root / "elsewhere.safetensors"), "link", "", "..", "missing",
                 "x/../../elsewhere.safetensors", "part\0x"):
        index(name)
        expect(f"a shard at {name[-40:]!r}", ["inspect", directory], {2, 3})
    # As the cache has it: a snapshot of links to the model's blobs, and one that leads out of them.
    cache = root / "models--x"
    snapshot = cache / "snapshots" / "1"
    for place in (snapshot, cache / "blobs"):
        place.mkdir(parents=True)
    for path in directory.iterdir():
        if path.name not in ("link", "model.safetensors.index.json"):
            shutil.copy(path, cache / "blobs" / path.name)
            (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    (snapshot / "out").symlink_to("../../../elsewhere.safetensors")
    for name, allowed in (("part", {0}), ("out", {2})):
        (snapshot / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": dict.fromkeys(header, name)}))
        expect(f"a cached snapshot's {name}", ["inspect", snapshot], allowed)


def checkpoints(root):
    """Types and places of a checkpoint are its author's word."""
    content = bytes(256 * 784)
    for dtype, bits in (("i4", 4), ("u4", 4), ("f4e2m1", 4), ("i2", 2), ("u2", 2)):
        part = content[:len(content) * bits // 8]
        expect(f"a checkpoint of {dtype}", ["run", write_checkpoint(
            root / f"checkpoint_{dtype}", [tensor("fc1.weight", dtype, [256, 784], part)], content=part)], {4})
    weights = tensor("w", "f32", [4], content[:16])
    for i, source in enumerate([root / "inside" / "good.onnx", "../inside/good.onnx", "/etc/hostname", "/",
                                "link.onnx"]):
        directory = write_checkpoint(root / "run" / str(i), [weights], str(source), content[:16])
        (directory / "link.onnx").symlink_to(root / "inside" / "good.onnx")
        expect(f"a checkpoint of a model at {source}", ["inspect", directory], {2}, cwd=root / "run")
    directory = write_checkpoint(root / "run" / "own", [weights], "model.onnx", content[:16])
    external_model(directory / "model.onnx", "w.bin", offset=0, length=16)
    (directory / "w.bin").write_bytes(content[:16])
    expect("a checkpoint of a model beside it", ["inspect", directory], {0}, cwd=root / "run")
    expect("and below the current directory", ["inspect", write_checkpoint(
        root / "run" / "near", [weights], "own/model.onnx", content[:16])], {0}, cwd=root / "run")


def inputs(root, good):
    np.save(root / "x.npy", np.zeros(4, np.float32))
    whole = (root / "x.npy").read_bytes()
    expect("input file", ["run", good, "--input", f"x={root / 'x.npy'}"], {0})
    rng = random.Random(3)
    for i, (_, bad) in enumerate(mutants(whole, 40, rng)):
        (root / "bad.npy").write_bytes(bad)
        expect(f"npy mutant {i}", ["run", good, "--input", f"x={root / 'bad.npy'}"], {0, 2, 4})
    np.savez(root / "x.npz", x=np.zeros(4, np.float32))
    np.savez_compressed(root / "packed.npz", x=np.zeros(4, np.float32))
    np.savez(root / "more.npz", x=np.zeros(4, np.float32), z=np.zeros(4, np.float32))
    for name, allowed in (("x.npz", {0}), ("packed.npz", {0}), ("more.npz", {2}), ("missing.npz", {3})):
        expect(f"--input {name}", ["run", good, "--input", root / name], allowed)
    expect("an input given twice", ["run", good, "--input", root / "x.npz", "--input", f"x={root / 'x.npy'}"], {2})
    for i, (_, bad) in enumerate(mutants((root / "packed.npz").read_bytes(), 40, rng)):
        (root / "bad.npz").write_bytes(bad)
        expect(f"npz mutant {i}", ["run", good, "--input", root / "bad.npz"], {0, 2, 4})
    np.save(root / "i.npy", np.zeros(4, np.int64))
    np.save(root / "long.npy", np.zeros(5, np.float32))
    for text in ["x", "=", f"x={root / 'missing.npy'}", f"z={root / 'x.npy'}", f"x={root}", f"x={root / 'i.npy'}",
                 f"x={root / 'long.npy'}", "x=/dev/null"]:
        expect(f"--input {text[-30:]}", ["run", good, "--input", text], {2, 3, 4})
    for words in (["--shape", "x:99999999999999999999"], ["--shape", "x:-1"], ["--shape", "q:1"], ["--threads", "-1"],
                  ["--repeat", "x"], ["--nothing"], ["--batch", "0"], ["--tolerance"], ["--off", "nothing"],
                  ["--test-data", root / "none"], ["--test-data", root], ["--threads", "1000000000"],
                  ["--cpus", "4096"]):
        expect(f"run {words}", ["run", good, *words], {2, 3, 4, 5})
    test_sets(root, good)
    expect("output below a file", ["run", good, "--output", root / "x.npy" / "below"], {2, 3, 5})
    full_disk(root, good)
    lost_output(good)


def test_sets(root, good):
    """Test data that holds nothing to compare with says so."""
    one = root / "test_data_set_0"
    one.mkdir()
    (one / "input_0.pb").write_bytes(numpy_helper.from_array(np.zeros(4, np.float32)).SerializeToString())
    expect("a test set without outputs", ["run", good, "--test-data", one], {2})
    (one / "output_0.pb").write_bytes(numpy_helper.from_array(np.zeros(4, np.float32)).SerializeToString())
    expect("a test set", ["run", good, "--test-data", one], {0})


def lost_output(good):
    """What is printed and cannot be written fails in words, but for a reader that has left."""
    for words in (["run", good], ["inspect", good, "--program"], ["ops"], ["help"]):
        with open("/dev/full", "wb") as full:
            expect(f"{words[0]} to a full disk", words, {5}, stdout=full)
        read_end, write_end = os.pipe()
        os.close(read_end)
        with open(write_end, "wb") as left:
            code, stderr = trireme(*words, stdout=left)
        if code not in (0, -signal.SIGPIPE) or stderr:
            failures.append(f"{words[0]} to a pipe without a reader: exit {code}: {stderr[-300:]}")


def full_disk(root, good):
    """A file system of one page: writing the results must fail in words and leave nothing half-written."""
    place = root / "tiny"
    place.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], capture_output=True).returncode == 0
    if not mounted:
        skips.append("a full disk: mounting a small tmpfs needs root and the mount permission")
        return
    try:
        big = save(root / "big.onnx", [helper.make_node("Expand", ["x", "shape"], ["y"])], [shape_of(100000, 4)],
                   inputs=[value("x", [4])])
        expect("full disk", ["run", big, "--output", place], {5})
        if list(place.glob("*")):
            failures.append(f"full disk: left {list(place.glob('*'))}")
    finally:
        subprocess.run(["umount", str(place)], check=False)


def main():
    count = 60 if SANITIZED else 250
    workers = max(2, len(os.sched_getaffinity(0)) // 2)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(workers) as pool:
        root = Path(scratch)
        (root / "mutants").mkdir()
        jobs = []
        for build, verb in ((small_network, ["run"]), (control_network, ["run"]), (quantized_network, ["run"])):
            path = build(root / f"{build.__name__}.onnx")
            expect(f"{build.__name__} is good", ["run", path], {0})
            expect(f"{build.__name__} compiles", ["inspect", path, "--program", "--memory", "--why"], {0})
            jobs += mutate_file(pool, root / "mutants", build.__name__, path.read_bytes(), verb, count)
        for path, allowed in hostile_models(root):
            jobs.append(pool.submit(expect, path.stem, ["run", path, "--threads", "1"], set(allowed)))
        for path in long_models(root):
            jobs.append(pool.submit(expect, f"10000 nodes: {path.stem}", ["run", path, "--threads", "1"], {0}))
        jobs += mutate_encoder(pool, root, count // 5)
        for job in jobs:
            job.result()
        (root / "paths").mkdir()
        paths(root / "paths")
        if keep := os.environ.get("KEEP"):
            shutil.copytree(root / "mutants", keep, dirs_exist_ok=True)
    for failure in failures:
        print(f"FAILED {failure}")
    for reason in skips:
        print(f"skipped: {reason}")
    print(f"{passed} passed, {len(failures)} failed, {len(skips)} skipped")
    sys.exit(1 if failures else 0)


main()
