# Checkpoints written by hand, as somebody who wants to harm their reader would: every checksum fits.
import json


def crc32c(content):
    value = 0xFFFFFFFF
    for byte in content:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return f"{value ^ 0xFFFFFFFF:08x}"


def tensor(name, dtype, shape, content, file="data"):
    """An entry of the index, in one chunk."""
    return {"name": name, "dtype": dtype, "shape": shape,
            "chunks": [{"offset": [0] * len(shape), "size": shape, "file": file, "byte_offset": 0,
                        "bytes": len(content), "crc32c": crc32c(content)}]}


def write_checkpoint(directory, tensors, source="zoo:mlp", content=b""):
    """A directory with an index over a file `data`, trained, it says, from `source`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "data").write_bytes(content)
    index = {"format": "trireme-checkpoint", "version": 1, "step": 5,
             "meta": {"config": {"model": {"source": source}, "run": {"seed": 0}}}, "tensors": tensors}
    compact = json.dumps(index, separators=(",", ":"), ensure_ascii=False)
    index["index_crc32c"] = crc32c(compact.encode())
    (directory / "index.json").write_text(json.dumps(index, ensure_ascii=False))
    return directory
