# Files and batches of the OpenAI API by the official client: answers, errors, faults, a killed server, company.
import gzip
import io
import json
import signal
import subprocess
import time

import openai
from openai.types import Batch, FileObject

from _serving import TRIREME, Server, encoder_dir, link_tree, run_cases, temporary
from serve_openai import strict
from serve_text import make_model

PATIENCE_S = 120


class Host:
    """One server for the cases that leave it as it was."""
    server = None

    @classmethod
    def get(cls):
        if cls.server is None:
            cls.root = temporary()
            make_model(cls.root / "models/talk")
            link_tree(encoder_dir(), cls.root / "models/minilm")
            cls.server = start(cls.root)
        return cls.server


def start(root, *options):
    return Server(root / "models", "--threads", "1", "--warm-up", "none", "--files", root / "kept", *options)


def client_of(server, **options):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, **options)


def chat_line(number, **body):
    messages = [{"role": "user", "content": f"Say {number}"}]
    return {"custom_id": f"ask-{number}", "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "talk", "max_tokens": 8, "messages": messages, **body}}


def upload(client, lines, purpose="batch"):
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return client.files.create(file=("asks.jsonl", io.BytesIO(text.encode())), purpose=purpose)


def begin(client, lines, endpoint="/v1/chat/completions", **more):
    file = upload(client, lines)
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


def wait(client, batch, *wanted):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        batch = client.batches.retrieve(batch.id)
        strict(Batch, batch)
        if batch.status in wanted:
            return batch
        time.sleep(0.05)
    raise AssertionError(f"the batch is {batch.status}")


def lines_of(client, file):
    return {line["custom_id"]: line for line in map(json.loads, client.files.content(file).text.split("\n")[:-1])}


def refused(status, ask, *args, **options):
    try:
        ask(*args, **options)
    except openai.APIStatusError as e:
        assert e.status_code == status, (e.status_code, e.message)
        return e.message
    raise AssertionError("it was taken")


def case_files():
    client = client_of(Host.get())
    content = b'{"custom_id": "a"}\r\n--boundary\r\n\xff\x00'
    file = client.files.create(file=("caf\u00e9.jsonl", io.BytesIO(content)), purpose="batch")
    strict(FileObject, file)
    assert file.bytes == len(content) and file.purpose == "batch", file
    assert client.files.content(file.id).read() == content
    assert file.id in [f.id for f in client.files.list(purpose="batch")]
    assert client.files.retrieve(file.id).id == file.id
    empty = client.files.create(file=("empty", io.BytesIO(b"")), purpose="batch")
    assert client.files.content(empty.id).read() == b""
    page = client.files.list(limit=1)
    assert len(page.data) == 1 and page.has_more, page
    assert client.files.delete(file.id).deleted
    refused(404, client.files.retrieve, file.id)
    refused(404, client.files.content, "file-../../kept")
    refused(400, client.files.create, file=("x", io.BytesIO(b"x")), purpose="fine-tune")


def case_answers_are_those_of_requests():
    client = client_of(Host.get())
    asks = [chat_line(i, temperature=0) for i in range(40)]
    asks[7] = chat_line(7, temperature=0.8, top_p=0.9)
    batch = wait(client, begin(client, asks, metadata={"who": "test"}), "completed")
    assert batch.metadata == {"who": "test"} and batch.error_file_id is None, batch
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (40, 40, 0)
    found = lines_of(client, batch.output_file_id)
    assert list(found) == [a["custom_id"] for a in asks]  # in the order of the file
    for ask in asks:
        line = found[ask["custom_id"]]
        assert line["error"] is None and line["response"]["status_code"] == 200, line
        if ask["body"]["temperature"] == 0:
            alone = client.chat.completions.create(**ask["body"])
            told = line["response"]["body"]
            assert told["choices"][0]["message"]["content"] == alone.choices[0].message.content
            assert told["usage"]["completion_tokens"] == alone.usage.completion_tokens
    # The same file gives the same words again, drawn ones too.
    again = wait(client, begin(client, asks), "completed")
    other = lines_of(client, again.output_file_id)
    for name, line in found.items():
        assert line["id"] == other[name]["id"]
        assert line["response"]["body"]["choices"] == other[name]["response"]["body"]["choices"], name


def case_embeddings():
    client = client_of(Host.get())
    asks = [{"custom_id": f"e{i}", "method": "POST", "url": "/v1/embeddings",
             "body": {"model": "minilm", "input": f"text number {i}", "encoding_format": "float"}} for i in range(20)]
    batch = wait(client, begin(client, asks, endpoint="/v1/embeddings"), "completed")
    found = lines_of(client, batch.output_file_id)
    for ask in asks:
        alone = client.embeddings.create(**ask["body"])
        assert found[ask["custom_id"]]["response"]["body"]["data"][0]["embedding"] == alone.data[0].embedding


def case_the_command_gives_the_same_answers():
    """`trireme batch` on the file: the same words and ids, whatever model the lines name."""
    client = client_of(Host.get())
    asks = [chat_line(i, temperature=0.9 if i % 3 == 0 else 0) for i in range(30)]
    asks += ["{half", chat_line(31, max_tokens=-1)]
    found = lines_of(client, wait(client, begin(client, asks), "completed").output_file_id)
    root = temporary()
    other = [{**a, "body": {**a["body"], "model": "somebody-elses"}} if isinstance(a, dict) else a for a in asks]
    (root / "asks.jsonl").write_text("".join((a if isinstance(a, str) else json.dumps(a)) + "\n" for a in other))
    (root / "job.yaml").write_text(f"""
model: {Host.root}/models/talk
threads: 1
input: {{files: ["{root}/asks.jsonl"], format: openai}}
output: {{directory: "{root}/out"}}
""")
    subprocess.run([TRIREME, "batch", root / "job.yaml"], check=True, capture_output=True)
    lines = (root / "out/part-00000.jsonl").read_text().split("\n")[:-1]
    told = {line["custom_id"]: line for line in map(json.loads, lines)}
    assert list(told) == list(found)
    for name, line in told.items():
        body, same = line["response"]["body"], found[name]["response"]["body"]
        assert body["created"] == 0 and body["model"] == "talk"
        # Ids and drawn words follow from the line, which here names another model: only the likeliest words agree.
        if int(name.split("-")[1]) % 3:
            assert body["choices"] == same["choices"], (name, body, same)
    errors = [json.loads(e) for e in (root / "out/errors/part-00000.jsonl").read_text().split("\n")[:-1]]
    assert [e["row"] for e in errors] == [30, 31], errors
    assert subprocess.run([TRIREME, "batch", "verify", root / "out"], capture_output=True, check=False).returncode == 0


def case_wrong_lines_are_told_apart():
    client = client_of(Host.get())
    asks = [chat_line(0), "{not json", chat_line(1, model="nobody"), chat_line(2, max_tokens=-1),
            chat_line(3, stream=True), {**chat_line(4), "url": "/v1/embeddings"}, {**chat_line(5), "method": "GET"},
            '{"custom_id": "half"}',
            chat_line(6)]
    batch = wait(client, begin(client, asks), "completed")
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 7), batch.request_counts
    assert list(lines_of(client, batch.output_file_id)) == ["ask-0", "ask-6"]
    errors = [json.loads(line) for line in client.files.content(batch.error_file_id).text.split("\n")[:-1]]
    told = {e["custom_id"]: e["error"]["message"] for e in errors}
    assert "nobody" in told["ask-1"] and "max_tokens" in told["ask-2"] and "stream" in told["ask-3"], told
    assert "endpoint" in told["ask-4"] and "POST" in told["ask-5"], told
    assert sorted(e["error"]["line"] for e in errors) == [1, 2, 3, 4, 5, 6, 7], errors


