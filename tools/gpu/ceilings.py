# What no machine does: rates above the ceilings that the same call measured. Such a figure is an error of the check.
NOISE = 1.15  # base::kCeilingNoise: how far a rate and its ceiling, measured at different moments, may stray
BYTES = ("gbytes_s", "decode_gbytes_s")
FLOPS = {"tflop_s": 1.0, "prefill_tflop_s": 1.0, "gflop_per_s": 1e-3}  # and how many TFLOP/s one of them is


def product_of(ceilings, precision):
    """TFLOP/s that products of a precision reach; 8-bit floats at most twice those of 16 bits. 0: not measured."""
    if precision == "fp8":
        return 2 * ceilings.get("product_bf16_tflop_s", 0)
    return ceilings.get(f"product_{precision}_tflop_s", 0)


def passed(what, value, limit):
    return f"{what} {value:.4g} is above the {limit:.4g} that was measured" if limit and value > NOISE * limit else ""


def impossible(line, ceilings):
    """Why figures of a line cannot be, a text each. `ceilings` is the line of the part of that name, or {}."""
    if line["part"] == "ceilings":
        return []
    found = [f"{key.removesuffix('_refused')}: {text}" for key, text in line.items()
             if key.endswith("_refused") and text]
    if line["part"] == "speed":  # operands of all sizes and types: the program holds them against its ceilings
        op, is_float8 = line.get("op", ""), line.get("op", "").startswith("float8_product")
        if is_float8:  # for which it has none
            found.append(passed(op, line.get("tflop_s") or 0, product_of(ceilings, "fp8")))
        elif line.get("seconds") and line.get("percent", 0) is None:
            found.append(f"{op} is above its ceilings")
        return [text for text in found if text]
    for key in BYTES:
        if line.get(key):
            found.append(passed(key, line[key], ceilings.get("copy_gbytes_s", 0)))
    product = product_of(ceilings, line.get("precision", "bf16"))
    for key, scale in FLOPS.items():
        if line.get(key):
            found.append(passed(key, line[key] * scale, product))
    return [text for text in found if text]
