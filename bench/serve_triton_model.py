"""ONNX Runtime in Triton's Python backend: the PyPI wheel of Triton brings no ONNX backend. A peer of bench/serve.py."""
import json
import os

import numpy
import onnxruntime
import triton_python_backend_utils as backend


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.inputs = [value["name"] for value in config["input"]]
        self.outputs = [value["name"] for value in config["output"]]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("SERVE_THREADS", "1"))  # the instances share the cores
        options.inter_op_num_threads = 1
        path = config["parameters"]["file"]["string_value"]
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        """Requests that were batched run as one."""
        given = [[backend.get_input_tensor_by_name(request, n).as_numpy() for n in self.inputs] for request in requests]
        feeds = {n: numpy.concatenate([arrays[i] for arrays in given]) if len(given) > 1 else given[0][i]
                 for i, n in enumerate(self.inputs)}
        results, responses, at = self.session.run(self.outputs, feeds), [], 0
        for arrays in given:
            rows = slice(at, at + len(arrays[0]))
            at = rows.stop
            tensors = [backend.Tensor(name, array[rows]) for name, array in zip(self.outputs, results)]
            responses.append(backend.InferenceResponse(tensors))
        return responses
