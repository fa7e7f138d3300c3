"""Rows of the benchmarks as lines, as tables, and as the few numbers that are quoted of them.

A kind of benchmark has `what` (README's words), `page` (where its table stands), numbers(rows), sentence(numbers) and
table(rows).
"""
import math

DIRECT = "-: more than 100 %: convolutions count as direct ones, and Winograd's multiply less."
MOST_SHARE = 1.1  # of a ceiling measured at another moment; what is above was not done as it is counted


def geometric_mean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else float("nan")


def triple(ratio):
    return f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})" if ratio else ""


def share(value):
    """A share of a ceiling in percent; none where it cannot be."""
    return "-" if value > MOST_SHARE else f"{100 * value:.0f}"


def of_noise(values, unit):
    """A difference of two measurements, [median, least, most]: one that may be nothing is quoted as such."""
    middle, least, most = values
    if least <= 0:
        return f"below noise, < {max(-least, most):.0f} {unit}"
    return f"{middle:.1f} {unit} ({least:.1f} to {most:.1f})"


class Models:
    what = "whole models beside ONNX Runtime and OpenVINO, each in its fastest mode"
    page = "docs/performance.md"

    @staticmethod
    def line(row):
        us, ratio = row["us"], row["ratio"]
        against = "  ".join(f"{n} ({row['mode'][n]}) {us[n] / 1e3:8.3f} ms ({ratio[n][0]:.2f}x)" for n in ratio)
        flag = "" if row["agrees"] else f"  OUTPUTS DIFFER {row['difference']['trireme']}"
        return (f"{row['model']:18} batch {row['batch']:2} threads {row['threads']:2}  ours "
                f"{us['trireme'] / 1e3:8.3f} ms ({share(row['roofline']['trireme'])} % of the roofline)  {against}"
                f"{flag}")

    @staticmethod
    def numbers(rows):
        best = [row["ratio_best_peer"][0] for row in rows]
        return {"onnxruntime": geometric_mean([r["ratio"]["onnxruntime"][0] for r in rows]),
                "openvino": geometric_mean([r["ratio"]["openvino"][0] for r in rows]), "least": min(best),
                "level": sum(x >= 1 for x in best), "clear": sum(r["ratio_best_peer"][1] > 1 for r in rows),
                "rows": len(rows)}

    @staticmethod
    def sentence(n):
        return (f"geometric mean {n['onnxruntime']:.2f} times ONNX Runtime and {n['openvino']:.2f} times OpenVINO; "
                f"{n['level']:.0f} of {n['rows']:.0f} rows at least level with the faster peer (least "
                f"{n['least']:.2f}), "
                f"{n['clear']:.0f} in every round")

    @staticmethod
    def table(rows):
        yield ("| model | batch | threads | Trireme ms | ONNX Runtime ms (mode) | OpenVINO ms (mode) | "
               "times ONNX Runtime | times OpenVINO | % of roofline: Trireme / ONNX Runtime / OpenVINO |")
        yield "|---|---|---|---|---|---|---|---|---|"
        for r in rows:
            us = {n: f"{v / 1e3:.3f}" + (f" ({r['mode'][n]})" if n in r["mode"] else "") for n, v in r["us"].items()}
            shares = " / ".join(share(r["roofline"][n]) for n in ("trireme", "onnxruntime", "openvino"))
            yield (f"| {r['model']} | {r['batch']} | {r['threads']} | {us['trireme']} | {us['onnxruntime']} | "
                   f"{us['openvino']} | {triple(r['ratio']['onnxruntime'])} | {triple(r['ratio']['openvino'])} | "
                   f"{shares} |")
        yield ""
        yield DIRECT
        yield ""
        yield ("| model | batch | threads | peak MiB (empty process): Trireme | ONNX Runtime | OpenVINO | "
               "exec to first result, ms: Trireme | load to first result, ms: ONNX Runtime | OpenVINO |")
        yield "|---|---|---|---|---|---|---|---|---|"
        for r in rows:
            peak = [f"{r['peak_mib'][n]:.0f} ({r['empty_mib'][n]:.0f})" for n in ("trireme", "onnxruntime", "openvino")]
            first = [f"{r['first_ms'][n]:.0f}" for n in ("trireme", "onnxruntime", "openvino")]
            yield f"| {r['model']} | {r['batch']} | {r['threads']} | " + " | ".join(peak + first) + " |"


