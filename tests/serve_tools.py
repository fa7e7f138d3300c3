# Strangers' tools against the server: promtool, Prometheus and the dashboard's queries, wrk, h2load.
# tier: all
# timeout: 300
import json
import queue
import random
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from _serving import ROOT, Server, Skip, add_simple, add_slow, run_cases, temporary
from _triton_models import add_repeat
from serve_text import make_model

work = temporary()
repository = work / "models"
add_simple(repository)
add_simple(repository, "kept")
(repository / "kept" / "config.pbtxt").write_text("max_batch_size: 8\nresponse_cache { enable: true }\n")
add_slow(repository, "dense", 1)
BODY = json.dumps({"inputs": [{"name": f"INPUT{i}", "shape": [1, 16], "datatype": "INT32", "data": list(range(16))}
                              for i in (0, 1)]})


def tool(name):
    path = shutil.which(name)
    if not path:
        raise Skip(f"{name} is not installed (./dev setup)")
    return path


def traffic(server, seed, count):
    """Requests of both models: rows at random, some asked again for the cache, some that are refused."""
    rng = np.random.default_rng(seed)
    client = triton.InferenceServerClient(server.address)
    for number in range(count):
        model, rows = ("simple", "kept")[number % 2], int(rng.integers(1, 6))
        if number % 13 == 0:
            rows = 100  # more than max_batch_size
        inputs = [triton.InferInput(f"INPUT{i}", [rows, 16], "INT32") for i in (0, 1)]
        for x in inputs:
            x.set_data_from_numpy(np.full((rows, 16), number % 7, np.int32))
        try:
            client.infer(model, inputs)
        except InferenceServerException as error:
            assert rows == 100 and "batch-size" in str(error), error


