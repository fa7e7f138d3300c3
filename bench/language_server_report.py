"""Rows of ./dev bench language_server as lines, as a table, and as the few numbers that are quoted of them."""
from report import triple


def ms(values):
    return f"{values[0]:.1f} ms ({values[1]:.1f} to {values[2]:.1f})"


def us(values):
    return f"{values[0]:.1f} µs ({values[1]:.1f} to {values[2]:.1f})"


def parts_of(cost):
    return (f"{us(cost['us'])}: user {cost['user'][0]:.1f}, kernel {cost['kernel'][0]:.1f}, between steps "
            f"{cost['between'][0]:.1f}")


class LanguageServer:
    what = "a server of language models beside llama.cpp's, same file, same client"
    page = "docs/performance.md"

    @staticmethod
    def cells(row):
        """What was measured, ours, the peer's, times the peer, and what else is to be said."""
        kind = row["part"]
        if kind == "goodput":
            return (f"requests/s at a first token in {row['ttft']} and {row['tpot']} a token", triple(row["ours"]),
                    triple(row["peer"]), triple(row["ratio"]), "")
        if kind == "streams":
            return (f"tokens/s, {row['streams']} streams of {row['prompt']} + {row['new']} tokens",
                    triple(row["ours"]), triple(row["peer"]), triple(row["ratio"]),
                    f"{100 * row['of_alone'][0]:.0f} % of the same batch without a server")
        if kind == "prefix":
            return (f"first token of {row['prompt']} tokens, {row['known']} of them known", ms(row["ours"]),
                    ms(row["peer"]), triple(row["ratio"]), "")
        if kind == "front":
            return ("CPU beside the model's steps, a request", us(row["request"]["us"]), "-", "-",
                    f"and a token: {parts_of(row['token'])}")
        return (f"ready, file of {row['file_mb']} MB", ms(row["ours"]), ms(row["peer"]), triple(row["ratio"]),
                f"reading the file alone: {ms(row['read'])}")

    @staticmethod
    def line(row):
        what, ours, peer, times, more = LanguageServer.cells(row)
        return f"{what}: {ours}, llama.cpp {peer}, {times} times" + (f"; {more}" if more else "")

    @staticmethod
    def numbers(rows):
        found = {}
        for row in rows:
            if "ratio" in row:
                found[row["part"]] = row["ratio"][0]
            if row["part"] == "streams":
                found["of_alone"] = row["of_alone"][0]
            if row["part"] == "front":
                found |= {"request_us": row["request"]["us"][0], "token_us": row["token"]["us"][0]}
        return found

    @staticmethod
    def sentence(n):
        names = {"goodput": "goodput", "streams": "streams", "prefix": "known prefix", "ready": "ready"}
        words = [f"{name} {n[key]:.2f}" for key, name in names.items() if key in n]
        text = "times llama.cpp's server: " + (", ".join(words) or "nothing measured")
        if "of_alone" in n:
            text += f"; streams {100 * n['of_alone']:.0f} % of the batch without a server"
        if "request_us" in n:
            text += f"; front end {n['request_us']:.0f} µs a request and {n['token_us']:.1f} µs a token"
        return text

    @staticmethod
    def table(rows):
        yield "| what | Trireme | llama.cpp | times | beside |"
        yield "|---|---|---|---|---|"
        for row in rows:
            yield "| " + " | ".join(LanguageServer.cells(row)) + " |"
