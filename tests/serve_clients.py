# What the public Triton client examples do, call by call with their checks, on models rebuilt here; decoupled models.
import asyncio
import json
import queue
import shutil
import struct
import urllib.error
import urllib.request
import uuid

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
models.add_densenet(repository)
models.add_inception(repository)
models.add_image_ensemble(repository)
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
        fixed = np.array([[b"\x00\x01\x02\x03"] * 16], "S4")
        for rows in ([["he\x00llo".encode()] * 16], [[b""], ["größer".encode()]], fixed):
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
                array = first if key == "a" else second
                packed = utils.serialize_byte_tensor(as_text(array)) if datatype == "BYTES" else array
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


def keep_number(got, result):
    """Files an answer under its sequence, which its request's id begins with."""
    sequence = result.get_response().id.rsplit("_", 1)[0]
    got.setdefault(sequence, []).append(int(result.as_numpy("OUTPUT")[0][0]))


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
                keep_number(got, result)
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
                keep_number(got, result)
        assert got == {str(key): want for (_, key, _), want in zip(plan, expected)}, got

    for model in ("simple_sequence", "simple_dyna_sequence"):
        asyncio.run(run(model))


def repeat_inputs(count, offset=100):
    values = np.arange(offset, offset + count, dtype=np.int32)
    return values, [tensor(triton_grpc, "IN", values, "INT32"),
                    tensor(triton_grpc, "DELAY", np.ones(count, np.uint32), "UINT32"),
                    tensor(triton_grpc, "WAIT", np.ones(1, np.uint32), "UINT32")]


def decoupled_stream():
    """simple_grpc_custom_repeat, then several requests at once: none, one and many answers, with the end or without."""
    for wants_end in (False, True):
        answers = queue.Queue()
        with client(triton_grpc) as c:
            assert c.get_model_config("repeat_int32").config.model_transaction_policy.decoupled
            c.start_stream(lambda result, error: answers.put(error or result))
            wanted = [triton_grpc.InferRequestedOutput(name) for name in ("OUT", "IDX")]
            plan = {"ten": 10, "none": 0, "one": 1, "many": 3000}
            for name, count in plan.items():
                c.async_stream_infer("repeat_int32", repeat_inputs(count)[1], request_id=name,
                                     outputs=wanted, enable_empty_final_response=wants_end)
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


def decoupled_statistics():
    """response_stats: each answer by its place, the end as an empty one behind the last, failures at the first."""
    def counts(path):
        with client(triton_http) as c:
            stats = c.get_inference_statistics("repeat_int32")["model_stats"][0]["response_stats"]
        return {place: values[path]["count"] for place, values in stats.items()}

    def grown(path, before):
        return {k: n - before[path].get(k, 0) for k, n in counts(path).items() if n > before[path].get(k, 0)}

    paths = ("success", "compute_infer", "compute_output", "empty_response", "fail", "cancel")
    before = {path: counts(path) for path in paths}
    answers = queue.Queue()
    with client(triton_grpc) as c:
        c.start_stream(lambda result, error: answers.put(error or result))
        for count in (3, 2):
            c.async_stream_infer("repeat_int32", repeat_inputs(count)[1], enable_empty_final_response=True)
        for _ in range(3 + 2 + 2):
            assert not isinstance(answers.get(timeout=30), Exception)
    for path in paths[:3]:
        assert grown(path, before) == {"0": 2, "1": 2, "2": 1}, (path, grown(path, before))
    assert grown("empty_response", before) == {"2": 1, "3": 1}, grown("empty_response", before)
    assert grown("fail", before) == {} and grown("cancel", before) == {}


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
    # What is no input is a parameter; inputs may stand among the parameters, where Triton's clients put them.
    body = {"parameters": {"INPUT": 1, "sequence_id": 77}, "sequence_start": True, "sequence_end": True, "beams": 4}
    assert json.loads(post("/v2/models/simple_sequence/generate", body)[2])["OUTPUT"] == 2
    status, _, text = post("/v2/models/simple_sequence/generate", body | {"INPUTS": {}})
    assert status == 400 and "parameter 'INPUTS' has invalid type" in text, text


