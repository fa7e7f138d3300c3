# The real server over gRPC: tritonclient (plain, streams, asyncio), health, reflection, and every refusal.
import asyncio
import gzip
import json
import os
import queue
import shutil
import threading
import time
import urllib.error
import urllib.request

import grpc
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.http as triton_http
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from onnx import TensorProto
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from _serving import Server, add_simple, add_slow, run_cases, temporary, until

repository = temporary()
add_simple(repository)
add_simple(repository, "simple_f32", TensorProto.FLOAT)
add_simple(repository, "simple_f16", TensorProto.FLOAT16)
add_slow(repository)
server = Server(repository, "--model-control", "explicit", "--load-model", "*", "--threads", "2")


def client(own=None, **options):
    return triton.InferenceServerClient((own or server).grpc_address, **options)


def simple_inputs(rows=1, dtype=np.int32, datatype="INT32", seed=0):
    values = np.random.default_rng(seed).integers(-100, 100, (2, rows, 16)).astype(dtype)
    inputs = [triton.InferInput(f"INPUT{i}", [rows, 16], datatype) for i in (0, 1)]
    for i in (0, 1):
        inputs[i].set_data_from_numpy(values[i])
    return values, inputs


def check_simple(result, values):
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values[0] + values[1])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), values[0] - values[1])


def refused(code, fragment, call):
    try:
        call()
    except InferenceServerException as error:
        assert fragment in error.message(), f"{fragment!r} is not in {error}"
        assert f"StatusCode.{code}" == error.status(), error.status()
        return
    except grpc.RpcError as error:
        assert fragment in error.details(), f"{fragment!r} is not in {error.details()}"
        assert error.code().name == code, error.code()
        return
    raise AssertionError("the call succeeded")


def same_answers_as_http():
    """Metadata, configuration, statistics, index and settings: both front ends say the same."""
    c, h = client(), triton_http.InferenceServerClient(server.address)
    assert c.is_server_live() and c.is_server_ready() and c.is_model_ready("simple")
    assert not c.is_model_ready("nothing") and not c.is_model_ready("simple", "7")
    meta = c.get_server_metadata(as_json=True)
    assert meta == h.get_server_metadata(), meta
    ours, theirs = c.get_model_metadata("simple", as_json=True), h.get_model_metadata("simple")
    assert ours["inputs"][0]["shape"] == ["-1", "16"] and theirs["inputs"][0]["shape"] == [-1, 16]
    assert [t["name"] for t in ours["outputs"]] == [t["name"] for t in theirs["outputs"]]
    config = c.get_model_config("simple").config
    assert config.max_batch_size == h.get_model_config("simple")["max_batch_size"]
    assert config.input[0].name == "INPUT0" and config.instance_group[0].count == 1
    check_simple(c.infer("simple_f32", simple_inputs(3, np.float32, "FP32")[1]),
                 simple_inputs(3, np.float32, "FP32")[0])
    stats = c.get_inference_statistics("simple_f32").model_stats[0]
    theirs = h.get_inference_statistics("simple_f32")["model_stats"][0]
    assert stats.inference_count == theirs["inference_count"] >= 3
    assert stats.inference_stats.success.ns == theirs["inference_stats"]["success"]["ns"] > 0
    assert len(c.get_inference_statistics().model_stats) == 4
    index = c.get_model_repository_index(as_json=True)["models"]
    assert index == h.get_model_repository_index(), index
    log = c.get_log_settings(as_json=True)["settings"]
    assert log["log_info"] == {"bool_param": True}, log
    assert c.update_log_settings({"log_verbose_level": 1}).settings["log_verbose_level"].uint32_param == 1
    assert h.get_log_settings()["log_verbose_level"] == 1
    c.update_log_settings({"log_verbose_level": 0})
    assert c.get_trace_settings().settings["trace_level"].value == ["OFF"]
    refused("NOT_FOUND", "is not found", lambda: c.get_trace_settings("nothing"))
    assert not c.get_system_shared_memory_status().regions and not c.get_cuda_shared_memory_status().regions
    refused("UNIMPLEMENTED", "allow-client-shm", lambda: c.register_system_shared_memory("a", "/a", 4))
    refused("UNIMPLEMENTED", "CUDA", lambda: c.register_cuda_shared_memory("a", b"eA==", 0, 4))


