// sample_tokens: schema of the draw of one token a row.
#include "ops/random/sample_tokens.h"

#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::DType;

std::vector<tensor::TensorType> infer(const ir::NodeView& n) {
  const tensor::Shape &x = n.in[0].shape, &settings = n.in[1].shape, &rng = n.in[2].shape;
  base::require(!x.has_rank() || x.rank() == 2, "sample_tokens takes logits [rows, tokens]");
  base::require(n.in[1].dtype == DType::f32 && n.in[2].dtype == DType::i64,
                "sample_tokens takes settings in f32 and counters in i64");
  const auto is_wide = [](const tensor::Shape& s, int64_t columns) {
    return !s.has_rank() || (s.rank() == 2 && (!s[1].is_static() || s[1].value() == columns));
  };
  base::require(is_wide(settings, kSampleSettings), "sample_tokens takes settings [rows, 4]");
  base::require(is_wide(rng, 2), "sample_tokens takes counters [rows, 2]");
  return {{DType::i64, {x.has_rank() ? x[0] : tensor::Dim::unknown()}}};
}

}  // namespace

ir::OpSchema sample_tokens_schema() {
  return {
      .name = "sample_tokens",
      .doc =
          "one token a row of logits [rows, tokens]: settings [rows, 4] are temperature (0: the largest), "
          "top_k (0: all), top_p, min_p, applied in this order, the probabilities taken anew after top_k; "
          "counters [rows, 2] are seed and position of the draw. The logits are finite or -inf",
      .why_no_cut = "a draw looks at all tokens of its row",
      .min_in = 3,
      .max_in = 3,
      .infer = infer,
      .cost =
          [](const ir::NodeView& n) {
            return ir::Cost{.flop = 20.0 * static_cast<double>(n.in[0].shape.elements().value_or(0)),
                            .bytes = static_cast<double>(tensor::bytes_of(n.in[0]))};
          },
      .why_no_grad = "its result is an index"};
}

}  // namespace trireme::ops