class Zoo:
    """Rows of Models over many exported networks; a row with `error` is a network that failed, at which stage."""
    what = ("networks of torchvision and Transformers, as both PyTorch exporters write them, beside ONNX Runtime and "
            "OpenVINO")
    page = "docs/performance.md"
    LEAST = 0.95  # of the faster peer: a row below it is behind

    @staticmethod
    def numbers(rows):
        run = [r for r in rows if "error" not in r]
        best = [r["ratio_best_peer"][0] for r in run]
        means = {peer: geometric_mean([r["ratio"][peer][0] for r in run if peer in r["ratio"]])
                 for peer in ("onnxruntime", "openvino")}
        return {**means, "least": min(best, default=float("nan")), "behind": sum(b < Zoo.LEAST for b in best),
                "failed": sum(r.get("stage") == "trireme" for r in rows),
                "unexported": sum(r.get("stage") == "export" for r in rows), "rows": len(rows)}

    @staticmethod
    def sentence(n):
        return (f"geometric mean {n['onnxruntime']:.2f} times ONNX Runtime and {n['openvino']:.2f} times OpenVINO; "
                f"{n['behind']:.0f} of {n['rows']:.0f} rows below {Zoo.LEAST} of the faster peer (least "
                f"{n['least']:.2f}); {n['failed']:.0f} failed here, {n['unexported']:.0f} could not be exported")

    @staticmethod
    def table(rows):
        yield ("| network | family | exporter | batch | threads | Trireme ms | times ONNX Runtime | times OpenVINO | "
               "% of roofline | slow kernels |")
        yield "|---|---|---|---|---|---|---|---|---|---|"
        for r in rows:
            head = f"| {r['model']} | {r['family']} | {r['exporter']} | {r['batch']} | {r['threads']} | "
            if "error" in r:
                yield head + f"{r['stage']}: {r['error'].replace('|', '/')} | | | | |"
                continue
            times = " | ".join(triple(r["ratio"][n]) if n in r["ratio"] else "cannot run it" for n in
                               ("onnxruntime", "openvino"))
            slow = ", ".join(f"{step['op']} {100 * step['share']:.0f} %" for step in r["slow"])
            yield (head + f"{r['us']['trireme'] / 1e3:.3f} | {times} | {share(r['roofline']['trireme'])} | {slow} |")


class Quantized:
    """Rows of Zoo over quantized files, with our f32 beside them."""
    what = "8-bit files of ONNX Runtime's quantizer beside ONNX Runtime and OpenVINO, and beside our f32"
    page = "docs/performance.md"
    LEAST = 1.0

    @staticmethod
    def numbers(rows):
        run = [r for r in rows if "error" not in r]
        return Zoo.numbers(rows) | {
            "f32": geometric_mean([r["ratio_f32"][0] for r in run]),
            "left": sum(max(0, r["products"]["in_file"] - r["products"]["in_integers"]) for r in run)}

    @staticmethod
    def sentence(n):
        return (f"geometric mean {n['onnxruntime']:.2f} times ONNX Runtime, {n['openvino']:.2f} times OpenVINO and "
                f"{n['f32']:.2f} times our f32; {n['left']:.0f} quantized products not in integers; "
                f"{n['failed']:.0f} of {n['rows']:.0f} rows failed here")

    @staticmethod
    def table(rows):
        yield ("| network | form | batch | threads | Trireme ms | times ONNX Runtime | times OpenVINO | times f32 | "
               "products in integers |")
        yield "|---|---|---|---|---|---|---|---|---|"
        for r in rows:
            head = f"| {r['model']} | {r['exporter']} | {r['batch']} | {r['threads']} | "
            if "error" in r:
                yield head + f"{r['stage']}: {r['error'].replace('|', '/')} | | | | |"
                continue
            times = " | ".join(triple(r["ratio"][n]) if n in r["ratio"] else "cannot run it" for n in
                               ("onnxruntime", "openvino"))
            yield (head + f"{r['us']['trireme'] / 1e3:.3f} | {times} | {triple(r['ratio_f32'])} | "
                   f"{r['products']['in_integers']} of {r['products']['in_file']} |")


