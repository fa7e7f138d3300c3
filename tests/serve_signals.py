# Signals at the wrong moment: while models load or reload, while answers stream, twice, a stop in the middle of load.
# tier: all
# timeout: 300
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import onnx
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from onnx import TensorProto, helper

from _serving import TRIREME, Server, add_simple, add_slow, run_cases, save, temporary, until, value

work = temporary()
repository = work / "models"
add_simple(repository)


def add_long(folder, rounds):
    """A program of products [1024, 1024] that nothing can end half-way."""
    nodes = [helper.make_node("Mul", ["w", "x"], ["t0"])]
    nodes += [helper.make_node("MatMul", [f"t{i}", "w"], [f"t{i + 1}"]) for i in range(rounds)]
    nodes += [helper.make_node("ReduceMax", [f"t{rounds}"], ["y"], keepdims=0)]
    eye = onnx.numpy_helper.from_array(np.eye(1024, dtype=np.float32), "w")
    save(nodes, [value("x", TensorProto.FLOAT, [1])], [value("y", TensorProto.FLOAT, [])],
         folder / "long" / "1" / "model.onnx", [eye])
    (folder / "long" / "config.pbtxt").write_text("max_batch_size: 0\n")


def add_warming(folder, name="warming"):
    """A model whose warm-up takes minutes."""
    add_slow(folder, name, 1000)
    (folder / name / "config.pbtxt").write_text(
        'max_batch_size: 0\nmodel_warmup [{ name: "w" batch_size: 0 count: 1000 inputs { key: "x0" value {'
        ' data_type: TYPE_FP32 dims: [ 64, 512 ] zero_data: true } } }]\n')


def tensors(module):
    inputs = [module.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
    for x in inputs:
        x.set_data_from_numpy(np.ones((1, 16), np.int32))
    return inputs


def post(server, path, body=b"{}", timeout=60):
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, body), timeout=timeout) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return repr(error)


LONG = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [3]}]}).encode()


def in_background(call, *arguments):
    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(call(*arguments)))
    thread.start()
    return thread, outcome


def ended(server, limit_s):
    """How long the program took to end, and its exit code."""
    start = time.monotonic()
    code = server.process.wait(limit_s)
    server._reader.join(5)
    return time.monotonic() - start, code


def pending(server):
    return server.metrics().get('nv_inference_pending_request_count{model="long",version="1"}', 0)


def while_models_load():
    """Nothing is accepted before the models are there: SIGTERM, SIGINT and SIGHUP end the program at once."""
    folder = work / "loading"
    add_warming(folder)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with Server(folder, "--threads", "1", ready=False) as server:
            time.sleep(0.5)
            server.process.send_signal(number)
            _, code = ended(server, 60)  # its warm-up takes minutes
            assert code == 0, (number, code, server.log)
            assert "while=loading" in server.log[-1], server.log


def while_a_model_reloads():
    """A load that goes on and on does not hold up the end beyond --exit-timeout; what was asked is answered."""
    for control in ("explicit", "poll"):
        folder = work / control
        add_simple(folder)
        words = ["--model-control", control, "--poll-interval", "50ms", "--exit-timeout", "2s", "--threads", "1"]
        if control == "explicit":
            words += ["--load-model", "simple"]
        with Server(folder, *words) as server:
            add_warming(folder)
            if control == "explicit":
                thread, _ = in_background(post, server, "/v2/repository/models/warming/load")
            time.sleep(1.5)
            assert triton.InferenceServerClient(server.address).infer("simple", tensors(triton))
            server.process.send_signal(signal.SIGTERM)
            ended(server, 60)
            if control == "explicit":
                thread.join()
            assert "exit_forced" in "".join(server.log), server.log[-3:]


def while_a_kernel_runs():
    """A kernel that cannot be ended, traced, after --exit-timeout: the client is cut off, the program ends."""
    folder = work / "kernel"
    add_simple(folder)
    add_long(folder, 4000)
    trace = work / "trace.json"
    for limit, rounds in (("1s", 4000), ("1s", 40)):
        add_long(folder, rounds)
        with Server(folder, "--threads", "1", "--warm-up", "none", "--exit-timeout", limit, "--trace",
                    "--trace-rate", "1", "--trace-file", str(trace)) as server:
            asked = [in_background(post, server, "/v2/models/long/infer", LONG) for _ in range(4)]
            if rounds == 4000:
                until(lambda: pending(server) >= 3)  # the fourth runs
            server.process.send_signal(signal.SIGTERM)
            _, code = ended(server, 60)
            assert code == 6 if rounds == 4000 else code in (0, 6), (code, server.log[-3:])
            for thread, _ in asked:
                thread.join(60)
                assert not thread.is_alive()


