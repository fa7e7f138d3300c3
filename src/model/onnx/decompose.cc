// ONNX operators without an op of their own, expressed by other operators: one table row each.
#include <algorithm>
#include <cmath>
#include <limits>

#include "model/onnx/emitter.h"
#include "model/onnx/tensor_proto.h"

namespace trireme::model::onnx {
namespace {

using ir::ValueId;
using tensor::DType;
using tensor::Shape;
using Results = std::vector<ValueId>;

/// y = swish(a) b.
Results swiglu(Emitter& e, PendingNode& n) {
  const ValueId gate = e.emit("Swish", {n.input(0)}, {{"alpha", n.attrs.get_float("alpha", 1)}});
  return {e.emit("Mul", {gate, n.input(1)})};
}

int64_t static_dim(Emitter& e, ValueId id, size_t axis, std::string_view what) {
  const Shape& shape = e.type(id).shape;
  base::require(shape.has_rank() && axis < shape.rank() && shape[axis].is_static(), what,
                " must be known, shape is ", shape.to_string());
  return shape[axis].value();
}

/// A depthwise convolution over the k - 1 previous columns and the new ones: input [batch, channels, length].
Results causal_conv(Emitter& e, PendingNode& n) {
  const int64_t channels = static_dim(e, n.input(1), 0, "the channel count");
  const int64_t k = static_dim(e, n.input(1), 2, "the kernel length");
  const ValueId padded = n.has_input(3) ? e.emit("Concat", {n.input(3), n.input(0)}, {{"axis", int64_t{2}}})
                                        : e.emit("Pad", {n.input(0), e.ints({0, 0, k - 1, 0, 0, 0})});
  ValueId y = e.emit("Conv", {padded, n.input(1), n.input(2)}, {{"group", channels}});
  const std::string activation = n.attrs.get_string("activation", "none");
  if (activation == "silu" || activation == "swish") {
    y = e.emit("Swish", {y});
  } else if (activation != "none") {
    base::fail_unsupported("activation '", activation, "'");
  }
  const ValueId first = k == 1 ? e.ints({INT64_MAX}) : e.ints({1 - k});
  return {y, e.emit("Slice", {padded, first, e.ints({INT64_MAX}), e.ints({2})})};
}

ValueId cast(Emitter& e, ValueId x, DType to) {
  if (e.type(x).dtype == to) return x;
  return e.emit("Cast", {x}, {{"to", int64_t{dtype_to_onnx(to)}}});
}

/// x [batch, time, heads * d] -> [time, batch, groups..., d] in f32, because a scan runs over axis 0.
ValueId by_time(Emitter& e, ValueId x, const std::vector<int64_t>& split) {
  const ValueId parts = e.emit("Reshape", {cast(e, x, DType::f32), e.ints(split)});
  std::vector<int64_t> perm{1, 0};
  for (size_t i = 2; i < split.size(); ++i) perm.push_back(static_cast<int64_t>(i));
  return e.emit("Transpose", {parts}, {{"perm", perm}});
}

struct Recurrence {
  bool has_decay, has_beta;
  double scale;
};

/// One step: state [batch, heads, dk, dv]; q [batch, heads, group, dk], k [.., dk], v [.., dv], decay [.., dk
/// or 1], beta [.., 1] -> new state and output [batch, heads, group, dv].
ir::GraphPtr recurrence_body(const Recurrence& r, const std::string& from) {
  auto g = std::make_shared<ir::Graph>();
  g->name = "recurrence";
  Emitter e(*g, from);
  const auto input = [&](const char* name, size_t rank) {
    return g->add_input(name, {DType::f32, Shape::unknown(rank)});
  };
  ValueId state = input("state", 4);
  const ValueId q = input("q", 4), k = input("k", 3), v = input("v", 3);
  if (r.has_decay) {
    const ValueId decay = e.emit("Exp", {input("decay", 3)});
    state = e.emit("Mul", {state, e.emit("Unsqueeze", {decay, e.ints({3})})});
  }
  const ValueId key_row = e.emit("Unsqueeze", {k, e.ints({2})}),
                key_column = e.emit("Unsqueeze", {k, e.ints({3})});
  ValueId value_row = e.emit("Unsqueeze", {v, e.ints({2})});  // [batch, heads, 1, dv]
  if (r.has_beta) {
    // The state already returns a value for this key, so only the difference is added.
    const ValueId beta = e.emit("Unsqueeze", {input("beta", 3), e.ints({3})});
    const ValueId known = e.emit("MatMul", {key_row, state});
    value_row = e.emit("Mul", {beta, e.emit("Sub", {value_row, known})});
  }
  state = e.emit("Add", {state, e.emit("Mul", {key_column, value_row})});
  const ValueId out = e.emit("Mul", {e.emit("MatMul", {q, state}), e.scalar_of(DType::f32, r.scale)});
  g->add_output(state, "new_state");
  g->add_output(out, "out");
  g->sort();
  return g;
}

/// Linear attention, as the recurrence that defines it: one Scan over time.
Results linear_attention(Emitter& e, PendingNode& n) {
  const int64_t q_heads = n.attrs.need_int("q_num_heads"), heads = n.attrs.need_int("kv_num_heads");
  base::require(heads > 0 && q_heads > 0 && q_heads % heads == 0, "q_num_heads ", q_heads,
                " must be a multiple of kv_num_heads ", heads);
  const std::string rule = n.attrs.get_string("update_rule", "gated_delta");
  const int64_t dk = static_dim(e, n.input(0), 2, "the query width") / q_heads;
  double scale = n.attrs.get_float("scale", 0);
  if (scale == 0) scale = 1 / std::sqrt(static_cast<double>(dk));
  const Recurrence r{rule == "gated" || rule == "gated_delta", rule == "delta" || rule == "gated_delta",
                     scale};
  base::require(r.has_decay == n.has_input(4) && r.has_beta == n.has_input(5), "update_rule '", rule,
                "' does not fit the operands decay and beta");
  const ValueId values = by_time(e, n.input(2), {0, 0, heads, -1});
  ValueId state = n.input(3);
  if (n.has_input(3)) {
    state = cast(e, state, DType::f32);
  } else {
    const ValueId batch = e.emit("Shape", {n.input(0)}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
    const ValueId width = e.emit("Shape", {values}, {{"start", int64_t{3}}, {"end", int64_t{4}}});
    const ValueId shape = e.emit("Concat", {batch, e.ints({heads, dk}), width}, {{"axis", int64_t{0}}});
    state = e.emit("ConstantOfShape", {shape});
  }
  Results operands{state, by_time(e, n.input(0), {0, 0, heads, q_heads / heads, dk}),
                   by_time(e, n.input(1), {0, 0, heads, dk}), values};
  if (r.has_decay) operands.push_back(by_time(e, n.input(4), {0, 0, heads, -1}));
  if (r.has_beta) operands.push_back(by_time(e, n.input(5), {0, 0, -1, 1}));
  const auto scans = static_cast<int64_t>(operands.size()) - 1;
  const auto out = e.emit_many(
      "Scan", operands,
      {{"body", recurrence_body(r, n.from)}, {"num_scan_inputs", scans}, {"captures", int64_t{0}}}, 2);
  // [time, batch, heads, group, dv] -> [batch, time, q_heads * dv]
  const ValueId by_batch = e.emit("Transpose", {out[1]}, {{"perm", std::vector<int64_t>{1, 0, 2, 3, 4}}});
  const ValueId y = e.emit("Reshape", {by_batch, e.ints({0, 0, -1})});
  const DType state_type = e.type(n.has_input(3) ? n.input(3) : n.input(0)).dtype;
  return {cast(e, y, e.type(n.input(0)).dtype), cast(e, out[0], state_type)};
}

/// The operands of a scatter whose rank is known.
struct AxisScatter {
  ValueId cache, update;
  size_t rank, axis;
};

/// Writes `update` to `cache` along the axis from the batch's write index on: computed indices.
ValueId scatter_along(Emitter& e, const PendingNode& n, const AxisScatter& s) {
  base::require(s.axis > 0, "TensorScatter along the batch axis");
  const auto at = static_cast<int64_t>(s.axis);
  const ValueId scalar_axes = e.ints({0});
  const auto extent = [&](ValueId x) {
    const ValueId dim = e.emit("Shape", {x}, {{"start", at}, {"end", at + 1}});
    return e.emit("Squeeze", {dim, scalar_axes});
  };
  // Positions [1, …, length, …, 1], plus one start per batch member along the first axis.
  ValueId places = e.emit("Range", {e.int_scalar(0), extent(s.update), e.int_scalar(1)});
  std::vector<int64_t> around, behind;
  for (size_t d = 0; d < s.rank; ++d) {
    if (d != s.axis) around.push_back(static_cast<int64_t>(d));
    if (d != 0) behind.push_back(static_cast<int64_t>(d));
  }
  places = e.emit("Unsqueeze", {places, e.ints(around)});
  if (n.has_input(2)) places = e.emit("Add", {places, e.emit("Unsqueeze", {n.input(2), e.ints(behind)})});
  const std::string mode = n.attrs.get_string("mode", "linear");
  if (mode == "circular") {
    places = e.emit("Mod", {places, extent(s.cache)});
  } else if (mode != "linear") {
    base::fail_unsupported("TensorScatter mode '", mode, "'");
  }
  places = e.emit("Expand", {places, e.emit("Shape", {s.update})});
  return e.emit("ScatterElements", {s.cache, places, s.update}, {{"axis", at}});
}

/// x, whose rank is not known, as [batch, axes before `axis`, axis, axes after it].
ValueId around_axis(Emitter& e, ValueId x, int64_t axis) {
  constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();
  const auto product = [&](int64_t start, int64_t end) {
    const ValueId dims = e.emit("Shape", {x}, {{"start", start}, {"end", end}});
    return e.emit("ReduceProd", {dims, e.ints({0})}, {{"keepdims", int64_t{1}}});
  };
  const bool is_last = axis == -1;
  const ValueId extent = product(axis, is_last ? kEnd : axis + 1);
  const ValueId behind = is_last ? e.ints({1}) : product(axis + 1, kEnd);
  const ValueId shape =
      e.emit("Concat", {product(0, 1), product(1, axis), extent, behind}, {{"axis", int64_t{0}}});
  return e.emit("Reshape", {x, shape}, {{"allowzero", int64_t{1}}});
}

Results tensor_scatter(Emitter& e, PendingNode& n) {
  const ValueId cache = n.input(0), update = n.input(1);
  const int64_t axis = n.attrs.get_int("axis", -2);
  for (const ValueId id : {cache, update}) {
    if (!e.type(id).shape.has_rank()) continue;
    const size_t rank = e.rank(id);
    return {scatter_along(e, n, {cache, update, rank, ir::normal_axis(axis, rank)})};
  }
  base::require(axis != 0, "TensorScatter along the batch axis");
  const ValueId y = scatter_along(e, n, {around_axis(e, cache, axis), around_axis(e, update, axis), 4, 2});
  return {e.emit("Reshape", {y, e.emit("Shape", {cache})}, {{"allowzero", int64_t{1}}})};
}

/// A tensor always has an element, and an absent operand never.
Results optional_has_element(Emitter& e, PendingNode& n) {
  return {e.constant(tensor::Tensor::scalar<bool>(n.has_input(0)))};
}

Results optional_get_element(Emitter& e, PendingNode& n) { return {e.emit("Identity", {n.input(0)})}; }

struct Decomposition {
  std::string_view op;
  size_t operands;
  Results (*build)(Emitter&, PendingNode&);
};
constexpr Decomposition kDecompositions[] = {
    {"SwiGLU", 2, swiglu},
    {"CausalConvWithState", 2, causal_conv},
    {"LinearAttention", 3, linear_attention},
    {"TensorScatter", 2, tensor_scatter},
    {"OptionalHasElement", 0, optional_has_element},
    {"OptionalGetElement", 1, optional_get_element},
};

/// Operators that fold any number of operands from the left, where an op takes only so many at once.
constexpr std::string_view kFolds[] = {"Sum", "Max", "Min", "Mean"};

/// The first operands, then what they gave with the next ones: the same elements in the same order.
ValueId folded_in_turn(Emitter& e, std::string_view fold, const std::vector<ValueId>& in, size_t at_once) {
  ValueId so_far = in[0];
  for (size_t begin = 1; begin < in.size(); begin += at_once - 1) {
    const size_t end = std::min(in.size(), begin + at_once - 1);
    std::vector<ValueId> part{so_far};
    part.insert(part.end(), in.begin() + static_cast<int64_t>(begin), in.begin() + static_cast<int64_t>(end));
    so_far = e.emit(fold, std::move(part));
  }
  return so_far;
}

std::optional<Results> fold_of_many(Emitter& e, const PendingNode& n) {
  if (std::ranges::find(kFolds, n.op_type) == std::end(kFolds)) return std::nullopt;
  const size_t at_once = need_onnx_op(n.op_type).schema.max_in;
  if (n.in.size() <= at_once) return std::nullopt;
  if (n.op_type != "Mean") return Results{folded_in_turn(e, n.op_type, n.in, at_once)};
  const ValueId sum = folded_in_turn(e, "Sum", n.in, at_once);
  return Results{e.emit("Div", {sum, e.scalar_of(e.type(sum).dtype, static_cast<double>(n.in.size()))})};
}

}  // namespace

std::optional<Results> decompose(Emitter& emitter, PendingNode& node) {
  if (auto folded = fold_of_many(emitter, node)) return folded;
  for (const Decomposition& row : kDecompositions) {
    if (row.op != node.op_type || find_onnx_op(row.op) != nullptr) continue;
    for (size_t i = 0; i < row.operands; ++i) base::require(node.has_input(i), "the node needs operand ", i);
    return row.build(emitter, node);
  }
  return std::nullopt;
}

}  // namespace trireme::model::onnx