class Loops:
    """Rows of Models over loops; a peer that cannot read a file is not in its row."""
    what = "recurrent, scanning and decoding loops (Loop, Scan, If) beside ONNX Runtime and OpenVINO"
    page = "docs/performance.md"

    @staticmethod
    def numbers(rows):
        best = [r["ratio_best_peer"][0] for r in rows]
        runtime = [r["ratio"]["onnxruntime"][0] for r in rows if "onnxruntime" in r["ratio"]]
        return {"onnxruntime": geometric_mean(runtime), "mean": geometric_mean(best), "least": min(best),
                "level": sum(x >= 1 for x in best), "rows": len(rows)}

    @staticmethod
    def sentence(n):
        return (f"geometric mean {n['onnxruntime']:.2f} times ONNX Runtime and {n['mean']:.2f} times the faster peer; "
                f"{n['level']:.0f} of {n['rows']:.0f} rows at least level with it (least {n['least']:.2f})")

    @staticmethod
    def table(rows):
        yield "| loop | threads | Trireme us | times ONNX Runtime | times OpenVINO |"
        yield "|---|---|---|---|---|"
        for r in rows:
            times = " | ".join(triple(r["ratio"][n]) if n in r["ratio"] else "cannot run it" for n in
                               ("onnxruntime", "openvino"))
            yield f"| {r['model']} | {r['threads']} | {r['us']['trireme']:.1f} | {times} |"


class Train:
    what = "training steps beside PyTorch in its fastest mode (eager, compiled, each channels-last where that exists)"
    page = "docs/performance.md"

    @staticmethod
    def line(row):
        peers = "  ".join(f"{name} {row['ms'][name]:9.2f} ms ({r[0]:.2f}x)" for name, r in row["ratio"].items())
        flag = "" if row.get("agrees", True) else f"  LOSSES DIFFER {row['losses_differ']}"
        flag += "".join(f"  DEFECT {s['op']} on {s['kernel']}: {100 * s['share']:.0f} %" for s in row.get("slow", []))
        return (f"{row['network']:10} threads {row['threads']:2}  ours {row['ms']['trireme']:9.2f} ms "
                f"({share(row['of_ceiling']['trireme'])} % of products)  {peers}  "
                f"peak MiB {row['peak_mib']['trireme']:.0f} / {row['peak_mib'][row['best_peer']]:.0f}{flag}")

    @staticmethod
    def numbers(rows):
        best = [row["ratio_best_peer"][0] for row in rows]
        return {"mean": geometric_mean(best), "least": min(best), "level": sum(x >= 1 for x in best), "rows": len(rows)}

    @staticmethod
    def sentence(n):
        return (f"geometric mean {n['mean']:.2f} times the fastest PyTorch mode; {n['level']:.0f} of {n['rows']:.0f} "
                f"rows at least level (least {n['least']:.2f})")

    @staticmethod
    def table(rows):
        yield ("| network | threads | Trireme ms | % of products | fastest PyTorch ms (mode) | % of products | times | "
               "peak MiB: Trireme / PyTorch |")
        yield "|---|---|---|---|---|---|---|---|"
        for r in rows:
            best = r["best_peer"]
            yield (f"| {r['network']} | {r['threads']} | {r['ms']['trireme']:.2f} | "
                   f"{share(r['of_ceiling']['trireme'])} | {r['ms'][best]:.2f} ({best}) | "
                   f"{share(r['of_ceiling'][best])} | {triple(r['ratio_best_peer'])} | "
                   f"{r['peak_mib']['trireme']:.0f} / {r['peak_mib'][best]:.0f} |")
        yield ""
        yield DIRECT