def every_form():
    c = client()
    for rows in (1, 3, 8):
        values, inputs = simple_inputs(rows, seed=rows)
        result = c.infer("simple", inputs, request_id=f"r{rows}", model_version="1")
        check_simple(result, values)
        assert result.get_response().id == f"r{rows}" and result.get_response().model_version == "1"
        only = c.infer("simple", inputs, outputs=[triton.InferRequestedOutput("OUTPUT1")])
        assert only.as_numpy("OUTPUT0") is None
        np.testing.assert_array_equal(only.as_numpy("OUTPUT1"), values[0] - values[1])
    values, inputs = simple_inputs(2, np.float16, "FP16")
    check_simple(c.infer("simple_f16", inputs), values)
    values, inputs = simple_inputs(1, seed=5)
    best = c.infer("simple", inputs, outputs=[triton.InferRequestedOutput("OUTPUT0", class_count=3)])
    texts = best.as_numpy("OUTPUT0")[0]
    order = np.argsort(-(values[0] + values[1])[0], kind="stable")[:3]
    assert [int(t.split(b":")[1]) for t in texts] == list(order), texts
    for codec in ("gzip", "deflate"):
        values, inputs = simple_inputs(8, seed=9)
        check_simple(c.infer("simple", inputs, compression_algorithm=codec), values)


def typed_contents():
    """InferTensorContents instead of raw bytes, packed and checked against the datatype."""
    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(server.grpc_address))
    fields = {"INT32": ("simple", "int_contents", np.int32), "FP32": ("simple_f32", "fp32_contents", np.float32)}
    for datatype, (model, field, dtype) in fields.items():
        request = service_pb2.ModelInferRequest(model_name=model)
        for i in (0, 1):
            tensor = request.inputs.add(name=f"INPUT{i}", datatype=datatype, shape=[1, 16])
            getattr(tensor.contents, field).extend(range(i, 16 + i))
        answer = stub.ModelInfer(request)
        np.testing.assert_array_equal(np.frombuffer(answer.raw_output_contents[0], dtype), np.arange(16) * 2 + 1)
    bad = service_pb2.ModelInferRequest()
    bad.CopyFrom(request)
    bad.inputs[0].contents.fp32_contents.append(1)
    refused("INVALID_ARGUMENT", "Shape does not match", lambda: stub.ModelInfer(bad))
    bad.inputs[0].contents.int_contents.append(1)
    refused("INVALID_ARGUMENT", "contents of another type", lambda: stub.ModelInfer(bad))
    bad.CopyFrom(request)
    bad.raw_input_contents.append(b"\0" * 64)
    refused("INVALID_ARGUMENT", "contents field must not be specified", lambda: stub.ModelInfer(bad))
    bad.CopyFrom(request)
    bad.inputs[0].ClearField("contents")
    bad.inputs[1].ClearField("contents")
    bad.raw_input_contents.append(b"\0" * 64)
    refused("INVALID_ARGUMENT", "too few entries", lambda: stub.ModelInfer(bad))
    bad.raw_input_contents.extend([b"\0" * 64] * 2)
    refused("INVALID_ARGUMENT", "unexpected number of raw_input_contents", lambda: stub.ModelInfer(bad))
    bad.CopyFrom(request)
    bad.inputs[0].shape[1] = -16
    refused("INVALID_ARGUMENT", "negative dimension", lambda: stub.ModelInfer(bad))


