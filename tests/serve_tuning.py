# Under a real load: batching tunes itself to its goal, and at three times the capacity goodput stays near its peak.
import json
import shutil
import subprocess

import numpy as np
import onnx
from onnx import helper

from _serving import TRIREME, Server, run_cases, save, temporary, value

repository = temporary()
FLOAT = onnx.TensorProto.FLOAT


def add_model(name, config, rounds=60, width=512):
    """Rows [batch, width] through products: some milliseconds a batch, cheaper a row in larger ones."""
    weight = onnx.numpy_helper.from_array(np.eye(width, dtype=np.float32) * 0.999, "w")
    nodes = [helper.make_node("MatMul", [f"x{i}", "w"], [f"x{i + 1}"]) for i in range(rounds)]
    save(nodes, [value("x0", FLOAT, ["batch", width])], [value(f"x{rounds}", FLOAT, ["batch", width])],
         repository / name / "1" / "model.onnx", [weight])
    (repository / name / "config.pbtxt").write_text("max_batch_size: 16 dynamic_batching { }\n" + config)


def parameter(key, text):
    return 'parameters { key: "%s" value { string_value: "%s" } }\n' % (key, text)


add_model("plain", "")
add_model("tuned", parameter("slo_p99", "300ms"))
add_model("aware", parameter("deadline_aware", "true"), rounds=160, width=1024)
add_model("both", parameter("slo_p99", "50ms") + "dynamic_batching { max_queue_delay_microseconds: 5 }")


def load(server, model, *options):
    page = repository.parent / (repository.name + ".json")
    words = [TRIREME, "load", server.url, "--model", model, "--threads", "1", "--json", str(page), *map(str, options)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    result = json.loads(page.read_text())["runs"][0]
    page.unlink()
    return result


def capacity(server, model, seconds=2):
    """Answers a second with full batches."""
    run = load(server, model, "--concurrency", 32, "--duration", f"{seconds}s", "--warmup", "500ms")
    return run["succeeded"] / seconds


def rows_of_a_batch(server, model, before=(0, 0)):
    m = server.metrics()
    rows, runs = (m[f'nv_inference_{k}{{model="{model}",version="1"}}'] for k in ("count", "exec_count"))
    return (rows - before[0]) / max(1, runs - before[1]), (rows, runs)


def tunes_itself():
    """A machine whose other work drowns what a batch costs gets three rounds."""
    with Server(repository, "--threads", "1", "--warm-up", "run") as server:
        rate = 0.3 * (most := capacity(server, "plain"))
        for rounds in range(1, 4):
            _, before = rows_of_a_batch(server, "plain")
            load(server, "plain", "--rate", rate, "--duration", "4s")
            plain_rows, _ = rows_of_a_batch(server, "plain", before)
            load(server, "tuned", "--rate", rate, "--duration", "8s")  # time to find it
            _, before = rows_of_a_batch(server, "tuned")
            run = load(server, "tuned", "--rate", rate, "--duration", "6s")
            tuned_rows, _ = rows_of_a_batch(server, "tuned", before)
            if tuned_rows > 1.3 * plain_rows:
                break
        m = server.metrics()
        label = '{model="tuned",version="1"}'
        window = m["trireme_batching_window_seconds" + label]
        predicted = m["trireme_batching_predicted_p99_seconds" + label]
        p99 = run["latency_ns"]["p99"] * 1e-9
        print(f"capacity {most:.0f}/s, at {rate:.0f}/s: window {window * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms, "
              f"predicted {predicted * 1e3:.0f} ms, {tuned_rows:.1f} rows a batch, {plain_rows:.1f} without",
              flush=True)
        assert abs(m["trireme_batching_goal_seconds" + label] - 0.3) < 1e-9
        assert 0 < window < 0.3 and 0 < predicted <= 0.3
        assert run["succeeded"] > 0 and p99 <= 0.3, p99
        # The goal leaves time for larger batches, which cost less a row.
        assert tuned_rows > 1.3 * plain_rows, (tuned_rows, plain_rows)
        log = [line for line in server.log if "batching_tuned" in line]
        assert 1 <= len(log) <= 12 * rounds, log
        index = {e: line for line in server.log for e in ("both",) if "model_failed" in line and "model=both" in line}
        assert "slo_p99" in index["both"] or "dynamic_batching" in index["both"], index


def goodput_holds():
    """Alternating runs at the capacity and at three times it; a noisy machine gets three rounds."""
    bound = "250ms"
    with Server(repository, "--threads", "1", "--request-timeout", bound, "--warm-up", "run") as server:
        most = capacity(server, "aware")
        shares = []
        for _ in range(3):
            runs = {}
            for factor in (1, 3):
                run = load(server, "aware", "--rate", factor * most, "--duration", "3s", "--warmup", "1s")
                late = run["latency_ns"]["p95"] > 1.2 * 250e6  # the wire and the client's own threads on top
                runs[factor] = run["succeeded"] / 3
                print(f"{factor} times {most:.0f}/s: {runs[factor]:.0f} answers/s, p95 "
                      f"{run['latency_ns']['p95'] / 1e6:.0f} ms", flush=True)
                if factor == 3 and late:
                    runs[factor] = 0
            shares.append(runs[3] / max(runs[1], 1))
            if shares[-1] >= 0.9:
                break
        assert max(shares) >= 0.9, shares


try:
    run_cases([(case.__name__, case) for case in (tunes_itself, goodput_holds)])
finally:
    shutil.rmtree(repository, ignore_errors=True)
