// OLMo 2 (Walsh et al. 2024): norms after the branches, and of queries and keys over all heads together.
#include "model/hf/forms/forms.h"

namespace trireme::model::hf {

Form olmo2_form(ConfigReader& in) {
  Form form{.decoder = read_decoder(in)};
  zoo::DecoderConfig& c = form.decoder;
  c.block = zoo::BlockKind::after;
  c.epsilon = in.number("rms_norm_eps", 1e-5);
  c.has_whole_norms = true;
  c.has_qkv_bias = c.has_out_bias = in.flag("attention_bias", false);
  return form;
}

}  // namespace trireme::model::hf
