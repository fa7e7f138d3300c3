# Guessed tokens on the server: the same answers with and without, counts, configurations, goals, what is refused.
import json
import re
import shutil
import subprocess
import threading

from _serving import TRIREME, Server, run_cases, temporary
from serve_text import call, events, make_model

SMALL = "zoo:llama:layers=1,width=32,heads=4,kv_heads=2,inner=48,vocabulary=424,positions=512"
END = 420  # <|end|>
PROMPT = "to be or not to be, that is the question; to be or not to be, that is "


class Repository:
    """One language model and nothing else, and a smaller one beside it, made once."""
    path = None

    @classmethod
    def get(cls):
        if cls.path is None:
            cls.path = temporary()
            make_model(cls.path / "models/talk", end=END)
            make_small(cls.path / "small", cls.path / "models/talk")
        return cls.path

    @classmethod
    def small(cls):
        return str(cls.get() / "small")


def make_small(path, like):
    subprocess.run([TRIREME, "export", SMALL, str(path)], check=True, capture_output=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(like / name, path / name)


def serve(*options):
    return Server(Repository.get() / "models", "--threads", "1", *options)


REQUESTS = [
    {"prompt": PROMPT, "max_tokens": 60},
    {"prompt": PROMPT, "max_tokens": 60, "temperature": 0.7, "seed": 5, "n": 3},
    {"prompt": PROMPT, "max_tokens": 40, "logprobs": 3, "temperature": 0.9, "seed": 6, "top_p": 0.9},
    {"prompt": [5, 6, 7, 8, 5, 6, 7, 8, 5, 6], "max_tokens": 50, "min_tokens": 20, "stop_token_ids": list(range(40))},
    {"prompt": PROMPT, "max_tokens": 50, "stop": ["a", "e", "o"], "ignore_eos": True, "seed": 8, "temperature": 1},
    {"prompt": PROMPT, "max_tokens": 1},
    {"prompt": PROMPT, "max_tokens": 30, "logit_bias": {"17": 4, "20": -100}},
    {"prompt": PROMPT, "max_tokens": 30, "repetition_penalty": 1.3},
    {"prompt": PROMPT, "max_tokens": 30, "guided_regex": "[a-z]{3}( [a-z]{2}){4}"},
    {"prompt": PROMPT, "max_tokens": 20, "echo": True, "logprobs": 1},
]


def answers(server, together):
    """The choices of all requests, one after another or side by side."""
    found = [None] * len(REQUESTS)

    def ask(i):
        status, _, body = call(server, "/v1/completions", {"model": "talk", "temperature": 0, **REQUESTS[i]})
        found[i] = (body["choices"], body["usage"]["completion_tokens"]) if status == 200 else body

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(REQUESTS))]
    for thread in threads:
        thread.start()
        if not together:
            thread.join()
    for thread in threads:
        thread.join()
    assert all(isinstance(one, tuple) for one in found), found
    return found


def counts(server):
    metrics, label = server.metrics(), '{model_name="talk",engine="0"}'
    return [metrics[f"vllm:spec_decode_num_{what}_total" + label] for what in
            ("drafts", "draft_tokens", "accepted_tokens")]


def case_same_answers():
    with serve() as server:
        want = answers(server, together=False)
        assert counts(server) == [0, 0, 0]
    for options in (["--speculate", "lookup"], ["--speculate", "lookup", "--draft-tokens", "3", "--max-sequences", "8"],
                    ["--speculate", "draft", "--draft", Repository.small(), "--draft-tokens", "4"],
                    ["--speculate", "draft", "--draft", str(Repository.get() / "models/talk"), "--chunk", "20"],
                    ["--speculate", "lookup", "--pp", "2"], ["--speculate", "lookup", "--tp", "2"]):
        with serve(*options) as server:
            got = answers(server, together=False)
            if "--tp" not in options:
                assert got == want, options
                assert answers(server, together=True) == want, options
            drafts, tokens, accepted = counts(server)
            assert 0 < drafts <= tokens and accepted <= tokens, (options, drafts, tokens, accepted)
            if str(Repository.get() / "models/talk") in options:  # guesses of the model itself are right
                assert accepted > 0.9 * tokens, (tokens, accepted)


def case_streams_token_by_token():
    body = {"model": "talk", "temperature": 0, "prompt": PROMPT, "max_tokens": 40, "stream": True, "logprobs": 0}
    with serve() as server:
        want = [json.loads(e)["choices"][0] for e in events(server, "/v1/completions", body)[:-1]]
    with serve("--speculate", "draft", "--draft", str(Repository.get() / "models/talk")) as server:
        got = [json.loads(e)["choices"][0] for e in events(server, "/v1/completions", body)[:-1]]
        assert counts(server)[2] > 5
    assert got == want and len(got) >= 40, (len(got), len(want))


