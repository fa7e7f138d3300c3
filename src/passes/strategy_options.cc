// Keys and text forms of the parts of a strategy.
#include "passes/strategy_options.h"

#include <utility>

#include "base/error.h"

namespace trireme::passes {

void PrecisionOptions::fields(base::OptionList& f) {
  f.add_choice(
      "compute", &compute, {"f32", "bf16", "f16", "fp8"},
      "type of the operands of products; weights, statistics, losses and the optimizer stay f32. f16 "
      "needs a loss scale; fp8: bf16, and products by weights on 8-bit floats with a scale each row");
  f.add("keep", &keep, "ops, or nodes with these in their names, that stay f32");
  f.add("fp8_last", &fp8_last, "fp8: products that no other follows (scores of a vocabulary) are 8-bit too");
}

std::string_view to_string(RecomputeMode mode) {
  return mode == RecomputeMode::none ? "none" : mode == RecomputeMode::selective ? "selective" : "full";
}

RecomputeOptions RecomputeOptions::parse(std::string_view text, std::string_view key) {
  constexpr std::string_view kBudget = "budget:";
  if (text.starts_with(kBudget))
    return {.activation_bytes = base::parse_byte_size(text.substr(kBudget.size())).bytes};
  for (const RecomputeMode mode : {RecomputeMode::none, RecomputeMode::selective, RecomputeMode::full}) {
    if (text == to_string(mode)) return {.mode = mode};
  }
  base::fail_invalid(key, ": expected none, selective, full or budget:SIZE, found '", text, "'");
}

void WeightOptions::fields(base::OptionList& f) {
  std::vector<std::string> names{"f32", "int8", "int4"};
  for (const tensor::BlockFormat& format : tensor::block_formats()) names.emplace_back(format.name);
  f.add_choice("weights", &weights, std::move(names),
               "how matrices under products are stored; f32: as the model has them");
  f.add("weight_group", &weight_group, "of int8 and int4: weights that share a scale: 32, 64 or 128");
  f.add("weight_zeros", &weight_zeros,
        "of int8 and int4: a zero point for each group of weights beside the scale");
  f.add_choice("weight_rows", &weight_rows, {"f32", "q8", "bf16"},
               "rows that meet weights in blocks: as they are, or rounded to 8 bits by 32 neighbours; bf16: "
               "as q8, and "
               "those that meet weights in bf16 rounded to bf16, which pays on AMD's processors");
}

const tensor::BlockFormat* WeightOptions::blocks() const {
  if (weights < kFirstBlocks) return nullptr;
  return &tensor::block_formats()[static_cast<size_t>(weights) - static_cast<size_t>(kFirstBlocks)];
}

}  // namespace trireme::passes
