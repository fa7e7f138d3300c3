"""Networks that `./dev bench train` trains from ONNX files: `train_networks.py NAME EXPORTER BATCH FOLDER`.

Writes FOLDER/model.onnx with the weights before the first step, FOLDER/feeds/<input>.npy and labels.npy, and
FOLDER/task.json: optimizer, learning rate, and the buffers in the file, which no optimizer changes. The networks are
those of bench/zoo_networks.py, exported as they are trained: batch norms stay nodes, weights stay as they are stored.
Dropout is off on both sides: the masks would differ.
"""
import json
import os
import pathlib
import sys

import zoo_networks
from zoo_networks import SEED, clip, image, sound, tensors_of, text

SGD = {"optimizer": "sgd", "lr": 0.01, "momentum": 0.9}
ADAMW = {"optimizer": "adamw", "lr": 1e-4}


class Task:
    """A network, how many samples a step takes, its update. `classes_at`: the axis of its logits' classes."""

    def __init__(self, network, batch, update, classes_at=-1):
        self.network, self.batch, self.update, self.classes_at = network, batch, update, classes_at

    @property
    def is_convolutional(self):
        """Whether the network may run channels-last."""
        return self.network.family in ("classification", "segmentation", "video")

    def module(self):
        """The network with its first weights; forward(*inputs) -> logits [rows..., classes]."""
        import torch
        torch.manual_seed(SEED)
        return logits_of(without_dropout(self.network.build()), list(self.network.inputs(1)), self.classes_at)


def without_dropout(module):
    """Sets every probability of dropping something to 0."""
    import torch
    holders = list(module.modules())
    holders += [m.config for m in holders if hasattr(m, "config")]
    for holder in holders:
        if isinstance(holder, torch.nn.modules.dropout._DropoutNd) or type(holder).__name__ == "StochasticDepth":
            holder.p = 0.0
        for name, value in list(vars(holder).items()):
            if "drop" in name and isinstance(value, float):
                setattr(holder, name, 0.0)
    return module


def logits_of(module, names, classes_at):
    import torch

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, *values):
            result = module_result(self.module, names, values)
            return tensors_of(result)[0].movedim(classes_at, -1)

    return Logits()


def module_result(module, names, values):
    # Positional where the module names its arguments otherwise: images and sounds.
    return module(**dict(zip(names, values))) if "input_ids" in names else module(*values)


def tasks():
    """Every task by name."""
    make = zoo_networks.transformers_model
    zoo = zoo_networks.networks()
    few = {"num_hidden_layers": 4}
    vision = {name: Task(zoo[name], batch, SGD) for name, batch in {
        "mobilenet_v3_large": 16, "efficientnet_b0": 8, "resnext50_32x4d": 8, "densenet121": 8,
        "shufflenet_v2_x1_0": 32}.items()}
    vision["regnet_y_400mf"] = Task(zoo_networks.vision("regnet_y_400mf"), 16, SGD)
    for name in ("convnext_tiny", "swin_t", "vit_b_16"):
        vision[name] = Task(zoo[name], 4, ADAMW)
    vision["lraspp"] = Task(zoo_networks.vision("lraspp_mobilenet_v3_large", "segmentation", image(256)), 8, SGD, 1)
    vision["r3d_18"] = Task(zoo_networks.vision("r3d_18", "video", clip()), 4, SGD)
    return vision | {
        "wav2vec2": Task(make("Wav2Vec2ForCTC", "Wav2Vec2Config", "audio", sound(), num_hidden_layers=3,
                              apply_spec_augment=False), 4, ADAMW),
        "bert_mlm": Task(make("BertForMaskedLM", "BertConfig", "encoder", text(), **few), 4, ADAMW),
        "distilbert": Task(make("DistilBertForSequenceClassification", "DistilBertConfig", "encoder", text(),
                                n_layers=4), 8, ADAMW),
        "roberta": Task(make("RobertaForSequenceClassification", "RobertaConfig", "encoder", text(), **few,
                             vocab_size=50265, max_position_embeddings=514), 8, ADAMW),
        "gpt2_lm": Task(zoo["gpt2"], 4, ADAMW),
        "llama": Task(zoo["llama"], 4, ADAMW)}


def export_file(module, feeds, exporter, path):
    """The module as it is trained. In training mode the exporter of TorchScript leaves batch norms unfolded, and weights
    that happen to begin alike apart."""
    import torch
    options = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
    if exporter == "dynamo":
        options = {"optimize": False}
    with torch.no_grad():
        torch.onnx.export(module, tuple(feeds.values()), str(path), input_names=list(feeds),
                          dynamo=exporter == "dynamo", external_data=True, **options)


def buffers_in(path, module):
    """Names of the file's initializers that are no parameters of the module."""
    import onnx
    trained = {name for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    graph = onnx.load(path, load_external_data=False).graph
    found = [t.name for t in graph.initializer if t.name not in trained and t.data_type == onnx.TensorProto.FLOAT]
    wrong = [(name, p) for name in found for p in trained if name in p]
    if wrong:
        raise ValueError(f"a buffer's name is part of a parameter's: {wrong[0]}")
    return found


def export(task, exporter, batch, folder):
    import numpy
    import onnx
    import torch
    module = task.module().train(exporter == "script")
    feeds = task.network.inputs(batch)
    (folder / "feeds").mkdir(parents=True, exist_ok=True)
    export_file(module, feeds, exporter, folder / "model.onnx")
    with torch.no_grad():
        logits = module.eval()(*feeds.values())
    labels = torch.randint(logits.shape[-1], logits.shape[:-1])
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    kept = {value.name for value in graph.input}
    for name, value in feeds.items():
        if name in kept:  # an exporter leaves out inputs that the result does not hang on
            numpy.save(folder / "feeds" / f"{name}.npy", value.numpy())
    numpy.savez(folder / "inputs.npz", **{name: value.numpy() for name, value in feeds.items()})
    numpy.save(folder / "labels.npy", labels.numpy())
    facts = task.update | {"frozen": buffers_in(folder / "model.onnx", module)}
    (folder / "task.json").write_text(json.dumps(facts), encoding="utf-8")


def main():
    name, exporter, batch, folder = sys.argv[1:5]
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    export(tasks()[name], exporter, int(batch), pathlib.Path(folder))


if __name__ == "__main__":
    main()
