# `trireme load` against the real server: scenarios with their verdicts, traces, mixes, sweeps, comparisons, every
# protocol, interruptions; and against MLCommons' own LoadGen.
# timeout: 240
import csv
import json
import queue
import signal
import socket
import subprocess
import threading
import time
import urllib.request

import numpy as np

from _serving import TRIREME, Server, Skip, add_simple, encoder_dir, link_tree, run_cases, temporary, until

work = temporary()
repository = work / "models"
add_simple(repository)
add_simple(repository, "other")


def load(server, *options, code=0, model="simple", url=None):
    """Runs one measurement; its text and its JSON."""
    page = work / "result.json"
    words = [TRIREME, "load", url or server.url, *(["--model", model] if model else []), "--warmup", "100ms",
             "--json", str(page), *map(str, options)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout, json.loads(page.read_text()) if code < 2 else None


def counted(server, model="simple"):
    text = urllib.request.urlopen(f"{server.url}/v2/models/{model}/stats", timeout=10).read()
    return json.loads(text)["model_stats"][0]["inference_stats"]["success"]["count"]


def scenario(name, *options, code=0):
    with Server(repository) as server:
        text, result = load(server, "--scenario", name, "--duration", "300ms", *options, code=code)
        run = result["runs"][0]
        assert run["succeeded"] == run["scheduled"] == run["scenario"]["samples"], run
        # What the client counted is what the server counted, but for the warm-up.
        assert counted(server) >= run["succeeded"]
        return text, run["scenario"]


def single_stream():
    text, verdict = scenario("single_stream")
    assert verdict["valid"] and verdict["queries"] >= 100 and verdict["metric_unit"] == "ns", verdict
    assert verdict["metric"] == verdict["estimate_ns"] >= verdict["query_latency_ns"]["p90"], verdict
    assert "single_stream: VALID" in text, text
    text, verdict = scenario("single_stream", "--requests", 60, code=1)
    assert any("64 queries, had 60" in reason for reason in verdict["invalid"]), verdict
    assert "single_stream: INVALID" in text, text


def multi_stream():
    _, verdict = scenario("multi_stream", "--min-queries", 662)
    assert verdict["valid"] and verdict["samples"] == 8 * verdict["queries"] >= 8 * 662, verdict


def server_scenario():
    _, verdict = scenario("server", "--rate", 800, "--min-queries", 838, "--target-latency", "2s")
    assert verdict["valid"] and 600 < verdict["metric"] < 1000 and verdict["over_bound"] == 0, verdict
    _, verdict = scenario("server", "--rate", 800, "--target-latency", "1us", code=1)
    assert verdict["over_bound"] == verdict["queries"], verdict


def offline():
    text, verdict = scenario("offline", "--min-queries", 3000, "--duration", "1ms", "--connections", 16)
    assert verdict["valid"] and verdict["samples"] == 3000 and verdict["metric"] > 100, verdict
    assert "samples a second" in text


def repeatable():
    with Server(repository) as server:
        seen = [load(server, "--scenario", "server", "--rate", 500, "--duration", "200ms", "--seed", seed,
                     "--target-latency", "9s", "--min-queries", 459)[1]["runs"][0]["scenario"]["issued_duration_ns"]
                for seed in (7, 7, 8)]
        assert seen[0] == seen[1] != seen[2], seen


def mix_file(name="mix.json"):
    path = work / name
    path.write_text(json.dumps({"mix": [{"name": "small", "model": "simple", "weight": 3},
                                        {"name": "large", "model": "other", "weight": 1, "batch": 8}]}))
    return path


def mixes():
    """Both models get their shares, and each has its own latencies."""
    with Server(repository) as server:
        text, result = load(server, "--mix", mix_file(), "--requests", 2000, "--concurrency", 4, "--warmup", "0s",
                            model=None)
        small, large = result["runs"][0]["classes"]
        assert (small["name"], large["name"]) == ("small", "large") and "large" in text, text
        assert abs(small["succeeded"] - 1500) <= 40 and small["succeeded"] + large["succeeded"] == 2000, result
        assert counted(server) == small["succeeded"] and counted(server, "other") == large["succeeded"]
        assert small["latency_ns"]["p50"] > 0 and large["latency_ns"]["p99"] > 0


def traces():
    """A minute of arrivals at 60 times the speed; the trace says which model each is for."""
    trace = work / "trace.csv"
    trace.write_text("timestamp,model\n" + "".join(
        f"2024-01-01 00:00:{i // 10:02}.{i % 10}00,{'large' if i % 5 == 0 else 'small'}\n" for i in range(600)))
    with Server(repository) as server:
        _, result = load(server, "--mix", mix_file(), "--trace", trace, "--speed", 60, "--warmup", "0s",
                         "--slo", "errors=0", model=None)
        run = result["runs"][0]
        assert run["label"] == "trace" and run["succeeded"] == 600 and 0.95 < run["window_s"] < 60, run
        assert counted(server) == 480 and counted(server, "other") == 120
        trace.write_text('{"timestamp": 0}\n{"timestamp": 100}\n{"timestamp": 250}\n')
        _, result = load(server, "--trace", trace, "--requests", 2)
        assert result["runs"][0]["scheduled"] == 2, result
        load(server, "--trace", trace, "--rate", 5, code=2)


def sweeps():
    with Server(repository) as server:
        text, result = load(server, "--sweep", "concurrency=1:4:2x", "--duration", "200ms", "--stability", 60)
        runs = result["runs"]
        assert [run["concurrency"] for run in runs] == [1, 2, 4], runs
        # On a machine with other work three windows may not agree; then ten were tried.
        assert all(3 <= run["trials"] <= 10 and (run["stable"] or run["trials"] == 10) for run in runs), \
            [(run["stable"], run["trials"]) for run in runs]
        assert all(0.5 < run["window_s"] < 1 for run in runs), runs  # the last three windows together
        _, result = load(server, "--sweep", "rate=50:100:50", "--duration", "200ms")
        assert [run["offered_rate"] for run in result["runs"]] == [50, 100], result
        load(server, "--sweep", "4:1", code=2)


def comparisons():
    """A run beside itself is no change; clients that pause between requests surely get less through, which
    may be tolerated."""
    def compare(a, b, *options):
        page = work / "comparison.json"
        done = subprocess.run([TRIREME, "load", "compare", str(a), str(b), "--json", str(page), *map(str, options)],
                              capture_output=True, text=True, timeout=30)
        return done.returncode, done.stdout + done.stderr, json.loads(page.read_text()) if done.returncode < 2 else None

    paths = []
    for pause in ("0ms", "100ms"):
        with Server(repository) as server:
            load(server, "--duration", "1s", "--concurrency", 2, "--think", pause)
        paths.append(work / f"run{len(paths)}.json")
        (work / "result.json").rename(paths[-1])
    # Two runs of one server may differ by any factor where other work comes and goes.
    code, text, _ = compare(paths[0], paths[0])
    assert code == 0 and "c=2" in text and "WORSE" not in text, text
    assert compare(paths[0], paths[1], "--tolerance", 1e9)[0] == 0
    code, text, result = compare(paths[0], paths[1])
    rows = {row["figure"]: row for row in result["differences"]}
    assert code == 1 and "WORSE" in text, text
    assert rows["throughput"]["verdict"] == "worse", rows
    assert any("think" in note for note in result["notes"]), result["notes"]
    assert rows["throughput"]["change_percent_95"][1] < -50, rows
    paths[1].write_text("[]")
    assert compare(paths[0], paths[1])[0] == 2
    assert compare(paths[0], work / "absent.json")[0] == 3


def percentiles():
    """What is reported is what the recorded requests say, computed here."""
    record, table = work / "requests.csv", work / "table.csv"
    with Server(repository) as server:
        _, result = load(server, "--sweep", "1,8", "--duration", "400ms", "--record", record, "--csv", table)
    rows = list(csv.DictReader(record.open()))
    for run in result["runs"]:
        mine = [row for row in rows if row["load"] == run["label"]]
        assert len(mine) == run["succeeded"] == run["scheduled"] and not any(row["error"] for row in mine), run
        us = np.sort([float(row["ended_us"]) - float(row["scheduled_us"]) for row in mine])
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            own = us[int(np.ceil(share * len(us))) - 1] * 1000
            assert abs(run["latency_ns"][name] - own) <= own / 400 + 2, (name, run["latency_ns"][name], own)
        assert abs(run["latency_ns"]["mean"] - us.mean() * 1000) < 2, run
        inside = sum(0 <= float(row["ended_us"]) < run["window_s"] * 1e6 for row in mine)
        assert 0 <= run["throughput"] * run["window_s"] - inside <= 8.5, (run["throughput"], inside)
        assert all(float(r["scheduled_us"]) <= float(r["sent_us"]) <= float(r["first_byte_us"]) <= float(r["ended_us"])
                   for r in mine)
    lines = list(csv.DictReader(table.open()))
    assert [line["Concurrency"] for line in lines] == ["1", "8"], lines
    for line, run in zip(lines, result["runs"]):
        parts = ("Queue", "Compute Input", "Compute Infer", "Compute Output")
        server_us = sum(float(line[f"Server {part}"]) for part in parts)
        outside = ("Client Send", "Network+Server Send/Recv", "Client Recv")
        whole = server_us + sum(float(line[part]) for part in outside)
        assert 0 < server_us and 0.5 < whole / float(line["Avg latency"]) < 2, line
        assert run["server"][0]["requests"] >= run["succeeded"] * 0.9, run["server"]


def certificate():
    """A self-signed certificate for 127.0.0.1."""
    cert, key = work / "server.crt", work / "server.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
                    "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


def protocols():
    """HTTP and gRPC, plain and secured, with the key of a restricted server; counts are the server's."""
    cert, key = certificate()
    rules = ["--restrict", "all:authorization=Bearer one"]
    secret = ["--header", "Authorization: Bearer one"]
    with Server(repository, *rules, ready=False) as server:
        wait_model(server, secret)
        for url in (server.url, f"grpc://{server.grpc_address}"):
            _, result = load(server, "--requests", 300, "--concurrency", 3, "--warmup", "0s", *secret, url=url)
            run = result["runs"][0]
            assert run["succeeded"] == 300 and run["failed"] == 0 and run["server"][0]["requests"] == 300, run
            assert "Bearer one" not in json.dumps(result), "the secret is in the results"
            load(server, "--requests", 5, "--header", "Authorization: no", url=url, code=6)
        _, result = load(server, "--rate", 300, "--duration", "400ms", *secret, url=f"grpc://{server.grpc_address}")
        assert result["runs"][0]["succeeded"] == result["runs"][0]["scheduled"] > 60, result
    secured = ["--tls-certificate", str(cert), "--tls-key", str(key)]
    with Server(repository, *secured, ready=False) as server:
        for scheme, port in (("https", server.port), ("grpcs", server.grpc_port)):
            url = f"{scheme}://127.0.0.1:{port}"
            for _ in range(100):
                if subprocess.run([TRIREME, "load", url, "--model", "simple", "--requests", "1", "--warmup", "0s",
                                   "--tls-ca", str(cert)], capture_output=True).returncode == 0:
                    break
                time.sleep(0.1)
            _, result = load(server, "--requests", 200, "--concurrency", 2, "--tls-ca", cert, url=url)
            assert result["runs"][0]["succeeded"] == 200, result
            load(server, "--requests", 20, "--tls-insecure", url=url)
            done = subprocess.run([TRIREME, "load", url, "--model", "simple", "--requests", "1"],
                                  capture_output=True, text=True)
            assert done.returncode == 6 and "not trusted" in done.stderr, done
    with Server(repository) as server:
        load(server, "--tls-insecure", code=2)
        load(server, "--requests", 1, url=f"https://{server.address}", code=6)
        load(server, "--requests", 1, url=f"ftp://{server.address}", code=2)
        load(server, "--requests", 1, url=f"grpc://{server.grpc_address}", model=None, code=2)
        load(server, "--requests", 1, url=f"grpc://{server.grpc_address}", model="absent", code=3)
        load(server, "--requests", 1, model="absent", code=3)


def wait_model(server, secret):
    for _ in range(100):
        if subprocess.run([TRIREME, "load", server.url, "--model", "simple", "--requests", "1", "--warmup", "0s",
                           *secret], capture_output=True).returncode == 0:
            return
        time.sleep(0.1)
    raise AssertionError("the server is not ready")


def streams():
    """Server-sent events with known gaps; a call of many messages' protocol."""
    def serve(listener):
        while True:
            try:
                c, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(c,), daemon=True).start()

    def answer(c):
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while c.recv(65536):
            time.sleep(0.02)
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stre")  # a head in two pieces
            time.sleep(0.005)
            c.sendall(b"am\r\nTransfer-Encoding: chunked\r\n\r\n")
            for i in range(5):
                if i:
                    time.sleep(0.02)
                event = b'data: {"n": %d}\n\n' % i
                c.sendall(b"%x\r\n%s\r\n" % (len(event), event))
            c.sendall(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"
        text, result = load(None, "--stream", "--requests", 20, "--concurrency", 2, "--warmup", "0s", "--slo",
                            "first_p99=10s", "--slo", "part_p99=10s", url=url, model=None)
        run = result["runs"][0]
        stream = run["stream"]
        assert run["succeeded"] == 20 and stream["parts"] == 100, run
        # What sleeps for 20 ms sleeps for 20 ms at least; a busy machine adds to that.
        assert 25e6 <= stream["first_part_ns"]["p50"] < run["latency_ns"]["p50"], stream
        assert 10e6 <= stream["between_parts_ns"]["p50"] <= run["latency_ns"]["max"] / 4, stream
        assert run["latency_ns"]["p50"] >= 105e6 and "to the first part" in text, run["latency_ns"]
        load(None, "--stream", "--requests", 4, "--warmup", "0s", "--slo", "first_p50=1ms", url=url, model=None, code=1)
    with Server(repository) as server:
        _, result = load(server, "--stream", "--requests", 50, url=f"grpc://{server.grpc_address}")
        assert result["runs"][0]["succeeded"] == 50 == result["runs"][0]["stream"]["parts"], result
        try:
            link_tree(encoder_dir(), repository / "minilm")
        except Skip:
            return
    sentences = work / "sentences.txt"
    sentences.write_text("a sentence\nand another one\n")
    with Server(repository) as server:
        _, result = load(server, "--stream", "--requests", 10, "--text-file", sentences, model="minilm")
        assert result["runs"][0]["succeeded"] == 10 == result["runs"][0]["stream"]["parts"], result


def answered(server, count):
    """Waits until the server has answered so many requests more."""
    def successes():
        return sum(v for k, v in server.metrics().items() if k.startswith("nv_inference_request_success"))

    wanted = successes() + count
    until(lambda: successes() >= wanted, "no requests come")


def interruptions():
    """Ctrl-C keeps what was measured; so does a server that is killed between two points of a sweep."""
    page = work / "partial.json"
    with Server(repository) as server:
        words = [TRIREME, "load", server.url, "--model", "simple", "--warmup", "0s", "--json", str(page)]
        for more, runs in ((["--duration", "60s"], 1), (["--sweep", "1,2,4", "--duration", "60s"], 1),
                           (["--scenario", "server", "--rate", "200", "--duration", "60s"], 1),
                           (["--rate", "100", "--duration", "20s", "--stability", "5"], 1)):
            page.unlink(missing_ok=True)
            process = subprocess.Popen([*words, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            answered(server, 80)
            process.send_signal(signal.SIGINT)
            text, errors = process.communicate(timeout=60)
            assert process.returncode == 130 and "interrupted" in text and "stopping" in errors, (more, text, errors)
            result = json.loads(page.read_text())
            run = result["runs"][-1]
            assert len(result["runs"]) == runs and run["interrupted"] and run["succeeded"] > 50, run
            assert 0 < run["window_s"] < 20 and run["succeeded"] == run["scheduled"], run
            assert "scenario" not in run or not run["scenario"]["valid"], run
        process = subprocess.Popen([*words, "--sweep", "1,2,4", "--duration", "5s"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        answered(server, 80)
        server.process.kill()
        text, errors = process.communicate(timeout=60)
        result = json.loads(page.read_text())
        assert process.returncode == 6 and "failure" in result, (process.returncode, errors)
        (run,) = result["runs"]
        assert run["succeeded"] > 50 and "Connection refused" in json.dumps(run["errors"]), run["errors"]


def honesty():
    """A load that nobody answers is a failure; connections that are too few, and files that are, are said."""
    with Server(repository) as server:
        text, _ = load(server, "--duration", "200ms", model=None, url=server.url + "/no/such/path", code=1)
        assert "no request succeeded" in text and "p50" not in text, text
        words = [TRIREME, "load", server.url, "--model", "simple", "--concurrency", "5000", "--duration", "100ms"]
        done = subprocess.run(["bash", "-c", 'ulimit -n 1000; exec "$@"', "bash", *words],
                              capture_output=True, text=True)
        assert done.returncode == 5 and "ulimit" in done.stderr, done

    def slow(listener):
        while True:
            try:
                c, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer_late, args=(c,), daemon=True).start()

    def answer_late(c):
        try:
            while c.recv(65536):
                time.sleep(0.02)
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        except OSError:
            pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=slow, args=(listener,), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        # Two connections carry 100 requests a second, 200 are due: the wait is in the latency, and is told.
        _, result = load(None, "--rate", 200, "--connections", 2, "--duration", "1s", "--warmup", "0s", url=url,
                         model=None)
        run = result["runs"][0]
        assert run["generator"]["starved"] > run["scheduled"] / 2, run["generator"]
        assert run["latency_ns"]["p90"] > 200e6 and run["latency_ns"]["p50"] > 2 * run["service_ns"]["p50"], run
        warnings = " ".join(run["warnings"])
        assert "found every connection in use" in warnings and "did not keep up" in warnings, warnings
        _, result = load(None, "--find-concurrency", "--duration", "200ms", "--warmup", "0s", "--slo", "p50=1ms",
                         "--concurrency", 4, url=url, model=None, code=1)
        assert result["found_concurrency"] == 0, result["options"]
        assert [run["concurrency"] for run in result["runs"]] == [1, 2, 4], result["options"]


def loadgen():
    """MLCommons' own LoadGen with the same seeds: the same queries at the same times, and the same verdicts."""
    try:
        import mlperf_loadgen as lg
    except ImportError:
        raise Skip("mlcommons-loadgen is not installed (tools/requirements.txt)")

    def real(scenario, **settings):
        issued, waiting = [], queue.Queue()

        def work_off():
            for samples in iter(waiting.get, None):
                lg.QuerySamplesComplete([lg.QuerySampleResponse(s.id, 0, 0) for s in samples])

        def issue(samples):
            issued.append((time.perf_counter(), [s.index for s in samples]))
            waiting.put(list(samples))

        worker = threading.Thread(target=work_off)
        worker.start()
        sut, qsl = lg.ConstructSUT(issue, lambda: None), lg.ConstructQSL(16, 16, lambda _: None, lambda _: None)
        s = lg.TestSettings()
        s.scenario, s.mode = getattr(lg.TestScenario, scenario), lg.TestMode.PerformanceOnly
        s.qsl_rng_seed, s.sample_index_rng_seed = 2085463073848966840, 2747215439041700203
        s.schedule_rng_seed = 16159082839903944936
        for key, setting in settings.items():
            setattr(s, key, setting)
        output, log = lg.LogOutputSettings(), lg.LogSettings()
        output.outdir, output.copy_summary_to_stdout = str(work), False
        log.log_output, log.enable_trace = output, False
        lg.StartTestWithLogSettings(sut, qsl, s, log)
        waiting.put(None)
        worker.join()
        lg.DestroyQSL(qsl)
        lg.DestroySUT(sut)
        lines = (work / "mlperf_log_summary.txt").read_text().splitlines()
        summary = dict(line.split(" : ", 1) for line in lines if " : " in line)
        return issued, {key.strip(): text.strip() for key, text in summary.items()}

    record = work / "scenario.csv"
    with Server(repository) as server:
        for scenario, least, ours, settings in [
                ("Server", 100, ["server", "--rate", 900, "--target-latency", "2s"],
                 {"server_target_qps": 900, "server_target_latency_ns": 2 * 10**9}),
                ("Server", 100, ["server", "--rate", 900, "--target-latency", "1us"],
                 {"server_target_qps": 900, "server_target_latency_ns": 1000}),
                ("SingleStream", 100, ["single_stream"], {"single_stream_expected_latency_ns": 10**4}),
                ("SingleStream", 50, ["single_stream", "--requests", 60], {"max_query_count": 60}),
                ("MultiStream", 662, ["multi_stream"], {"multi_stream_expected_latency_ns": 10**4})]:
            issued, summary = real(scenario, min_duration_ms=600, min_query_count=least, **settings)
            _, result = load(server, "--scenario", *ours, "--duration", "600ms", "--record", record,
                             "--min-queries", least, code=0 if summary["Result is"] == "VALID" else 1)
            verdict = result["runs"][0]["scenario"]
            rows = sorted(csv.DictReader(record.open()), key=lambda row: float(row["scheduled_us"]))
            per_query = len(issued[0][1])
            # A query's samples share one time, and are recorded as they were answered: compared as sets.
            requests = [int(row["request"]) for row in rows]
            mine = [frozenset(requests[q:q + per_query]) for q in range(0, len(rows), per_query)]
            theirs = [sample for _, sample in issued]
            both = min(len(mine), len(theirs))
            # The loaded set is in another order: one fixed renaming turns the one sequence into the other.
            patterns = {}
            for own, other in zip(mine, theirs):
                assert patterns.setdefault(frozenset(other), own) == own, scenario
            assert len(set(patterns.values())) == len(patterns), scenario
            assert both >= 50 and (verdict["valid"] == (summary["Result is"] == "VALID")), (summary, verdict)
            if scenario == "Server":
                assert len(mine) == len(theirs), (len(mine), len(theirs))
                gaps = np.diff([float(row["scheduled_us"]) for row in rows]) / 1e6
                shifts = np.array([t for t, _ in issued]) - issued[0][0] - np.concatenate([[0], np.cumsum(gaps)])
                assert np.median(np.abs(shifts)) < 0.02, np.median(np.abs(shifts))
                scheduled = float(summary["Scheduled samples per second"])
                assert abs(verdict["metric"] - scheduled) < 0.02, (verdict["metric"], scheduled)
                # Kolmogorov and Smirnov: exponential gaps, to 0.1 %.
                ordered = 1 - np.exp(-np.sort(gaps) * 900)
                ranks = np.arange(1, len(gaps) + 1) / len(gaps)
                assert np.abs(ordered - ranks).max() < 1.95 / np.sqrt(len(gaps)), np.abs(ordered - ranks).max()


if __name__ == "__main__":
    run_cases([("single stream", single_stream), ("multi stream", multi_stream), ("server", server_scenario),
               ("offline", offline), ("seeds repeat", repeatable), ("mixes", mixes), ("traces", traces),
               ("sweeps", sweeps), ("comparisons", comparisons), ("percentiles", percentiles), ("protocols", protocols),
               ("streams", streams), ("interruptions", interruptions), ("honesty", honesty), ("LoadGen", loadgen)])
