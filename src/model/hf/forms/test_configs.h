// config.json of small decoders, one of every form that is known.
#pragma once

#include <string>
#include <vector>

#include "model/hf/forms/forms.h"

namespace trireme::model::hf {

struct FormSizes {
  int64_t vocabulary = 50, width = 32, inner = 24, layers = 2, positions = 64;
};

/// What every config.json says, by the names of its form. Four heads.
inline base::Json form_sizes(const std::string& type, const FormSizes& sizes = {}) {
  using base::Json;
  if (type == "gptj") {
    return Json::object({{"model_type", type},
                         {"vocab_size", sizes.vocabulary},
                         {"n_embd", sizes.width},
                         {"n_layer", sizes.layers},
                         {"n_head", 4},
                         {"n_positions", sizes.positions},
                         {"rotary_dim", 4}});
  }
  return Json::object({{"model_type", type},
                       {"vocab_size", sizes.vocabulary},
                       {"hidden_size", sizes.width},
                       {"intermediate_size", sizes.inner},
                       {"num_hidden_layers", sizes.layers},
                       {"num_attention_heads", 4},
                       {"max_position_embeddings", sizes.positions},
                       {"bos_token_id", 1},
                       {"torch_dtype", "float32"}});
}

/// Two key heads where a form has its own number of them, three or four experts where it has some.
inline std::vector<base::Json> form_configs(const FormSizes& sizes = {}) {
  using base::Json;
  std::vector<Json> list;
  for (const FormRow& row : decoder_forms()) {
    const std::string type(row.type);
    Json c = form_sizes(type, sizes);
    const bool has_equal_heads = type.starts_with("gpt") && type != "gpt_oss";
    if (type == "falcon") {
      c.set("multi_query", false);
    } else if (!has_equal_heads && type != "opt") {
      c.set("num_key_value_heads", 2);
    }
    if (type == "opt" || type == "falcon") c.set("intermediate_size", Json(nullptr));
    if (type == "opt") c.set("ffn_dim", sizes.inner);
    if (type == "gpt_oss") c.set("num_local_experts", 4);
    if (type == "qwen2_moe") c.set("shared_expert_intermediate_size", sizes.inner - 4);
    if (type == "mixtral") c.set("num_local_experts", 3);
    if (type.ends_with("_moe")) {
      c.set("num_experts", 4);
      c.set("moe_intermediate_size", sizes.inner / 2);
      c.set("mlp_only_layers", Json::array({0}));
    }
    if (c.contains("num_local_experts") || c.contains("num_experts")) c.set("num_experts_per_tok", 2);
    if (type.starts_with("gemma") || type == "gpt_oss") c.set("sliding_window", 5);
    list.push_back(std::move(c));
  }
  return list;
}

}  // namespace trireme::model::hf
