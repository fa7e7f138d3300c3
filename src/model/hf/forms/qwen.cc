// Qwen2 and 2.5 (biases of queries, keys and values), Qwen3 (norms of the queries and keys of each head), and
// the mixtures of experts of both.
#include <algorithm>

#include "model/hf/forms/forms.h"

namespace trireme::model::hf {
namespace {

/// Layers from max_window_layers on have a window if use_sliding_window is set.
void read_qwen_windows(ConfigReader& in, zoo::DecoderConfig& c) {
  const bool uses = in.flag("use_sliding_window", false);
  const auto first = static_cast<size_t>(in.number("max_window_layers", 0));
  if (!uses) return in.ignore({"sliding_window", "layer_types"});
  read_windows(in, c, [](size_t) { return true; });
  if (in.has("layer_types")) return;
  for (size_t i = 0; i < std::min(first, c.layers.size()); ++i) c.layers[i].window = 0;
}

}  // namespace

Form qwen2_form(ConfigReader& in) {
  Form form{.decoder = read_decoder(in)};
  form.decoder.has_qkv_bias = true;
  read_qwen_windows(in, form.decoder);
  in.only("use_mrope", false);
  return form;
}

Form qwen3_form(ConfigReader& in) {
  Form form{.decoder = read_decoder(in)};
  form.decoder.has_head_norms = true;
  form.decoder.has_qkv_bias = form.decoder.has_out_bias = in.flag("attention_bias", false);
  read_qwen_windows(in, form.decoder);
  return form;
}

namespace {

/// The mixtures of Qwen2-MoE and Qwen3-MoE.
void read_experts(ConfigReader& in, Form& form) {
  zoo::DecoderConfig& c = form.decoder;
  c.experts.count = in.has("num_experts") ? in.positive("num_experts") : in.positive("num_local_experts");
  c.experts.chosen = in.positive("num_experts_per_tok");
  c.experts.inner = in.positive("moe_intermediate_size");
  c.experts.is_normalized = in.flag("norm_topk_prob", false);
  const auto step = static_cast<size_t>(in.positive("decoder_sparse_step", 1));
  for (size_t i = 0; i < c.layers.size(); ++i) c.layers[i].has_experts = (i + 1) % step == 0;
  if (const base::Json* dense = in.find("mlp_only_layers")) {
    for (const base::Json& layer : dense->as_array()) {
      const uint64_t at = layer.as_uint();
      if (at < c.layers.size()) c.layers[at].has_experts = false;
    }
  }
  for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
    form.weights.numbered.push_back(
        {base::concat("mlp.experts.", name), "mlp.experts.", base::concat(".", name), c.experts.count});
  }
}

}  // namespace

Form qwen3_moe_form(ConfigReader& in) {
  Form form = qwen3_form(in);
  read_experts(in, form);
  return form;
}

Form qwen2_moe_form(ConfigReader& in) {
  Form form{.decoder = read_decoder(in)};
  form.decoder.has_qkv_bias = in.flag("qkv_bias", true);
  read_qwen_windows(in, form.decoder);
  read_experts(in, form);
  form.decoder.experts.shared_inner = in.positive("shared_expert_intermediate_size");
  return form;
}

}  // namespace trireme::model::hf
