# docs/onnx.md: what the conformance cases give with the program as it is built.
import os
import sys

from checks.files import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import onnx_report  # noqa: E402


def run():
    runner = ROOT / "build/release/onnx_conformance"
    if not runner.exists():
        return "build/release/onnx_conformance is not built"
    sets = onnx_report.find_rows(runner, runner.parent / "onnx-cases", max(1, len(os.sched_getaffinity(0)) // 2))
    if len(sets) < 2:
        return "the shared cases are not here, of which the page tells: TRIREME_SHARED_DATA is not set"
    page = ROOT / "docs/onnx.md"
    fresh = page.read_text() == onnx_report.page(sets)
    return [] if fresh else ["docs/onnx.md:1: differs from what the cases give; run ./dev test --onnx"]
