"""What an engineer writes in place of a batch job: `batch_peer.py HOW TASK SETTINGS`, run by bench/batch.py.

HOW is `arrow` (PyArrow and ONNX Runtime in one process, a thread that reads ahead) or `ray` (Ray Data, one actor with
ONNX Runtime). TASK is `texts` (Parquet of texts to embeddings) or `pictures` (WebDataset shards of JPEG files to
classes). SETTINGS is JSON: inputs, output, model, threads, batch, window; of texts tokenizer, longest and result, of
pictures the side that they are resized to. Both tokenize or decode as the model's own front does, put rows of like
length into one batch within a window, and write Parquet. Prints one JSON line: the rows, the seconds from the first
read to the end of the last write, and the seconds until all was imported and open.
"""
import collections
import io
import json
import pathlib
import queue
import sys
import tarfile
import threading
import time

import numpy
import onnxruntime
import pyarrow
import pyarrow.parquet


def open_session(settings):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings["threads"]
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(settings["model"], options, providers=["CPUExecutionProvider"])


class Texts:
    """Texts to embeddings, those of like length together."""

    def __init__(self, settings):
        import tokenizers
        self.session, self.batch = open_session(settings), settings["batch"]
        self.tokenizer = tokenizers.Tokenizer.from_file(settings["tokenizer"])
        self.tokenizer.enable_truncation(settings["longest"])
        self.tokenizer.no_padding()
        self.output = settings["result"]

    def __call__(self, rows):
        encodings = self.tokenizer.encode_batch(list(rows["text"]))
        order = sorted(range(len(encodings)), key=lambda i: len(encodings[i].ids))
        vectors = None
        for begin in range(0, len(order), self.batch):
            places = order[begin:begin + self.batch]
            length = len(encodings[places[-1]].ids)
            ids = numpy.zeros((len(places), length), numpy.int64)
            mask = numpy.zeros_like(ids)
            for row, place in enumerate(places):
                tokens = encodings[place].ids
                ids[row, :len(tokens)] = tokens
                mask[row, :len(tokens)] = 1
            (found,) = self.session.run([self.output], {"input_ids": ids, "attention_mask": mask})
            if vectors is None:
                vectors = numpy.empty((len(order), found.shape[1]), numpy.float32)
            vectors[places] = found
        return {"embedding": vectors}


class Pictures:
    """JPEG files to the likeliest class."""

    MEAN = numpy.array([0.485, 0.456, 0.406], numpy.float32)
    DEVIATION = numpy.array([0.229, 0.224, 0.225], numpy.float32)

    def __init__(self, settings):
        self.session, self.batch, self.side = open_session(settings), settings["batch"], settings["side"]
        self.name = self.session.get_inputs()[0].name

    def pixels(self, file):
        from PIL import Image
        image = Image.open(io.BytesIO(file)).convert("RGB").resize((self.side, self.side), Image.BILINEAR)
        values = (numpy.asarray(image, numpy.float32) / 255 - self.MEAN) / self.DEVIATION
        return values.transpose(2, 0, 1)

    def __call__(self, rows):
        files, labels = rows["jpg"], []
        for begin in range(0, len(files), self.batch):
            x = numpy.stack([self.pixels(file) for file in files[begin:begin + self.batch]]).astype(numpy.float32)
            (logits,) = self.session.run(None, {self.name: x})
            labels.extend(logits.argmax(1).tolist())
        return {"label": numpy.array(labels, numpy.int64)}


def read_texts(paths, window):
    for path in paths:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(window, columns=["text"]):
            yield {"text": batch.column(0).to_pylist()}


def read_pictures(paths, window):
    files = []
    for path in paths:
        with tarfile.open(path) as archive:
            for member in archive:
                files.append(archive.extractfile(member).read())
                if len(files) == window:
                    yield {"jpg": files}
                    files = []
    if files:
        yield {"jpg": files}


def ahead(rows):
    """The same rows, read by a thread while those before them are at work."""
    waiting = queue.Queue(4)

    def read():
        for one in rows:
            waiting.put(one)
        waiting.put(None)
    threading.Thread(target=read, daemon=True).start()
    while (one := waiting.get()) is not None:
        yield one


def with_arrow(task, settings):
    work = {"texts": Texts, "pictures": Pictures}[task](settings)
    read = {"texts": read_texts, "pictures": read_pictures}[task]
    begin, rows, writer = time.monotonic(), 0, None
    for one in ahead(read(settings["inputs"], settings["window"])):
        columns = {}
        for name, values in work(one).items():
            flat = pyarrow.array(values.reshape(-1))
            columns[name] = flat if values.ndim == 1 else pyarrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
        table = pyarrow.table(columns)
        writer = writer or pyarrow.parquet.ParquetWriter(settings["output"], table.schema)
        writer.write_table(table)
        rows += table.num_rows
    writer.close()
    return rows, begin


def with_ray(task, settings):
    import ray
    ray.init(num_cpus=settings["threads"], include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    work = {"texts": Texts, "pictures": Pictures}[task]
    begin = time.monotonic()
    read = {"texts": lambda: ray.data.read_parquet(settings["inputs"], columns=["text"]),
            "pictures": lambda: ray.data.read_webdataset(settings["inputs"], decoder=None)}[task]()
    # One actor that has the processors, as the model has in the other pipelines.
    found = read.map_batches(work, fn_constructor_args=(settings,), batch_size=settings["window"], concurrency=1,
                             num_cpus=1)
    found.write_parquet(settings["output"])
    written = pathlib.Path(settings["output"]).glob("*.parquet")
    rows = sum(pyarrow.parquet.ParquetFile(path).metadata.num_rows for path in written)
    return rows, begin


def main():
    how, task, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    started = time.monotonic()
    rows, begin = {"arrow": with_arrow, "ray": with_ray}[how](task, settings)
    facts = collections.OrderedDict(rows=rows, seconds=time.monotonic() - begin, open_seconds=begin - started)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