def refusals():
    c = client()
    _, inputs = simple_inputs()
    refused("NOT_FOUND", "Request for unknown model", lambda: c.infer("nothing", inputs))
    refused("INVALID_ARGUMENT", "expected 2 inputs but got 1 inputs", lambda: c.infer("simple", inputs[:1]))
    refused("INVALID_ARGUMENT", "already exists in request", lambda: c.infer("simple", [inputs[0]] * 2))
    refused("INVALID_ARGUMENT", "unexpected inference output",
            lambda: c.infer("simple", inputs, outputs=[triton.InferRequestedOutput("X")]))
    wrong = simple_inputs(1, np.float32, "FP32")[1]
    refused("INVALID_ARGUMENT", "data-type is 'FP32', but model 'simple' expects 'INT32'",
            lambda: c.infer("simple", wrong))
    raw = grpc.insecure_channel(server.grpc_address).unary_unary(
        "/inference.GRPCInferenceService/ModelInfer", request_serializer=bytes, response_deserializer=bytes)
    for junk in (b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x0b"):
        refused("INVALID_ARGUMENT", "", lambda: raw(junk))
    refused("NOT_FOUND", "unknown model", lambda: raw(b""))
    # A name that is much longer than what clients take as fields of an answer.
    for length in (5_000, 100_000):
        refused("NOT_FOUND", "unknown model: 'ää", lambda: c.infer("ä" * length, inputs, client_timeout=20))


def control():
    c = client()
    c.unload_model("simple_f16")
    assert not c.is_model_ready("simple_f16")
    refused("NOT_FOUND", "has no available versions", lambda: c.get_model_metadata("simple_f16"))
    c.load_model("simple_f16")
    assert c.is_model_ready("simple_f16")
    refused("NOT_FOUND", "failed to load 'nothing', failed to poll", lambda: c.load_model("nothing"))
    refused("INVALID_ARGUMENT", "path traversal", lambda: c.load_model("../x"))
    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(server.grpc_address))
    refused("UNIMPLEMENTED", "repository_name", lambda: stub.RepositoryIndex(
        service_pb2.RepositoryIndexRequest(repository_name="other")))


def streams():
    c = client()
    answers = queue.Queue()
    c.start_stream(lambda result, error: answers.put((result, error)))
    wanted = {}
    for i in range(200):
        values, inputs = simple_inputs(1 + i % 4, seed=i)
        wanted[str(i)] = values
        c.async_stream_infer("simple", inputs, request_id=str(i))
    for _ in range(200):
        result, error = answers.get(timeout=30)
        assert error is None, error
        response = result.get_response()
        assert response.parameters["triton_final_response"].bool_param
        check_simple(result, wanted.pop(response.id))
    # An error is an answer: the stream goes on.
    c.async_stream_infer("nothing", inputs, request_id="bad")
    result, error = answers.get(timeout=30)
    assert result is None and "unknown model" in error.message(), error
    c.async_stream_infer("simple", inputs, request_id="good")
    result, error = answers.get(timeout=30)
    assert error is None and result.get_response().id == "good"
    c.stop_stream()
    strict = client()
    strict.start_stream(lambda result, error: answers.put((result, error)), headers={"triton_grpc_error": "true"})
    strict.async_stream_infer("nothing", inputs)
    result, error = answers.get(timeout=30)
    assert "StatusCode.NOT_FOUND" == error.status(), error
    strict.stop_stream()


def asynchronous():
    c = client()
    done = queue.Queue()
    sent = {}
    for i in range(64):
        values, inputs = simple_inputs(1 + i % 3, seed=i)
        sent[str(i)] = values
        c.async_infer("simple", inputs, lambda result, error: done.put((result, error)), request_id=str(i))
    for _ in range(64):
        result, error = done.get(timeout=30)
        assert error is None, error
        check_simple(result, sent[result.get_response().id])

    async def run():
        a = triton_aio.InferenceServerClient(server.grpc_address)
        assert await a.is_server_ready()

        async def one(i):
            values, inputs = simple_inputs(2, seed=i)
            check_simple(await a.infer("simple", inputs), values)

        await asyncio.gather(*(one(i) for i in range(32)))

        async def requests():
            for i in range(20):
                yield {"model_name": "simple", "inputs": simple_inputs(1, seed=i)[1], "request_id": str(i)}

        seen = 0
        async for result, error in a.stream_infer(requests()):
            assert error is None, error
            check_simple(result, simple_inputs(1, seed=int(result.get_response().id))[0])
            seen += 1
        assert seen == 20
        await a.close()

    asyncio.run(run())


