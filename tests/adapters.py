# Adapters (LoRA) of language models: against merged checkpoints, in one batch with others, loaded and unloaded under
# traffic, and those that must be refused.
import json
import os
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openai
from safetensors.numpy import load_file, save_file

from _serving import TRIREME, Server, run_cases, temporary
from serve_batches import begin, client_of, lines_of, wait
from serve_text import call, make_model

MODULES = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
           "mlp.up_proj", "mlp.down_proj"]
# Which modules, of which rank and alpha.
ADAPTERS = {"polite": (MODULES, 8, 16), "brief": (["self_attn.q_proj", "self_attn.v_proj"], 4, 8),
            "loud": (["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"], 16, 16)}
PROMPT = "The king of the sea"


def config_of(rank, alpha, targets):
    return {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "talk", "bias": "none",
            "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True, "lora_alpha": alpha,
            "lora_dropout": 0.0, "modules_to_save": None, "r": rank, "rank_pattern": {}, "alpha_pattern": {},
            "target_modules": sorted({t.split(".")[-1] for t in targets}), "use_dora": False, "use_rslora": False}


def factors(weights, modules, rank, seed):
    """{PEFT's name: factor}, of a size that changes what the model says."""
    draw = np.random.default_rng(seed)
    found = {}
    for name, weight in weights.items():
        module = name.removesuffix(".weight")
        if not any(module.endswith(m) for m in modules):
            continue
        out, width = weight.shape
        found[f"base_model.model.{module}.lora_A.weight"] = draw.normal(0, 0.2, (rank, width)).astype(np.float32)
        found[f"base_model.model.{module}.lora_B.weight"] = draw.normal(0, 0.2, (out, rank)).astype(np.float32)
    return found


def write_adapter(path, weights, modules, rank, alpha, seed):
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps(config_of(rank, alpha, modules)))
    save_file(factors(weights, modules, rank, seed), path / "adapter_model.safetensors")


def write_merged(base, to, adapter):
    """A checkpoint with W + alpha / r B A."""
    shutil.copytree(base, to, ignore=shutil.ignore_patterns("adapters"))
    config = json.loads((adapter / "adapter_config.json").read_text())
    weights, added = load_file(base / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for name in weights:
        front = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{front}.lora_A.weight" in added:
            delta = added[f"{front}.lora_B.weight"].astype(np.float64) @ added[f"{front}.lora_A.weight"]
            weights[name] = (weights[name] + config["lora_alpha"] / config["r"] * delta).astype(np.float32)
    save_file(weights, to / "model.safetensors", {"format": "pt"})


class Repository:
    """A model with three adapters, and beside it the checkpoints that each makes when it is merged; made once."""
    path = merged = None

    @classmethod
    def get(cls):
        if cls.path is None:
            cls.path, cls.merged = temporary(), temporary()
            base = cls.path / "talk"
            make_model(base)
            weights = load_file(base / "model.safetensors")
            for seed, (name, (modules, rank, alpha)) in enumerate(ADAPTERS.items()):
                write_adapter(base / "adapters" / name, weights, modules, rank, alpha, seed)
                write_merged(base, cls.merged / name, base / "adapters" / name)
        return cls.path

    @classmethod
    def copy(cls):
        """One of a case's own."""
        root = temporary()
        shutil.copytree(cls.get(), root, dirs_exist_ok=True)
        return root


def serve(*options, repository=None, room=3, **more):
    return Server(repository or Repository.get(), "--threads", "2", "--max-adapters", str(room), *options, **more)


def complete(server, model, prompt=PROMPT, tokens=24, **members):
    status, _, body = call(server, "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": tokens,
                                                       "temperature": 0, "logprobs": 0, **members})
    assert status == 200, body
    assert body["model"] == model
    choice = body["choices"][0]
    return choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]


def error_of(server, path="/v1/completions", **members):
    status, _, body = call(server, path, {"prompt": PROMPT, **members})
    return status, body["error"]["message"], body["error"]["code"]


def generate(model, *options):
    out = subprocess.run([TRIREME, "generate", str(model), "--threads", "2", *options], check=True, capture_output=True)
    return json.loads(out.stdout) if "--json" in options else out.stdout


def load(server, name, path):
    return call(server, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})


def unload(server, name):
    return call(server, "/v1/unload_lora_adapter", {"lora_name": name})


