"""A runtime for MLServer that runs ONNX files in ONNX Runtime: a peer of bench/serve.py."""
import os

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class OnnxModel(MLModel):
    async def load(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("SERVE_THREADS", "1"))  # the workers share the cores
        options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(self.settings.parameters.uri, options,
                                                    providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload):
        feeds = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        wanted = [output.name for output in payload.outputs or []] or None
        names = wanted or [output.name for output in self.session.get_outputs()]
        arrays = self.session.run(wanted, feeds)
        outputs = [NumpyCodec.encode_output(name, array) for name, array in zip(names, arrays)]
        return InferenceResponse(model_name=self.name, outputs=outputs)