class Scale:
    what = "data-parallel ranks (threads) beside one process with as many threads, and beside PyTorch DDP"
    page = "docs/scaling.md"

    @staticmethod
    def line(r):
        text = (f"{r['network']:9} {r['scaling']:6} {r['ranks']} ranks x {r['rows']:4} rows  {r['ms']:9.2f} ms  "
                f"efficiency {r['efficiency'][0]:.2f}")
        if r["ranks"] > 1:
            text += f"  communication {r['communication_ms']:.2f} ms, hidden {100 * (r['hidden'] or 0):.0f} %"
        if "ddp_ms" in r:
            text += f"  DDP {r['ddp_ms']:9.2f} ms ({r['ddp_efficiency']:.2f})  times DDP {triple(r['times_ddp'])}"
        if "of_one_process" in r:
            text += f"  of one process {triple(r['of_one_process'])}"
        return text

    @staticmethod
    def numbers(rows):
        most = max(r["ranks"] for r in rows)
        weak = [r for r in rows if r["ranks"] == most and r["scaling"] == "weak"]
        found = {"ranks": most, "hidden": min((r["hidden"] for r in weak if r["hidden"] is not None), default=0)}
        for r in weak:
            found[f"{r['network']} one"] = r["of_one_process"][0] if "of_one_process" in r else 0
            found[f"{r['network']} ddp"] = r["times_ddp"][0] if "times_ddp" in r else 0
        return found

    @staticmethod
    def sentence(n):
        networks = [key.split()[0] for key in n if key.endswith(" one")]
        words = [f"{name} {n[name + ' one']:.2f} times one process and {n[name + ' ddp']:.2f} times DDP"
                 for name in networks]
        return (f"{n['ranks']:.0f} ranks: " + ", ".join(words) + f"; at least {100 * n['hidden']:.0f} % of the "
                "communication under the computation")

    @staticmethod
    def table(rows):
        yield ("| network | scaling | ranks x rows | ms | samples/s | efficiency | communication ms (hidden) | "
               "DDP ms (efficiency) | times DDP | of one process |")
        yield "|---|---|---|---|---|---|---|---|---|---|"
        for r in rows:
            hidden = f"{r['communication_ms']:.2f} ({100 * r['hidden']:.0f} %)" if r["hidden"] is not None else ""
            ddp = f"{r['ddp_ms']:.2f} ({r['ddp_efficiency']:.2f})" if "ddp_ms" in r else ""
            yield (f"| {r['network']} | {r['scaling']} | {r['ranks']} x {r['rows']} | {r['ms']:.2f} | "
                   f"{r['samples_per_s']:.0f} | {r['efficiency'][0]:.2f} | {hidden} | {ddp} | "
                   f"{triple(r.get('times_ddp'))} | {triple(r.get('of_one_process'))} |")


