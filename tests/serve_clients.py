# What the public Triton client examples do, call by call with their checks, on models rebuilt here; decoupled models.
import asyncio
import json
import queue
import shutil
import threading
import urllib.error
import urllib.request
import uuid
from functools import partial

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as http_aio
import tritonclient.utils as utils
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

import _triton_models as models
from _serving import Server, run_cases, temporary

repository = temporary()
models.add_seven(repository)
models.add_repeat(repository)
models.add_square(repository)
server = Server(repository, "--threads", "2", "--allow-client-shm", "--server-name", "triton")
PROTOCOLS = {"http": triton_http, "grpc": triton_grpc}


def client(module, own=None, **options):
    own = own or server
    return module.InferenceServerClient(own.address if module is triton_http else own.grpc_address, **options)


def refused(fragment, call, status=None):
    try:
        call()
    except InferenceServerException as error:
        assert fragment in str(error), f"{fragment!r} is not in {error}"
        assert status is None or status in str(error.status()), error.status()
        return
    raise AssertionError("the call succeeded")


def post(path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def sixteen():
    """The examples' inputs: 0..15 and ones, with sum and difference."""
    first = np.arange(16, dtype=np.int32).reshape(1, 16)
    second = np.ones((1, 16), np.int32)
    return first, second, first + second, first - second


def tensor(module, name, array, datatype):
    made = module.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def as_text(array):
    return np.array([str(v).encode() for v in array.flatten()], np.object_).reshape(array.shape)


def strings():
    """Numbers as text, bytes with a zero inside, fixed-size bytes, empty strings; binary and JSON."""
    first, second, total, difference = sixteen()
    for module in PROTOCOLS.values():
        c = client(module)
        inputs = [tensor(module, f"INPUT{i}", as_text(a), "BYTES") for i, a in enumerate((first, second))]
        result = c.infer("simple_string", inputs, outputs=[module.InferRequestedOutput(f"OUTPUT{i}") for i in (0, 1)])
        for name, want in (("OUTPUT0", total), ("OUTPUT1", difference)):
            assert [int(v) for v in result.as_numpy(name)[0]] == want[0].tolist()
        for rows in ([["he\x00llo".encode()] * 16], [[b""], ["größer".encode()]], np.array([[b"\x00\x01\x02\x03"] * 16], "S4")):
            array = rows if isinstance(rows, np.ndarray) else np.array(rows, np.object_)
            back = c.infer("simple_identity", [tensor(module, "INPUT0", array, "BYTES")]).as_numpy("OUTPUT0")
            assert back.tolist() == array.astype(np.object_).tolist() if array.dtype == np.object_ else \
                [v.ljust(4, b"\0") for v in back[0]] == [b"\x00\x01\x02\x03"] * 16, back
        bad = as_text(first)
        bad[0, 3] = b"three"
        refused("holds 'three' where the text of a i32 is wanted",
                lambda: c.infer("simple_string", [tensor(module, f"INPUT{i}", bad, "BYTES") for i in (0, 1)]))
        metadata = c.get_model_metadata("simple_string", **({"as_json": True} if module is triton_grpc else {}))
        assert [t["datatype"] for t in metadata["inputs"] + metadata["outputs"]] == ["BYTES"] * 4
    c, text = client(triton_http), triton_http.InferInput("INPUT0", [1, 2], "BYTES")
    text.set_data_from_numpy(np.array([["eins", "zwei"]], np.object_), binary_data=False)
    output = triton_http.InferRequestedOutput("OUTPUT0", binary_data=False)
    assert c.infer("simple_identity", [text], outputs=[output]).get_output("OUTPUT0")["data"] == ["eins", "zwei"]
    assert post("/v2/models/simple_identity/generate", {"text_input": "drei"})[2].endswith('"OUTPUT0":"drei"}')


def strings_in_batches():
    """Requests that share a batch keep their own strings."""
    c = client(triton_http, concurrency=16)
    texts = [[f"request {i} says {'x' * i} {k}" for k in range(3)] for i in range(200)]
    waiting = [c.async_infer("simple_identity", [tensor(triton_http, "INPUT0", np.array([t], np.object_), "BYTES")])
               for t in texts]
    for want, answer in zip(texts, waiting):
        assert [v.decode() for v in answer.get_result().as_numpy("OUTPUT0")[0]] == want


def explicit_contents():
    """grpc_explicit_*_content_client: bytes, int8 and int32 in InferTensorContents, answers as raw bytes."""
    import grpc
    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(server.grpc_address))
    first, second, total, difference = sixteen()
    forms = {"simple": ("INT32", "int_contents", int, lambda raw: np.frombuffer(raw, np.int32)),
             "simple_int8": ("INT8", "int_contents", int, lambda raw: np.frombuffer(raw, np.int8)),
             "simple_string": ("BYTES", "bytes_contents", lambda v: str(v).encode(),
                               lambda raw: utils.deserialize_bytes_tensor(raw).astype(np.int32))}
    for model, (datatype, field, convert, read) in forms.items():
        request = service_pb2.ModelInferRequest(model_name=model, id="my request id")
        for name, values in (("INPUT0", first), ("INPUT1", second)):
            part = request.inputs.add(name=name, datatype=datatype, shape=[1, 16])
            getattr(part.contents, field).extend(convert(v) for v in values[0])
        for name in ("OUTPUT0", "OUTPUT1"):
            request.outputs.add(name=name)
        answer = stub.ModelInfer(request)
        assert answer.id == "my request id" and list(answer.outputs[0].shape) == [1, 16]
        np.testing.assert_array_equal(read(answer.raw_output_contents[0]), total[0])
        np.testing.assert_array_equal(read(answer.raw_output_contents[1]), difference[0])


