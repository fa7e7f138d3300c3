# NVIDIA's AIPerf against the server: streamed chats, completions at a rate, embeddings, a trace with shared prefixes.
# tier: all
# timeout: 300
# `./dev test --all` installs it below .venv; without it each case is skipped.
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from _serving import ROOT, Server, Skip, encoder_dir, link_tree, run_cases, temporary
from serve_text import make_model

HOME = Path(os.environ.get("TRIREME_AIPERF", ROOT / ".venv" / "aiperf"))
PROGRAM = HOME / "bin" / "aiperf"
KEY = "sk-of-the-test"


class Host:
    """One server with a language model and an encoder; callers show a key."""
    server = None
    tokenizer = None

    @classmethod
    def url(cls):
        if cls.server is None:
            root = temporary()
            make_model(root / "talk")
            link_tree(encoder_dir(), root / "minilm")
            cls.tokenizer = temporary()
            shutil.copy(root / "talk/tokenizer.json", cls.tokenizer)
            (cls.tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
            cls.server = Server(root, "--threads", "1", "--warm-up", "none", "--restrict",
                                f"inference:authorization=Bearer {KEY}")
        return cls.server.url


def profile(model, endpoint, *options):
    """Runs it; gives its report."""
    if not PROGRAM.exists():
        raise Skip("AIPerf is not installed (./dev test --all installs it)")
    out = temporary()
    # Nothing is asked of the network: its address of models is one that refuses.
    env = dict(os.environ, PYTHONPATH=str(HOME), HF_ENDPOINT="http://127.0.0.1:9", PYTHONDONTWRITEBYTECODE="1")
    words = [sys.executable, PROGRAM, "profile", "--model", model, "--url", Host.url(), "--endpoint-type", endpoint,
             "--api-key", KEY, "--tokenizer", Host.tokenizer, "--use-server-token-count", "--no-gpu-telemetry",
             "--ui", "none", "--artifact-dir", out, *options]
    done = subprocess.run(list(map(str, words)), env=env, capture_output=True, text=True, timeout=150)
    report = out / "profile_export_aiperf.json"
    assert report.exists(), done.stdout[-2000:] + done.stderr[-1000:]
    return json.loads(report.read_text()), out


def number(report, name):
    return report[name]["avg"]


def sizes(prompt, answer):
    return ("--isl", prompt, "--isl-stddev", 0, "--osl", answer, "--extra-inputs", "ignore_eos:true")


def streamed_chats():
    report, out = profile("talk", "chat", "--streaming", "--concurrency", 3, "--request-count", 12, *sizes(20, 40))
    assert number(report, "completed_request_count") == 12 and not report["error_summary"], report["error_summary"]
    assert number(report, "total_output_tokens") == 12 * 40, report["total_output_tokens"]
    assert 0 < number(report, "time_to_first_token") <= number(report, "request_latency"), report
    assert number(report, "total_usage_prompt_tokens") > 12 * 20, report["total_usage_prompt_tokens"]
    scraped = json.loads((out / "server_metrics_export.json").read_text())
    assert any("vllm:" in name for name in scraped["metrics"]), list(scraped["metrics"])[:20]


def completions_at_a_rate():
    report, _ = profile("talk", "completions", "--request-rate", 20, "--request-count", 10, *sizes(30, 6))
    assert number(report, "completed_request_count") == 10 and not report["error_summary"], report["error_summary"]
    assert number(report, "total_output_tokens") == 10 * 6, report["total_output_tokens"]


def embeddings():
    report, _ = profile("minilm", "embeddings", "--concurrency", 2, "--request-count", 8, "--isl", 12,
                        "--batch-size", 3)
    assert number(report, "completed_request_count") == 8 and not report["error_summary"], report["error_summary"]


def a_trace():
    lines = [{"timestamp": 40 * i, "input_length": 96, "output_length": 5, "hash_ids": [1, 2 + i % 2]}
             for i in range(6)]
    trace = temporary() / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report, _ = profile("talk", "chat", "--streaming", "--custom-dataset-type", "mooncake_trace", "--input-file", trace,
                        "--fixed-schedule", "--isl-block-size", 64, "--extra-inputs", "ignore_eos:true")
    assert number(report, "completed_request_count") == 6 and not report["error_summary"], report["error_summary"]
    assert number(report, "total_output_tokens") == 6 * 5, report["total_output_tokens"]
    assert number(report, "total_usage_prompt_cache_read_tokens") > 0, report["total_usage_prompt_cache_read_tokens"]


CASES = [streamed_chats, completions_at_a_rate, embeddings, a_trace]
run_cases([(case.__name__, case) for case in CASES])
