# The short form of a check: a line for each result as it comes, and the figures that the goals are about.
from gpu.ceilings import NOISE

PEAK_TFLOP_S = 989  # of an H100 SXM in bf16, dense, by its data sheet


def short(value, most=90):
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ",".join(short(v) for v in value)[:600]
    text = " ".join(str(value).split())
    return text if len(text) <= most else text[: most // 3] + " … " + text[-2 * most // 3:]


def brief(line):
    """At most a few hundred characters: the reply of a remote machine keeps the end of its output only."""
    words = [f"[{line['part']}]"]
    for key, value in line.items():
        if key == "part" or value in ("", None, [], {}):
            continue
        if key == "profile":
            words += ["\n      " + row for row in value[:12]]
            continue
        most = 320 if key in ("why", "summary") else 90
        words.append(short(value, most) if key in ("outcome", "summary") else f"{key}={short(value, most)}")
    return " ".join(words)


def find(lines, part, **wanted):
    return [line for line in lines if line["part"] == part
            and all(line.get(key) == value for key, value in wanted.items())]


def percent(a, b):
    if not a or not b:
        return "?"
    return f"{100 * a / b:.0f} %" if a <= NOISE * b else "more than all: less was done than was counted,"


def rate(value, unit):
    """The program prints null for a rate that it refuses."""
    return "no rate" if value is None else f"{value:.0f} {unit}"


def text(lines):
    """What the goals ask for, as far as it was measured."""
    out = ["", "== summary"]
    for line in find(lines, "machine"):
        out.append(f"{line['gpu']}; {'; '.join(line['devices'][1:2])}; {line['commit']}")
    ceilings = next(iter(find(lines, "ceilings")), {})
    copy, product = ceilings.get("copy_gbytes_s", 0), ceilings.get("product_bf16_tflop_s", 0)
    if ceilings:
        out.append(f"copy {copy:.0f} GB/s, product bf16 {product:.0f} TFLOP/s")
    for line in lines:
        if "summary" in line:
            out.append(f"{line['part']}: {line['summary']} {' '.join(line.get('failed', []))[:1500]}")
    for line in find(lines, "llama"):
        if "decode_gbytes_s" in line:
            bytes_s, flop_s = line["decode_gbytes_s"], line["prefill_tflop_s"]
            out.append(f"llama batch {line['batch']} behind {line['prompt']}: step {line['decode_step_ms']:.2f} ms, "
                       f"{rate(bytes_s, 'GB/s')} = {percent(bytes_s, copy)} of copy; "
                       f"prefill {rate(flop_s, 'TFLOP/s')} = "
                       f"{percent(flop_s, product)} of product")
    ours = {line["network"]: line for line in find(lines, "training", contender="trireme") if "median_us" in line}
    for network, line in ours.items():
        reached = line["tflop_s"]
        out.append(f"{network}: {line['median_us'] / 1e3:.1f} ms, {reached:.0f} TFLOP/s = "
                   f"{percent(reached, PEAK_TFLOP_S)} MFU, {percent(reached, product)} of product; beside kernels "
                   f"{line.get('beside_kernels_percent', 0):.1f} %")
    for line in find(lines, "peers"):
        if "median_us" in line and line["network"] in ours:
            out.append(f"{line['network']} {line['contender']}: {line['median_us'] / 1e3:.1f} ms, ours is "
                       f"{line['median_us'] / ours[line['network']]['median_us']:.2f} times as fast")
    decoded = {(line["prompt"] + line["new"] // 2, line["batch"]): line for line in find(lines, "llama")
               if "decode_step_ms" in line}
    for line in find(lines, "peers"):
        ours = decoded.get((int(line["network"].partition(":")[2] or 0), line.get("batch")))
        if "median_us" in line and ours and line["network"].startswith("llama:"):
            ratio = line["median_us"] / 1e3 / ours["decode_step_ms"]
            out.append(f"{line['network']} batch {line['batch']} {line['contender']}: "
                       f"{line['median_us'] / 1e3:.2f} ms, ours is {ratio:.2f} times as fast")
    for line in find(lines, "load"):
        if line.get("requests_s"):
            out.append(f"server under load: {line['requests_s']:.0f} answers a second = "
                       f"{line['percent_of_alone'] or 0:.0f} % of the model alone, p99 {line['p99_ms']:.2f} ms")
    for line in find(lines, "profile", name="all kernels"):
        behind = f"{line['mbytes'] / 1e3:.2f} GB" if "mbytes" in line else f"over {line['span_ms']:.2f} ms"
        out.append(f"{line['network']} by kernel: {line['ms']:.2f} ms in {line['launches']:.0f} launches, {behind}")
    for line in find(lines, "float8"):
        if "prefill_tflop_s" in line:
            out.append(f"{line['precision']} prefill of 8 layers: {rate(line['prefill_tflop_s'], 'TFLOP/s')}, decode "
                       f"{line['decode_step_ms']:.2f} ms")
    slow = [f"{line['op']} {line['percent']:.0f}" for line in find(lines, "speed")
            if line.get("seconds") and (line.get("percent") or 100) < 85]
    if find(lines, "speed"):
        out.append("operators below 85 % of the roofline: " + (", ".join(slow) or "none"))
    refused = sorted({line["op"] for line in find(lines, "speed") if line.get("refused")})
    if refused:
        out.append("operators that did not run: " + ", ".join(refused))
    failed = [line for line in lines if line.get("outcome") == "failed"]
    out += ["FAILED " + brief(line)[:300] for line in failed[:12]]
    if len(failed) > 12:
        out.append(f"and {len(failed) - 12} more that failed: check.jsonl")
    return out
