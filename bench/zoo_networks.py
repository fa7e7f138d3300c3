"""Networks of the wide benchmark, as PyTorch exports them: `zoo_networks.py NAME EXPORTER BATCH FOLDER`.

Writes FOLDER/model.onnx (weights beside it where they are large) and FOLDER/feeds/<input>.npy. Weights are random, by a
fixed seed: speed does not depend on them, and nothing is fetched. Deep stacks of equal layers are shortened to a few
layers; widths, heads and images are those of the published networks. Exporters: dynamo (torch.export) and script
(TorchScript), each at the operator set that it chooses by itself.
"""
import inspect
import os
import pathlib
import sys

SEED = 1
TOKENS = 128


class Network:
    """How a network is made: `build()` a module, `inputs(batch)` its arguments by name, in order."""

    def __init__(self, family, build, inputs):
        self.family, self.build, self.inputs = family, build, inputs


def torchvision_model(name, **options):
    import torchvision
    options |= {} if name in ("googlenet", "inception_v3") else {"weights_backbone": None}
    build = torchvision.models.get_model_builder(name)
    known = inspect.signature(build).parameters
    extra = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    return build(weights=None, **{k: v for k, v in options.items() if k in known}, **extra)


def image(size=224):
    def inputs(batch):
        import torch
        return {"pixels": torch.randn(batch, 3, size, size)}
    return inputs


def clip(frames=8, size=112):
    def inputs(batch):
        import torch
        return {"frames": torch.randn(batch, 3, frames, size, size)}
    return inputs


def text(vocabulary=30000, tokens=TOKENS):
    def inputs(batch):
        import torch
        return {"input_ids": torch.randint(5, vocabulary, (batch, tokens)),
                "attention_mask": torch.ones(batch, tokens, dtype=torch.int64)}
    return inputs


def sound(samples=16000):
    def inputs(batch):
        import torch
        return {"input_values": torch.randn(batch, samples)}
    return inputs


def spectrum(name, rows, columns):
    def inputs(batch):
        import torch
        return {name: torch.randn(batch, rows, columns)}
    return inputs


def image_and_text(size, vocabulary, tokens):
    def inputs(batch):
        return {"input_ids": text(vocabulary, tokens)(batch)["input_ids"],
                "pixel_values": image(size)(batch)["pixels"],
                "attention_mask": text(vocabulary, tokens)(batch)["attention_mask"]}
    return inputs


def vision(name, family="classification", inputs=None):
    return Network(family, lambda: torchvision_model(name), inputs or image())


def detector(name, size):
    """Backbone and heads: boxes that non-maximum suppression keeps hang on the last bit of scores."""
    def build():
        import torch

        class Heads(torch.nn.Module):
            def __init__(self, whole):
                super().__init__()
                self.backbone, self.head = whole.backbone, whole.head

            def forward(self, pixels):
                return self.head(list(self.backbone(pixels).values()))

        return Heads(torchvision_model(name))
    return Network("detection", build, image(size))


def transformers_model(kind, config, family, inputs, part=None, **fields):
    """A model of Transformers by the names of its class and configuration; `part` of it where it has several."""
    def build():
        import transformers
        made = getattr(transformers, config)(**fields)
        if hasattr(made, "use_cache"):
            made.use_cache = False
        model = getattr(transformers, kind)(made)
        return getattr(model, part) if part else model
    return Network(family, build, inputs)