def large_messages():
    """Far above gRPC's own 4 MiB limit, both ways, from pieces of any alignment."""
    rows = np.random.default_rng(1).normal(size=(64, 512)).astype(np.float32)
    x = triton.InferInput("x0", rows.shape, "FP32")
    x.set_data_from_numpy(rows)
    c = client()
    first = c.infer("slow", [x]).as_numpy("x220")
    # The identifier shifts the tensor's bytes through every alignment.
    for i in range(1, 9):
        np.testing.assert_array_equal(c.infer("slow", [x], request_id="i" * i).as_numpy("x220"), first)
    h = triton_http.InferenceServerClient(server.address)
    hx = triton_http.InferInput("x0", rows.shape, "FP32")
    hx.set_data_from_numpy(rows)
    np.testing.assert_array_equal(h.infer("slow", [hx]).as_numpy("x220"), first)
    refused("INVALID_ARGUMENT", "batch-size", lambda: c.infer("simple_f32", simple_inputs(
        40_000, np.float32, "FP32")[1]))  # 5 MB arrive and are looked at


def bombs():
    """Small bodies that inflate to large ones, or to documents that take much more than their text."""
    zeros = b"\0" * (512 << 20)
    pairs = np.frombuffer(b'"":0,' * (3 << 20), np.uint8).reshape(-1, 5).copy()
    pairs[:, 3] += np.random.default_rng(5).integers(0, 10, len(pairs), np.uint8)  # else it shrinks too far to be taken
    many = {"inputs": b'{"inputs":[' + b"{}," * (1 << 20), "outputs": b'{"outputs":[' + b"{}," * (1 << 20),
            "shape": b'{"inputs":[{"name":"x","shape":[' + b"1," * (1 << 20),
            "keys": b'{"parameters":{' + pairs.tobytes()}
    with Server(repository, "--max-request-bytes", "16MiB") as own:
        channel = grpc.insecure_channel(own.grpc_address, options=[("grpc.max_send_message_length", -1)])
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        web = urllib.request.Request(own.url + "/v2/models/simple/infer", headers={"Content-Encoding": "gzip"})
        check_simple(client(own).infer("simple", simple_inputs(2)[1]), simple_inputs(2)[0])
        before = resident_mib(own, "VmHWM")
        for coding in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            refused("RESOURCE_EXHAUSTED", "maximum allowed input size of 16777216 bytes",
                    lambda: call(zeros, compression=coding))
            assert stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=10).ready  # on the same connection
        statuses = []
        for body in (zeros, *many.values()):
            web.data = gzip.compress(body, 1)
            try:
                urllib.request.urlopen(web, timeout=30)
            except urllib.error.HTTPError as error:
                statuses.append((error.code, error.read()))
        assert [code for code, _ in statuses] == [413, 400, 400, 400, 400], statuses
        for (_, text), fragment in zip(statuses[1:], (b"more inputs", b"more inputs", b"more dimensions", b"keys")):
            assert fragment in text, text
        # Twice 16 MiB while a buffer grows, and two million keys of 32 bytes while theirs does.
        assert resident_mib(own, "VmHWM") < before + 260, (before, resident_mib(own, "VmHWM"))
        check_simple(client(own).infer("simple", simple_inputs(2)[1]), simple_inputs(2)[0])
        assert own.stop() == 0


def slow_request():
    x = triton.InferInput("x0", [64, 512], "FP32")
    x.set_data_from_numpy(np.ones((64, 512), np.float32))
    return [x]


def deadlines_and_cancellation():
    with Server(repository, "--threads", "1") as own:
        c = client(own)
        executions = 'nv_inference_exec_count{model="slow",version="1"}'
        answers = queue.Queue()
        for _ in range(12):
            c.async_infer("slow", slow_request(), lambda result, error: answers.put(error), client_timeout=0.05)
        late = [answers.get(timeout=30) for _ in range(12)]
        # By the client's own clock, or by the server that foresaw it.
        assert sum(e is not None and "deadline" in str(e).lower() for e in late) >= 6, [str(e) for e in late]
        calls = [c.async_infer("slow", slow_request(), lambda result, error: answers.put(error))
                 for _ in range(12)]
        for call in calls[2:]:
            call.cancel()
        ends = [answers.get(timeout=30) for _ in range(12)]
        assert sum(e is None for e in ends) >= 2 and sum("CANCELLED" in str(e) for e in ends) >= 8, ends
        c.infer("slow", slow_request())
        until(lambda: own.metrics()['nv_inference_pending_request_count{model="slow",version="1"}'] == 0)
        metrics = own.metrics()
        failed = sum(v for k, v in metrics.items() if k.startswith('nv_inference_request_failure{model="slow"'))
        assert failed >= 10 and metrics[executions] <= 14, metrics[executions]
        refused("UNAVAILABLE", "Request timeout expired", lambda: flood(c))
        assert own.stop() == 0