def shared_memory():
    """simple_*_shm_client and _shm_string_client: both inputs and both outputs in regions of the client."""
    first, second, total, difference = sixteen()
    text = {key: utils.serialize_byte_tensor(as_text(a)).item() for key, a in
            (("a", first), ("b", second), ("sum", total), ("difference", difference))}
    raw = {key: a.tobytes() for key, a in (("a", first), ("b", second), ("sum", total), ("difference", difference))}
    for module in PROTOCOLS.values():
        for model, datatype, data in (("simple", "INT32", raw), ("simple_string", "BYTES", text)):
            c = client(module)
            c.unregister_system_shared_memory()
            c.unregister_cuda_shared_memory()
            regions = {}
            for key, values in data.items():
                name = f"/trireme_{uuid.uuid4().hex}"
                regions[key] = shm.create_shared_memory_region(key, name, len(values))
                c.register_system_shared_memory(key, name, len(values))
            for key in ("a", "b"):
                array = as_text(first if key == "a" else second) if datatype == "BYTES" else (first if key == "a" else second)
                packed = utils.serialize_byte_tensor(array) if datatype == "BYTES" else array
                shm.set_shared_memory_region(regions[key], [packed])
            inputs = [module.InferInput(f"INPUT{i}", [1, 16], datatype) for i in (0, 1)]
            outputs = [module.InferRequestedOutput(f"OUTPUT{i}") for i in (0, 1)]
            for part, key in zip(inputs + outputs, ("a", "b", "sum", "difference")):
                part.set_shared_memory(key, len(data[key]))
            result = c.infer(model, inputs, outputs=outputs)
            for i, (key, want) in enumerate((("sum", total), ("difference", difference))):
                entry = result.get_output(f"OUTPUT{i}")
                assert (entry["datatype"] if module is triton_http else entry.datatype) == datatype
                got = shm.get_contents_as_numpy(regions[key], utils.triton_to_np_dtype(datatype), [1, 16])
                assert [int(v) for v in got[0]] == want[0].tolist(), (model, got)
            status = c.get_system_shared_memory_status()
            assert len(status if module is triton_http else status.regions) == 4
            c.unregister_system_shared_memory()
            status = c.get_system_shared_memory_status()
            assert len(status if module is triton_http else status.regions) == 0
            for handle in regions.values():
                shm.destroy_shared_memory_region(handle)


def cuda_shared_memory():
    """Without a GPU: nothing is registered, all of it can be forgotten, and one region is refused by name."""
    for module, code in ((triton_http, "501"), (triton_grpc, "UNIMPLEMENTED")):
        c = client(module)
        status = c.get_cuda_shared_memory_status()
        assert len(status if module is triton_http else status.regions) == 0
        c.unregister_cuda_shared_memory()
        refused("CUDA shared memory is not served", lambda: c.register_cuda_shared_memory("r", b"eA==", 0, 64), code)
        assert "cuda_shared_memory" not in str(c.get_server_metadata())


