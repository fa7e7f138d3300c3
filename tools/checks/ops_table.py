# Ops table: every op has its gradient, sharding, cost and ONNX mapping, or says why not (`trireme ops --check`).
from checks.program import ask, has_verb


def run():
    if not has_verb("ops"):
        return "the program has no verb `ops` yet"
    done = ask("ops", "--check")
    return [] if done.returncode == 0 else done.stdout.splitlines() or [f"trireme ops --check: {done.returncode}"]
