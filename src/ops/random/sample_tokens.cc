// sample_tokens, edit_logits, count_tokens and take_tokens: sample a language model's next tokens, restrict
// them, and pass them to its next step without a detour through the host.
#include "ops/random/sample_tokens.h"

#include "ops/table.h"

namespace trireme::ops {
namespace {

using ir::NodeView;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

constexpr const char* kNoGrad = "its result is whole numbers";
constexpr const char* kNoCut = "a draw looks at all tokens of its row";

void need(const NodeView& n, size_t i, DType type, size_t rank) {
  const Shape& s = n.in[i].shape;
  base::require(n.in[i].dtype == type && (!s.has_rank() || s.rank() == rank), "operand ", i, " is ",
                name_of(type), " of rank ", rank, ", not ", n.in[i].to_string());
}

/// Throws if both extents are known and differ.
void need_equal(const NodeView& n, size_t i, size_t dim, int64_t extent) {
  const Shape& s = n.in[i].shape;
  if (!s.has_rank() || !s[dim].is_static()) return;
  base::require(s[dim].value() == extent, "operand ", i, " is ", s.to_string(), ", dimension ", dim,
                " should be ", extent);
}

std::vector<TensorType> infer_sample(const NodeView& n) {
  const Shape &x = n.in[0].shape, &settings = n.in[1].shape;
  base::require(!x.has_rank() || x.rank() == 2, "sample_tokens takes logits [rows, tokens]");
  need(n, 1, DType::f32, 2);
  need(n, 2, DType::i64, 2);
  need_equal(n, 2, 1, 2);
  const bool has_penalties = n.in.size() > 3;
  if (settings.has_rank() && settings[1].is_static()) {
    const int64_t columns = settings[1].value();
    base::require(columns == kSampleSettings || (columns == kPlainSettings && !has_penalties),
                  "sample_tokens takes settings [rows, 4], with penalties [rows, 7], not ",
                  settings.to_string());
  }
  if (has_penalties) {
    base::require(n.in.size() == 5, "penalties take what was seen and its places");
    need(n, 3, DType::i32, 2);
    need(n, 4, DType::i32, 1);
    if (x.has_rank() && x[1].is_static()) need_equal(n, 3, 1, x[1].value());
  }
  const tensor::Dim rows = x.has_rank() ? x[0] : tensor::Dim::unknown();
  for (size_t i : {size_t{1}, size_t{2}}) {
    if (rows.is_static()) need_equal(n, i, 0, rows.value());
  }
  if (has_penalties && rows.is_static()) need_equal(n, 4, 0, rows.value());
  return {{DType::i64, {rows}}, {DType::f32, {rows}}};
}

std::vector<TensorType> infer_edit(const NodeView& n) {
  const Shape& x = n.in[0].shape;
  base::require(!x.has_rank() || x.rank() == 2, "edit_logits takes logits [rows, tokens]");
  need(n, 1, DType::i32, 2);
  need(n, 2, DType::i32, 2);
  need(n, 3, DType::f32, 2);
  if (x.has_rank() && x[1].is_static()) need_equal(n, 1, 1, (x[1].value() + 31) / 32);
  const Shape& ids = n.in[2].shape;
  if (ids.has_rank() && ids[1].is_static()) need_equal(n, 3, 1, ids[1].value());
  for (size_t i = 1; x.has_rank() && x[0].is_static() && i < 4; ++i) need_equal(n, i, 0, x[0].value());
  return {n.in[0]};
}

std::vector<TensorType> infer_count(const NodeView& n) {
  need(n, 0, DType::i32, 2);
  need(n, 1, DType::i32, 1);
  need(n, 2, DType::i64, 1);
  return {n.in[0]};
}

std::vector<TensorType> infer_take(const NodeView& n) {
  base::require(n.in[0].dtype == DType::i64, "token ids are i64, not ", n.in[0].to_string());
  need(n, 1, DType::i64, 1);
  need(n, 2, DType::i32, 1);
  const auto ids = n.in[0].shape.elements();
  if (ids) need_equal(n, 2, 0, *ids);
  return {n.in[0]};
}

ir::OpSchema sample_tokens() {
  return {
      .name = "sample_tokens",
      .doc =
          "one token a row of logits [rows, tokens] and the logarithm of its probability there; settings "
          "[rows, 4] are temperature (0: the largest), top_k (0: all), top_p, min_p, applied in this order, "
          "the probabilities taken anew after top_k, and counters [rows, 2] seed and position of the draw; "
          "with seen [places, tokens] and the row's place (below 0: none) settings go on with repetition, "
          "presence and frequency penalty, taken first. NaN comes last",
      .why_no_cut = kNoCut,
      .min_in = 3,
      .max_in = 5,
      .max_out = 2,
      .infer = infer_sample,
      .cost =
          [](const NodeView& n) {
            return ir::Cost{.flop = 20.0 * static_cast<double>(n.in[0].shape.elements().value_or(0)),
                            .bytes = static_cast<double>(tensor::bytes_of(n.in[0]))};
          },
      .why_no_grad = kNoGrad};
}

ir::OpSchema edit_logits() {
  return {
      .name = "edit_logits",
      .doc =
          "y = x [rows, tokens] with biases f32 [rows, most] added at ids i32 [rows, most] (below 0: none; "
          "no "
          "id twice in a row), and minus infinity for tokens whose bit in allowed i32 [rows, ceil(tokens / "
          "32)] is 0: bit id % 32 of word id / 32; operands x, allowed, ids, biases",
      .why_no_cut = "a row of bits is of whole rows",
      .min_in = 4,
      .max_in = 4,
      .infer = infer_edit,
      .cost =
          [](const NodeView& n) {
            const auto elements = static_cast<double>(n.in[0].shape.elements().value_or(0));
            return ir::Cost{.flop = elements, .bytes = 2 * static_cast<double>(tensor::bytes_of(n.in[0]))};
          },
      .why_no_grad = "what is struck out has no gradient, and nothing is trained behind a draw"};
}

ir::OpSchema count_tokens() {
  return {.name = "count_tokens",
          .doc =
              "adds 2 to seen [places, tokens] at (places[row], tokens[row]), in place; rows of a place "
              "below 0 do nothing; no two rows have one place",
          .why_no_cut = kNoCut,
          .min_in = 3,
          .max_in = 3,
          .infer = infer_count,
          .cost =
              [](const NodeView& n) {
                const auto rows = static_cast<double>(n.in[1].shape.elements().value_or(0));
                return ir::Cost{.flop = rows, .bytes = 20 * rows};
              },
          .why_no_grad = kNoGrad,
          .updates =
              [](size_t) {
                return std::vector<ir::StateUpdate>{{0, 0}};
              }};
}

ir::OpSchema take_tokens() {
  return {.name = "take_tokens",
          .doc =
              "y[i] = ids[i] where from[i] is below 0, else chosen[from[i]]: tokens that the step before "
              "drew; ids i64, chosen i64 [rows], from i32 [tokens]",
          .why_no_cut = "a few numbers, the same on every rank",
          .min_in = 3,
          .max_in = 3,
          .infer = infer_take,
          .cost =
              [](const NodeView& n) {
                const auto tokens = static_cast<double>(n.in[2].shape.elements().value_or(0));
                return ir::Cost{.flop = tokens, .bytes = 28 * tokens};
              },
          .why_no_grad = kNoGrad};
}

}  // namespace

std::vector<ir::OpDef> sample_ops() {
  return {{sample_tokens(), sample_tokens_cpu_kernels()},
          {edit_logits(), edit_logits_cpu_kernels()},
          {count_tokens(), count_tokens_cpu_kernels()},
          {take_tokens(), take_tokens_cpu_kernels()}};
}

}  // namespace trireme::ops
