# trireme tune on a language model: what is found serves, each step is told, a search goes on where it was cut, errors.
# timeout: 240
import json
import shutil
import subprocess

from _serving import TRIREME, Server, add_simple, run_cases, temporary
from serve_text import call, make_model

work = temporary()
make_model(work / "talk")
SPACE = ["--cache-types", "f32", "--cache-types", "bf16", "--sequences", "16", "--sequences", "2", "--chunks", "256",
         "--chunks", "32", "--prompt-tokens", "40", "--answer-tokens", "8", "--trial", "250ms", "--threads", "1"]


def tune(out, *words, code=0, model="talk"):
    done = subprocess.run([TRIREME, "tune", str(work / model), "--out", str(work / out), *words], capture_output=True,
                          text=True, timeout=200, check=False)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr[-2000:])
    return done.stdout, done.stderr


def case_finds_and_goes_on():
    goals = ["--ttft", "3s", "--tpot", "1s"]
    text, _ = tune("found", *goals, *SPACE)
    result = json.loads((work / "found/result.json").read_text())
    assert result["reached"] and result["resumed"] == 0, result
    trials = result["trials"]
    best = trials[result["best"]]
    assert best["rate"] == max(t["rate"] for t in trials) > 1, trials
    assert trials[0]["cache_type"] == "f32" and trials[0]["sequences"] == 16 and trials[0]["chunk"] == 256, trials[0]
    assert {t["changed"] for t in trials} == {"", "cache type", "sequences", "chunk"}, trials
    assert all(run["holds"] for t in trials for run in t["runs"] if run["rate"] and run["rate"] <= t["rate"]), trials
    report = (work / "found/report.md").read_text()
    assert report.count("\n| as-stored ") == len(trials) and " ".join(result["command"]) in report, report
    assert "found: as-stored" in text and "serve it: trireme serve" in text, text
    # What it says serves.
    command = result["command"]
    assert command[:4] == ["trireme", "serve", "--model-repository", str(work / "found/repository")], command
    with Server(command[3], *command[4:]) as server:
        body = {"model": "talk", "prompt": "Once", "max_tokens": 4, "ignore_eos": True}
        assert call(server, "/v1/completions", body)[2]["usage"]["completion_tokens"] == 4
    # The same again is known; a journal that lacks its end is gone on with, to the same choice.
    loads = sum(len(t["runs"]) for t in trials)
    (work / "found/repository/another").mkdir()
    _, told = tune("found", *goals, *SPACE)
    assert (work / "found/repository/another").is_dir(), "a search removes other models"
    again = json.loads((work / "found/result.json").read_text())
    assert again["resumed"] == loads and "requests a second" not in told and again["trials"] == trials, told
    journal = work / "found/journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:len(lines) // 2]))
    tune("found", *goals, *SPACE)
    assert 0 < json.loads((work / "found/result.json").read_text())["resumed"] < loads


def case_goals_that_cannot_be_met():
    text, _ = tune("never", "--ttft", "1us", *SPACE, code=1)
    result = json.loads((work / "never/result.json").read_text())
    assert not result["reached"] and "no configuration meets the goals; the nearest is" in text, text
    assert all(len(t["runs"]) == 1 and t["rate"] == 0 for t in result["trials"]), result["trials"]


def case_weights_compete_where_they_are_named():
    make_model(work / "blocks")  # whose width no format of blocks divides where it is 32
    _, told = tune("stored", "--tpot", "1s", *SPACE, "--weights", "q8_0", model="blocks")
    result = json.loads((work / "stored/result.json").read_text())
    assert {t["weights"] for t in result["trials"]} == {"", "q8_0"}, (result["trials"], told)


def case_wrong_words():
    for words, said in ((["--ttft", "1s", "--p99", "1s"], "go without --p50"),
                        (["--ttft", "1s", "--rate", "3"], "--rate"),
                        (["--tpot", "1s", "--max-batch", "3"], "one session"),
                        (["--ttft", "1s", "--threads", "1", "--threads", "2"], "one number")):
        _, told = tune("wrong", *words, code=2)
        assert said in told, (words, told)
    add_simple(work, "simple")
    _, told = tune("wrong", "--ttft", "1s", model="simple", code=3)
    assert "simple" in told, told
    tune("wrong", "--ttft", "1s", model="absent", code=3)


if __name__ == "__main__":
    try:
        run_cases([(name, case) for name, case in sorted(globals().items()) if name.startswith("case_")])
    finally:
        shutil.rmtree(work, ignore_errors=True)