def case_as_merged_weights():
    with serve() as server:
        plain = complete(server, "talk")
        for name in ADAPTERS:
            tokens, chances = complete(server, f"talk:{name}")
            only = ["--model-control", "explicit", "--load-model", name]
            with Server(Repository.merged, "--threads", "2", *only) as other:
                want_tokens, want_chances = complete(other, name)
            assert tokens == want_tokens, (name, tokens, want_tokens)
            np.testing.assert_allclose(chances, want_chances, atol=2e-4)
            assert np.abs(np.subtract(chances, plain[1])).max() > 0.02, name
    # The model alone is what it is without room for adapters.
    with Server(Repository.get(), "--threads", "2") as server:
        tokens, chances = complete(server, "talk")
        assert tokens == plain[0]
        np.testing.assert_allclose(chances, plain[1], atol=1e-5)


def case_command_line():
    base = Repository.get() / "talk"
    options = ["--prompt", PROMPT, "--max-tokens", "24", "--json"]
    for name in ADAPTERS:
        got = generate(base, *options, "--adapter", str(base / "adapters" / name))
        want = generate(Repository.merged / name, *options)
        assert got["tokens"] == want["tokens"], name
        assert abs(got["log_probability"] - want["log_probability"]) < 1e-3
    # Several at once, by the lines of a file.
    root = temporary()
    lines = [{"prompt": PROMPT, "adapter": name} for name in [*ADAPTERS, None]]
    (root / "prompts").write_text("\n".join(json.dumps(line) for line in lines))
    adapters = [word for name in ADAPTERS for word in ("--adapter", str(base / "adapters" / name))]
    out = subprocess.run([TRIREME, "generate", str(base), "--batch-file", str(root / "prompts"), "--max-tokens", "24",
                          "--json", *adapters], check=True, capture_output=True, text=True).stdout
    for name, line in zip([*ADAPTERS, None], out.splitlines()):
        own = ["--adapter", str(base / "adapters" / name)] if name else []
        alone = generate(base, *options, *own)
        # The same products run without room for adapters, fused otherwise: tokens are equal, chances to rounding.
        assert json.loads(line)["tokens"] == alone["tokens"], name
        assert abs(json.loads(line)["log_probability"] - alone["log_probability"]) < 1e-4
    polite = ["--adapter", str(base / "adapters/polite"), "--max-adapters", "1", "--max-adapter-rank", "4"]
    refused = subprocess.run([TRIREME, "generate", str(base), "--prompt", "a", *polite], capture_output=True, text=True)
    assert refused.returncode == 2 and "--max-adapter-rank is 4" in refused.stderr, refused


def case_same_in_any_company():
    names = ["talk", *(f"talk:{name}" for name in ADAPTERS)]
    draw = np.random.default_rng(1)
    texts = [" ".join(draw.choice(["sea", "king", "of", "the", "a", "ship", "wind"], 12)) for _ in range(4)]
    asks = [(name, text, int(draw.integers(30, 90))) for name in names for text in texts]
    with serve("--no-share-prefixes") as server:
        alone = [complete(server, *ask) for ask in asks]
    # All at once, in a step's budget and pages that are too few: prompts come in pieces, texts are put back.
    pages = 2 * 2 * 8 * 2 * 4 * 16 * 20  # keys and values, layers, channels of a head, heads, bytes, tokens, pages
    for options in (["--chunk", "24"], ["--cache-bytes", str(pages)], ["--chunk", "7", "--max-sequences", "5"]):
        with serve(*options) as server:
            order = draw.permutation(len(asks))
            with ThreadPoolExecutor(16) as pool:
                got = dict(zip(order, pool.map(lambda i: complete(server, *asks[i]), order)))
            for i, want in enumerate(alone):
                assert got[i] == want, (asks[i], options)
            if "--cache-bytes" in options:
                assert server.metrics()['vllm:num_preemptions_total{model_name="talk",engine="0"}'] > 0
                # Once more: what is known of one adapter's texts helps it and no other.
            again = [complete(server, *ask) for ask in asks]
            assert again == alone, options


def case_prefixes_by_adapter():
    prompt = "the wind and the sea and the ship and the king " * 4
    with serve() as server:
        hits = 'vllm:prefix_cache_hits_total{model_name="talk",engine="0"}'
        for name in ("talk", "talk:polite", "talk:brief"):
            before = server.metrics()[hits]
            first = complete(server, name, prompt)
            assert server.metrics()[hits] == before, name
            assert complete(server, name, prompt) == first
            assert server.metrics()[hits] > before, name


