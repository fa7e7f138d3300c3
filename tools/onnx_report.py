# Runs the ONNX backend cases through the onnx_conformance binary and writes docs/onnx.md.
#
#   python tools/onnx_report.py --runner build/release/onnx_conformance [--output docs/onnx.md] [--keep DIR]
#
# A case that fails, crashes, or is refused though its types are counted must stand in tests/onnx_known_failures.txt
# with its reason; one that does not is a failure, and so is a listed one that passes. With CI set the page is not
# written: one that differs from what the cases gave is a failure.
#
# Cases: the node cases of the installed onnx package, exported once into --keep, and the shared set
# (onnx-conformance/onnx_backend_test_data.tar.xz under $TRIREME_SHARED_DATA), which brings what the package no longer
# carries. A name in both counts once for each set.
import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path

GOAL = 92.0
KNOWN = Path(__file__).resolve().parent.parent / "tests/onnx_known_failures.txt"
# Refused by name: the issue counts only cases whose types are tensors.
REFUSED_TYPES = {"sequence", "optional", "map", "string", "sparse tensor", "opaque"}


def encode(value, info):
    import onnx
    from onnx import numpy_helper

    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.from_list(value, info.name).SerializeToString()
    if kind == "optional_type":
        return numpy_helper.from_optional(value, info.name).SerializeToString()
    if kind == "map_type":
        return numpy_helper.from_dict(value, info.name).SerializeToString()
    if isinstance(value, onnx.TensorProto):
        return value.SerializeToString()
    return numpy_helper.from_array(value, info.name).SerializeToString()


def export_case(case, target):
    directory = target / "node" / case.name
    directory.mkdir(parents=True)
    (directory / "model.onnx").write_bytes(case.model.SerializeToString())
    (directory / "data.json").write_text(json.dumps({"rtol": case.rtol, "atol": case.atol}))
    for number, (inputs, outputs) in enumerate(case.data_sets):
        data = directory / f"test_data_set_{number}"
        data.mkdir()
        for kind, values, infos in (("input", inputs, case.model.graph.input),
                                    ("output", outputs, case.model.graph.output)):
            for i, value in enumerate(values):
                (data / f"{kind}_{i}.pb").write_bytes(encode(value, infos[i]))


def export_package_cases(keep):
    """Writes the node cases of the installed onnx package; a second call with the same version finds them there."""
    import onnx
    from onnx.backend.test.loader import load_model_tests

    target = keep / f"onnx-{onnx.__version__}"
    done = target / "done"
    if not done.exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the cases divide by zero on purpose
            for case in load_model_tests(kind="node"):
                export_case(case, target)
        done.touch()
    return target


def unpack_shared_cases(keep):
    root = os.environ.get("TRIREME_SHARED_DATA")
    archive = Path(root or "", "onnx-conformance/onnx_backend_test_data.tar.xz")
    if not root or not archive.exists():
        return None
    target = keep / "shared"
    if not (target / "done").exists():
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")
        (target / "done").touch()
    return target