def case_a_model_says_so_itself():
    root = temporary()
    shutil.copytree(Repository.get() / "models/talk", root / "talk")
    shutil.copytree(Repository.small(), root / "talk/draft")
    config = root / "talk/config.pbtxt"
    parameter = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'.format
    with Server(root, "--threads", "1", "--speculate", "lookup") as server:
        call(server, "/v1/completions", {"model": "talk", "temperature": 0, "prompt": PROMPT, "max_tokens": 60})
        assert counts(server)[0] > 0
    config.write_text(parameter("speculate", "off"))
    with Server(root, "--threads", "1", "--speculate", "lookup") as server:
        call(server, "/v1/completions", {"model": "talk", "temperature": 0, "prompt": PROMPT, "max_tokens": 60})
        assert counts(server)[0] == 0
    config.write_text(parameter("speculate", "draft") + parameter("draft", "draft"))
    with Server(root, "--threads", "1") as server:
        call(server, "/v1/completions", {"model": "talk", "temperature": 0, "prompt": PROMPT, "max_tokens": 60})
        assert counts(server)[0] > 0
    # Whoever writes a model's configuration does not choose which files of the machine are opened.
    outside = temporary()
    shutil.copytree(Repository.small(), outside / "small")
    for path in (str(outside / "small"), f"../../../{outside.relative_to('/')}/small"):
        config.write_text(parameter("speculate", "draft") + parameter("draft", path))
        with Server(root, "--threads", "1", "--strict-readiness", "false") as server:
            status = call(server, "/v1/completions", {"model": "talk", "prompt": PROMPT})[0]
            reason = call(server, "/v2/repository/index", {})[2][0]["reason"]
            assert status == 503 and "in a model repository" in reason, (status, reason)
    shutil.rmtree(outside)
    shutil.rmtree(root)


def case_goals_change_no_answer():
    with serve() as server:
        want = answers(server, together=False)
    with serve("--tpot-goal", "2ms", "--ttft-goal", "50ms", "--speculate", "lookup") as server:
        assert answers(server, together=True) == want


def run(verb, *options, lines=None):
    return subprocess.run([TRIREME, verb, str(Repository.get() / "models/talk"), "--threads", "1", *options],
                          capture_output=True, text=True, input=lines, check=False)


def case_generate_and_chat():
    usual = ["--prompt", PROMPT, "--max-tokens", "80", "--json"]
    want = run("generate", *usual)
    assert want.returncode == 0 and "speculation" not in want.stderr, want.stderr
    for options in (["--speculate", "lookup"], ["--speculate", "draft", "--draft", Repository.small()],
                    ["--speculate", "draft", "--draft", SMALL]):
        got = run("generate", *usual, *options)
        assert got.stdout == want.stdout, got.stderr
        told = re.search(r"speculation.* tokens=(\d+) accepted=(\d+)", got.stderr)
        assert told and int(told[1]) > 0, got.stderr
    talk = ["--max-tokens", "40"]
    assert run("chat", *talk, lines="hello\nagain\n").stdout == run("chat", *talk, "--speculate", "lookup",
                                                                   lines="hello\nagain\n").stdout


def case_refusals():
    other = temporary() / "other"
    make_small(other, Repository.get() / "models/talk")
    text = (other / "tokenizer.json").read_text()
    vocabulary = json.loads(text)
    tokens = sorted(vocabulary["model"]["vocab"], key=vocabulary["model"]["vocab"].get)
    a, b = tokens[200], tokens[201]
    vocabulary["model"]["vocab"][a], vocabulary["model"]["vocab"][b] = 201, 200
    (other / "tokenizer.json").write_text(json.dumps(vocabulary))
    for options, words in ((["--speculate", "draft"], "give --draft"), (["--draft", SMALL], "--speculate draft"),
                           (["--speculate", "draft", "--draft", str(other)], "token 2"),
                           (["--speculate", "draft", "--draft", SMALL.replace("424", "9000")], "vocabulary"),
                           (["--speculate", "draft", "--draft", "nowhere"], "draft 'nowhere'"),
                           (["--speculate", "lookup", "--bench", "prompt=4,new=4"], "--bench")):
        failed = run("generate", "--prompt", PROMPT, *options)
        assert failed.returncode in (2, 3) and words in failed.stderr, (options, failed.returncode, failed.stderr)
    shutil.rmtree(other.parent)


if __name__ == "__main__":
    run_cases([(name, case) for name, case in sorted(globals().items()) if name.startswith("case_")])
