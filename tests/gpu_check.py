# tools/gpu_check in its quick form on the emulated device: every part runs, nothing fails.
# timeout: 120
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRIREME = Path(os.environ.get("TRIREME", str(ROOT / "build/release/trireme")))


def main():
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([sys.executable, ROOT / "tools/gpu_check", "--device", "emulated", "--quick", "--build",
                               TRIREME.parent, "--out", out, "--only",
                               "ceilings,speed,trajectory,serve,load,inference,llama,training,profile,float8"],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)
        lines = [json.loads(line) for line in (Path(out) / "check.jsonl").read_text().splitlines()]
        page = (Path(out) / "check.md").read_text()
    passed, failed, skipped = map(int, re.findall(r"(\d+) (?:passed|failed|skipped)", done.stdout.splitlines()[-1]))
    for line in lines:
        if line.get("outcome") == "failed":
            print(f"FAILED {line}")
    seen = {line["part"] for line in lines}
    wanted = {"machine", "ceilings", "speed", "trajectory", "serve", "load", "inference", "llama", "training",
              "profile", "float8"}
    whole = wanted <= seen and "## speed" in page and "== summary" in done.stdout
    if not whole:
        print(f"FAILED parts {sorted(seen)}:\n{done.stderr[-2000:]}")
    print(f"{passed + whole} passed, {failed + (not whole)} failed, {skipped} skipped")
    sys.exit(1 if failed or not whole else 0)


main()