def networks():
    """Every network by name."""
    found = {name: vision(name) for name in (
        "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "regnet_x_800mf", "regnet_y_1_6gf", "densenet121",
        "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "efficientnet_b0", "efficientnet_v2_s",
        "mnasnet1_0", "shufflenet_v2_x1_0", "squeezenet1_1", "googlenet", "alexnet", "vgg11_bn", "convnext_tiny",
        "vit_b_16", "swin_t", "swin_v2_t", "maxvit_t")}
    found["inception_v3"] = vision("inception_v3", inputs=image(299))
    for name in ("deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large"):
        found[name] = vision(name, "segmentation", image(256))
    found["ssdlite320_mobilenet_v3_large"] = detector("ssdlite320_mobilenet_v3_large", 320)
    found["ssd300_vgg16"] = detector("ssd300_vgg16", 300)
    found["retinanet_resnet50_fpn"] = detector("retinanet_resnet50_fpn", 320)
    for name in ("r3d_18", "mc3_18", "r2plus1d_18"):
        found[name] = vision(name, "video", clip())
    found["s3d"] = vision("s3d", "video", clip(16, 224))
    found["swin3d_t"] = vision("swin3d_t", "video", clip(8, 112))
    return found | encoders() | decoders() | vision_transformers() | audio() | multi_modal()


def encoders():
    few = {"num_hidden_layers": 4}
    make = transformers_model
    return {
        "bert_base": make("BertModel", "BertConfig", "encoder", text(), **few),
        "roberta_base": make("RobertaModel", "RobertaConfig", "encoder", text(), **few, vocab_size=50265,
                             max_position_embeddings=514),
        "distilbert": make("DistilBertModel", "DistilBertConfig", "encoder", text(), n_layers=4),
        "albert_base": make("AlbertModel", "AlbertConfig", "encoder", text(), hidden_size=768,
                            intermediate_size=3072, num_attention_heads=12, **few),
        "electra_small": make("ElectraModel", "ElectraConfig", "encoder", text(), num_hidden_layers=12),
        "mpnet": make("MPNetModel", "MPNetConfig", "encoder", text(), **few),
        "deberta_v2": make("DebertaV2Model", "DebertaV2Config", "encoder", text(), hidden_size=768,
                           intermediate_size=3072, num_attention_heads=12, relative_attention=True,
                           pos_att_type=["c2p", "p2c"], position_buckets=256, max_relative_positions=-1,
                           norm_rel_ebd="layer_norm", share_att_key=True, **few),
        "mobilebert": make("MobileBertModel", "MobileBertConfig", "encoder", text(), num_hidden_layers=12),
        "modernbert": make("ModernBertModel", "ModernBertConfig", "encoder", text(), num_hidden_layers=6),
        "t5_encoder": make("T5EncoderModel", "T5Config", "encoder", text(), num_layers=6),
        "xlm_roberta": make("XLMRobertaModel", "XLMRobertaConfig", "encoder", text(), vocab_size=50000,
                            max_position_embeddings=514, **few),
    }


def decoders():
    make, few = transformers_model, {"num_hidden_layers": 3}
    return {
        "gpt2": make("GPT2LMHeadModel", "GPT2Config", "decoder", text(), n_layer=4),
        "opt_125m": make("OPTForCausalLM", "OPTConfig", "decoder", text(), **few),
        "gpt_neox": make("GPTNeoXForCausalLM", "GPTNeoXConfig", "decoder", text(), hidden_size=1024,
                         intermediate_size=4096, num_attention_heads=16, **few),
        "llama": make("LlamaForCausalLM", "LlamaConfig", "decoder", text(), hidden_size=1024,
                      intermediate_size=2816, num_attention_heads=16, num_key_value_heads=4, **few),
        "qwen2": make("Qwen2ForCausalLM", "Qwen2Config", "decoder", text(), hidden_size=896,
                      intermediate_size=4864, num_attention_heads=14, num_key_value_heads=2, vocab_size=50000, **few),
        "gemma": make("GemmaForCausalLM", "GemmaConfig", "decoder", text(), hidden_size=1024,
                      intermediate_size=4096, num_attention_heads=8, num_key_value_heads=1, head_dim=128,
                      vocab_size=50000, **few),
        "bloom": make("BloomForCausalLM", "BloomConfig", "decoder", text(), hidden_size=1024, n_head=16, n_layer=3,
                      vocab_size=50000),
    }