def health_and_metadata():
    """simple_*_health_metadata: live, ready, metadata with extra headers and query parameters, unknown models."""
    for module in PROTOCOLS.values():
        c = client(module)
        assert c.is_server_live() and c.is_server_ready() and c.is_model_ready("simple")
        metadata = c.get_server_metadata()
        assert (metadata["name"] if module is triton_http else metadata.name) == "triton"
        extra = {"query_params": {"test_1": 1, "test_2": 2}} if module is triton_http else {}
        model = c.get_model_metadata("simple", headers={"test": "1", "dummy": "2"}, **extra)
        assert (model["name"] if module is triton_http else model.name) == "simple"
        refused("Request for unknown model: 'wrong_model_name' is not found",
                lambda: c.get_model_metadata("wrong_model_name"))
        config = c.get_model_config("simple")
        config = config if module is triton_http else config.config
        assert (config["max_batch_size"] if module is triton_http else config.max_batch_size) == 8
        assert c.get_inference_statistics("simple")


def check_sum(result, outputs=("OUTPUT0", "OUTPUT1")):
    _, _, total, difference = sixteen()
    for name, want in (("OUTPUT0", total), ("OUTPUT1", difference)):
        if name in outputs:
            np.testing.assert_array_equal(result.as_numpy(name), want)
        else:
            assert result.as_numpy(name) is None


def simple_inputs(module, binary=(True, True)):
    first, second = sixteen()[:2]
    inputs = [module.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
    for made, array, is_binary in zip(inputs, (first, second), binary):
        made.set_data_from_numpy(array, **({"binary_data": is_binary} if module is triton_http else {}))
    return inputs


def http_infer():
    """simple_http_infer_client: mixed JSON and binary, compression both ways, raw bodies, some or no outputs named."""
    c = client(triton_http)
    wanted = [triton_http.InferRequestedOutput("OUTPUT0", binary_data=True),
              triton_http.InferRequestedOutput("OUTPUT1", binary_data=False)]
    for request, response in ((None, None), ("gzip", "deflate"), ("deflate", "gzip")):
        options = {"request_compression_algorithm": request, "response_compression_algorithm": response}
        inputs = simple_inputs(triton_http, (False, True))
        check_sum(c.infer("simple", inputs, outputs=wanted, query_params={"test_1": 1}, headers={"test": "1"},
                          **options))
        check_sum(c.infer("simple", inputs, **options))
        body, json_size = triton_http.InferenceServerClient.generate_request_body(inputs, outputs=wanted[:1])
        headers = {"Inference-Header-Content-Length": str(json_size)} if json_size else {}
        request = urllib.request.Request(server.url + "/v2/models/simple/infer", body, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            result = triton_http.InferenceServerClient.parse_response_body(
                answer.read(), header_length=int(answer.headers["Inference-Header-Content-Length"]))
        check_sum(result, ("OUTPUT0",))
    stats = c.get_inference_statistics("simple")["model_stats"]
    assert len(stats) == 1 and stats[0]["name"] == "simple" and stats[0]["inference_stats"]["success"]["count"] > 0


def grpc_infer():
    """simple_grpc_infer, _custom_args, _keepalive: compression, headers, channel arguments, timeouts."""
    keep = triton_grpc.KeepAliveOptions(keepalive_time_ms=2**31 - 1, keepalive_timeout_ms=20000,
                                        keepalive_permit_without_calls=False, http2_max_pings_without_data=2)
    channels = [("grpc.max_send_message_length", 1 << 26), ("grpc.lb_policy_name", "pick_first")]
    for options in ({}, {"keepalive_options": keep}, {"channel_args": channels}):
        c = client(triton_grpc, **options)
        for codec in (None, "gzip", "deflate"):
            check_sum(c.infer("simple", simple_inputs(triton_grpc), headers={"test": "1"}, client_timeout=30,
                              compression_algorithm=codec))
        check_sum(c.infer("simple", simple_inputs(triton_grpc), outputs=[triton_grpc.InferRequestedOutput("OUTPUT1")]),
                  ("OUTPUT1",))
    statistics = client(triton_grpc).get_inference_statistics("simple")
    assert len(statistics.model_stats) == 1 and statistics.model_stats[0].inference_count > 0


def async_infer():
    """simple_*_async_infer_client and simple_*_aio_infer_client."""
    c = client(triton_http, concurrency=4)
    for handle in [c.async_infer("simple", simple_inputs(triton_http)) for _ in range(8)]:
        check_sum(handle.get_result(block=True, timeout=30))
    answers = queue.Queue()
    c = client(triton_grpc)
    for _ in range(8):
        c.async_infer("simple", simple_inputs(triton_grpc), lambda result, error: answers.put(error or result))
    for _ in range(8):
        check_sum(answers.get(timeout=30))

    async def run():
        async with http_aio.InferenceServerClient(server.address) as h:
            assert await h.is_server_ready() and await h.is_model_ready("simple")
            for result in await asyncio.gather(*(h.infer("simple", simple_inputs(triton_http)) for _ in range(8))):
                check_sum(result)
        async with grpc_aio.InferenceServerClient(server.grpc_address) as g:
            assert await g.is_server_live() and (await g.get_server_metadata()).name == "triton"
            for result in await asyncio.gather(*(g.infer("simple", simple_inputs(triton_grpc)) for _ in range(8))):
                check_sum(result)

    asyncio.run(run())


def reused_objects():
    """reuse_infer_objects_client: the same input and output objects with memory regions, then without them."""
    for module in PROTOCOLS.values():
        c = client(module)
        first, second = sixteen()[:2]
        inputs, outputs = simple_inputs(module), [module.InferRequestedOutput(f"OUTPUT{i}") for i in (0, 1)]
        regions = {}
        for key in ("i0", "i1", "o0", "o1"):
            name = f"/trireme_{uuid.uuid4().hex}"
            regions[key] = shm.create_shared_memory_region(key, name, 64)
            c.register_system_shared_memory(key, name, 64)
        shm.set_shared_memory_region(regions["i0"], [first])
        shm.set_shared_memory_region(regions["i1"], [second])
        check_sum(c.infer("simple", inputs, outputs=outputs))
        for part, key in zip(inputs + outputs, regions):
            part.set_shared_memory(key, 64)
        for _ in range(2):
            c.infer("simple", inputs, outputs=outputs)
            np.testing.assert_array_equal(shm.get_contents_as_numpy(regions["o0"], np.int32, [16]), (first + second)[0])
        for made, array in zip(inputs, (first, second)):
            made.set_data_from_numpy(array)
        for output in outputs:
            output.unset_shared_memory()
        check_sum(c.infer("simple", inputs, outputs=outputs))
        c.unregister_system_shared_memory()
        for handle in regions.values():
            shm.destroy_shared_memory_region(handle)


def picture(height, width, seed):
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3)).astype(np.float32) / 127.5 - 1


