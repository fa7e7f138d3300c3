# Traces: Triton's file, Perfetto's, an OpenTelemetry collector, W3C context in and out; and system shared memory.
import http.server
import json
import shutil
import socket
import threading
import time
import urllib.request

import numpy as np
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException, shared_memory

from _serving import Server, add_simple, run_cases, temporary, until

repository = temporary()
add_simple(repository)
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
NAMES = ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END",
         "INFER_RESPONSE_COMPLETE", "REQUEST_END"]


def inputs(module=triton):
    tensors = [module.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
    for t in tensors:
        t.set_data_from_numpy(np.ones((1, 16), np.int32))
    return tensors


def triton_file():
    path = repository.parent / (repository.name + "-trace.json")
    with Server(repository, "--trace-file", str(path)) as server:
        c = triton.InferenceServerClient(server.grpc_address)
        c.infer("simple", inputs(), request_id="before")
        c.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"], "trace_rate": "2"})
        for i in range(6):
            c.infer("simple", inputs(), request_id=f"r{i}")
        records = []

        def read():
            nonlocal records
            records = json.loads(path.read_text() or "[]")
            return len(records) >= 6

        until(read, "three traces")
        heads, times = records[0::2], records[1::2]
        assert [h["request_id"] for h in heads] == ["r0", "r2", "r4"], heads
        assert heads[0]["model_name"] == "simple" and heads[0]["model_version"] == 1
        for h, t in zip(heads, times):
            assert h["id"] == t["id"] and [e["name"] for e in t["timestamps"]] == NAMES, t
            ns = [e["ns"] for e in t["timestamps"]]
            assert ns == sorted(ns), ns
        # Over HTTP also when it was received and its answer given away, as Triton's summary of traces wants.
        c.update_trace_settings(settings={"trace_rate": "1"})
        triton_http.InferenceServerClient(server.address).infer("simple", inputs(triton_http), request_id="http")
        until(lambda: len(json.loads(path.read_text())) == 8, "one over HTTP")
        events = json.loads(path.read_text())[7]["timestamps"]
        names = ["HTTP_RECV_START", "HTTP_RECV_END", *NAMES, "HTTP_SEND_START", "HTTP_SEND_END"]
        assert [e["name"] for e in events] == names, events
        assert [e["ns"] for e in events] == sorted(e["ns"] for e in events), events
        # A model's own setting wins, null clears it, a count runs out, failures are traced too.
        c.update_trace_settings("simple", {"trace_level": ["OFF"]})
        c.infer("simple", inputs())
        assert c.get_trace_settings("simple").settings["trace_level"].value == ["OFF"]
        c.update_trace_settings("simple", {"trace_level": None, "trace_count": "2", "trace_rate": "1"})
        assert c.get_trace_settings("simple").settings["trace_level"].value == ["TIMESTAMPS"]
        for _ in range(5):
            c.infer("simple", inputs())
        assert c.get_trace_settings("simple").settings["trace_count"].value == ["0"]
        until(lambda: len(json.loads(path.read_text())) == 12, "two more")
        for bad in ({"trace_level": ["TENSORS"]}, {"trace_rate": "0"}, {"trace_rate": "x"}, {"trace_x": "1"},
                    {"trace_file": "/tmp/x"}):
            try:
                c.update_trace_settings(settings=bad)
            except InferenceServerException:
                continue
            raise AssertionError(bad)
    path.unlink()


def rotated_files():
    """log_frequency: so many traces a file, each whole; back at 0 they go into the one file."""
    path = repository.parent / (repository.name + "-parts.json")
    with Server(repository, "--trace-file", str(path), "--trace", "--trace-rate", "1") as server:
        c = triton.InferenceServerClient(server.grpc_address)
        c.update_trace_settings(settings={"log_frequency": "2"})
        for i in range(5):
            c.infer("simple", inputs(), request_id=f"r{i}")
        parts = [path.with_name(f"{path.name}.{i}") for i in range(3)]
        until(lambda: all(p.exists() and p.read_text() for p in parts), "three parts")
        assert [[r["request_id"] for r in json.loads(p.read_text())[0::2]] for p in parts] == [
            ["r0", "r1"], ["r2", "r3"], ["r4"]]
        assert path.read_text() == ""
        c.update_trace_settings(settings={"log_frequency": "0"})
        c.infer("simple", inputs(), request_id="whole")
        until(lambda: path.read_text(), "the one file")
        assert json.loads(path.read_text())[0]["request_id"] == "whole"
        try:
            c.update_trace_settings("simple", {"log_frequency": "5"})
            raise AssertionError("a model has no files of its own")
        except InferenceServerException as error:
            assert "log_frequency" in str(error), error
    for p in [path, *parts]:
        p.unlink()


def silent_collector():
    """A collector that accepts and says nothing: requests go on, and the server stops in time."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"
    with Server(repository, "--trace-otlp", url, "--trace", "--trace-rate", "1") as server:
        c = triton.InferenceServerClient(server.grpc_address)
        for _ in range(1200):  # several batches of traces
            c.infer("simple", inputs())
        assert server.stop() == 0
        lost = sum(int(line.split("count=")[1].split()[0]) for line in server.log if "traces_lost" in line)
        assert lost > 0, server.log
    listener.close()


def perfetto_file():
    path = repository.parent / (repository.name + "-perfetto.json")
    with Server(repository, "--trace-file", str(path), "--trace-form", "perfetto", "--trace", "--trace-rate",
                "1") as server:
        triton.InferenceServerClient(server.grpc_address).infer("simple", inputs(), request_id="p")
        until(lambda: path.read_text(), "the events")
        events = {e["name"]: e for e in json.loads(path.read_text())}
        assert set(events) == {"request", "queue", "input", "infer", "output"}, events
        whole = events["request"]
        for e in events.values():
            assert e["ph"] == "X" and whole["ts"] <= e["ts"]
            assert e["ts"] + e["dur"] <= whole["ts"] + whole["dur"] + 1e-3
    path.unlink()


class Collector(http.server.BaseHTTPRequestHandler):
    spans = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in body["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                self.spans.extend(scope["spans"])
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def collector():
    """Spans in OTLP/HTTP JSON; the caller's context is followed and ours is answered, in both protocols."""
    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{listener.server_port}/v1/traces"
    with Server(repository, "--trace-otlp", url, "--trace", "--trace-rate", "1000000") as server:
        h = triton_http.InferenceServerClient(server.address)
        c = triton.InferenceServerClient(server.grpc_address)
        h.infer("simple", inputs(triton_http))  # the first of a million
        context = f"00-{TRACE}-{SPAN}-01"
        body = {"inputs": [{"name": f"INPUT{i}", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16}
                           for i in (0, 1)]}
        request = urllib.request.Request(server.url + "/v2/models/simple/infer", json.dumps(body).encode(),
                                         {"traceparent": context})
        with urllib.request.urlopen(request) as answer:
            ours = answer.headers["traceparent"].split("-")
        assert ours[1] == TRACE and ours[2] != SPAN and ours[3] == "01", ours
        c.infer("simple", inputs(), headers={"traceparent": context}, request_id="g")
        h.infer("simple", inputs(triton_http), headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})  # not sampled
        h.infer("simple", inputs(triton_http), headers={"traceparent": "nonsense"})
        until(lambda: len(Collector.spans) >= 15, "the spans")
        time.sleep(0.2)
        assert len(Collector.spans) == 15, [s["name"] for s in Collector.spans]
        roots = [s for s in Collector.spans if s["name"] == "infer simple"]
        followed = [s for s in roots if s.get("parentSpanId") == SPAN]
        assert len(roots) == 3 and len(followed) == 2 and all(s["traceId"] == TRACE for s in followed), roots
        assert ours[2] in {s["spanId"] for s in followed}
        for s in Collector.spans:
            assert int(s["startTimeUnixNano"]) <= int(s["endTimeUnixNano"])
            assert abs(int(s["startTimeUnixNano"]) / 1e9 - time.time()) < 120
            if s not in roots:
                assert s["parentSpanId"] in {r["spanId"] for r in roots}
        assert len({s["spanId"] for s in Collector.spans}) == 15
    listener.shutdown()


