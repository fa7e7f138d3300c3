"""ONNX Runtime in Triton's Python backend: the PyPI wheel of Triton brings no ONNX backend. A peer of bench/serve.py."""
import json

import onnxruntime
import triton_python_backend_utils as backend


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.inputs = [value["name"] for value in config["input"]]
        self.outputs = [value["name"] for value in config["output"]]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the instances share the cores
        options.inter_op_num_threads = 1
        path = config["parameters"]["file"]["string_value"]
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        responses = []
        for request in requests:
            feeds = {n: backend.get_input_tensor_by_name(request, n).as_numpy() for n in self.inputs}
            arrays = self.session.run(self.outputs, feeds)
            tensors = [backend.Tensor(name, array) for name, array in zip(self.outputs, arrays)]
            responses.append(backend.InferenceResponse(tensors))
        return responses