def vision_transformers():
    make, few = transformers_model, {"num_hidden_layers": 4}
    return {
        "hf_vit": make("ViTForImageClassification", "ViTConfig", "vision", image(), **few),
        "deit": make("DeiTForImageClassification", "DeiTConfig", "vision", image(), **few),
        "beit": make("BeitForImageClassification", "BeitConfig", "vision", image(), **few),
        "dinov2": make("Dinov2Model", "Dinov2Config", "vision", image(), **few),
        "segformer_b0": make("SegformerForSemanticSegmentation", "SegformerConfig", "segmentation", image(256)),
        "mobilevit": make("MobileViTForImageClassification", "MobileViTConfig", "vision", image(256)),
        "convnextv2": make("ConvNextV2ForImageClassification", "ConvNextV2Config", "vision", image()),
        "poolformer": make("PoolFormerForImageClassification", "PoolFormerConfig", "vision", image()),
        "levit": make("LevitForImageClassification", "LevitConfig", "vision", image()),
        "pvt_v2": make("PvtV2ForImageClassification", "PvtV2Config", "vision", image()),
        "dpt": make("DPTForDepthEstimation", "DPTConfig", "segmentation", image(384), **few,
                              backbone_out_indices=[0, 1, 2, 3]),
        "yolos": make("YolosForObjectDetection", "YolosConfig", "detection", image(256), **few, image_size=[256, 256]),
    }


def audio():
    make = transformers_model
    return {
        "wav2vec2": make("Wav2Vec2ForCTC", "Wav2Vec2Config", "audio", sound(), num_hidden_layers=3),
        "hubert": make("HubertModel", "HubertConfig", "audio", sound(), num_hidden_layers=3),
        "whisper_encoder": make("WhisperModel", "WhisperConfig", "audio", spectrum("features", 80, 3000),
                                part="encoder", d_model=384, encoder_layers=4, encoder_attention_heads=6,
                                encoder_ffn_dim=1536, decoder_layers=1, decoder_attention_heads=6),
        "ast": make("ASTForAudioClassification", "ASTConfig", "audio", spectrum("values", 512, 128), max_length=512,
                    num_hidden_layers=4),
    }


def multi_modal():
    make = transformers_model
    return {
        "clip_vision": make("CLIPVisionModel", "CLIPVisionConfig", "multi-modal", image(), num_hidden_layers=4),
        "siglip_vision": make("SiglipVisionModel", "SiglipVisionConfig", "multi-modal", image(), num_hidden_layers=4),
        "clip": make("CLIPModel", "CLIPConfig", "multi-modal", image_and_text(224, 40000, 77),
                     text_config={"num_hidden_layers": 3}, vision_config={"num_hidden_layers": 3}),
    }


def tensors_of(result):
    """The tensors of a result, whatever holds them, in order."""
    import torch
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if hasattr(result, "values") else result if isinstance(result, (tuple, list)) else []
    return [t for part in parts for t in tensors_of(part)]


def export(network, exporter, batch, folder):
    import numpy
    import onnx
    import torch

    torch.manual_seed(SEED)
    module = network.build().eval()
    feeds = network.inputs(batch)
    # Positional where the module names its arguments otherwise: images and sounds.
    names = list(feeds)

    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, *values):
            given = dict(zip(names, values)) if "input_ids" in names else {}
            result = self.module(**given) if given else self.module(*values)
            return tuple(tensors_of(result))

    (folder / "feeds").mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        torch.onnx.export(Flat(), tuple(feeds.values()), str(folder / "model.onnx"), input_names=names,
                          dynamo=exporter == "dynamo", external_data=True)
    # An exporter leaves out inputs that the result does not hang on.
    kept = {value.name for value in onnx.load(folder / "model.onnx", load_external_data=False).graph.input}
    for name, value in feeds.items():
        if name in kept:
            numpy.save(folder / "feeds" / f"{name}.npy", value.numpy())



def main():
    name, exporter, batch, folder = sys.argv[1:5]
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    export(networks()[name], exporter, int(batch), pathlib.Path(folder))


if __name__ == "__main__":
    main()