def run_cases(runner, directory, jobs):
    done = subprocess.run([runner, directory, "--jobs", str(jobs)], stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def is_counted(row):
    """Node cases whose types are tensors, outside the training domain."""
    types = set(row.get("value_kinds", []))
    return "/node/" in row["path"] and not types & REFUSED_TYPES and not any("training" in op for op in row["ops"])


def operator_of(row):
    """The operator that a node case tests: its only one, or the one that the name or the reason points at."""
    if len(row["ops"]) == 1:
        return row["ops"][0]
    named = re.search(r"no operator '([^']+)' in domain '([^']+)'", row.get("reason", ""))
    if named:
        return named[1] if named[2] == "ai.onnx" else f"{named[2]}:{named[1]}"
    flat = row["case"].replace("_", "").lower()
    fitting = [op for op in row["ops"] if flat.startswith("test" + op.split(":")[-1].lower())]
    return max(fitting, key=len) if fitting else None


def short(reason):
    reason = re.sub(r"(node|value|output|tensor) '[^']*'", r"\1", reason)
    reason = re.sub(r"first at .*", "", reason).rstrip(" ,:")
    return reason.replace("|", "/").replace("\n", " ")[:140]


def operator_rows(rows):
    groups = collections.defaultdict(list)
    for row in rows:
        operator = operator_of(row)
        if operator and is_counted(row):
            groups[operator].append(row)
    for operator in sorted(groups, key=lambda name: (":" in name, name.lower())):
        cases = groups[operator]
        passed = sum(row["status"] == "pass" for row in cases)
        versions = ", ".join(str(v) for v in sorted({row["opset"] for row in cases if "opset" in row}))
        status = "yes" if passed == len(cases) else "no" if passed == 0 else "partly"
        reasons = collections.Counter(short(row["reason"]) for row in cases if row["status"] != "pass")
        reason = "; ".join(text for text, _ in reasons.most_common(2))
        yield f"| {operator} | {versions} | {status} | {passed} / {len(cases)} | {reason} |"


def totals_row(name, rows):
    counts = collections.Counter(row["status"] for row in rows)
    counted = [row for row in rows if is_counted(row)]
    passed = sum(row["status"] == "pass" for row in counted)
    rate = f"{passed} / {len(counted)} = {100 * passed / len(counted):.1f} %" if counted else "-"
    return f"| {name} | {len(rows)} | " + " | ".join(
        str(counts[key]) for key in ("pass", "fail", "refused", "crash")) + f" | {rate} |"


def page(sets):
    rows = [row for _, found in sets for row in found]
    known = read_known()
    lines = [
        "# ONNX operators", "",
        "Generated by `./dev test --onnx` (tools/onnx_report.py); do not edit. Each case of the ONNX backend test runs",
        "in a process of its own with the tolerances of the ONNX runner (relative 1e-3, absolute 1e-7). *Counted* are",
        "the node cases whose inputs and outputs are tensors of numbers or booleans, outside the training domain;",
        "sequences, optionals, maps and strings are refused by name. Goal: 92 % of the counted cases, no crash. A counted case",
        "that does not pass is listed below with its reason (tests/onnx_known_failures.txt); the test fails where the list and",
        "the cases differ.", "",
        "An initializer that a file lists among its inputs, too, is that input's default from IR version 4 on. Exporters list",
        "weights so, and constants make faster programs: such an input is a constant of the model, and `serve`, `batch` and `tune`",
        "do not take it. `trireme run` does, where `--input` or the files of a test set give it. The files of a set (`input_0.pb`,",
        "…) are for the inputs whose names their tensors have; without such names, for the inputs in the file's order: those",
        "that have no default or, if the set has more files, all. Nodes may stand in any order in a file.", "",
        "| set | cases | pass | fail | refused | crash | counted cases that pass |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    lines += [totals_row(name, found) for name, found in sets]
    lines += [totals_row("all", rows), "", "## Operators", "",
              "Versions are the opsets of the cases. A case of several operators counts for the one it is named after;",
              "`_expanded` cases, which spell an operator out in others, count in the totals.", "",
              "| operator | opsets tested | supported | cases | why not |", "| --- | --- | --- | ---: | --- |"]
    lines += operator_rows(rows)
    others = [row for row in rows if row["status"] != "pass" and is_counted(row) and not operator_of(row)]
    others += [row for row in rows if row["status"] != "pass" and "/node/" not in row["path"]]
    lines += ["", "## Other cases that do not pass", ""]
    lines += [f"- {row['case']}: {row['status']}, {short(row['reason'])}" for row in
              sorted(others, key=lambda row: row["case"])] or ["none"]
    lines += ["", "## Known failures", ""]
    lines += [f"- {case}: {status}, {reason}" for case, (status, reason) in sorted(known.items())]
    return "\n".join(lines) + "\n"


def read_known(path=KNOWN):
    """{case: (status, reason)} of the list; lines are `STATUS CASE: REASON`."""
    known = {}
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        match = re.fullmatch(r"(fail|refused) (\S+): (.+)", line)
        if not match or match[2] in known:
            raise ValueError(f"{path.name}: not `fail|refused CASE: REASON`, or twice: {line}")
        known[match[2]] = (match[1], match[3])
    return known


def unexpected(rows, known):
    """What the list of known failures does not say, in words."""
    wrong, seen = [], collections.defaultdict(set)  # a name may stand in both sets, with other numbers
    for row in rows:
        case, status = row["case"], row["status"]
        seen[case].add(status)
        expected = known.get(case, (None,))[0]
        if status in ("fail", "crash") and status != expected:
            wrong.append(f"{case}: {status}, {short(row['reason'])}")
        elif status == "refused" and is_counted(row) and status != expected:
            wrong.append(f"{case}: refused, {short(row['reason'])}")
    for case, (status, _) in known.items():
        if case not in seen:
            wrong.append(f"{case}: listed, but there is no such case")
        elif status not in seen[case]:
            wrong.append(f"{case}: passes, but is listed as {status}")
    return wrong


def find_rows(runner, keep, jobs):
    """[(name of a set, its rows)]; what the runner gave is kept beside the cases until it is built anew."""
    keep.mkdir(parents=True, exist_ok=True)
    package, shared = export_package_cases(keep), unpack_shared_cases(keep)
    lines = keep / "rows.json"
    names = [f"{package.name} node cases"] + (["shared set"] if shared else [])
    if lines.exists() and lines.stat().st_mtime > runner.stat().st_mtime:
        sets = json.loads(lines.read_text())
        if [name for name, _ in sets] == names:
            return sets
    sets = [[name, run_cases(runner, folder, jobs)] for name, folder in zip(names, (package, shared))]
    lines.write_text(json.dumps(sets))
    return sets


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--runner", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("docs/onnx.md"))
    parser.add_argument("--keep", type=Path, help="where the cases are unpacked; default: beside the runner")
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2))
    args = parser.parse_args(arguments)
    keep = args.keep or args.runner.parent / "onnx-cases"
    (keep / "rows.json").unlink(missing_ok=True)  # the cases run here; the check may use what they gave
    sets = find_rows(args.runner, keep, args.jobs)
    rows = [row for _, found in sets for row in found]
    wrong, text = unexpected(rows, read_known()), page(sets)
    if not os.environ.get("CI"):
        args.output.write_text(text)
    elif args.output.read_text() != text:
        wrong.append(f"{args.output} is not what the cases gave; ./dev test --onnx writes it")
    counted = [row for row in rows if is_counted(row)]
    rate = 100 * sum(row["status"] == "pass" for row in counted) / len(counted)
    if rate < GOAL:
        wrong.append(f"{rate:.1f} % of the counted cases pass, the goal is {GOAL} %")
    for message in wrong:
        print(message)
    if len(sets) < 2:
        print("skipped: the shared cases, TRIREME_SHARED_DATA is not set")
    totals = collections.Counter(row["status"] for row in rows)
    listed = sum(row["case"] in read_known() for row in rows if row["status"] != "pass")
    print(f"counted cases: {len(counted)}, {rate:.1f} % pass; of all, {totals['fail']} fail, {totals['crash']} crash, "
          f"{totals['refused']} are refused; {listed} of these are listed in {KNOWN.name}")
    refused = totals["refused"] - sum(row["status"] == "refused" and row["case"] in read_known() for row in rows)
    print(f"skipped: {refused} cases of types or domains that are refused by name, see {args.output}")
    print(f"{totals['pass']} passed, {len(wrong)} failed, {refused} skipped")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