def image_clients():
    """image_client and grpc_image_client: what they read of metadata and config, batches, classes with labels."""
    for module in PROTOCOLS.values():
        c = client(module)
        for model, batching in (("densenet_onnx", False), ("inception_onnx", True)):
            config = c.get_model_config(model, **({"as_json": True} if module is triton_grpc else {}))
            config = config.get("config", config)
            given = config["input"][0]
            assert given["format"] == ("FORMAT_NHWC" if batching else "FORMAT_NCHW"), given
            metadata = c.get_model_metadata(model, **({"as_json": True} if module is triton_grpc else {}))
            shape = [int(d) for d in metadata["inputs"][0]["shape"]]
            assert shape == ([-1, 299, 299, 3] if batching else [3, 224, 224])
            rows = 2 if batching else 1
            pictures = np.stack([picture(*((299, 299) if batching else (224, 224)), i) for i in range(rows)])
            batch = pictures if batching else pictures[0].transpose(2, 0, 1).copy()
            name, output = metadata["inputs"][0]["name"], metadata["outputs"][0]["name"]
            result = c.infer(model, [tensor(module, name, batch, "FP32")],
                             outputs=[module.InferRequestedOutput(output, class_count=3)]).as_numpy(output)
            weights = np.random.default_rng(2 if batching else 1).normal(size=(1001 if batching else 1000, 3))
            scores = pictures.mean((1, 2)) @ weights.astype(np.float32).T
            for row, want in zip(result if batching else [result], scores):
                best = np.argsort(-want)[:3]
                assert [int(text.decode().split(":")[1]) for text in row] == best.tolist(), (row, best)
                assert [text.decode().split(":")[2] for text in row] == [f"class {i}" for i in best]


