# Quantized checkpoints as AutoAWQ, GPTQModel, compressed-tensors and DeepSeek's 8-bit floats lay them out: packed and
# unpacked by NumPy alone, after the published layouts.
import json
from pathlib import Path

import ml_dtypes
import numpy as np

DTYPES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(ml_dtypes.bfloat16): "BF16",
          np.dtype(np.int32): "I32", np.dtype(np.int64): "I64", np.dtype(np.int8): "I8", np.dtype(np.uint8): "U8",
          np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3"}
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble i of a word holds column 8 j + AWQ_ORDER[i]


def write_safetensors(path, tensors):
    header, blobs, at = {}, [], 0
    for name, t in sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize):
        data = np.ascontiguousarray(t).tobytes()
        header[name] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(data)]}
        blobs.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def read_safetensors(path):
    data = Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    types = {name: dtype for dtype, name in DTYPES.items()}
    out = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            out[name] = np.frombuffer(data[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
    return out


def write_model(directory, config, tensors):
    Path(directory).mkdir(parents=True)
    (Path(directory) / "config.json").write_text(json.dumps(config))
    write_safetensors(Path(directory) / "model.safetensors", tensors)


def words(codes, bits):
    """Codes from 0 on, along the last axis, lowest bits first: int32 words."""
    each = 32 // bits
    padded = np.zeros((*codes.shape[:-1], -(-codes.shape[-1] // each) * each), np.uint32)
    padded[..., :codes.shape[-1]] = codes
    shifts = np.arange(each, dtype=np.uint32) * np.uint32(bits)
    return (padded.reshape(*padded.shape[:-1], -1, each) << shifts).sum(-1, dtype=np.uint32).view(np.int32)


class Rounded:
    """w [n, k] to codes from 0 on, scales and zero points [n, groups]; columns may lie in any order of groups."""

    def __init__(self, w, bits, group, has_zeros, scale_type=np.float16, columns=None):
        self.n, self.k = w.shape
        self.bits, self.group = bits, group or self.k
        self.columns = np.arange(self.k) if columns is None else columns  # of the s-th place of the groups
        sorted_w = w[:, self.columns].reshape(self.n, -1, self.group)
        top = 2 ** bits - 1
        if has_zeros:
            low, high = np.minimum(sorted_w.min(-1), 0), np.maximum(sorted_w.max(-1), 0)
            self.scale = ((high - low) / top).astype(scale_type)
            scale = self.scale.astype(np.float32)
            self.zero = np.clip(np.rint(-low / scale), 0, top).astype(np.int64)
        else:
            self.scale = (np.abs(sorted_w).max(-1) / (2 ** (bits - 1) - 1)).astype(scale_type)
            scale = self.scale.astype(np.float32)
            self.zero = np.full(scale.shape, 2 ** (bits - 1))
        codes = np.clip(np.rint(sorted_w / scale[..., None]) + self.zero[..., None], 0, top).astype(np.int64)
        real = (codes - self.zero[..., None]).astype(np.float32) * scale[..., None]
        self.codes, self.real = np.empty(w.shape, np.int64), np.empty(w.shape, np.float32)
        self.codes[:, self.columns] = codes.reshape(self.n, self.k)
        self.real[:, self.columns] = real.reshape(self.n, self.k)

    def group_of_column(self):
        of = np.empty(self.k, np.int32)
        of[self.columns] = np.arange(self.k) // self.group
        return of


def awq(w, group):
    """AutoAWQ's `gemm`: words along the rows of the transpose, eight columns interleaved."""
    r = Rounded(w, 4, group, True)

    def interleaved(codes):  # [rows, n] of the transpose
        return words(codes.reshape(codes.shape[0], -1, 8)[..., AWQ_ORDER].reshape(codes.shape), 4)

    return {"qweight": interleaved(r.codes.T), "qzeros": interleaved(r.zero.T),
            "scales": np.ascontiguousarray(r.scale.T)}, r.real


def gptq(w, bits, group, has_zeros=False, columns=None, v2=False, has_index=True):
    """GPTQ: words along the columns of the transpose; version 1 stores zero points less one."""
    r = Rounded(w, bits, group, has_zeros, columns=columns)
    if not v2:
        r.zero = np.maximum(r.zero, 1)  # what version 1 can say
        real = (r.codes[:, r.columns].reshape(r.n, -1, r.group) - r.zero[..., None]).astype(np.float32)
        r.real[:, r.columns] = (real * r.scale.astype(np.float32)[..., None]).reshape(r.n, r.k)
    tensors = {"qweight": np.ascontiguousarray(words(r.codes, bits).T),
               "qzeros": words(r.zero.T - (0 if v2 else 1), bits), "scales": np.ascontiguousarray(r.scale.T)}
    if has_index:
        tensors["g_idx"] = r.group_of_column()
    return tensors, r.real


def packed(w, bits, group, has_zeros=False, columns=None, scale_type=ml_dtypes.bfloat16):
    """compressed-tensors `pack-quantized`: words along the rows; zero points packed down the rows."""
    r = Rounded(w, bits, group, has_zeros, scale_type, columns)
    tensors = {"weight_packed": words(r.codes, bits), "weight_scale": r.scale,
               "weight_shape": np.array(w.shape, np.int64)}
    if has_zeros:
        tensors["weight_zero_point"] = np.ascontiguousarray(words(r.zero.T, bits).T)
    if columns is not None:
        tensors["weight_g_idx"] = r.group_of_column()
    return tensors, r.real


def as_bytes(w, group=None, has_zeros=False):
    """compressed-tensors `int-quantized`: signed bytes."""
    r = Rounded(w, 8, group, has_zeros, np.float32)
    tensors = {"weight": (r.codes - 128).astype(np.int8), "weight_scale": r.scale}
    if has_zeros:
        tensors["weight_zero_point"] = (r.zero - 128).astype(np.int8)
    return tensors, r.real


def float8(w, rows, columns, name="weight_scale", scale_type=np.float32):
    """8-bit floats with a scale for blocks of so many rows and columns."""
    n, k = w.shape
    padded = np.zeros((-(-n // rows) * rows, -(-k // columns) * columns), np.float32)
    padded[:n, :k] = w
    blocks = padded.reshape(padded.shape[0] // rows, rows, -1, columns)
    scale = (np.abs(blocks).max((1, 3)) / 448).astype(scale_type)
    wide = np.repeat(np.repeat(scale.astype(np.float32), rows, 0), columns, 1)[:n, :k]
    codes = np.clip(w / wide, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    if (rows, columns) == (n, k):
        scale = scale.reshape(1)
    return {"weight": codes, name: scale}, codes.astype(np.float32) * wide
