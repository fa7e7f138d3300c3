// Granite 3 (IBM 2024): Llama with factors of embedding, scores, branches and logits.
#include "model/hf/forms/forms.h"

namespace trireme::model::hf {

Form granite_form(ConfigReader& in) {
  Form form = llama_form(in);
  zoo::DecoderConfig& c = form.decoder;
  c.embedding_scale = in.number("embedding_multiplier", 1);
  c.query_scale = in.number("attention_multiplier", 1);
  c.residual_scale = in.number("residual_multiplier", 1);
  const double divisor = in.number("logits_scaling", 1);
  base::require(divisor > 0 && c.query_scale > 0, "config.json: logits_scaling is ", divisor,
                ", attention_multiplier ", c.query_scale);
  c.logit_scale = 1 / divisor;
  return form;
}

}  // namespace trireme::model::hf
