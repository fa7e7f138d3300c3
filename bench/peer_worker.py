"""One peer with one model in its own process: `peer_worker.py PEER MODE MODEL THREADS FEEDS OUTPUTS CPUS`.

Loads the model, runs it once on FEEDS/<input>.npy, writes OUTPUTS/<output>.npy, says so in one JSON line; then answers
each line "milliseconds" of standard input with a JSON line of times, as `trireme run --loop` does. Modes: pinned
(threads on processors of their own), free (ONNX Runtime) or latency (OpenVINO): threads where the kernel puts them;
throughput (OpenVINO): streams and batches under way as many as it likes best, and the time is that of one batch.
"""
import json
import os
import pathlib
import re
import statistics
import sys
import time

peer, mode, model, threads, feeds_dir, outputs_dir, cpus = sys.argv[1:8]
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
        if mode == "pinned" and threads > 1:  # threads after the caller, on processors that count from 1
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
        return lambda: session.run_with_iobinding(binding), results  # binds once, copies nothing

    return load, onnxruntime.__version__


def openvino():
    import openvino as ov

    def load():
        core = ov.Core()
        network = core.read_model(model)
        given = feeds()
        network.reshape({port: list(given[port.get_any_name()].shape) for port in network.inputs})
        # f32 as the other contenders: left alone, it would compute in bf16 where the processor can
        config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32",
                  "PERFORMANCE_HINT": "THROUGHPUT" if mode == "throughput" else "LATENCY",
                  "ENABLE_CPU_PINNING": mode == "pinned"}
        compiled = core.compile_model(network, "CPU", config)
        under_way = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") if mode == "throughput" else 1
        requests = [compiled.create_infer_request() for _ in range(under_way)]
        for request in requests:
            for name, array in given.items():
                request.set_tensor(name, ov.Tensor(array, shared_memory=True))
            request.infer()
        request = requests[0]
        results = {port.get_any_name(): request.get_tensor(port).data.copy() for port in network.outputs}

        def once(keep=given):  # the request reads the arrays but does not own them
            del keep
            request.start_async()
            request.wait()

        def streams(keep=given):
            """Every request four times, each started again as soon as it is done; how many batches that were."""
            del keep
            for one in requests:
                one.start_async()
            for _ in range(3):
                for one in requests:
                    one.wait()
                    one.start_async()
            for one in requests:
                one.wait()
            return 4 * len(requests)

        return once if mode != "throughput" else streams, results

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
        budget, us, spent = float(line) * 1e3, [], 0.0
        while not us or spent < budget:
            begin = time.perf_counter_ns()
            batches = once() or 1
            us.append((time.perf_counter_ns() - begin) / 1e3 / batches)
            spent += us[-1] * batches
        answer({"runs": len(us), "median_us": statistics.median(us), "min_us": min(us)})


main()
