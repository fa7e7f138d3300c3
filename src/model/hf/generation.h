// What a Hugging Face directory says about generating text.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model.h"

namespace trireme::model::hf {

/// Tokens that end an answer: eos_token_id of generation_config.json, else of config.json; empty for none.
std::vector<int64_t> end_tokens(const Model& model);

}  // namespace trireme::model::hf
