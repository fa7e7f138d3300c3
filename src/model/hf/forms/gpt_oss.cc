// gpt-oss (OpenAI 2025): attention sinks, windows in every second layer, YaRN, experts with biases and a
// clamped gate. The checkpoint stores expert matrices transposed; columns of gate and up alternate.
#include "model/hf/forms/forms.h"

namespace trireme::model::hf {

Form gpt_oss_form(ConfigReader& in) {
  Form form{.decoder = read_decoder(in)};
  zoo::DecoderConfig& c = form.decoder;
  c.has_sinks = true;
  c.has_qkv_bias = c.has_out_bias = in.flag("attention_bias", true);
  c.experts.count =
      in.has("num_local_experts") ? in.positive("num_local_experts") : in.positive("num_experts");
  c.experts.chosen =
      in.has("num_experts_per_tok") ? in.positive("num_experts_per_tok") : in.positive("experts_per_token");
  c.experts.inner = c.inner;
  c.experts.has_bias = true;
  c.experts.clamp = in.number("swiglu_limit", 7);
  c.experts.slope = in.number("swiglu_alpha", 1.702);
  read_windows(in, c, [](size_t layer) { return layer % 2 == 0; });
  for (zoo::DecoderLayer& layer : c.layers) layer.has_experts = true;
  in.ignore({"experts_per_token", "initial_context_length"});
  c.names.router = "router";
  form.weights.woven = {
      {"mlp.experts.gate_up_proj", {"mlp.experts.gate_proj", "mlp.experts.up_proj"}, c.experts.count},
      {"mlp.experts.down_proj", {"mlp.experts.down_proj"}, c.experts.count}};
  return form;
}

}  // namespace trireme::model::hf