class Fashion:
    what = "Fashion-MNIST to 93 % beside PyTorch, same network, recipe and batches"
    page = "docs/performance.md"

    @staticmethod
    def line(row):
        reached = f"{row['goal_s']:.1f} s" if row["goal_s"] else "not in these epochs"
        return f"{row['contender']:20} an epoch {row['epoch_s']:.1f} s; 93 % after {reached}"

    @staticmethod
    def numbers(rows):
        ours, *peers = rows
        return {"goal_s": ours["goal_s"] or 0, "epoch_s": ours["epoch_s"], "peer_s": min(p["epoch_s"] for p in peers)}

    @staticmethod
    def sentence(n):
        reached = f"93 % after {n['goal_s']:.0f} s" if n["goal_s"] else "93 % not reached"
        return (f"{reached}; an epoch {n['epoch_s']:.1f} s, PyTorch in its fastest mode {n['peer_s']:.1f} s "
                f"({n['peer_s'] / n['epoch_s']:.2f} times)")

    @staticmethod
    def table(rows):
        yield "| contender | epochs | s an epoch (median, least to most) | accuracy at the end | 93 % after |"
        yield "|---|---|---|---|---|"
        for r in rows:
            reached = f"{r['goal_s']:.1f} s" if r["goal_s"] else "-"
            times = f"{r['epoch_s']:.1f} ({min(r['epochs_s']):.1f} to {max(r['epochs_s']):.1f})"
            yield f"| {r['contender']} | {len(r['epochs_s'])} | {times} | {100 * r['accuracy']:.2f} % | {reached} |"


class Collectives:
    what = "all-reduce of local ranks beside copies by all ranks at once, bytes that each moves through memory"
    page = "docs/scaling.md"

    @staticmethod
    def line(r):
        return (f"{r['ranks']} ranks, {r['bytes'] >> 20} MiB: {r['gbytes_s'][0]:.1f} GB/s, "
                f"{100 * r['of_copy'][0]:.0f} % of what copies move")

    @staticmethod
    def numbers(rows):
        return {"least": min(r["of_copy"][0] for r in rows), "most": max(r["of_copy"][0] for r in rows)}

    @staticmethod
    def sentence(n):
        return f"{100 * n['least']:.0f} to {100 * n['most']:.0f} % of what copies by all ranks move"

    @staticmethod
    def table(rows):
        yield "| ranks | MiB | algorithm GB/s | bytes moved, GB/s | of what copies move |"
        yield "|---|---|---|---|---|"
        for r in rows:
            of = [f"{100 * x:.0f}" for x in r["of_copy"]]
            yield (f"| {r['ranks']} local | {r['bytes'] >> 20} | {triple(r['gbytes_s'])} | "
                   f"{r['moved_gbytes_s'][0]:.1f} | {of[0]} % ({of[1]} to {of[2]}) |")


class Language:
    what = "language models of one shape in one format beside llama.cpp, tokens a second"
    page = "docs/performance.md"

    @staticmethod
    def line(r):
        p, d = r["prefill"], r["decode"]
        return (f"{r['format']}, {r['batch']} sequence{'s' if r['batch'] > 1 else ''}: decodes "
                f"{d['ours'][0]:.1f} tokens/s ({100 * d['ours_of_read']:.0f} % of reading the weights), "
                f"{d['ratio'][0]:.2f} times llama.cpp; reads prompts at {p['ours'][0]:.0f}, "
                f"{p['ratio'][0]:.2f} times")

    @staticmethod
    def numbers(rows):
        return {f"{what} {r['format']} x {r['batch']}": r[what]["ratio"][0]
                for r in rows for what in ("decode", "prefill")}

    @staticmethod
    def sentence(n):
        return "times llama.cpp: " + ", ".join(f"{name} {value:.2f}" for name, value in n.items())

    @staticmethod
    def table(rows):
        yield "| format | sequences | prompt + answer, tokens | decoding, tokens/s: Trireme / llama.cpp (its " \
              "attention) | times | % of read: Trireme / llama.cpp | prompts, tokens/s: Trireme / llama.cpp | times |"
        yield "|---|---|---|---|---|---|---|---|"
        for r in rows:
            p, d = r["prefill"], r["decode"]
            yield (f"| {r['format']} | {r['batch']} | {r['prompt']} + {r['new']} | "
                   f"{d['ours'][0]:.1f} / {d['peer'][0]:.1f} ({r['peer_mode']}) | {triple(d['ratio'])} | "
                   f"{100 * d['ours_of_read']:.0f} / {100 * d['peer_of_read']:.0f} | {p['ours'][0]:.0f} / "
                   f"{p['peer'][0]:.0f} | {triple(p['ratio'])} |")
