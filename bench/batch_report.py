"""The table of batch jobs, for bench/pages.py."""
from report import triple


class Batch:
    what = "batch jobs beside the model alone, PyArrow with ONNX Runtime or llama.cpp, and Ray Data"
    page = "docs/batch.md"

    @staticmethod
    def line(r):
        rates = "  ".join(f"{name} {rate[0]:.0f}/s" for name, rate in r["rows_per_s"].items())
        times = ", ".join(f"{100 * t[0]:.0f} % of the model alone" if name == "alone" else f"{t[0]:.2f} times {name}"
                          for name, t in r["times"].items())
        return (f"{r['task']} ({r['model']}), {r['rows']} rows, {r['rounds']} rounds: {rates}; {times}; "
                f"model busy {100 * r['busy'][0]:.0f} %, slowest: {r['slowest']}")

    @staticmethod
    def flat_line(f):
        sizes = ", ".join(f"{rows} rows: {peak / 2**20:.0f} MiB at most, first chunk after {first:.2f} s, {rate} rows/s"
                          for rows, peak, first, rate in zip(f["rows"], f["peak_bytes"], f["first_s"], f["rows_per_s"]))
        return f"{sizes}; at work again {f['restart_s']:.2f} s after kill -9 at 90 %"

    @staticmethod
    def numbers(rows):
        return {f"{r['task']} / {name}": times[0] for r in rows for name, times in r["times"].items()}

    @staticmethod
    def sentence(n):
        return "rows a second over those of: " + ", ".join(f"{name} {value:.2f}" for name, value in n.items())

    @staticmethod
    def table(rows):
        yield "| task | model | rows | rounds | model alone, rows/s | job, rows/s | % of alone | model busy | " \
              "PyArrow + ONNX Runtime, or llama.cpp | times | Ray Data | times |"
        yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
        for r in rows:
            rates, times = r["rows_per_s"], r["times"]
            own = "llama.cpp" if "llama.cpp" in rates else "arrow"
            peers = " | ".join(f"{rates[p][0]:.0f} | {triple(times[p])}" if p in rates else "not run | "
                               for p in (own, "ray"))
            yield (f"| {r['task']} | {r['model']} | {r['rows']} | {r['rounds']} | "
                   f"{rates['alone'][0]:.0f} | {rates['ours'][0]:.0f} | "
                   f"{100 * times['alone'][0]:.0f} ({100 * times['alone'][1]:.0f} to {100 * times['alone'][2]:.0f}) | "
                   f"{100 * r['busy'][0]:.0f} % | {peers} |")
