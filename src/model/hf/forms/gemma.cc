// Gemma 2 (Riviere et al. 2024) and the text models of Gemma 3 (Kamath et al. 2025): norms before and after
// both branches, weights of norms stored less 1, a scaled embedding, windows in some layers.
#include <cmath>

#include "model/hf/forms/forms.h"

namespace trireme::model::hf {
namespace {

Form gemma_form(ConfigReader& in) {
  in.ignore({"hidden_act"});  // hidden_activation is used instead
  Form form{.decoder = read_decoder(in)};
  zoo::DecoderConfig& c = form.decoder;
  c.activation = in.text("hidden_activation", "gelu_pytorch_tanh");
  c.norm = zoo::NormKind::rms_offset;
  c.block = zoo::BlockKind::around;
  c.names.norm_before_mlp = "pre_feedforward_layernorm";
  c.embedding_scale = std::sqrt(static_cast<double>(c.width));
  c.query_scale = 1 / std::sqrt(in.number("query_pre_attn_scalar", 256));
  c.logit_cap = in.number("final_logit_softcapping", 0);
  c.is_tied = in.flag("tie_word_embeddings", true);
  c.has_qkv_bias = c.has_out_bias = in.flag("attention_bias", false);
  in.only("use_bidirectional_attention", false);
  return form;
}

/// Layers with a window use rotary positions of their own, the second kind.
void read_local_rotary(ConfigReader& in, zoo::DecoderConfig& c) {
  zoo::RotarySpec local;
  local.theta = in.number("rope_local_base_freq", 10000);
  c.rotary[0].theta = in.number("rope_theta", 1e6);
  if (const base::Json* both = in.find("rope_parameters")) {
    ConfigReader parts(*both, "rope_parameters.");
    const auto read = [&](const char* key, zoo::RotarySpec& spec) {
      const base::Json* part = parts.find(key);
      if (part == nullptr) return;
      ConfigReader rope(*part, base::concat("rope_parameters.", key, "."));
      read_rotary(rope, spec, c);
    };
    read("full_attention", c.rotary[0]);
    read("sliding_attention", local);
    parts.finish();
  }
  c.rotary.push_back(local);
  for (zoo::DecoderLayer& layer : c.layers) layer.rotary = layer.window > 0 ? 1 : 0;
}

}  // namespace

Form gemma2_form(ConfigReader& in) {
  Form form = gemma_form(in);
  form.decoder.score_cap = in.number("attn_logit_softcapping", 0);
  read_windows(in, form.decoder, [](size_t layer) { return layer % 2 == 0; });
  in.ignore({"cache_implementation"});
  return form;
}

Form gemma3_form(ConfigReader& in) {
  Form form = gemma_form(in);
  form.decoder.has_head_norms = true;
  in.only("attn_logit_softcapping", nullptr);  // Transformers reads it but caps nothing
  const int64_t every = in.positive("sliding_window_pattern", in.positive("_sliding_window_pattern", 6));
  read_windows(in, form.decoder, [](size_t) { return true; });
  if (!in.has("layer_types")) {
    for (size_t i = 0; i < form.decoder.layers.size(); ++i) {
      if ((static_cast<int64_t>(i) + 1) % every == 0) form.decoder.layers[i].window = 0;
    }
  }
  read_local_rotary(in, form.decoder);
  return form;
}

}  // namespace trireme::model::hf
