// Phi-3 and Phi-4 mini (Abdin et al. 2024): in the checkpoint, queries, keys and values are one matrix, and
// so are gate and up.
#include "model/hf/forms/forms.h"

namespace trireme::model::hf {

Form phi3_form(ConfigReader& in) {
  Form form = mistral_form(in);
  const zoo::DecoderConfig& c = form.decoder;
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  form.weights.joined = {
      {"self_attn.qkv_proj", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, {q, kv, kv}},
      {"mlp.gate_up_proj", {"mlp.gate_proj", "mlp.up_proj"}, {c.inner, c.inner}}};
  return form;
}

}  // namespace trireme::model::hf