def numbers(model):
    """The examples' sequences: ids, what they send, and what they expect back from the two kinds of models."""
    values = [11, 7, 5, 3, 2, 0, 1]
    is_dyna = "dyna" in model
    first, second = 1000 + 2 * int(is_dyna), 1001 + 2 * int(is_dyna)
    text = "1004" if is_dyna else str(uuid.uuid4())
    text_model = "simple_string_dyna_sequence" if is_dyna else model
    plain = [(model, first, [0] + values), (model, second, [100] + [-v for v in values]),
             (text_model, text, [20] + [-v for v in values])]
    expected = []
    for name, key, sent in plain:
        if "string" in name:
            want = list(np.cumsum(sent))
        else:
            want = [sent[0] + 1] + sent[1:]
        if is_dyna:
            want[-1] += int(key)
        expected.append(want)
    return plain, expected


def number(module, n):
    return [tensor(module, "INPUT", np.array([[n]], np.int32), "INT32")]


def sequences():
    """simple_*_sequence_sync_infer_client and simple_grpc_sequence_stream_infer_client."""
    for model in ("simple_sequence", "simple_dyna_sequence"):
        plan, expected = numbers(model)
        for module in PROTOCOLS.values():
            c = client(module)
            for (name, key, sent), want in zip(plan, expected):
                got = [int(c.infer(name, number(module, n), sequence_id=key, sequence_start=i == 0,
                                   sequence_end=i == len(sent) - 1).as_numpy("OUTPUT")[0][0])
                       for i, n in enumerate(sent)]
                assert got == want, (name, got, want)
        answers = queue.Queue()
        with client(triton_grpc) as c:
            c.start_stream(lambda result, error: answers.put(error or result))
            for name, key, sent in plan:
                for i, n in enumerate(sent):
                    c.async_stream_infer(name, number(triton_grpc, n), request_id=f"{key}_{i}", sequence_id=key,
                                         sequence_start=i == 0, sequence_end=i == len(sent) - 1)
            got = {}
            for _ in range(sum(len(sent) for _, _, sent in plan)):
                result = answers.get(timeout=30)
                assert not isinstance(result, Exception), result
                got.setdefault(result.get_response().id.rsplit("_", 1)[0], []).append(int(result.as_numpy("OUTPUT")[0][0]))
        assert got == {str(key): want for (_, key, _), want in zip(plan, expected)}, got
    refused("is wanted", lambda: client(triton_grpc).infer(
        "simple_string_dyna_sequence", number(triton_grpc, 1), sequence_id="no number", sequence_start=True))


def asyncio_sequences():
    """simple_grpc_aio_sequence_stream_infer_client."""
    async def run(model):
        plan, expected = numbers(model)

        async def requests():
            for name, key, sent in plan:
                for i, n in enumerate(sent):
                    yield {"model_name": name, "inputs": number(triton_grpc, n), "request_id": f"{key}_{i}",
                           "sequence_id": key, "sequence_start": i == 0, "sequence_end": i == len(sent) - 1}

        got = {}
        async with grpc_aio.InferenceServerClient(server.grpc_address) as c:
            async for result, error in c.stream_infer(requests()):
                assert error is None, error
                got.setdefault(result.get_response().id.rsplit("_", 1)[0], []).append(int(result.as_numpy("OUTPUT")[0][0]))
        assert got == {str(key): want for (_, key, _), want in zip(plan, expected)}, got

    for model in ("simple_sequence", "simple_dyna_sequence"):
        asyncio.run(run(model))


def repeat_inputs(count, offset=100):
    values = np.arange(offset, offset + count, dtype=np.int32)
    return values, [tensor(triton_grpc, "IN", values, "INT32"),
                    tensor(triton_grpc, "DELAY", np.ones(count, np.uint32), "UINT32"),
                    tensor(triton_grpc, "WAIT", np.ones(1, np.uint32), "UINT32")]


