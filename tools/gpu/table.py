# The lines of a check as a page: one table for each part.


def cell(value):
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return " ".join(cell(v) for v in value)
    return str(value).replace("|", "/").replace("\n", " ")[:160]


def rows(lines, part):
    found = [line for line in lines if line["part"] == part]
    columns = []
    for line in found:
        columns += [key for key in line if key != "part" and key not in columns]
    if not found:
        return
    yield f"\n## {part}\n"
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for line in found:
        yield "| " + " | ".join(cell(line.get(column, "")) for column in columns) + " |"


def markdown(lines, summary=()):
    parts = []
    for line in lines:
        if line["part"] not in parts:
            parts.append(line["part"])
    body = [text for part in parts for text in rows(lines, part)]
    head = ["# Check on a GPU", "", "Written by `tools/gpu_check`.", ""]
    return "\n".join(head + [f"- {line}" for line in summary if line and line != "== summary"] + body) + "\n"