def bitmap(pixels):
    """A picture [height, width, 3] as a BMP file of 24 bits."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, (width * 3 + 3) // 4 * 4), np.uint8)
    rows[:, :width * 3] = pixels[::-1, :, ::-1].reshape(height, -1)
    header = struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 54 + rows.size, 0, 0, 54, 40, width, height, 1, 24, 0, rows.size,
                         2835, 2835, 0, 0)
    return header + rows.tobytes()


def picture_files():
    """ensemble_image_client: whole files as BYTES, decoded and scaled by the first step, classified by the second."""
    weights = np.random.default_rng(2).normal(size=(1001, 3)).astype(np.float32)
    pictures = [np.random.default_rng(i).integers(0, 256, (299, 299, 3)).astype(np.uint8) // (i + 1) for i in range(3)]
    files = np.array([[bitmap(p)] for p in pictures], np.object_)
    for module in PROTOCOLS.values():
        c = client(module)
        metadata = c.get_model_metadata("preprocess_inception_ensemble",
                                        **({"as_json": True} if module is triton_grpc else {}))
        given = metadata["inputs"][0]
        assert given["datatype"] == "BYTES" and [int(d) for d in given["shape"]] == [-1, 1]
        result = c.infer("preprocess_inception_ensemble", [tensor(module, "INPUT", files, "BYTES")],
                         outputs=[module.InferRequestedOutput("OUTPUT", class_count=3)]).as_numpy("OUTPUT")
        for row, pixels in zip(result, pictures):
            best = np.argsort(-((pixels / 127.5 - 1).mean((0, 1)) @ weights.T))[:3]
            assert [int(text.decode().split(":")[1]) for text in row] == best.tolist(), (row, best)
        small = np.array([[bitmap(np.full((7, 5, 3), 51, np.uint8))]], np.object_)  # resized
        got = c.infer("preprocess", [tensor(module, "INPUT", small, "BYTES")]).as_numpy("OUTPUT")
        np.testing.assert_allclose(got, np.full((1, 299, 299, 3), 51 / 127.5 - 1), atol=1e-6)
        other = tensor(module, "INPUT", np.array([[b"GIF89a"]], np.object_), "BYTES")
        refused("input 'INPUT'", lambda: c.infer("preprocess", [other]))


def model_control():
    """simple_*_model_control: a repository of seven, explicit control, a config by the wire, what is refused."""
    seven = temporary()
    models.add_seven(seven)
    with Server(seven, "--model-control-mode", "explicit") as own:
        for module in PROTOCOLS.values():
            c = client(module, own)
            index = c.get_model_repository_index()
            assert len(index if module is triton_http else index.models) == 7
            c.load_model("simple")
            assert c.is_model_ready("simple")
            malformed = '"parameters": {"config": {{"max_batch_size": "16"}}}'
            refused("failed to load", lambda: c.load_model("simple", config=malformed))
            c.load_model("simple", config='{"max_batch_size":"16"}')
            config = c.get_model_config("simple")
            assert (config["max_batch_size"] if module is triton_http else config.config.max_batch_size) == 16
            c.unload_model("simple")
            assert not c.is_model_ready("simple")
            refused("failed to poll from model repository",
                    lambda: c.load_model("simple", config="{}", files={"file:" + "A" * 256: b"a"}))
            assert c.is_server_live()
            refused("failed to load 'wrong_model_name', failed to poll from model repository",
                    lambda: c.load_model("wrong_model_name"))
    shutil.rmtree(seven)


def several_repositories():
    """Triton's own words on the command line; models of two roots; a name in both is nobody's."""
    first, second = temporary(), temporary()
    models.add_identity(first, "one")
    models.add_identity(second, "two")
    for root in (first, second):
        models.add_identity(root, "both")
    with Server(first, "--model-repository", str(second), "--strict-readiness", "false", "--exit-timeout-secs", "5",
                "--metrics-port", "0", "--grpc-infer-thread-count", "16", "--log-verbose=1") as own:
        c = client(triton_http, own)
        assert c.is_model_ready("one") and c.is_model_ready("two") and not c.is_model_ready("both")
        index = {e["name"]: e for e in c.get_model_repository_index()}
        assert "more than one repository" in index["both"]["reason"], index["both"]
        notes = [line for line in own.log if "option_without_effect" in line]
        assert len(notes) == 1 and "--grpc-infer-thread-count" in notes[0], notes  # --log-verbose has one
        port = next(int(line.split("metrics_port=")[1].split()[0]) for line in own.log if "metrics_port=" in line)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert b"nv_inference_request_success" in answer.read()
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/live", timeout=10)
            raise AssertionError("only metrics are on that port")
        except urllib.error.HTTPError as error:
            assert error.code == 404
        assert own.stop() == 0
    for root in (first, second):
        shutil.rmtree(root)


def kserve_client():
    """What the kserve package sends and reads: health as JSON, request parameters, raw FP16, contents over gRPC."""
    for path, want in (("/v2/health/live", {"live": True}), ("/v2/health/ready", {"ready": True}),
                       ("/v2/models/simple/ready", {"name": "simple", "ready": True})):
        with urllib.request.urlopen(server.url + path, timeout=10) as answer:
            assert json.load(answer) == want
    first, second, total, _ = sixteen()
    json_part = {"id": "42", "model_name": "simple", "parameters": {"p": 1, "binary_data_output": True},
                 "inputs": [{"name": f"INPUT{i}", "shape": [1, 16], "datatype": "INT32",
                             "parameters": {"binary_data_size": 64}} for i in (0, 1)],
                 "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}
    head = json.dumps(json_part, separators=(",", ":")).encode()
    body = head + first.tobytes() + second.tobytes()
    request = urllib.request.Request(server.url + "/v2/models/simple/infer", body, {
        "content-type": "application/octet-stream", "inference-header-content-length": str(len(head)),
        "accept": "*/*", "user-agent": "python-httpx"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        size = int(answer.headers["inference-header-content-length"])
        body = answer.read()
    assert json.loads(body[:size])["id"] == "42"
    np.testing.assert_array_equal(np.frombuffer(body[size:], np.int32), total[0])


def mlserver_client():
    """What MLServer's codecs and gRPC converters send: content types, headers among the parameters, empty contents."""
    def request(name, values, datatype, content):
        return {"name": name, "shape": list(np.shape(values)), "datatype": datatype,
                "parameters": {"content_type": content}, "data": np.ravel(values).tolist()}

    first, second, total, _ = sixteen()
    body = {"id": "abc", "parameters": {"content_type": "np", "headers": {"x-request": "y", "n": [1]}},
            "inputs": [request("INPUT0", first, "INT32", "np"), request("INPUT1", second, "INT32", "np")],
            "outputs": [{"name": "OUTPUT0", "parameters": {"content_type": "np"}}]}
    status, _, answer = post("/v2/models/simple/infer", body)
    answer = json.loads(answer)
    assert status == 200 and answer["id"] == "abc" and answer["outputs"][0]["data"] == total[0].tolist(), answer
    texts = [["a"], ["b c"]]
    status, _, answer = post("/v2/models/simple_identity/infer", {"inputs": [request("INPUT0", texts, "BYTES", "str")]})
    output = json.loads(answer)["outputs"][0]
    assert output["shape"] == [2, 1] and output["data"] == ["a", "b c"] and output["datatype"] == "BYTES"
    import grpc
    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(server.grpc_address))
    message = service_pb2.ModelInferRequest(model_name="simple")
    message.parameters["content_type"].string_param = "np"
    for i, array in enumerate((first, second)):
        part = message.inputs.add(name=f"INPUT{i}", datatype="INT32", shape=[1, 16])
        part.parameters["content_type"].string_param = "np"
        part.contents.SetInParent()
        message.raw_input_contents.append(array.tobytes())
    np.testing.assert_array_equal(np.frombuffer(stub.ModelInfer(message).raw_output_contents[0], np.int32), total[0])


CASES = [health_and_metadata, http_infer, grpc_infer, async_infer, reused_objects, image_clients, picture_files,
         model_control, several_repositories, kserve_client, mlserver_client, strings, strings_in_batches,
         explicit_contents, shared_memory, cuda_shared_memory, sequences, asyncio_sequences,
         decoupled_stream, decoupled_statistics,
         decoupled_asyncio, decoupled_refusals, generate]
if __name__ == "__main__":
    try:
        run_cases([(case.__name__, case) for case in CASES])
    finally:
        if server.process.poll() is None:
            server.stop()
        shutil.rmtree(repository, ignore_errors=True)