def flood(c):
    """Three at once with a queue time of a millisecond: the last ones expire."""
    answers = queue.Queue()
    for _ in range(4):
        c.async_infer("slow", slow_request(), lambda result, error: answers.put(error), timeout=1000)
    errors = [e for e in (answers.get(timeout=30) for _ in range(4)) if e is not None]
    assert errors
    raise errors[0]


def cpu_s(own):
    """User and system time of the server so far."""
    words = open(f"/proc/{own.process.pid}/stat", encoding="utf-8").read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def work_follows_bytes():
    """Messages of many small parts cost time and memory by their bytes, not by the square or a thousand times those."""
    settings = b"".join(b"\x0a\x0b\x0a\x05%05d\x12\x02\x0a\x00" % i for i in range(60_000))
    parameters = b"".join(b"\x1a\x0b\x0a\x05%05d\x12\x02\x08\x01" % i for i in range(60_000))
    unknown = (b"\xf2\x07\x00" * 300, b"\x0b" * 4000, b"\xf8\x07\x01" * 300)
    with Server(repository, "--model-control", "explicit", "--load-model", "simple", "--threads", "1") as own:
        channel = grpc.insecure_channel(own.grpc_address, options=[("grpc.max_receive_message_length", -1)])
        check_simple(client(own).infer("simple", simple_inputs(2)[1]), simple_inputs(2)[0])
        before_s, before = cpu_s(own), resident_mib(own, "VmHWM")
        service = "/inference.GRPCInferenceService/"
        for method, message in (("TraceSetting", settings), ("LogSettings", settings),
                                ("RepositoryModelLoad", parameters), ("RepositoryModelUnload", parameters)):
            refused("INVALID_ARGUMENT", "", lambda: channel.unary_unary(service + method)(message, timeout=60))
        body = json.dumps({"parameters": {f"{i:06d}": 1 for i in range(140_000)}}).encode()
        assert len(body) > 1_400_000
        for path in ("/v2/repository/models/simple/load", "/v2/logging", "/v2/trace/setting"):
            try:
                urllib.request.urlopen(urllib.request.Request(own.url + path, body), timeout=60)
                raise AssertionError("the call succeeded")
            except urllib.error.HTTPError as error:
                assert error.code == 400, error.code
        for message in unknown:
            try:
                for version in ("v1", "v1alpha"):
                    path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
                    answers = channel.stream_stream(path)(iter([message]), timeout=60)
                    assert sum(map(len, answers)) < 200
            except grpc.RpcError as error:
                assert error.code().name in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"), error
        for path in ("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "grpc.health.v1.Health/Check"):
            refused("RESOURCE_EXHAUSTED", "exceeds the limit",
                    lambda: list(channel.stream_stream("/" + path)(iter([b"\x0b" * 1_500_000]), timeout=60)))
        spent, grown = cpu_s(own) - before_s, resident_mib(own, "VmHWM") - before
        assert spent < 4 and grown < 200, (spent, grown)  # minutes, and gigabytes
        check_simple(client(own).infer("simple", simple_inputs(2)[1]), simple_inputs(2)[0])
        assert own.stop() == 0


def long_messages():
    """--max-request-bytes bounds a message as it comes, and what a compressed one becomes, for every method."""
    with Server(repository, "--max-request-bytes", "1MiB", "--threads", "1") as own:
        channel = grpc.insecure_channel(own.grpc_address, options=[("grpc.max_send_message_length", -1)])
        for method in ("ModelInfer", "RepositoryModelLoad", "ModelConfig", "TraceSetting"):
            call = channel.unary_unary("/inference.GRPCInferenceService/" + method)
            for options in ({}, {"compression": grpc.Compression.Gzip}):
                refused("RESOURCE_EXHAUSTED", "", lambda: call(b"\x0a" + b"\0" * (2 << 20), timeout=30, **options))
        check_simple(client(own).infer("simple", simple_inputs(2)[1]), simple_inputs(2)[0])


def health_and_reflection():
    channel = grpc.insecure_channel(server.grpc_address)
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", "inference.GRPCInferenceService"):
        assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == 1
    refused("NOT_FOUND", "", lambda: health.Check(health_pb2.HealthCheckRequest(service="x")))
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asks = [reflection_pb2.ServerReflectionRequest(list_services=""), reflection_pb2.ServerReflectionRequest(
        file_containing_symbol="inference.GRPCInferenceService")]
    names, files = stub.ServerReflectionInfo(iter(asks))
    services = {s.name for s in names.list_services_response.service}
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= services, services
    # The field numbers are those of the client's own definition.
    from google.protobuf import descriptor_pb2
    ours = {}
    for text in files.file_descriptor_response.file_descriptor_proto:
        for message in descriptor_pb2.FileDescriptorProto.FromString(text).message_type:
            collect(message, message.name, ours)
    theirs = {}
    for module in (service_pb2, triton.model_config_pb2):
        proto = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(proto)
        for message in proto.message_type:
            collect(message, message.name, theirs)
    compared = set(ours) & set(theirs)
    for name in compared:
        for field, number in theirs[name].items():
            assert ours[name].get(field, number) == number, (name, field)
    same = sum(ours[n] == theirs[n] for n in compared)
    assert len(compared) > 100 and same > 95, (len(compared), same, [n for n in compared if ours[n] != theirs[n]])


def health_watch_and_both_reflections():
    """A watcher hears of the drain; an unknown service is told, not refused; v1 of reflection is v1alpha's."""
    with Server(repository) as own:
        channel = grpc.insecure_channel(own.grpc_address)
        health = health_pb2_grpc.HealthStub(channel)
        seen = []

        def watch(name):
            try:
                for answer in health.Watch(health_pb2.HealthCheckRequest(service=name)):
                    seen.append((name, answer.status))
            except grpc.RpcError as error:
                seen.append((name, error.code().name))

        names = ("", "inference.GRPCInferenceService", "nothing")
        threads = [threading.Thread(target=watch, args=(name,)) for name in names]
        for t in threads:
            t.start()
        until(lambda: len(seen) >= 3, seen)
        assert sorted(seen) == [("", 1), ("inference.GRPCInferenceService", 1), ("nothing", 3)], seen
        serialize, parse = reflection_pb2.ServerReflectionRequest.SerializeToString, \
            reflection_pb2.ServerReflectionResponse.FromString
        asks = [reflection_pb2.ServerReflectionRequest(list_services="*"),
                reflection_pb2.ServerReflectionRequest(file_by_filename="no/such.proto"),
                reflection_pb2.ServerReflectionRequest(file_containing_symbol="grpc.health.v1.Health.Check")]
        for version in ("v1", "v1alpha"):
            call = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                                         request_serializer=serialize, response_deserializer=parse)
            names, missing, file = call(iter(asks), timeout=30)
            assert len(names.list_services_response.service) == 4, names
            assert missing.error_response.error_code == 5, missing
            assert len(file.file_descriptor_response.file_descriptor_proto) == 1, file
        assert own.stop() == 0
        for t in threads:
            t.join()
        assert [s for s in seen if s[0] == ""] == [("", 1), ("", 2), ("", "UNAVAILABLE")], seen
        assert ("nothing", "UNAVAILABLE") in seen, seen


