# Two checks beside each other: what moved by more than the noise, what passes or fails now, what is gone.
import json

NAMES = ("part", "network", "contender", "precision", "batch", "prompt", "new", "op", "shape", "name", "test", "device")
# Smaller is better for times, larger for rates.
TIMES = ("median_us", "p50_us", "p99_us", "decode_step_ms", "prefill_s", "seconds", "ms", "ready_s", "p99_ms")
RATES = ("copy_gbytes_s", "product_f32_tflop_s", "product_bf16_tflop_s", "product_f16_tflop_s", "requests_s")
LEAST_NOISE = 0.03  # of a median on a machine that does nothing else


def read(path):
    """Lines of a check by what they are about; of several about the same the last."""
    found = {}
    for text in path.read_text().splitlines():
        line = json.loads(text)
        if line["part"] not in ("time", "machine", "libraries"):
            found[tuple(str(line.get(name, "")) for name in NAMES)] = line
    return found


def noise_of(line):
    """How far the median of a line lies above its best run, as a share: what a repetition may move it by."""
    middle, least = line.get("median_us") or line.get("p50_us"), line.get("min_us")
    return max(LEAST_NOISE, middle / least - 1 if middle and least else 0)


def moves(old, new):
    """(ratio of speeds, measure, before, after, noise) of what moved by more than the noise of both."""
    noise = noise_of(old) + noise_of(new)
    for measure in TIMES + RATES:
        before, after = old.get(measure), new.get(measure)
        if not isinstance(before, (int, float)) or not isinstance(after, (int, float)) or before <= 0 or after <= 0:
            continue
        ratio = after / before if measure in RATES else before / after
        if max(ratio, 1 / ratio) > 1 + noise:
            yield ratio, measure, before, after, noise


def words(key):
    return " ".join(part for part in key if part)


def text(old, new):
    """Lines for people, what changed most first."""
    out, found = [], []
    for key, line in new.items():
        if key not in old:
            continue
        found += [(move, key) for move in moves(old[key], line)]
        before, after = old[key].get("outcome"), line.get("outcome")
        if before != after and "failed" in (before, after):
            out.append(f"{before} -> {after}: {words(key)} {line.get('why', '')}"[:300])
    for (ratio, measure, before, after, noise), key in sorted(found, key=lambda m: -max(m[0][0], 1 / m[0][0])):
        better = f"{ratio:.2f} x faster" if ratio > 1 else f"{1 / ratio:.2f} x slower"
        out.append(f"{better}: {words(key)}: {measure} {before:.4g} -> {after:.4g} (noise {100 * noise:.0f} %)")
    gone = [words(key) for key in old if key not in new and "outcome" in old[key]]
    out += [f"gone: {name}"[:200] for name in gone]
    return out or ["nothing moved by more than the noise"]
