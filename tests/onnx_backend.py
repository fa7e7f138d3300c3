# The ONNX backend cases against the importer and every operator; writes docs/onnx.md.
# tier: onnx
# timeout: 900
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import onnx_report  # noqa: E402

BUILD = Path(os.environ["TRIREME"]).parent if "TRIREME" in os.environ else ROOT / "build/release"
sys.exit(onnx_report.main(["--runner", str(BUILD / "onnx_conformance"), "--output", str(ROOT / "docs/onnx.md")]))