def health_is_readiness():
    """A server that is not ready does not say SERVING, and who may not ask for health is told by both services."""
    folder = temporary()
    add_simple(folder)
    (folder / "broken" / "1").mkdir(parents=True)
    (folder / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    question = health_pb2.HealthCheckRequest()
    with Server(folder, "--strict-readiness", ready=False) as own:
        channel = grpc.insecure_channel(own.grpc_address)
        stub, health = service_pb2_grpc.GRPCInferenceServiceStub(channel), health_pb2_grpc.HealthStub(channel)
        limit = time.monotonic() + 100
        while not stub.ModelReady(service_pb2.ModelReadyRequest(name="simple")).ready and time.monotonic() < limit:
            assert health.Check(question).status == 2
            time.sleep(0.02)
            if any("ready" in line and "models" in line for line in own.log):
                break
        assert not stub.ServerReady(service_pb2.ServerReadyRequest()).ready
        assert health.Check(question).status == 2
        assert next(health.Watch(question)).status == 2
    with Server(repository, "--restrict", "health:x-key=secret", ready=False) as own:
        channel = grpc.insecure_channel(own.grpc_address)
        health = health_pb2_grpc.HealthStub(channel)
        refused("UNAVAILABLE", "restricted: health", lambda: health.Check(question))
        refused("UNAVAILABLE", "restricted: health", lambda: next(health.Watch(question)))
        key = (("x-key", "secret"),)
        watched = health.Watch(question, metadata=key, timeout=30)
        seen = [next(watched).status]
        while seen[-1] != 1:  # it may still have been loading
            seen.append(next(watched).status)
        assert seen in ([1], [2, 1]), seen
        assert health.Check(question, metadata=key).status == 1
    shutil.rmtree(folder)


def drains_beside_http():
    """An HTTP client that holds its listener up does not keep gRPC's clients from hearing of the end."""
    import signal
    import socket
    with Server(repository, "--exit-timeout", "60s") as own:
        slow = socket.create_connection(("127.0.0.1", own.port))
        slow.sendall(b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n")
        health = health_pb2_grpc.HealthStub(grpc.insecure_channel(own.grpc_address))
        watched = health.Watch(health_pb2.HealthCheckRequest())
        assert next(watched).status == 1
        began = time.monotonic()
        own.process.send_signal(signal.SIGTERM)
        assert next(watched).status == 2
        refused("UNAVAILABLE", "shutting down", lambda: next(watched))
        assert time.monotonic() < began + 30, "it heard of the end when HTTP's time was over"
        slow.close()
        assert own.process.wait(100) == 0


def one_channel_many_calls():
    """600 calls at once over one connection, streams beside them; a call that is held does not stop the others."""
    c = client()
    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(server.grpc_address))
    request = service_pb2.ModelInferRequest(model_name="simple")
    for i in (0, 1):
        tensor = request.inputs.add(name=f"INPUT{i}", datatype="INT32", shape=[1, 16])
        tensor.contents.int_contents.extend(range(16))
    hung = threading.Event()

    def slow_questions():  # asks 3,000 times and reads nothing for a while
        for _ in range(3000):
            yield request
        hung.set()

    stream = stub.ModelStreamInfer(slow_questions())
    calls = [stub.ModelInfer.future(request) for _ in range(600)]
    assert all(call.result(timeout=60).outputs for call in calls)
    check_simple(c.infer("simple", simple_inputs(2)[1]), simple_inputs(2)[0])
    assert sum(1 for answer in stream if not answer.error_message) == 3000
    assert hung.is_set()


def collect(message, name, into):
    into[name] = {f.name: (f.number, f.type, f.label) for f in message.field}
    for nested in message.nested_type:
        collect(nested, f"{name}.{nested.name}", into)


def drain_under_load():
    """Clients hammer the server while SIGTERM comes: every request that was accepted is answered."""
    with Server(repository, "--threads", "1") as own:
        answers, errors, stop = [], [], threading.Event()

        def hammer(seed):
            values, inputs = simple_inputs(2, seed=seed)
            c = client(own)
            while not stop.is_set():
                try:
                    check_simple(c.infer("simple", inputs), values)
                    answers.append(1)
                except InferenceServerException as error:
                    if "UNAVAILABLE" not in str(error.status()):
                        errors.append(str(error))
                    return

        threads = [threading.Thread(target=hammer, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        until(lambda: len(answers) > 100 or errors)
        code = own.stop()
        stop.set()
        for t in threads:
            t.join()
        assert code == 0 and not errors, (code, errors[:3])


def taken_port():
    import subprocess
    from _serving import TRIREME
    done = subprocess.run([TRIREME, "serve", "--model-repository", str(repository), "--host", "127.0.0.1",
                           "--http-port", "0", "--grpc-port", str(server.grpc_port)],
                          capture_output=True, text=True, timeout=30)
    assert done.returncode == 6 and "cannot listen for gRPC" in done.stderr, done


def openssl(folder, *words):
    import subprocess
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def tls():
    """A certificate of an authority of our own; clients must show one of it too."""
    folder = temporary()
    openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days",
            "2", "-subj", "/CN=test authority")
    for name in ("server", "client"):
        openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-keyout", name + ".key", "-out", name + ".csr",
                "-subj", "/CN=" + name)
        (folder / "ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        openssl(folder, "x509", "-req", "-in", name + ".csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", name + ".pem", "-days", "2", "-extfile", "ext")
    own = Server(repository, "--tls-certificate", str(folder / "server.pem"), "--tls-key", str(folder / "server.key"),
                 "--tls-client-ca", str(folder / "ca.pem"), ready=False)
    with own:
        options = {"ssl": True, "root_certificates": str(folder / "ca.pem")}
        c = client(own, private_key=str(folder / "client.key"), certificate_chain=str(folder / "client.pem"), **options)
        until(c.is_server_ready)
        values, ins = simple_inputs(2)
        check_simple(c.infer("simple", ins), values)
        first = c.infer("slow", slow_request()).as_numpy("x220")  # 128 KB both ways
        for i in range(1, 4):
            np.testing.assert_array_equal(c.infer("slow", slow_request(), request_id="i" * i).as_numpy("x220"), first)
        refused("INVALID_ARGUMENT", "batch-size", lambda: c.infer("simple_f32", simple_inputs(
            40_000, np.float32, "FP32")[1]))  # 5 MB
        for stranger in (client(own), client(own, **options)):  # no TLS; no certificate
            refused("UNAVAILABLE", "", lambda: stranger.get_server_metadata())
        assert c.is_server_live()
    shutil.rmtree(folder)


def keep_alive():
    """A channel that pings as Triton's clients do stays; idle channels cost nothing but their sockets."""
    options = triton.KeepAliveOptions(keepalive_time_ms=10_000, keepalive_timeout_ms=5_000)
    c = client(keepalive_options=options)
    values, ins = simple_inputs()
    check_simple(c.infer("simple", ins), values)
    channels = [grpc.insecure_channel(server.grpc_address, options=[("grpc.use_local_subchannel_pool", 1)])
                for _ in range(100)]
    stubs = [service_pb2_grpc.GRPCInferenceServiceStub(channel) for channel in channels]
    for stub in stubs:
        assert stub.ServerLive(service_pb2.ServerLiveRequest()).live
    check_simple(c.infer("simple", ins), values)
    for channel in channels[:50]:
        channel.close()
    assert all(stub.ServerLive(service_pb2.ServerLiveRequest()).live for stub in stubs[50:])


def resident_mib(own, what="VmRSS"):
    for line in open(f"/proc/{own.process.pid}/status", encoding="utf-8"):
        if line.startswith(what):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {what}")


def cancelled_floods_leave_no_memory():
    """Eight clients that do nothing but ask and cancel: what they took goes back within seconds."""
    with Server(repository, "--threads", "1") as own:
        before, stop = resident_mib(own), threading.Event()

        def flood():
            c = client(own, channel_args=[("grpc.use_local_subchannel_pool", 1)])
            while not stop.is_set():
                for call in [c.async_infer("slow", slow_request(), lambda result, error: None) for _ in range(32)]:
                    call.cancel()

        threads = [threading.Thread(target=flood) for _ in range(8)]
        for t in threads:
            t.start()
        limit, peak = time.monotonic() + 4, 0
        while time.monotonic() < limit:
            peak = max(peak, resident_mib(own))
            time.sleep(0.1)
        stop.set()
        for t in threads:
            t.join()
        print(f"resident: {before:.0f} MiB, at most {peak:.0f} MiB", flush=True)
        until(lambda: resident_mib(own) <= before + 40)
        check_simple(client(own).infer("simple", simple_inputs(2)[1]), simple_inputs(2)[0])
        assert own.stop() == 0


CASES = [same_answers_as_http, every_form, health_watch_and_both_reflections, health_is_readiness,
         drains_beside_http, one_channel_many_calls, typed_contents, refusals, control, streams, asynchronous,
         large_messages, bombs, work_follows_bytes, long_messages, deadlines_and_cancellation, health_and_reflection,
         tls, keep_alive, drain_under_load, taken_port, cancelled_floods_leave_no_memory]
try:
    run_cases([(case.__name__, case) for case in CASES])
finally:
    if server.process.poll() is None:
        server.stop()
    shutil.rmtree(repository, ignore_errors=True)
