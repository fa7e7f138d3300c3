"""Rows of ./dev bench models as text and as Markdown tables."""
import math


def geometric_mean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else float("nan")


def line(row):
    us, ratio, share = row["us"], row["ratio"], row["roofline"]
    against = "  ".join(f"{name} {us[name] / 1e3:8.3f} ms ({ratio[name][0]:.2f}x)" for name in ratio)
    flag = "" if row["agrees"] else f"  OUTPUTS DIFFER {row['difference']['trireme']}"
    return (f"{row['model']:18} batch {row['batch']:2} threads {row['threads']:2}  ours {us['trireme'] / 1e3:8.3f} ms "
            f"({100 * share['trireme']:.0f} % of the roofline)  {against}{flag}")


def summary(rows):
    """Geometric means over all rows, and how many rows are at least level with the faster peer."""
    names = rows[0]["ratio"] if rows else []
    means = ", ".join(f"{geometric_mean([r['ratio'][n][0] for r in rows]):.2f} times {n}" for n in names)
    level = sum(r["ratio_best_peer"][0] >= 1 for r in rows)
    return f"geometric mean {means}; {level} of {len(rows)} rows at least level with the faster peer"


def speed_table(rows):
    yield ("| model | batch | threads | Trireme ms | ONNX Runtime ms | OpenVINO ms | times ONNX Runtime | "
           "times OpenVINO | % of roofline: Trireme / ONNX Runtime / OpenVINO |")
    yield "|---|---|---|---|---|---|---|---|---|"
    for r in rows:
        us, share = r["us"], r["roofline"]
        spread = {n: f"{v[0]:.2f} ({v[1]:.2f} to {v[2]:.2f})" for n, v in r["ratio"].items()}
        shares = " / ".join(f"{100 * share[n]:.0f}" for n in ("trireme", "onnxruntime", "openvino"))
        yield (f"| {r['model']} | {r['batch']} | {r['threads']} | {us['trireme'] / 1e3:.3f} | "
               f"{us['onnxruntime'] / 1e3:.3f} | {us['openvino'] / 1e3:.3f} | {spread['onnxruntime']} | "
               f"{spread['openvino']} | {shares} |")


def memory_table(rows):
    yield ("| model | batch | threads | Trireme MiB (empty process) | ONNX Runtime MiB (empty process) | "
           "OpenVINO MiB (empty process) | "
           "exec to first result, ms: Trireme | load to first result, ms: ONNX Runtime | OpenVINO |")
    yield "|---|---|---|---|---|---|---|---|---|"
    for r in rows:
        peak, empty, first = r["peak_mib"], r["empty_mib"], r["first_ms"]
        yield (f"| {r['model']} | {r['batch']} | {r['threads']} | {peak['trireme']:.0f} ({empty['trireme']:.0f}) | "
               f"{peak['onnxruntime']:.0f} ({empty['onnxruntime']:.0f}) | "
               f"{peak['openvino']:.0f} ({empty['openvino']:.0f}) | "
               f"{first['trireme']:.0f} | {first['onnxruntime']:.0f} | {first['openvino']:.0f} |")


def limits_line(rows):
    """The machine's limits, medians over the rotations of all rows of one thread count."""
    words = []
    for threads in sorted({r["threads"] for r in rows}):
        some = [r["limits"] for r in rows if r["threads"] == threads]
        middle = {key: sorted(s[key] for s in some)[len(some) // 2] for key in some[0]}
        words.append(f"{threads} thread{'s' if threads > 1 else ''}: {middle['f32_gflops']:.0f} GFLOP/s f32, "
                     f"{middle['int8_gops']:.0f} Gop/s int8, {middle['read_gbs']:.0f} GB/s read")
    return "; ".join(words)


def markdown(rows):
    versions = ", ".join(f"{n} {v}" for n, v in rows[0]["versions"].items())
    lines = [f"{rows[0]['machine']}; commit {rows[0]['commit']}; {versions}; {rows[0]['rounds']} rounds. Limits: "
             f"{limits_line(rows)}.", "", summary(rows) + ".", ""]
    lines += [*speed_table(rows), "", *memory_table(rows)]
    return "\n".join(lines) + "\n"


def into_page(path, mark, text):
    """Replaces what stands between the marks of a page."""
    page = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    path.write_text(f"{head}{begin}\n{text}{end}{tail}", encoding="utf-8")