def in_parallel(server, count):
    threads = [threading.Thread(target=traffic, args=(server, seed, count)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


# What every server without an accelerator must show (families that need a GPU or decoupled models are left out).
TRITON_NAMES = """nv_inference_request_success nv_inference_request_failure nv_inference_count nv_inference_exec_count
nv_inference_pending_request_count nv_inference_request_duration_us nv_inference_queue_duration_us
nv_inference_compute_input_duration_us nv_inference_compute_infer_duration_us nv_inference_compute_output_duration_us
nv_inference_request_summary_us nv_inference_queue_summary_us nv_inference_compute_input_summary_us
nv_inference_compute_infer_summary_us nv_inference_compute_output_summary_us nv_model_load_duration_secs
nv_cache_num_hits_per_model nv_cache_num_misses_per_model nv_cache_hit_duration_per_model
nv_cache_miss_duration_per_model nv_cpu_utilization nv_cpu_memory_total_bytes nv_cpu_memory_used_bytes
nv_pinned_memory_pool_total_bytes nv_pinned_memory_pool_used_bytes""".split()


def promtool_metrics():
    """The exposition parses, and only names that Triton chose break Prometheus' advice on names."""
    promtool = tool("promtool")
    with Server(repository, "--metric-summaries") as server:
        in_parallel(server, 40)
        text = urllib.request.urlopen(server.url + "/metrics", timeout=10).read()
    families = set(re.findall(r"^# TYPE (\S+) ", text.decode(), re.M))
    missing = [name for name in TRITON_NAMES if name not in families]
    assert not missing, missing
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, timeout=60)
    advice = (done.stdout + done.stderr).decode().splitlines()
    assert done.returncode in (0, 3), advice  # 1: does not parse, 3: advice
    ours = [line for line in advice if not line.startswith("nv_")]
    assert not ours, ours
    broken = subprocess.run([promtool, "check", "metrics"], input=b"a{b=} 1\n", capture_output=True, timeout=60)
    assert broken.returncode == 1, "promtool accepts anything"


def statistics_equal_metrics():
    """After random traffic the statistics in JSON and the scrape tell the same numbers."""
    with Server(repository) as server:
        in_parallel(server, 200)
        stats = json.loads(urllib.request.urlopen(server.url + "/v2/models/stats", timeout=10).read())
        metrics = server.metrics()
        for model in stats["model_stats"]:
            name, s = model["name"], model["inference_stats"]
            own = f'{{model="{name}",version="{model["version"]}"}}'
            failed = sum(v for k, v in metrics.items() if k.startswith(f"nv_inference_request_failure{own[:-1]}"))
            pairs = {"request_success": s["success"]["count"], "count": model["inference_count"],
                     "exec_count": model["execution_count"]}
            for phase, word in (("request", "success"), ("queue", "queue"), ("compute_input", "compute_input"),
                                ("compute_infer", "compute_infer"), ("compute_output", "compute_output")):
                pairs[f"{phase}_duration_us"] = s[word]["ns"] // 1000
            for key, expected in pairs.items():
                assert metrics[f"nv_inference_{key}{own}"] == expected, (key, expected)
            asked = 0 if name == "dense" else 4 * 100
            assert failed == s["fail"]["count"] and (failed > 0) == (asked > 0), (failed, s)
            assert s["success"]["count"] + failed == asked
            assert s["success"]["count"] == s["cache_hit"]["count"] + s["compute_infer"]["count"], s
            for what, key in (("hits", "cache_hit"), ("misses", "cache_miss")):
                assert metrics[f"nv_cache_num_{what}_per_model{own}"] == s[key]["count"]
            # Our histograms count the same events.
            for family, expected in (("request_duration_seconds", s["success"]), ("queue_duration_seconds", s["queue"]),
                                     ("compute_infer_duration_seconds", s["compute_infer"]),
                                     ("compute_input_duration_seconds", s["compute_input"]),
                                     ("compute_output_duration_seconds", s["compute_output"])):
                assert metrics[f"trireme_{family}_count{own}"] == expected["count"], family
                seconds = expected["ns"] * 1e-9
                assert abs(metrics[f"trireme_{family}_sum{own}"] - seconds) <= 1e-9 + 1e-3 * seconds, family
            assert metrics[f"trireme_batch_rows_count{own}"] == model["execution_count"]
            assert metrics[f"trireme_batch_rows_sum{own}"] == model["inference_count"]
            assert metrics[f"trireme_queue_length_count{own}"] == model["execution_count"]
            runs = sum(b["compute_infer"]["count"] for b in model["batch_stats"])
            rows = sum(b["batch_size"] * b["compute_infer"]["count"] for b in model["batch_stats"])
            assert (runs, rows) == (model["execution_count"], model["inference_count"])
            memory = sum(metrics[f'trireme_model_memory_bytes{own[:-1]},kind="{k}"}}'] for k in ("weights", "scratch"))
            assert memory == model["memory_usage"][0]["byte_size"], model["memory_usage"]
            assert name != "dense" or memory >= 2**20, memory  # its weight is one MiB
        assert any(m["inference_stats"]["cache_hit"]["count"] for m in stats["model_stats"])


RULES_TEST = """rule_files: [{rules}]
evaluation_interval: 10s
tests:
  - interval: 10s
    input_series:
      - {{series: 'up{{job="trireme", instance="a"}}', values: '1x30 0x30'}}
      - {{series: 'nv_inference_request_success{{instance="a", model="m"}}', values: '0+100x60'}}
      - {{series: 'trireme_instances_hung{{instance="a", model="m", version="1"}}', values: '0x20 1x40'}}
      - {{series: 'nv_inference_request_failure{{instance="a", model="m", reason="BACKEND"}}', values: '0x10 0+5x50'}}
      - {{series: 'nv_inference_request_failure{{instance="a", model="m", reason="REJECTED"}}', values: '0x60'}}
    alert_rule_test:
      - {{eval_time: 4m, alertname: TriremeDown, exp_alerts: []}}
      - eval_time: 8m
        alertname: TriremeDown
        exp_alerts: [{{exp_labels: {{severity: page, job: trireme, instance: a}},
                      exp_annotations: {{summary: "a does not answer"}}}}]
      - {{eval_time: 3m, alertname: TriremeHangs, exp_alerts: []}}
      - eval_time: 6m
        alertname: TriremeHangs
        exp_alerts: [{{exp_labels: {{severity: page, model: m, version: "1", instance: a}},
                      exp_annotations: {{summary: "m on a: instances whose batch does not end: 1"}}}}]
      - {{eval_time: 1m, alertname: TriremeModelFails, exp_alerts: []}}
      - {{eval_time: 8m, alertname: TriremeRejects, exp_alerts: []}}
"""


def alert_rules():
    """The alert rules parse, fire when they should and are quiet when they should; the scrape config parses."""
    promtool = tool("promtool")
    folder = ROOT / "deploy" / "prometheus"
    for words in (["check", "rules", folder / "rules.yml"], ["check", "config", folder / "prometheus.yml"]):
        done = subprocess.run([promtool, *map(str, words)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done
    page = work / "rules_test.yml"
    page.write_text(RULES_TEST.format(rules=folder / "rules.yml"))
    done = subprocess.run([promtool, "test", "rules", str(page)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A real Prometheus that scrapes the server each half second."""

    def __init__(self, server):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        config = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()
        config = config.replace("10s", "500ms").replace("localhost:8000", server.address)
        shutil.copy(ROOT / "deploy" / "prometheus" / "rules.yml", work)
        (work / "prometheus.yml").write_text(config)
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [tool("prometheus"), f"--config.file={work / 'prometheus.yml'}", f"--web.listen-address=127.0.0.1:{port}",
             f"--storage.tsdb.path={work / f'series-{port}'}", "--log.level=error"])  # of its own: nothing from before

    def ask(self, path, **query):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        answer = json.loads(urllib.request.urlopen(url, timeout=30).read())
        assert answer["status"] == "success", answer
        return answer["data"]

    def wait_scraped(self, times, limit_s=60):
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            try:
                found = self.ask("query", query="count_over_time(trireme_uptime_seconds[1m])")["result"]
                if found and float(found[0]["value"][1]) >= times:
                    return
            except OSError:
                assert self.process.poll() is None, "prometheus ended"
            time.sleep(0.2)
        raise AssertionError("prometheus does not scrape the server")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)


def evaluate(name, prometheus):
    """Every query of a Grafana board, evaluated by Prometheus over our own metrics, gives numbers."""
    board = json.loads((ROOT / "deploy" / "grafana" / name).read_text())
    panels = [p for p in board["panels"] if p["type"] != "row"]
    assert len(panels) > 15 and len({p["id"] for p in board["panels"]}) == len(board["panels"])
    for panel in panels:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "10s").replace("$model", ".*").replace(
                "$instance", ".*")
            assert "$" not in query, query
            found = prometheus.ask("query", query=query)["result"]
            assert found, f"{panel['title']}: nothing for {query}"
            wrong = [r for r in found if r["value"][1] in ("NaN", "+Inf") and
                     (r["metric"].get("model") == "simple" or "model_name" in r["metric"])]
            assert not wrong, (panel["title"], query, wrong)
    for variable in board["templating"]["list"]:
        match = re.fullmatch(r"label_values\(([\w:]+), (\w+)\)", variable["query"] if isinstance(
            variable["query"], str) else variable["query"]["query"])
        if match:
            assert prometheus.ask(f"label/{match[2]}/values", **{"match[]": match[1]}), variable["name"]


class Asking:
    """Calls something again and again on a thread of its own."""

    def __init__(self, ask):
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.go_on, args=(ask,))

    def go_on(self, ask):
        while not self.is_over.is_set():
            ask()

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()


def dashboard():
    """The board of all models, and the alert rules beside it."""
    tool("prometheus")
    with Server(repository, "--price-per-hour", "1.5") as server, Prometheus(server) as prometheus, \
            Asking(lambda: traffic(server, 3, 40)):
        prometheus.wait_scraped(8)
        evaluate("trireme.json", prometheus)
        rules = prometheus.ask("rules")["groups"][0]["rules"]
        bad = [r for r in rules if r["health"] != "ok"]
        assert len(rules) >= 7 and not bad, bad
        # No rule is a misspelt name: each one's series exist.
        for rule in rules:
            for name in set(re.findall(r"\b(?:nv|trireme|process)_\w+", rule["query"])):
                assert prometheus.ask("query", query=name)["result"], (rule["name"], name)


def text_dashboard():
    """The board of language models, over one whose callers have keys with quotas."""
    tool("prometheus")
    models = work / "texts"
    make_model(models / "talk")
    keys = work / "keys.yaml"
    keys.write_text("keys: [{tenant: one, key: sk-of-one}, {tenant: two, key: sk-of-two, requests_per_minute: 1}]")
    body = json.dumps({"model": "talk", "prompt": "The king of the sea and of all that is in it", "max_tokens": 12,
                       "ignore_eos": True}).encode()

    def ask(server):
        for tenant in ("one", "two"):
            head = {"Content-Type": "application/json", "Authorization": f"Bearer sk-of-{tenant}"}
            request = urllib.request.Request(server.url + "/v1/completions", body, head)
            try:
                urllib.request.urlopen(request, timeout=30).read()
            except urllib.error.HTTPError as error:
                assert error.code == 429 and tenant == "two", error

    with Server(models, "--price-per-hour", "1.5", "--api-keys", str(keys)) as server, \
            Prometheus(server) as prometheus, Asking(lambda: ask(server)):
        prometheus.wait_scraped(8)
        evaluate("texts.json", prometheus)


def first_responses():
    """A decoupled model shows how long its first answers take; a request without answers has none."""
    models = work / "decoupled"
    add_repeat(models)
    with Server(models) as server:
        answers = queue.Queue()
        client = triton_grpc.InferenceServerClient(server.grpc_address)
        client.start_stream(lambda result, error: answers.put(error or result))
        for count in (3, 0, 1):
            given = {"IN": ("INT32", np.zeros(count, np.int32)), "DELAY": ("UINT32", np.zeros(count, np.uint32)),
                     "WAIT": ("UINT32", np.zeros(1, np.uint32))}
            inputs = [triton_grpc.InferInput(name, list(data.shape), kind) for name, (kind, data) in given.items()]
            for x, (_, data) in zip(inputs, given.values()):
                x.set_data_from_numpy(data)
            client.async_stream_infer("repeat_int32", inputs, enable_empty_final_response=True)
        for _ in range(3 + 0 + 1 + 3):
            assert not isinstance(answers.get(timeout=30), Exception)
        client.close()
        m = server.metrics()
        own = '{model="repeat_int32",version="1"'
        assert m[f"nv_inference_first_response_histogram_ms_count{own}}}"] == 2, m
        assert m[f'nv_inference_first_response_histogram_ms_bucket{own},le="5000"}}'] == 2, m
        assert m[f"nv_inference_request_success{own}}}"] == 3


def succeeded(server):
    return int(server.metrics()['nv_inference_request_success{model="simple",version="1"}'])


def wrk():
    """Without and with pipelining: no socket error, no answer but 200, nothing counted twice."""
    wrk = tool("wrk")
    script = work / "infer.lua"
    for depth in (1, 8):
        script.write_text(f"""wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [[{BODY}]]
local all
init = function() local one = {{}} for i = 1, {depth} do one[i] = wrk.format() end all = table.concat(one) end
request = function() return all end
""")
        with Server(repository) as server:
            done = subprocess.run([wrk, "-t2", "-c16", "-d2s", "--timeout", "5s", "-s", str(script),
                                   server.url + "/v2/models/simple/infer"], capture_output=True, text=True, timeout=60)
            text = done.stdout + done.stderr
            asked = re.search(r"(\d+) requests in", text)
            assert done.returncode == 0 and asked and int(asked[1]) > 100, text
            assert "Socket errors" not in text and "Non-2xx" not in text, text
            # wrk leaves what is under way when its time is over.
            assert 0 <= succeeded(server) - int(asked[1]) <= 16 * depth, (succeeded(server), text)
            assert server.stop() == 0


def h2load():
    """Exactly so many answers as requests, one at a time and ten at a time on each connection."""
    h2load = tool("h2load")
    body = work / "body.json"
    body.write_text(BODY)
    with Server(repository) as server:
        before = succeeded(server)
        for depth in (1, 10):
            done = subprocess.run([h2load, "--h1", "-n", "6000", "-c", "20", "-t", "2", "-m", str(depth),
                                   "-d", str(body), "-H", "Content-Type: application/json",
                                   server.url + "/v2/models/simple/infer"],
                                  capture_output=True, text=True, timeout=60)
            ended = "6000 total, 6000 started, 6000 done, 6000 succeeded, 0 failed, 0 errored, 0 timeout"
            assert ended in done.stdout, done.stdout + done.stderr
            assert "6000 2xx, 0 3xx, 0 4xx, 0 5xx" in done.stdout, done.stdout
            before += 6000
            assert succeeded(server) == before
        assert server.stop() == 0


def pipelined_in_order():
    """Requests of random sizes written without waiting, torn at random: answers come in order, each its own."""
    rng = random.Random(5)
    with Server(repository) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as s:
            s.settimeout(30)
            wanted, stream = [], b""
            for number in range(300):
                rows = rng.randint(1, 8)
                data = [rng.randint(-99, 99) for _ in range(16 * rows)]
                body = json.dumps({"id": str(number), "inputs": [
                    {"name": f"INPUT{i}", "shape": [rows, 16], "datatype": "INT32", "data": data} for i in (0, 1)]})
                wanted.append((str(number), [2 * x for x in data]))
                stream += (f"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                           f"{body}").encode()

            def send():
                at = 0
                while at < len(stream):
                    size = rng.choice((1, 7, 900, 20000))
                    s.sendall(stream[at:at + size])
                    at += size

            sender = threading.Thread(target=send)
            sender.start()
            answers = s.makefile("rb")
            for number, data in wanted:
                assert answers.readline() == b"HTTP/1.1 200 OK\r\n", number
                length = 0
                while (line := answers.readline()) != b"\r\n":
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                answer = json.loads(answers.read(length))
                assert answer["id"] == number and answer["outputs"][0]["data"] == data, number
            sender.join()


def replaced_versions():
    """Metrics are of the versions that serve, and counts go on where a version comes back."""

    def seen(server):
        return {key: value for key, value in server.metrics().items()
                if 'model="rolled"' in key and key.startswith("nv_inference_request_success")}

    repository = work / "rolling"
    add_simple(repository, "rolled")
    with Server(repository, "--model-control", "explicit", "--load-model", "rolled") as server:
        client = triton.InferenceServerClient(server.address)
        inputs = [triton.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
        for x in inputs:
            x.set_data_from_numpy(np.ones((1, 16), np.int32))
        for number in range(2, 5):
            client.infer("rolled", inputs)
            (repository / "rolled" / str(number - 1)).rename(repository / "rolled" / str(number))
            client.load_model("rolled")
            assert seen(server) == {
                f'nv_inference_request_success{{model="rolled",version="{number}"}}': 0}, seen(server)
        client.unload_model("rolled")
        assert not seen(server)
        (repository / "rolled" / "4").rename(repository / "rolled" / "1")
        client.load_model("rolled")
        assert seen(server) == {'nv_inference_request_success{model="rolled",version="1"}': 1}, seen(server)


try:
    run_cases([(case.__name__, case) for case in (
        promtool_metrics, statistics_equal_metrics, replaced_versions, alert_rules, dashboard, text_dashboard,
        first_responses, wrk, h2load, pipelined_in_order)])
finally:
    shutil.rmtree(work, ignore_errors=True)