def while_a_collector_sleeps():
    """Traces for a collector that takes connections and says nothing do not hold up the end."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1000)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"
    with Server(repository, "--exit-timeout", "20s", "--trace", "--trace-rate", "1", "--trace-otlp", url) as server:
        client = triton.InferenceServerClient(server.address)
        for _ in range(1500):
            client.infer("simple", tensors(triton))
        server.process.send_signal(signal.SIGTERM)
        took, code = ended(server, 100)
        assert took < 60 and code == 0, (took, code, server.log[-4:])
    listener.close()


def while_answers_stream():
    """Streams of both protocols end with what was accepted answered."""
    folder = work / "streams"
    save([helper.make_node("Identity", ["x"], ["y"])], [value("x", TensorProto.FLOAT, ["n", 4])],
         [value("y", TensorProto.FLOAT, ["n", 4])], folder / "rows" / "1" / "model.onnx")
    (folder / "rows" / "config.pbtxt").write_text(
        'max_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n'
        'parameters { key: "stream_rows" value { string_value: "true" } }\n')
    add_simple(folder)
    with Server(folder) as server:
        client = triton_grpc.InferenceServerClient(server.grpc_address)
        answers, sent = [], 0
        client.start_stream(lambda result, error: answers.append((result, error)))
        while len(answers) < 50:
            client.async_stream_infer("simple", tensors(triton_grpc))
            sent += 1
            time.sleep(0.002)
        server.process.send_signal(signal.SIGTERM)
        took, code = ended(server, 100)
        good = sum(1 for result, error in answers if error is None)
        assert code == 0 and good >= sent - 1, (took, code, good, sent)
        client.stop_stream(cancel_requests=True)
        client.close()


def twice():
    """A second signal ends the program at once."""
    folder = work / "kernel"
    add_long(folder, 4000)
    with Server(folder, "--threads", "1", "--warm-up", "none", "--exit-timeout", "60s") as server:
        asked = [in_background(post, server, "/v2/models/long/infer", LONG) for _ in range(2)]
        until(lambda: pending(server) >= 1)  # the other runs
        server.process.send_signal(signal.SIGTERM)
        until(lambda: any("draining" in line for line in server.log))
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        took, code = ended(server, 30)  # half of what the first would have waited
        assert code == -signal.SIGTERM, (took, code)
        for thread, _ in asked:
            thread.join()


def hang_up():
    """A closed terminal drains like SIGTERM; under nohup it does nothing."""
    with Server(repository) as server:
        assert triton.InferenceServerClient(server.address).infer("simple", tensors(triton))
        server.process.send_signal(signal.SIGHUP)
        took, code = ended(server, 100)
        assert code == 0 and "answered_all=yes" in server.log[-1], (code, server.log)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited, as by nohup
    try:
        with Server(repository) as server:
            server.process.send_signal(signal.SIGHUP)
            time.sleep(0.5)
            assert triton.InferenceServerClient(server.address).infer("simple", tensors(triton))
            assert server.stop() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def stopped_and_continued():
    """Five seconds of SIGSTOP under load: clients wait, nobody is lost, and the pace is as before."""
    with Server(repository) as server:
        stop, wrong, counts = threading.Event(), [], [0] * 8

        def ask(n):
            module, address = ((triton, server.address), (triton_grpc, server.grpc_address))[n % 2]
            client = module.InferenceServerClient(address)
            while not stop.is_set():
                try:
                    assert client.infer("simple", tensors(module)).as_numpy("OUTPUT0")[0, 0] == 2
                    counts[n] += 1
                except Exception as error:  # noqa: BLE001 whatever it is, it must not happen
                    wrong.append(repr(error))
                    return

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for t in threads:
            t.start()
        until(lambda: sum(counts) > 100 or wrong)
        server.process.send_signal(signal.SIGSTOP)
        at_stop = -1
        while at_stop != sum(counts):  # answers that had left are still read
            at_stop = sum(counts)
            time.sleep(1)
        time.sleep(4)
        assert sum(counts) == at_stop
        server.process.send_signal(signal.SIGCONT)
        until(lambda: sum(counts) > at_stop + 100 or wrong)
        stop.set()
        for t in threads:
            t.join(30)
            assert not t.is_alive(), "a client hangs"
        assert not wrong, wrong[:3]
        assert server.stop() == 0


def port_in_use():
    """A port that another has is an error that names it, before any model is loaded; nothing crashes."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for option in ("--http-port", "--grpc-port", "--metrics-port"):
            words = {"--http-port": "0", "--grpc-port": "0", option: port}
            done = subprocess.run([TRIREME, "serve", "--model-repository",
                                   str(repository), "--host", "127.0.0.1",
                                   *(w for pair in words.items() for w in pair)],
                                  capture_output=True, text=True, timeout=30)
            assert done.returncode == 6 and port in done.stderr, (option, done)


CASES = (while_models_load, while_a_model_reloads, while_a_kernel_runs, while_a_collector_sleeps,
         while_answers_stream, twice, hang_up, stopped_and_continued, port_in_use)
if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # servers inherit it; these tests themselves may run under nohup
    try:
        wanted = os.environ.get("TRIREME_CASE", "")
        run_cases([(case.__name__, case) for case in CASES if wanted in case.__name__])
    finally:
        shutil.rmtree(work, ignore_errors=True)