def case_refusals():
    client = client_of(Host.get())
    file = upload(client, [chat_line(0)])
    create = client.batches.create
    refused(400, create, input_file_id=file.id, endpoint="/v1/models", completion_window="24h")
    refused(400, create, input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="soon")
    refused(404, create, input_file_id="file-" + "0" * 24, endpoint="/v1/chat/completions", completion_window="24h")
    refused(404, client.batches.retrieve, "batch_" + "0" * 24)
    refused(404, client.batches.cancel, "batch_none")
    begin_with = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    refused(400, create, **begin_with, metadata={"long": "x" * 600})
    refused(400, create, **begin_with, metadata={f"key{i}": "" for i in range(17)})
    bare = Server(Host.root / "models", "--threads", "1", "--warm-up", "none", "--model-control-mode", "explicit")
    assert "--files" in refused(501, client_of(bare).batches.list)
    bare.stop()


def case_one_server_has_the_directory():
    command = [TRIREME, "serve", "--model-repository", Host.root / "models", "--http-port", "0", "--grpc-port", "-1"]
    done = subprocess.run([*command, "--files", Host.root / "kept"], capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode == 6 and "another server" in done.stderr, (done.returncode, done.stderr[-500:])


def case_cancel():
    client = client_of(Host.get())
    batch = begin(client, [chat_line(i, max_tokens=200, ignore_eos=True) for i in range(600)])
    wait(client, batch, "in_progress")
    time.sleep(0.5)
    client.batches.cancel(batch.id)
    batch = wait(client, batch, "cancelled")
    done = batch.request_counts.completed
    assert done < 600 and batch.cancelled_at >= batch.cancelling_at, batch
    if done:
        assert len(lines_of(client, batch.output_file_id)) == done
    refused(400, client.batches.cancel, batch.id)


def case_killed_servers_go_on():
    root = temporary()
    make_model(root / "models/talk")
    asks = [chat_line(i, temperature=0.7, max_tokens=24, ignore_eos=True) for i in range(700)]
    server = start(root)
    client = client_of(server)
    batch = begin(client, asks)
    for pause in (0.3, 0.8, 1.5):
        wait(client, batch, "in_progress", "completed")
        time.sleep(pause)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        server = start(root)
        client = client_of(server)
    batch = wait(client, batch, "completed")
    found = lines_of(client, batch.output_file_id)
    assert list(found) == [a["custom_id"] for a in asks] and batch.request_counts.completed == 700
    # An undisturbed run draws the same.
    other = lines_of(client, wait(client, begin(client, asks), "completed").output_file_id)
    for name, line in found.items():
        assert line["response"]["body"]["choices"] == other[name]["response"]["body"]["choices"], name
    # The end of a server is no end of a batch.
    batch = begin(client, asks)
    wait(client, batch, "in_progress")
    server.stop()
    server = start(root)
    client = client_of(server)
    assert len(lines_of(client, wait(client, batch, "completed").output_file_id)) == 700
    server.stop()


def case_tenants_see_their_own():
    root = temporary()
    make_model(root / "models/talk")
    server = start(root, "--tenant-by", "header:x-who")
    ann, bob = (client_of(server, default_headers={"x-who": who}) for who in ("ann", "bob"))
    file = upload(ann, [chat_line(0)])
    ask = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = wait(ann, ann.batches.create(**ask), "completed")
    refused(404, bob.files.content, file.id)
    refused(404, bob.files.content, batch.output_file_id)
    refused(404, bob.batches.retrieve, batch.id)
    refused(404, bob.batches.create, **ask)
    assert bob.files.list().data == [] and bob.batches.list().data == []
    assert [b.id for b in ann.batches.list()] == [batch.id]
    # The word may be a secret, and is not kept.
    kept = root / "kept"
    assert not [p for p in kept.rglob("*.json") if '"tenant":"ann"' in p.read_text()], kept
    server.stop()
    # What a server kept that did so is still hers, and nobody else's.
    records = [p for p in kept.rglob("*.json") if '"tenant"' in p.read_text()]
    assert len(records) >= 3, records
    for path in records:
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "tenant": "ann"}, separators=(",", ":")))
    server = start(root, "--tenant-by", "header:x-who")
    ann, bob = (client_of(server, default_headers={"x-who": who}) for who in ("ann", "bob"))
    assert [b.id for b in ann.batches.list()] == [batch.id] and ann.files.content(file.id).text
    assert bob.files.list().data == [] and bob.batches.list().data == []
    refused(404, bob.files.content, file.id)
    wait(ann, ann.batches.create(**ask), "completed")
    server.stop()


