// Command R (Cohere 2024): layer norms without a bias, one of them for both branches, which are parallel;
// neighbouring channels rotate; scaled logits.
#include "model/hf/forms/forms.h"

namespace trireme::model::hf {

Form cohere_form(ConfigReader& in) {
  Form form{.decoder = read_decoder(in)};
  zoo::DecoderConfig& c = form.decoder;
  c.norm = zoo::NormKind::layer;
  c.has_norm_bias = false;
  c.block = zoo::BlockKind::shared;
  c.epsilon = in.number("layer_norm_eps", 1e-5);
  c.is_interleaved = true;
  c.is_tied = in.flag("tie_word_embeddings", true);
  c.logit_scale = in.number("logit_scale", 0.0625);
  c.has_qkv_bias = c.has_out_bias = in.flag("attention_bias", false);
  in.only("use_qk_norm", false);
  if (!in.has("rope_theta") && !in.has("rope_parameters")) c.rotary[0].theta = 500000;
  return form;
}

}  // namespace trireme::model::hf
