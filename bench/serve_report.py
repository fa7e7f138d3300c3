"""Rows of ./dev bench serve as text, tables and the numbers that are quoted of them."""
from report import geometric_mean, of_noise, triple

TITLES = {"trireme": "Trireme", "triton": "Triton", "mlserver": "MLServer",
          "onnxruntime_fastapi": "ONNX Runtime, FastAPI", "openvino_fastapi": "OpenVINO, FastAPI"}
FORMS = {"binary": "HTTP binary", "json": "HTTP JSON", "grpc": "gRPC"}


def of(rows, part):
    return [r for r in rows if r["part"] == part]


def line(row):
    if row["part"] == "speed":
        speeds = row["per_second"]
        others = "  ".join(f"{n} ({row['mode'][n]}) {speeds[n]:.0f} ({r[0]:.2f}x, {row['cpu_us'][n]:.0f} us)"
                           for n, r in row["ratio"].items())
        flag = "" if row["agrees"] else f"  ANSWERS DIFFER {row['difference']}"
        return (f"{row['model']:12} {row['form']:6} {row['connections']:3}  ours {speeds['trireme']:8.0f} /s "
                f"{row['cpu_us']['trireme']:7.1f} us  {others}{flag}")
    if row["part"] == "front":
        return (f"front end {FORMS[row['form']]} {row['connections']:3}: {of_noise(row['front_us'], 'us')} = user "
                f"{row['user_us'][0]:.1f} + kernel {row['kernel_us'][0]:.1f} - model {row['model_us'][0]:.1f} "
                f"- floor {row['floor_us'][0]:.1f}")
    if row["part"] == "slo":
        full, p50, p99 = (row[key] for key in ("saturation_per_second", "p50_ms", "p99_ms"))
        return (f"{row['model']}, {row['setting']}, at 80 % of its saturation of {full[0]:.0f} /s: "
                f"p50 {p50[0]:.1f} ms, p99 {p99[0]:.1f} ms ({p99[1]:.1f} to {p99[2]:.1f}, {row['rounds']} turns)")
    return (f"{row['model']} served {row['served_per_second'][0]:.0f} /s, alone {row['alone_per_second'][0]:.0f} /s "
            f"with batches of {row['batch']}: {100 * row['ratio'][0]:.0f} %")


def speed_table(rows):
    names = [n for n in TITLES if any(n in r["per_second"] for r in rows)]
    yield "| model | form | connections | " + " | ".join(f"{TITLES[n]} /s" for n in names) + \
        " | times the best peer | server CPU, µs a request: Trireme / best peer |"
    yield "|---" * (5 + len(names)) + "|"
    for r in rows:
        speeds = [f"{r['per_second'][n]:.0f}" + (f" ({r['mode'][n]})" if r["mode"].get(n) else "")
                  if n in r["per_second"] else "-" for n in names]
        best = r.get("best_peer")
        cpu = f"{r['cpu_us']['trireme']:.0f} / " + (f"{r['cpu_us'][best]:.0f}" if best else "-")
        yield (f"| {r['model']} | {FORMS[r['form']]} | {r['connections']} | " + " | ".join(speeds)
               + f" | {triple(r.get('ratio_best_peer')) or '-'} | {cpu} |")


def front_table(rows):
    yield "| form | connections | front end | user µs | kernel µs | model µs | floor: the kernel's hand-over alone µs |"
    yield "|---|---|---|---|---|---|---|"
    for r in rows:
        yield (f"| {FORMS[r['form']]} | {r['connections']} | {of_noise(r['front_us'], 'µs')} | {r['user_us'][0]:.1f} | "
               f"{r['kernel_us'][0]:.1f} | {r['model_us'][0]:.1f} | {r['floor_us'][0]:.1f} |")


class Serve:
    what = "requests a second beside other servers, each in its best setting: Triton, MLServer, FastAPI"
    page = "docs/performance.md"
    line = staticmethod(line)

    @staticmethod
    def numbers(rows):
        ratios = {}
        for r in of(rows, "speed"):
            if "ratio_best_peer" in r:
                ratios.setdefault(f"{r['model']} {r['form']}", []).append(r["ratio_best_peer"][0])
        found = {f"{key} mean": geometric_mean(values) for key, values in ratios.items()}
        return found | {f"{key} least": min(values) for key, values in ratios.items()}

    @staticmethod
    def sentence(n):
        words = []
        for key in [k.removesuffix(" mean") for k in n if k.endswith(" mean")]:
            model, form = key.split()
            words.append(f"{model} {FORMS[form]} {n[key + ' mean']:.2f} (least {n[key + ' least']:.2f})")
        return "times the best peer: " + ", ".join(words) if words else "no peer was measured"

    @staticmethod
    def table(rows):
        speed, front = of(rows, "speed"), of(rows, "front")
        if speed:
            yield from speed_table(speed)
            yield ""
        if front:
            yield from front_table(front)
            yield ""
        for r in of(rows, "slo") + of(rows, "unserved"):
            yield "- " + line(r) + "."
