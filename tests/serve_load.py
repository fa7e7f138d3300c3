# `trireme load` against the real server: scenarios with their verdicts, traces, mixes, sweeps, comparisons.
import json
import subprocess
import urllib.request

from _serving import TRIREME, Server, add_simple, run_cases, temporary

work = temporary()
repository = work / "models"
add_simple(repository)
add_simple(repository, "other")


def load(server, *options, code=0, model="simple"):
    """Runs one measurement; its text and its JSON."""
    page = work / "result.json"
    words = [TRIREME, "load", server.url, *(["--model", model] if model else []), "--warmup", "100ms",
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
        assert run["label"] == "trace" and run["succeeded"] == 600 and 0.95 < run["window_s"] < 3, run
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
        assert all(run["stable"] and 3 <= run["trials"] <= 10 for run in runs), runs
        assert all(0.5 < run["window_s"] < 1 for run in runs), runs  # the last three windows together
        _, result = load(server, "--sweep", "rate=50:100:50", "--duration", "200ms")
        assert [run["offered_rate"] for run in result["runs"]] == [50, 100], result
        load(server, "--sweep", "4:1", code=2)


def comparisons():
    """The same server twice is no change beyond the tolerance; clients that pause between requests surely get less through."""
    def compare(a, b, *options):
        page = work / "comparison.json"
        done = subprocess.run([TRIREME, "load", "compare", str(a), str(b), "--json", str(page), *map(str, options)],
                              capture_output=True, text=True, timeout=30)
        return done.returncode, done.stdout + done.stderr, json.loads(page.read_text()) if done.returncode < 2 else None

    paths = []
    for pause in ("0ms", "0ms", "5ms"):
        with Server(repository) as server:
            load(server, "--duration", "1s", "--concurrency", 2, "--think", pause)
        paths.append(work / f"run{len(paths)}.json")
        (work / "result.json").rename(paths[-1])
    code, text, _ = compare(paths[0], paths[1], "--tolerance", 300)
    assert code == 0 and "c=2" in text, text
    code, text, result = compare(paths[0], paths[2])
    rows = {row["figure"]: row for row in result["differences"]}
    assert code == 1 and "WORSE" in text, text
    assert rows["throughput"]["verdict"] == "worse", rows
    assert any("think" in note for note in result["notes"]), result["notes"]
    assert rows["throughput"]["change_percent_95"][1] < -50, rows
    paths[1].write_text("[]")
    assert compare(paths[0], paths[1])[0] == 2
    assert compare(paths[0], work / "absent.json")[0] == 3


if __name__ == "__main__":
    run_cases([("single stream", single_stream), ("multi stream", multi_stream), ("server", server_scenario),
               ("offline", offline), ("seeds repeat", repeatable), ("mixes", mixes), ("traces", traces),
               ("sweeps", sweeps), ("comparisons", comparisons)])
