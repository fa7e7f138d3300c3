"""KServe's inference routes on FastAPI with a session of ONNX Runtime or OpenVINO, as one would write it by hand.

A peer of bench/serve.py, run by uvicorn with a worker for each core, uvloop, httptools and orjson. SERVE_MODELS names
a JSON file {model: file}; SERVE_ENGINE is onnxruntime or openvino. JSON and the binary extension, both ways.
"""
import json
import os

import numpy
import orjson
from fastapi import FastAPI, Request, Response

THREADS = int(os.environ.get("SERVE_THREADS", "1"))  # of a worker: the workers share the cores
TYPES = {"FP32": numpy.float32, "INT64": numpy.int64}
NAMES = {numpy.dtype(v): k for k, v in TYPES.items()}


def onnx_runtime(path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run


def openvino(path):
    import openvino as ov

    config = {"INFERENCE_NUM_THREADS": THREADS, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
              "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(path, "CPU", config).create_infer_request()

    def run(outputs, feeds):
        results = request.infer(feeds, share_inputs=True)
        return [results[name] for name in outputs]

    return run


load = {"onnxruntime": onnx_runtime, "openvino": openvino}[os.environ["SERVE_ENGINE"]]
with open(os.environ["SERVE_MODELS"], encoding="utf-8") as listed:
    sessions = {name: load(path) for name, path in json.load(listed).items()}
app = FastAPI()


def feeds_of(document, blob):
    feeds, at = {}, 0
    for tensor in document["inputs"]:
        kind, size = TYPES[tensor["datatype"]], tensor.get("parameters", {}).get("binary_data_size")
        if size is None:
            array = numpy.array(tensor["data"], kind)
        else:
            array = numpy.frombuffer(blob, kind, size // numpy.dtype(kind).itemsize, at)
            at += size
        feeds[tensor["name"]] = array.reshape(tensor["shape"])
    return feeds


@app.get("/v2/models/{name}/ready")
async def ready(name: str):
    return Response(status_code=200 if name in sessions else 404)


@app.post("/v2/models/{name}/infer")
async def infer(name: str, request: Request):
    body = await request.body()
    length = int(request.headers.get("inference-header-content-length", len(body)))
    document = orjson.loads(body[:length])
    wanted = [output["name"] for output in document["outputs"]]
    arrays = sessions[name](wanted, feeds_of(document, memoryview(body)[length:]))
    is_binary = document["outputs"][0].get("parameters", {}).get("binary_data", False)
    outputs, blobs = [], []
    for key, array in zip(wanted, arrays):
        output = {"name": key, "datatype": NAMES[array.dtype], "shape": list(array.shape)}
        if is_binary:
            blobs.append(array.tobytes())
            output["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            output["data"] = array.reshape(-1)
        outputs.append(output)
    answer = {"model_name": name, "model_version": "1", "outputs": outputs}
    head = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    if not is_binary:
        return Response(head, media_type="application/json")
    return Response(head + b"".join(blobs), media_type="application/octet-stream",
                    headers={"Inference-Header-Content-Length": str(len(head))})
