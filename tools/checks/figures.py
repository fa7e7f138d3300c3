# Figures: tables of the pages are those of bench/results, and no table of measurements stands outside of a block.
import re
import sys

from checks.files import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import call  # noqa: E402
import pages  # noqa: E402

RATE = re.compile(r"\d\s*(?:ms|us|µs|GFLOP/s|TFLOP/s|GB/s|samples/s|tokens/s|/s)\b|\b\d+(?:\.\d+)?\s+times\b")


def loose_tables(text):
    """Lines of tables with times or rates that no block holds."""
    masked = pages.BLOCK.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(masked.splitlines(), 1):
        if line.startswith("|") and RATE.search(line):
            yield number


def wrong_calls(path):
    calls = pages.read_calls(path)
    if len({(c["commit"], c["machine"]) for c in calls}) > 1 or len(calls) > call.KEPT_CALLS:
        yield "holds more than three calls, or of several commits or machines"
    for one in calls:
        reason = call.why_refused(one)
        if reason or one["bench"] != path.stem:
            yield f"holds a call that may not be kept: {reason or one['bench']}"


def run():
    wrong = []
    for page in pages.PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        if pages.render(text, ROOT) != text:
            wrong.append(f"{page}:1: a table differs from bench/results; python bench/pages.py writes it")
        wrong += [f"{page}:{n}: a table with figures outside of a block that a benchmark writes"
                  for n in loose_tables(text)]
    # The folder gpu holds what tools/gpu_check wrote, which no page has as a table.
    for path in sorted(p for p in (ROOT / "bench/results").glob("*") if p.name != "gpu"):
        if path.stem not in pages.RENDERERS or path.suffix != ".jsonl":
            wrong.append(f"bench/results/{path.name}:1: of no benchmark that writes tables")
        wrong += [f"bench/results/{path.name}:1: {message}" for message in wrong_calls(path)]
    return wrong
