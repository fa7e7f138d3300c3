"""Pages from kept calls: tables between marks `<!-- table: NAME -->` and `<!-- /table -->`, and README's figures.

Nothing between the marks is written by hand: `./dev check figures` renders again and compares. Without arguments this
program writes all pages from bench/results.
"""
import json
import pathlib
import re
import statistics

import batch_report
import language_server_report
import report
import serve_report

ROOT = pathlib.Path(__file__).resolve().parent.parent
RULE = "[0051](decisions/0051-a-figure-is-a-promise.md)"
RENDERERS = {"models": report.Models, "zoo": report.Zoo, "quantized": report.Quantized,
             "loops": report.Loops, "train": report.Train, "scale": report.Scale, "fashion_mnist": report.Fashion,
             "collectives": report.Collectives, "language": report.Language, "serve": serve_report.Serve,
             "batch": batch_report.Batch, "language_server": language_server_report.LanguageServer}
PAGES = ("README.md", "docs/performance.md", "docs/scaling.md", "docs/batch.md")
BLOCK = re.compile(r"<!-- (table: [a-z_]+|figures|older) -->\n(.*?)<!-- /\1 -->\n", re.S)
OLDER = ("*Not taken again under the rule of decision " + RULE + ": figures of single calls at different times, on "
         "machines that other work shared. They record what was seen and promise nothing.*\n")


def read_calls(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def headline(call):
    return RENDERERS[call["bench"]].sentence(RENDERERS[call["bench"]].numbers(call["rows"]))


def limits_line(call):
    """The machine's limits with their spread over the call."""
    words = []
    for threads, limits in call["limits"].items():
        f32, read = limits["f32_mean_gflops"], limits["read_mean_gbs"]
        words.append(f"{threads} thread{'s' if threads != '1' else ''}: {limits['f32_gflops'][0]:.0f} GFLOP/s f32 "
                     f"(mean of a probe {f32[1]:.0f} to {f32[2]:.0f}, varies {100 * f32[3]:.0f} %), "
                     f"{limits['read_gbs'][0]:.0f} GB/s read (mean {read[1]:.0f} to {read[2]:.0f}, varies "
                     f"{100 * read[3]:.0f} %)")
    return "; ".join(words)


def table(name, calls):
    """A page's block: the newest call whole, and the headline of every kept one."""
    if not calls:
        return f"*Not taken yet under the rule of decision {RULE}: `./dev bench {name} --keep`.*\n"
    call, kind = calls[-1], RENDERERS[name]
    facts = "".join(f"; {key} {value}" for key, value in call["facts"].items())
    lines = [f"`{call['command']}`, {call['started']}, {call['minutes']} minutes; {call['machine']}; commit "
             f"{call['commit']}; load {call['load'][0]} before, {call['load'][-1]} after{facts}. "
             f"Limits, probed all through: {limits_line(call)}.", ""]
    heads = [f"call {i}: {headline(c)}" for i, c in enumerate(calls, 1)]
    lines += [f"Kept calls of this commit: {len(calls)}; the table is of the last. " + ". ".join(heads) + ".", ""]
    return "\n".join(lines + list(kind.table(call["rows"]))) + "\n"


def medians(kind, calls):
    """Of every number of the headline, the median over the calls."""
    every = [kind.numbers(call["rows"]) for call in calls]
    return {key: statistics.median(numbers[key] for numbers in every if key in numbers) for key in every[-1]}


def onnx_row(root):
    """The totals of docs/onnx.md, which its tests write."""
    total = re.search(r"^\| all \| (\d+) \| (\d+) \| (\d+) \| \d+ \| (\d+) \| ([^|]+) \|$",
                      (root / "docs/onnx.md").read_text(encoding="utf-8"), re.M)
    return (f"| ONNX backend cases with tensor types that pass | {total[5]}; {total[3]} of all {total[1]} cases fail, "
            f"{total[4]} crash ([docs/onnx.md](docs/onnx.md)) | `./dev test --onnx` |")


def figures(root):
    """README's table: medians over three calls of one commit, or that there are none."""
    lines = ["| what | figure | command |", "|---|---|---|", onnx_row(root)]
    for name, kind in RENDERERS.items():
        calls = read_calls(root / f"bench/results/{name}.jsonl")
        command = f"`./dev bench {name} --keep`, three times"
        if len(calls) < 3:
            quoted = f"not taken under the rule yet ({len(calls)} of 3 calls)"
        else:
            last = calls[-1]
            command = f"`{last['command']} --keep`, three times"
            quoted = (f"{kind.sentence(medians(kind, calls))} ([{kind.page}]({kind.page})); {last['machine']}, "
                      f"commit {last['commit']}")
        lines.append(f"| {kind.what} | {quoted} | {command} |")
    return "\n".join(lines) + "\n"


def block(kind, inside, root):
    if kind == "figures":
        return figures(root)
    if kind == "older":  # what people wrote stays, under the sentence that says what it is worth
        rest = inside.split("\n", 1)[1] if inside.startswith("*Not taken again") else inside
        return OLDER + rest
    name = kind.removeprefix("table: ")
    return table(name, read_calls(root / f"bench/results/{name}.jsonl"))


def render(text, root):
    """The page with every block as the results say."""
    def again(found):
        return f"<!-- {found[1]} -->\n{block(found[1], found[2], root)}<!-- /{found[1]} -->\n"
    return BLOCK.sub(again, text)


def write(root=ROOT):
    """Writes the pages that change; gives their names."""
    changed = []
    for page in PAGES:
        path = root / page
        old = path.read_text(encoding="utf-8")
        new = render(old, root)
        if new != old:
            path.write_text(new, encoding="utf-8")
            changed.append(page)
    return changed


if __name__ == "__main__":
    print("pages written:", " ".join(write()) or "none")
