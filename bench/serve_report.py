"""Rows of ./dev bench serve as text and as Markdown tables."""
from report import geometric_mean

TITLES = {"trireme": "Trireme", "triton": "Triton", "mlserver": "MLServer",
          "onnxruntime_fastapi": "ONNX Runtime, FastAPI", "openvino_fastapi": "OpenVINO, FastAPI"}
FORMS = {"binary": "HTTP binary", "json": "HTTP JSON", "grpc": "gRPC"}


def line(row):
    if row["part"] == "speed":
        speeds = row["per_second"]
        others = "  ".join(f"{n} {speeds[n]:.0f} ({r[0]:.2f}x, {row['cpu_us'][n]:.0f} us)"
                           for n, r in row["ratio"].items())
        flag = "" if row["agrees"] else f"  ANSWERS DIFFER {row['difference']}"
        return (f"{row['model']:12} {row['form']:6} {row['connections']:3}  ours {speeds['trireme']:8.0f} /s "
                f"{row['cpu_us']['trireme']:7.1f} us  {others}{flag}")
    if row["part"] == "front":
        return (f"front end {row['form']:6} {row['connections']:3}  {row['front_us'][0]:6.1f} us = user "
                f"{row['user_us'][0]:.1f} + kernel {row['kernel_us'][0]:.1f} - model {row['model_us'][0]:.1f} "
                f"- floor {row['floor_us'][0]:.1f}")
    if row["part"] == "slo":
        full, p50, p99 = (row[key] for key in ("saturation_per_second", "p50_ms", "p99_ms"))
        return (f"{row['model']}, {row['setting']}, at 80 % of its saturation of {full[0]:.0f} /s: "
                f"p50 {p50[0]:.1f} ms, p99 {p99[0]:.1f} ms ({p99[1]:.1f} to {p99[2]:.1f}, {row['rounds']} turns)")
    return (f"{row['model']} served {row['served_per_second'][0]:.0f} /s, alone {row['alone_per_second'][0]:.0f} /s "
            f"with batches of {row['batch']}: {100 * row['ratio'][0]:.0f} %")


def of(rows, part):
    return [r for r in rows if r["part"] == part]


def summary(rows):
    ratios = {}
    for r in of(rows, "speed"):
        if "ratio_best_peer" in r:
            ratios.setdefault((r["model"], r["form"]), []).append(r["ratio_best_peer"][0])
    words = [f"{model} {FORMS[form]}: {geometric_mean(v):.2f} times the best peer (least {min(v):.2f})"
             for (model, form), v in ratios.items()]
    return "; ".join(words)


def speed_table(rows):
    names = [n for n in TITLES if any(n in r["per_second"] for r in rows)]
    yield "| model | form | connections | " + " | ".join(f"{TITLES[n]} /s" for n in names) + \
        " | times the best peer | server CPU, µs a request: Trireme / best peer |"
    yield "|---" * (5 + len(names)) + "|"
    for r in rows:
        speeds = [f"{r['per_second'][n]:.0f}" if n in r["per_second"] else "-" for n in names]
        ratio, best = r.get("ratio_best_peer"), r.get("best_peer")
        against = f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})" if ratio else "-"
        cpu = f"{r['cpu_us']['trireme']:.0f} / " + (f"{r['cpu_us'][best]:.0f}" if best else "-")
        yield (f"| {r['model']} | {FORMS[r['form']]} | {r['connections']} | " + " | ".join(speeds)
               + f" | {against} | {cpu} |")


def front_table(rows):
    yield ("| form | connections | front end µs (least to most) | user µs | kernel µs | model µs | "
           "floor: the kernel's hand-over alone µs |")
    yield "|---|---|---|---|---|---|---|"
    for r in rows:
        net = r["front_us"]
        yield (f"| {FORMS[r['form']]} | {r['connections']} | {net[0]:.1f} ({net[1]:.1f} to {net[2]:.1f}) | "
               f"{r['user_us'][0]:.1f} | {r['kernel_us'][0]:.1f} | {r['model_us'][0]:.1f} | {r['floor_us'][0]:.1f} |")


def markdown(rows):
    first = rows[0]
    lines = [f"{first['machine']}, {first['server_cores']} for the server and {first['load_cores']} for the load; "
             f"commit {first['commit']}; {first['rounds']} rounds.", ""]
    speed, front = of(rows, "speed"), of(rows, "front")
    if speed:
        lines += [summary(rows) + ".", "", *speed_table(speed), ""]
    if front:
        lines += [*front_table(front), ""]
    for r in of(rows, "slo") + of(rows, "unserved"):
        lines += ["- " + line(r) + "."]
    return "\n".join(lines) + "\n"