def case_listed():
    with serve() as server:
        listed = {m["id"]: m for m in call(server, "/v1/models")[2]["data"]}
        assert set(listed) == {"talk", "talk:polite", "talk:brief", "talk:loud"}, listed
        assert listed["talk"]["parent"] is None and listed["talk:loud"]["parent"] == "talk"
        assert call(server, "/v1/models/talk:loud")[2] == listed["talk:loud"]
        assert call(server, "/v1/models/talk:none")[0] == 404
        assert server.metrics()['trireme_text_adapters{model_name="talk",engine="0"}'] == 3
        status, message, code = error_of(server, model="talk:none")
        assert status == 404 and "none" in message and code == "model_not_found", (status, message, code)
        for odd in ("talk:", "none:polite", "talk:polite:brief", ":polite"):
            assert error_of(server, model=odd)[0] == 404, odd
        chat = {"model": "talk:polite", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        assert call(server, "/v1/chat/completions", chat)[2]["model"] == "talk:polite"
        assert call(server, "/tokenize", {"model": "talk:polite", "prompt": "sea"})[2]["count"] > 0
        # KServe's generate takes it as a parameter.
        want = call(server, "/v1/completions", {"model": "talk:loud", "prompt": PROMPT, "max_tokens": 12,
                                                "temperature": 0})
        body = {"text_input": PROMPT, "parameters": {"max_tokens": 12, "temperature": 0, "adapter": "loud"}}
        status, _, answer = call(server, "/v2/models/talk/generate", body)
        assert status == 200 and answer["text_output"] == want[2]["choices"][0]["text"], answer
        body["parameters"]["adapter"] = "none"
        status, _, answer = call(server, "/v2/models/talk/generate", body)
        assert status == 404 and "none" in answer["error"], answer
    with Server(Repository.get(), "--threads", "1") as server:
        assert [m["id"] for m in call(server, "/v1/models")[2]["data"]] == ["talk"]
        assert error_of(server, model="talk:polite")[0] == 404


def case_batches():
    names = ["talk", *(f"talk:{name}" for name in ADAPTERS), "talk:none"]
    with serve("--files", str(temporary())) as server:
        client = client_of(server)
        ask = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 0}
        lines = [{"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {"model": name, **ask}}
                 for name in names]
        batch = wait(client, begin(client, lines, "/v1/completions"), "completed")
        answers = lines_of(client, batch.output_file_id)
        assert set(answers) == set(names[:-1])
        for name in names[:-1]:
            chances = answers[name]["response"]["body"]["choices"][0]["logprobs"]
            assert (chances["tokens"], chances["token_logprobs"]) == complete(server, name, tokens=12), name
        refused = lines_of(client, batch.error_file_id)["talk:none"]
        assert "none" in refused["error"]["message"], refused
    # Whoever may not use the model may not use its adapters.
    with serve("--files", str(temporary()), "--restrict", "inference@talk:x-key=secret") as server:
        assert error_of(server, model="talk:polite")[0] == 404
        try:
            begin(client_of(server), lines[1:2], "/v1/completions")
            raise AssertionError("a batch was taken")
        except openai.NotFoundError as error:
            assert "`talk`" in str(error)


def batch_job(root, model, **keys):
    """The rows that a job writes."""
    job = root / "job.json"
    job.write_text(json.dumps({"model": str(model), "threads": 2, **keys}))
    done = subprocess.run([TRIREME, "batch", str(job)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    output = Path(keys["output"]["directory"])
    return [json.loads(line) for part in sorted(output.glob("part-*")) for line in part.read_text().splitlines()]


def case_batch_jobs():
    root, base = temporary(), Repository.get() / "talk"
    # Lines of the API name their adapters, whatever they call the model.
    lines = [{"custom_id": str(name), "method": "POST", "url": "/v1/completions", "body": {
        "model": f"any:{name}" if name else "any", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "logprobs": 0}}
        for name in [*ADAPTERS, None, "none"]]
    (root / "asks.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    rows = batch_job(root, base, max_adapters=3, input={"files": [str(root / "asks.jsonl")], "format": "openai"},
                     output={"directory": str(root / "answers"), "format": "jsonl"})
    answers = {row["custom_id"]: row for row in rows}
    with serve() as server:
        for name in [*ADAPTERS, None]:
            choice = answers[str(name)]["response"]["body"]["choices"][0]
            want = complete(server, f"talk:{name}" if name else "talk")
            assert (choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]) == want, name
    errors = [json.loads(line) for line in (root / "answers/errors/part-00000.jsonl").read_text().splitlines()]
    assert "none" not in answers and len(errors) == 1 and "no adapter 'none'" in json.dumps(errors), errors
    # A job of prompts has one adapter for all rows.
    (root / "prompts.jsonl").write_text(json.dumps({"id": 1, "prompt": PROMPT}))
    texts = {}
    for name in ["polite", "brief", None]:
        own = {"adapter": str(base / "adapters" / name)} if name else {}
        prompts = {"files": [str(root / "prompts.jsonl")], "keep": ["id"]}
        row, = batch_job(root, base, max_tokens=24, **own, input=prompts,
                         output={"directory": str(root / f"texts-{name}"), "format": "jsonl"})
        texts[name] = next(v for k, v in row.items() if k != "id" and isinstance(v, str))
        model = Repository.merged / name if name else base
        assert texts[name] == generate(model, "--prompt", PROMPT, "--max-tokens", "24", "--json")["text"], name
    assert len(set(texts.values())) == 3


def case_come_and_go():
    root = Repository.copy()
    spare = root / "talk" / "spare"
    shutil.copytree(Repository.get() / "talk/adapters/brief", spare)
    with serve("--model-control", "explicit", "--load-model", "talk", repository=root) as server:
        want = complete(server, "talk:brief")
        assert load(server, "talk:extra", "spare")[0] == 429  # three slots, three adapters
        status, _, text = unload(server, "talk:loud")
        assert status == 200 and "removed successfully" in text, text
        assert error_of(server, model="talk:loud")[0] == 404
        assert unload(server, "talk:loud")[0] == 404
        status, _, text = load(server, "extra", spare)  # the only model that takes adapters
        assert status == 200 and text == "Success: LoRA adapter 'extra' added successfully.", text
        assert complete(server, "talk:extra") == want
        status, _, body = load(server, "talk:extra", "spare")
        assert status == 400 and "loaded already" in body["error"]["message"], body
        assert load(server, "none:extra", "spare")[0] == 404
        # What lies elsewhere is not opened, by whichever way.
        outside = temporary()
        shutil.copytree(spare, outside / "there")
        os.symlink(outside / "there", root / "talk" / "link")
        assert unload(server, "talk:extra")[0] == 200
        around = f"{root}/talk/../../{outside.name}/there"
        for path in (outside / "there", "../../etc", "link", "/etc", "nothing", around):
            status, _, body = load(server, "talk:extra", path)
            assert status == 404 and "model repository" in body["error"]["message"], (path, body)
        for name in ("talk:", "talk:a/b", "talk:..", "talk:" + "a" * 200):
            assert load(server, name, "spare")[0] == 400, name
        assert call(server, "/v1/load_lora_adapter", {"lora_name": "talk:extra"})[0] == 400
        assert call(server, "/v1/load_lora_adapter", method="GET")[0] == 405
        assert complete(server, "talk:brief") == want
    # Only where models may be loaded, and by whom.
    with serve() as server:
        status, _, body = unload(server, "talk:loud")
        assert status == 503 and "--model-control explicit" in body["error"]["message"], body
    with serve("--model-control", "explicit", "--load-model", "talk", "--restrict",
               "model-repository:x-key=secret") as server:
        assert unload(server, "talk:loud")[0] == 403
        with_key = {"lora_name": "talk:loud"}
        assert call(server, "/v1/unload_lora_adapter", with_key, {"x-key": "secret"})[0] == 200
    with serve("--restrict", "inference@talk:x-key=secret") as server:
        assert error_of(server, model="talk:loud")[0] == 404
        body = {"model": "talk:loud", "prompt": PROMPT, "max_tokens": 2}
        assert call(server, "/v1/completions", body, {"x-key": "secret"})[0] == 200


def case_under_traffic():
    root = Repository.copy()
    with serve("--model-control", "explicit", "--load-model", "talk", repository=root, room=4) as server:
        want = {name: complete(server, name, tokens=60) for name in ("talk", "talk:polite", "talk:brief")}
        stop, wrong = threading.Event(), []

        def ask(name):
            while not stop.is_set():
                got = complete(server, name, tokens=60)
                if got != want[name]:
                    wrong.append((name, got))

        threads = [threading.Thread(target=ask, args=(name,)) for name in [*want, *want]]
        for thread in threads:
            thread.start()
        loud = complete(server, "talk:loud")
        for _ in range(12):
            # A text that has begun ends with its adapter, though that was unloaded meanwhile.
            slow = []
            first = threading.Thread(target=lambda: slow.append(complete(server, "talk:loud", tokens=80)))
            running = 'vllm:num_requests_running{model_name="talk",engine="0"}'
            first.start()
            while server.metrics()[running] < 7 and first.is_alive():
                pass
            assert unload(server, "talk:loud")[0] == 200
            assert error_of(server, model="talk:loud")[0] == 404
            first.join()
            assert slow[0][0][:24] == loud[0], slow
            for _ in range(200):  # its slot may still be held for a moment
                status = load(server, "talk:loud", "adapters/loud")[0]
                if status == 200:
                    break
                assert status == 429, status
            assert complete(server, "talk:loud") == loud
        stop.set()
        for thread in threads:
            thread.join()
        assert not wrong, wrong[0]


def hostile(path, change):
    """A copy of an adapter with something wrong: `change` takes the configuration and the factors."""
    source = Repository.get() / "talk/adapters/brief"
    path.mkdir(parents=True)
    config = json.loads((source / "adapter_config.json").read_text())
    tensors = load_file(source / "adapter_model.safetensors")
    change(config, tensors)
    (path / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, path / "adapter_model.safetensors")


def case_hostile_files():
    root = Repository.copy()
    first = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    changes = {
        "dora": (400, "use_dora", lambda c, t: c.update(use_dora=True)),
        "bias": (400, "bias", lambda c, t: c.update(bias="all")),
        "saved": (400, "modules_to_save", lambda c, t: c.update(modules_to_save=["lm_head"])),
        "rank": (400, "has rank 4", lambda c, t: c.update(r=1 << 40)),
        "huge": (400, "r is", lambda c, t: c.update(r=1 << 40)),
        "wide": (400, "whose product takes", lambda c, t: t.update({first: np.zeros((4, 33), np.float32)})),
        "module": (400, "no product", lambda c, t: t.update({first.replace("layers.0", "layers.7"): t[first],
                                                             first.replace("layers.0", "layers.7").replace("_A", "_B"):
                                                             np.zeros((32, 4), np.float32)})),
        "embedding": (400, "lora_embedding_A", lambda c, t: t.update(
            {"base_model.model.model.embed_tokens.lora_embedding_A": np.zeros((4, 424), np.float32)})),
        "half": (400, "missing", lambda c, t: t.pop(first)),
    }
    for name, (_, _, change) in changes.items():
        if name == "rank":
            hostile(root / "talk/hostile" / name, lambda c, t: c.update(r=5))
        else:
            hostile(root / "talk/hostile" / name, change)
    broken = root / "talk/hostile/broken"
    shutil.copytree(Repository.get() / "talk/adapters/brief", broken)
    weights = (broken / "adapter_model.safetensors").read_bytes()
    (broken / "adapter_model.safetensors").write_bytes(weights[:len(weights) // 2])
    (root / "talk/hostile/empty").mkdir()
    with serve("--model-control", "explicit", "--load-model", "talk", repository=root, room=4) as server:
        want = complete(server, "talk:brief")
        for name, (status, words, _) in changes.items():
            got, _, body = load(server, "talk:new", f"hostile/{name}")
            assert got == status and words in body["error"]["message"], (name, got, body)
        assert load(server, "talk:new", "hostile/broken")[0] == 400
        assert load(server, "talk:new", "hostile/empty")[0] == 404
        assert load(server, "talk:new", "hostile")[0] == 404
        assert load(server, "talk:new", "adapters/brief")[0] == 200
        assert complete(server, "talk:new") == want == complete(server, "talk:brief")
    # One that lies with the model keeps the model from being loaded, by its name.
    shutil.copytree(root / "talk/hostile/dora", root / "talk/adapters/dora")
    with serve("--model-control", "explicit", "--load-model", "talk", repository=root, room=4, ready=False) as server:
        server.wait_ready()
        status, message, _ = error_of(server, model="talk")
        assert status == 503 and "adapter 'dora'" in message and "use_dora" in message, (status, message)


def case_of_several_ranks():
    """Ranks by heads and by layers: the tokens of one rank, by stages alone its chances to the bit."""
    names, base = ["talk", *(f"talk:{name}" for name in ADAPTERS)], Repository.get() / "talk"
    with serve() as server:
        want = {name: complete(server, name) for name in names}
    for layout in (["--tp", "2"], ["--pp", "2"], ["--tp", "2", "--pp", "2"]):
        root = Repository.copy()
        with serve(*layout, "--model-control", "explicit", "--load-model", "talk", repository=root) as server:
            with ThreadPoolExecutor(4) as pool:
                got = dict(zip(names, pool.map(lambda name: complete(server, name), names)))
            for name in names:
                assert got[name][0] == want[name][0], (layout, name)
                np.testing.assert_allclose(got[name][1], want[name][1], atol=0 if "--tp" not in layout else 1e-4)
            assert unload(server, "talk:polite")[0] == 200
            assert load(server, "talk:late", "adapters/polite")[0] == 200  # in the slot of another
            assert complete(server, "talk:late") == got["talk:polite"]
        options = ["--prompt", PROMPT, "--max-tokens", "24", "--json", "--adapter", str(base / "adapters/loud")]
        assert generate(base, *options, *layout)["tokens"] == generate(base, *options)["tokens"], layout
    turns = subprocess.run([TRIREME, "chat", str(base), "--threads", "2", "--max-tokens", "12", "--json", "--tp", "2",
                            "--adapter", str(base / "adapters/loud")], input=PROMPT, capture_output=True, text=True)
    alone = subprocess.run([TRIREME, "chat", str(base), "--threads", "2", "--max-tokens", "12", "--json",
                            "--adapter", str(base / "adapters/loud")], input=PROMPT, capture_output=True, text=True)
    assert turns.returncode == 0 and turns.stdout == alone.stdout != "", (turns, alone)
    root = temporary()
    (root / "prompts.jsonl").write_text(json.dumps({"id": 1, "prompt": PROMPT}))
    prompts = {"files": [str(root / "prompts.jsonl")], "keep": ["id"]}
    rows = [batch_job(root, base, tp=tp, max_tokens=24, adapter=str(base / "adapters/loud"), input=prompts,
                      output={"directory": str(root / f"tp-{tp}"), "format": "jsonl"}) for tp in (1, 2)]
    assert rows[0] == rows[1], rows


def case_over_gguf():
    """A file answers as the directory that it was made of, whose adapters are those of the checkpoint."""
    root, base = temporary(), Repository.get() / "talk"
    (root / "talk").mkdir()
    # A GGUF file has no post-processor: what puts the first token before a text is said by the configuration.
    whole = temporary() / "talk"
    shutil.copytree(base, whole, ignore=shutil.ignore_patterns("adapters"))
    for name, more in (("config.json", {"bos_token_id": 1}), ("tokenizer_config.json", {"add_bos_token": True})):
        (whole / name).write_text(json.dumps(json.loads((whole / name).read_text()) | more))
    subprocess.run([TRIREME, "quantize", str(whole), "--to", "f32", "-o", str(root / "talk/talk.gguf")], check=True,
                   capture_output=True)
    shutil.copytree(base / "adapters", root / "talk/adapters")
    with serve() as server:
        want = {name: complete(server, f"talk:{name}") for name in ADAPTERS}
    for layout in ([], ["--tp", "2"], ["--pp", "2"]):
        with serve(*layout, repository=root) as server:
            for name, (tokens, chances) in want.items():
                got = complete(server, f"talk:{name}")
                assert got[0] == tokens, (layout, name)
                np.testing.assert_allclose(got[1], chances, atol=1e-4)
    options = ["--prompt", PROMPT, "--max-tokens", "24", "--json"]
    for name in ADAPTERS:
        adapter = ["--adapter", str(root / "talk/adapters" / name)]
        got = generate(root / "talk/talk.gguf", *options, *adapter)
        assert got["tokens"] == generate(base, *options, *adapter)["tokens"], name
    # Lines of a batch name those of the file's directory; another one's weights are another job.
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {
        "model": "any:loud", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "logprobs": 0}}
    (root / "asks.jsonl").write_text(json.dumps(line))
    keys = {"max_adapters": 3, "input": {"files": [str(root / "asks.jsonl")], "format": "openai"},
            "output": {"directory": str(root / "answers"), "format": "jsonl"}}
    row, = batch_job(root, root / "talk/talk.gguf", **keys)
    assert row["response"]["body"]["choices"][0]["logprobs"]["tokens"] == want["loud"][0]
    shutil.rmtree(root / "talk/adapters/polite")
    again = subprocess.run([TRIREME, "batch", str(root / "job.json")], capture_output=True, text=True)
    assert again.returncode != 0 and "talk" in again.stderr, again


if __name__ == "__main__":
    run_cases([(name, case) for name, case in sorted(globals().items()) if name.startswith("case_")])
