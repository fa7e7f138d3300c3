"""Rows of kGolden in src/tensor/blocks/block_format_test.cc: hashes of what the package gguf makes of bytes and of numbers
that formulas give. Needs gguf==0.19.0 and numpy; prints the rows."""
import warnings

import gguf
import numpy

BLOCKS = 512
FORMATS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4")


def fnv(data):
    """64-bit FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def made_bytes(count):
    i = numpy.arange(count, dtype=numpy.uint64)
    return ((i * i * 31 + i // 7 * 5 + 3 * i + 1) % 256).astype(numpy.uint8)


def made_numbers(count):
    i = numpy.arange(count, dtype=numpy.uint64)
    bits = ((i * 2654435761 + 12345) % 2**32).astype(numpy.uint32).view(numpy.int32)
    return bits.astype(numpy.float32) * numpy.float32(2.0**-31) * numpy.float32(0.1)


def main():
    warnings.simplefilter("ignore")
    for name in FORMATS:
        kind = gguf.GGMLQuantizationType[name.replace("_k", "_K").upper()]
        weights, size = gguf.GGML_QUANT_SIZES[kind]
        values = gguf.dequantize(made_bytes(BLOCKS * size).reshape(BLOCKS, size), kind).astype(numpy.float32).ravel()
        bits = values.view(numpy.uint32).copy()
        bits[numpy.isnan(values)] = 0x7FC00000
        try:
            encoded = fnv(gguf.quantize(made_numbers(BLOCKS * weights).reshape(BLOCKS, weights), kind).tobytes())
        except NotImplementedError:
            encoded = 0
        print(f'    {{"{name}", 0x{fnv(bits.tobytes()):016x}u, 0x{encoded:x}u}},')


if __name__ == "__main__":
    main()
