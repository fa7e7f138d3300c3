"""A network of out/bench/zoo in 8 bits, as ONNX Runtime's quantizer writes it: `quantize_network.py FOLDER FORM OUT`.

FORM is ACTIVATIONS-WEIGHTS[-operators]: u8 or s8, channel or tensor (one scale per output channel, or one), and QDQ
pairs unless operators (QLinearConv and the like). FOLDER holds model.onnx and feeds/<input>.npy; the calibration runs
on those feeds and on shifted ones. Writes OUT/model.onnx and OUT/feeds.
"""
import pathlib
import shutil
import sys

CALIBRATIONS = 3


def readings(feeds):
    """The feeds themselves, then floats of other signs and sizes: every layer sees its range."""
    import numpy
    random = numpy.random.default_rng(1)
    for i in range(CALIBRATIONS):
        yield {name: value if i == 0 or value.dtype.kind != "f" else
               (random.standard_normal(value.shape) * value.std()).astype(value.dtype) for name, value in feeds.items()}


def main():
    import numpy
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process
    folder, form, out = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    activations, weights, *operators = form.split("-")
    out.mkdir(parents=True, exist_ok=True)
    feeds = {path.stem: numpy.load(path) for path in (folder / "feeds").glob("*.npy")}

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self.left = readings(feeds)

        def get_next(self):
            return next(self.left, None)

    prepared = out / "prepared.onnx"
    quant_pre_process(str(folder / "model.onnx"), str(prepared), skip_symbolic_shape=True)
    kind = {"u8": quantization.QuantType.QUInt8, "s8": quantization.QuantType.QInt8}[activations]
    quantization.quantize_static(
        str(prepared), str(out / "model.onnx"), Reader(), per_channel=weights == "channel", activation_type=kind,
        weight_type=quantization.QuantType.QInt8,
        quant_format=quantization.QuantFormat.QOperator if operators else quantization.QuantFormat.QDQ)
    prepared.unlink()
    shutil.copytree(folder / "feeds", out / "feeds", dirs_exist_ok=True)


if __name__ == "__main__":
    main()