def system_shared_memory():
    with Server(repository, "--allow-client-shm") as server:
        for module, address in ((triton, server.grpc_address), (triton_http, server.address)):
            c = module.InferenceServerClient(address)
            values = np.arange(16, dtype=np.int32).reshape(1, 16)
            key = f"/trireme_test_{server.port}"
            region = shared_memory.create_shared_memory_region("region", key, 256)
            try:
                shared_memory.set_shared_memory_region(region, [values, values])
                c.register_system_shared_memory("region", key, 256)
                status = c.get_system_shared_memory_status()
                entry = status.regions["region"] if module is triton else None
                assert entry is None or (entry.byte_size == 256 and entry.key == key), status
                tensors = [module.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
                tensors[0].set_shared_memory("region", 64)
                tensors[1].set_shared_memory("region", 64, 64)
                outputs = [module.InferRequestedOutput(f"OUTPUT{i}") for i in (0, 1)]
                outputs[0].set_shared_memory("region", 64, 128)
                result = c.infer("simple", tensors, outputs=outputs)
                np.testing.assert_array_equal(
                    shared_memory.get_contents_as_numpy(region, np.int32, [1, 16], 128), 2 * values)
                np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), np.zeros((1, 16)))
                for change, fragment in (
                        (lambda t: t.set_shared_memory("region", 64, 224), "Invalid offset"),
                        (lambda t: t.set_shared_memory("other", 64), "Unable to find"),
                        (lambda t: t.set_shared_memory("region", 60), "byte size mismatch"),
                        (lambda t: (t.set_shared_memory("region", 64), outputs[0].set_shared_memory(
                            "region", 60, 128)), "should be at least 64")):
                    other = module.InferInput("INPUT0", [1, 16], "INT32")
                    change(other)
                    try:
                        c.infer("simple", [other, tensors[1]], outputs=outputs)
                    except InferenceServerException as error:
                        assert fragment in str(error), error
                    else:
                        raise AssertionError(fragment)
                outputs[0].set_shared_memory("region", 64, 128)
                for bad in (("region", key, 256), ("more", key, 1 << 20), ("path", "/../etc/passwd", 4)):
                    try:
                        c.register_system_shared_memory(*bad)
                    except InferenceServerException:
                        continue
                    raise AssertionError(bad)
                # A client that cuts its object hurts itself alone.
                import os
                os.truncate("/dev/shm" + key, 32)
                try:
                    c.infer("simple", tensors, outputs=outputs)
                except InferenceServerException as error:
                    assert "ended after" in str(error), error
                else:
                    raise AssertionError("read past the end")
                assert c.is_server_live()
                c.unregister_system_shared_memory("region")
                assert not (c.get_system_shared_memory_status().regions if module is triton
                            else c.get_system_shared_memory_status())
            finally:
                shared_memory.destroy_shared_memory_region(region)


try:
    run_cases([(case.__name__, case) for case in (
        triton_file, rotated_files, perfetto_file, collector, silent_collector, system_shared_memory)])
finally:
    shutil.rmtree(repository, ignore_errors=True)
