// Mixtral (Jiang et al. 2024): Mistral with a mixture of experts in every layer.
#include "model/hf/forms/forms.h"

namespace trireme::model::hf {

Form mixtral_form(ConfigReader& in) {
  Form form = mistral_form(in);
  zoo::DecoderConfig& c = form.decoder;
  c.experts.count = in.positive("num_local_experts");
  c.experts.chosen = in.positive("num_experts_per_tok");
  c.experts.inner = c.inner;
  for (zoo::DecoderLayer& layer : c.layers) layer.has_experts = true;
  c.names.mlp = "block_sparse_moe";
  c.names.expert_gate = "w1";
  c.names.expert_up = "w3";
  c.names.expert_down = "w2";
  for (const char* name : {"w1", "w2", "w3"})
    form.weights.numbered.push_back(
        {base::concat("experts.", name), "experts.", base::concat(".", name), c.experts.count});
  return form;
}

}  // namespace trireme::model::hf