def case_models_of_a_key():
    """Whatever hides a model's name from a look at the file, the lines ask none that the key may not use."""
    root = temporary()
    make_model(root / "models/talk")
    make_model(root / "models/secret")
    (root / "keys.yaml").write_text(json.dumps({"keys": [{"tenant": "ann", "key": "sk-of-ann", "models": ["talk"]}]}))
    server = start(root, "--api-keys", root / "keys.yaml")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="sk-of-ann", max_retries=0)

    def create(content):
        file = client.files.create(file=("asks.jsonl", io.BytesIO(content)), purpose="batch")
        return client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")

    secret = json.dumps(chat_line(0, model="secret")).encode() + b"\n"
    assert "secret" in refused(404, create, secret)
    assert "secret" in refused(404, create, b"\xef\xbb\xbf" + secret)
    assert "packed" in refused(400, create, gzip.compress(secret))
    hidden = {**chat_line(1, model="secret"), "more": [0] * 1_000_001}  # more values than a request may have
    batch = wait(client, create(b"".join(json.dumps(line).encode() + b"\n" for line in (chat_line(0), hidden))),
                 "completed")
    assert list(lines_of(client, batch.output_file_id)) == ["ask-0"]
    assert "does not exist" in client.files.content(batch.error_file_id).text
    server.stop()


def case_waiting_batches_end_at_once():
    client = client_of(Host.get())
    ahead = begin(client, [chat_line(i, max_tokens=200, ignore_eos=True) for i in range(600)])
    wait(client, ahead, "in_progress")
    behind = begin(client, [chat_line(0)])
    assert client.batches.cancel(behind.id).status == "cancelled"
    assert client.batches.retrieve(ahead.id).status == "in_progress"
    client.batches.cancel(ahead.id)
    wait(client, ahead, "cancelled")


def case_clients_go_first():
    """While a client is answered the batch stands still, but for the step under way and what is between two requests."""
    server = Host.get()
    client = client_of(server)
    ask = {"model": "talk", "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 300, "temperature": 0,
           "extra_body": {"ignore_eos": True}}

    def of_others():
        """Tokens of other answers, for each of the client's own."""
        name = 'vllm:generation_tokens_total{model_name="talk",engine="0"}'
        before = server.metrics()[name]
        assert client.chat.completions.create(**ask).usage.completion_tokens == 300
        return (server.metrics()[name] - before) / 300 - 1

    assert of_others() == 0
    batch = begin(client, [chat_line(i, max_tokens=300, ignore_eos=True) for i in range(300)])
    wait(client, batch, "in_progress")
    beside = sorted(of_others() for _ in range(9))
    client.batches.cancel(batch.id)
    wait(client, batch, "cancelled")
    # A batch of 64 in each step would give 64.
    assert beside[4] < 20, beside


if __name__ == "__main__":
    CASES = [(name, case) for name, case in sorted(globals().items()) if name.startswith("case_")]
    try:
        run_cases(CASES)
    finally:
        if Host.server:
            Host.server.process.kill()
