"""One peer with one model in its own process: `peer_worker.py PEER MODEL THREADS FEEDS OUTPUTS CPUS`.

Loads the model, runs it once on FEEDS/<input>.npy, writes OUTPUTS/<output>.npy, says so in one JSON line; then answers
each line "milliseconds" of standard input with a JSON line of times, as `trireme run --loop` does.
"""
import json
import os
import pathlib
import re
import statistics
import sys
import time

peer, model, threads, feeds_dir, outputs_dir, cpus = sys.argv[1:7]
threads, cpus = int(threads), [int(c) for c in cpus.split(",")]
os.sched_setaffinity(0, cpus)

import numpy  # noqa: E402  (threads that libraries start at import must inherit the affinity)


def memory(key):
    """A line of /proc/self/status in bytes."""
    text = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(key + r":\s+(\d+)", text).group(1)) * 1024


def feeds():
    return {path.stem: numpy.load(path) for path in sorted(pathlib.Path(feeds_dir).glob("*.npy"))}


def onnx_runtime():
    import onnxruntime

    def load():
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        if threads > 1:  # threads after the caller, on processors that count from 1
            options.add_session_config_entry("session.intra_op_thread_affinities",
                                             ";".join(str(c + 1) for c in cpus[1:threads]))
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        binding = session.io_binding()
        given = feeds()
        for name, array in given.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        first = session.run(names, given)
        for name, array in zip(names, first):
            binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        results = dict(zip(names, (array.copy() for array in first)))
        return lambda: session.run_with_iobinding(binding), results

    return load, onnxruntime.__version__


def openvino():
    import openvino as ov

    def load():
        core = ov.Core()
        network = core.read_model(model)
        given = feeds()
        network.reshape({port: list(given[port.get_any_name()].shape) for port in network.inputs})
        # f32 as the other contenders: left alone, it would compute in bf16 where the processor can
        config = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
                  "INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": threads > 1}
        request = core.compile_model(network, "CPU", config).create_infer_request()
        for name, array in given.items():
            request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        request.infer()
        results = {port.get_any_name(): request.get_tensor(port).data.copy() for port in network.outputs}

        def once(keep=given):  # the request reads the arrays but does not own them
            del keep
            request.start_async()
            request.wait()

        return once, results

    return load, ov.__version__


def answer(line):
    print(json.dumps(line), flush=True)


def main():
    load, version = {"onnxruntime": onnx_runtime, "openvino": openvino}[peer]()
    empty = memory("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    start = time.perf_counter()
    once, results = load()
    first_ms = (time.perf_counter() - start) * 1e3
    for name, array in results.items():
        numpy.save(pathlib.Path(outputs_dir) / (name.replace("/", "_") + ".npy"), array)
    answer({"version": version, "empty_bytes": empty, "first_ms": first_ms})
    for line in sys.stdin:
        budget, us = float(line) * 1e3, []
        while not us or sum(us) < budget:
            begin = time.perf_counter_ns()
            once()
            us.append((time.perf_counter_ns() - begin) / 1e3)
        answer({"runs": len(us), "median_us": statistics.median(us), "min_us": min(us)})


main()