def decoupled_stream():
    """simple_grpc_custom_repeat, then several requests at once, none, one and many answers, with and without the end."""
    for wants_end in (False, True):
        answers = queue.Queue()
        with client(triton_grpc) as c:
            assert c.get_model_config("repeat_int32").config.model_transaction_policy.decoupled
            c.start_stream(lambda result, error: answers.put(error or result))
            plan = {"ten": 10, "none": 0, "one": 1, "many": 3000}
            for name, count in plan.items():
                c.async_stream_infer("repeat_int32", repeat_inputs(count)[1], request_id=name,
                                     outputs=[triton_grpc.InferRequestedOutput("OUT"), triton_grpc.InferRequestedOutput("IDX")],
                                     enable_empty_final_response=wants_end)
            c.async_stream_infer("square_int32", [tensor(triton_grpc, "IN", np.array([4], np.int32), "INT32")],
                                 request_id="square", enable_empty_final_response=wants_end)
            got, ends = {}, set()
            left = sum(plan.values()) + 4 + (len(plan) + 1 if wants_end else 0)
            for _ in range(left):
                result = answers.get(timeout=30)
                assert not isinstance(result, Exception), result
                response = result.get_response()
                assert response.id not in ends, "an answer after the end"
                if response.parameters["triton_final_response"].bool_param:
                    assert wants_end and not response.outputs
                    ends.add(response.id)
                    continue
                if response.id != "square":
                    assert int(result.as_numpy("IDX")[0]) == len(got.get(response.id, []))
                assert list(result.as_numpy("OUT").shape) == [1]
                got.setdefault(response.id, []).append(int(result.as_numpy("OUT")[0]))
        assert answers.empty() and got.pop("square") == [4] * 4
        assert got == {n: list(range(100, 100 + k)) for n, k in plan.items() if k}
        assert ends == (set(plan) | {"square"} if wants_end else set())


def decoupled_asyncio():
    async def run():
        async def requests():
            yield {"model_name": "repeat_int32", "inputs": repeat_inputs(5)[1]}

        got = []
        async with grpc_aio.InferenceServerClient(server.grpc_address) as c:
            async for result, error in c.stream_infer(requests()):
                assert error is None, error
                got.append([t.name for t in result.get_response().outputs])
        assert got == [["OUT", "IDX"]] * 5, got

    asyncio.run(run())


def decoupled_refusals():
    """Calls with one answer refuse such models; a failed run is one error and the stream goes on."""
    values = repeat_inputs(2)[1]
    refused("doesn't support models with decoupled transaction policy",
            lambda: client(triton_grpc).infer("repeat_int32", values), "UNIMPLEMENTED")
    square = tensor(triton_http, "IN", np.array([1], np.int32), "INT32")
    refused("doesn't support models with decoupled transaction policy",
            lambda: client(triton_http).infer("square_int32", [square]), "501")
    answers = queue.Queue()
    with client(triton_grpc) as c:
        c.start_stream(lambda result, error: answers.put(error or result))
        for n in (-1, 70000, 1):
            c.async_stream_infer("square_int32", [tensor(triton_grpc, "IN", np.array([n], np.int32), "INT32")])
        first, second, third = (answers.get(timeout=30) for _ in range(3))
        assert "negative" in str(first) and "at most 65536" in str(second), (first, second)
        assert int(third.as_numpy("OUT")[0]) == 1


def generate():
    """Server-sent events: an answer each, nothing for none; generate wants exactly one."""
    for count in (0, 1, 5):
        status, kind, body = post("/v2/models/square_int32/generate_stream", {"IN": count, "id": "g"})
        events = [json.loads(e[len("data: "):]) for e in body.split("\n\n") if e]
        assert status == 200 and kind.startswith("text/event-stream") and len(events) == count
        assert all(e["OUT"] == count and e["id"] == "g" for e in events), events
        status, _, body = post("/v2/models/square_int32/generate", {"IN": count})
        assert (status, "exactly 1 response" in body) == ((200, False) if count == 1 else (500, True)), body
    status, _, body = post("/v2/models/square_int32/generate_stream", {"IN": -1})
    assert status == 400 and "negative" in body, (status, body)  # before the first event it is a plain error
    assert post("/v2/models/simple_sequence/generate_stream", {"INPUT": 1})[0] == 400


CASES = [strings, strings_in_batches, explicit_contents, shared_memory, cuda_shared_memory, sequences, asyncio_sequences,
         decoupled_stream, decoupled_asyncio, decoupled_refusals, generate]
if __name__ == "__main__":
    try:
        run_cases([(case.__name__, case) for case in CASES])
    finally:
        if server.process.poll() is None:
            server.stop()
        shutil.rmtree(repository, ignore_errors=True)
