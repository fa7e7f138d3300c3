// Row independence by rules per op; the choice of slices.
#include "engine/batch_rows.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

namespace trireme::engine {
namespace {

using ir::Node;
using ir::ValueId;

/// A graph with the knowledge which values depend on the inputs.
struct Rows {
  const ir::Graph& graph;
  int64_t rows;
  std::vector<bool> depends;  ///< by value

  bool is_fed(ValueId id) const { return id != ir::kNoValue && depends[ir::index(id)]; }
  bool is_fed(const Node& node, size_t i) const { return i < node.in.size() && is_fed(node.in[i]); }
  const tensor::Shape& shape(ValueId id) const { return graph.type(id).shape; }
  size_t rank(ValueId id) const { return shape(id).rank(); }
  bool leads(ValueId id) const {
    return shape(id).is_static() && rank(id) > 0 && shape(id)[0].value() == rows;
  }
  /// Only the first operand comes from the inputs.
  bool first_only(const Node& node) const {
    for (size_t i = 1; i < node.in.size(); ++i) {
      if (is_fed(node, i)) return false;
    }
    return is_fed(node, 0);
  }
  /// A value that is not fed and has `rows` equal rows: a row expanded for the batch, or that already
  /// computed.
  bool repeats_one_row(ValueId id) const {
    if (is_fed(id) || !leads(id)) return false;
    if (const tensor::Tensor* t = graph.known(id)) {
      const int64_t bytes = t->bytes() / rows;
      // Equal to itself moved by one row: all rows are equal.
      return t->bytes() % rows == 0 &&
             std::memcmp(t->raw(), t->raw() + bytes, static_cast<size_t>(t->bytes() - bytes)) == 0;
    }
    const Node* made = graph.producer(id);
    if (made == nullptr || made->op_name() != "expand" || !shape(made->in[0]).is_static()) return false;
    return rank(made->in[0]) < rank(id) || shape(made->in[0])[0].value() == 1;
  }
  /// Values as the operand lists them, if they are constant.
  std::vector<int64_t> constants(const Node& node, size_t i) const {
    if (i >= node.in.size() || node.in[i] == ir::kNoValue) return {};
    const tensor::Tensor* t = graph.known(node.in[i]);
    return t == nullptr ? std::vector<int64_t>{} : t->to_ints();
  }
  /// Axes that are all known and none of which is the batch; an empty list means "all axes" in ONNX.
  bool spares_rows(const std::vector<int64_t>& axes, size_t rank) const {
    return !axes.empty() && std::none_of(axes.begin(), axes.end(), [&](int64_t a) {
      return a == 0 || a == -static_cast<int64_t>(rank);
    });
  }
};

using Rule = bool (*)(const Rows&, const Node&);

bool keeps_first(const Rows& r, const Node& node) { return r.first_only(node); }

/// Operands line up with the result element by element: fed ones row for row, others the same for each row.
bool keeps_aligned(const Rows& r, const Node& node) {
  for (ValueId id : node.in) {
    if (id == ir::kNoValue) continue;
    if (!r.shape(id).is_static()) return false;
    if (r.repeats_one_row(id)) continue;
    const bool has_rows = r.rank(id) == r.rank(node.out[0]);
    if (r.is_fed(id) ? !has_rows : has_rows && r.rank(id) > 0 && r.shape(id)[0].value() != 1) return false;
  }
  return true;
}

bool keeps_axis(const Rows& r, const Node& node, int64_t axis) {
  return r.first_only(node) && r.spares_rows({axis}, r.rank(node.in[0]));
}

bool keeps_along_last(const Rows& r, const Node& node) {
  return keeps_axis(r, node, node.attrs.get_int("axis", -1));
}

bool keeps_product(const Rows& r, const Node& node) {
  if (node.in.size() != 2 || !r.is_fed(node, 0) || r.rank(node.in[0]) < 2) return false;
  const size_t rank = r.rank(node.in[0]);
  if (r.is_fed(node, 1)) return rank >= 3 && r.rank(node.in[1]) == rank;
  return r.rank(node.in[1]) == 2;
}

bool keeps_gemm(const Rows& r, const Node& node) {
  if (!r.first_only(node) || node.attrs.get_int("transA", 0) != 0) return false;
  return node.in.size() < 3 || node.in[2] == ir::kNoValue || r.rank(node.in[2]) < 2;
}

bool keeps_linear(const Rows& r, const Node& node) {
  for (size_t i = 1; i < node.in.size(); ++i) {
    if (r.is_fed(node, i) && (i != 3 || r.rank(node.in[i]) != r.rank(node.out[0]))) return false;
  }
  return r.is_fed(node, 0);
}

/// Codes and scales of rows by codes and scales of a matrix.
bool keeps_float8_product(const Rows& r, const Node& node) {
  for (size_t i = 2; i < node.in.size(); ++i) {
    if (r.is_fed(node, i) && (i != 5 || r.rank(node.in[i]) != r.rank(node.out[0]))) return false;
  }
  return r.is_fed(node, 0) && r.is_fed(node, 1);
}

/// Codes with a scale each row.
bool keeps_float8_values(const Rows& r, const Node& node) {
  return r.is_fed(node, 0) && r.is_fed(node, 1) && r.rank(node.in[1]) > 0;
}

/// One row of a single dimension has one scale for all of the batch.
bool keeps_float8_rows(const Rows& r, const Node& node) {
  return r.first_only(node) && r.rank(node.in[0]) > 1;
}

bool keeps_gather(const Rows& r, const Node& node) {
  const int64_t axis = node.attrs.get_int("axis", 0);
  if (r.is_fed(node, 0)) return r.first_only(node) && r.spares_rows({axis}, r.rank(node.in[0]));
  return axis == 0;
}

bool keeps_concat(const Rows& r, const Node& node) {
  const bool all = std::all_of(node.in.begin(), node.in.end(),
                               [&](ValueId id) { return r.is_fed(id) || r.repeats_one_row(id); });
  return all && r.spares_rows({node.attrs.get_int("axis", 0)}, r.rank(node.in[0]));
}

bool keeps_split(const Rows& r, const Node& node) {
  return keeps_axis(r, node, node.attrs.get_int("axis", 0));
}

bool keeps_slice(const Rows& r, const Node& node) {
  return r.first_only(node) && r.spares_rows(r.constants(node, 3), r.rank(node.in[0]));
}

bool keeps_reduction(const Rows& r, const Node& node) {
  return r.first_only(node) && r.spares_rows(r.constants(node, 1), r.rank(node.in[0]));
}

bool keeps_transpose(const Rows&, const Node& node) {
  const std::vector<int64_t> perm = node.attrs.get_ints("perm");
  return !perm.empty() && perm[0] == 0;
}

/// Scales may lie along an axis, but not along the rows.
bool keeps_quantized(const Rows& r, const Node& node) {
  return r.first_only(node) &&
         (r.rank(node.in[1]) == 0 || r.graph.value(node.in[1]).type.shape.elements() == 1 ||
          r.spares_rows({node.attrs.get_int("axis", 1)}, r.rank(node.in[0])));
}

/// Queries, keys and values row by row; a mask per row, or one for all.
bool keeps_attention(const Rows& r, const Node& node) {
  if (node.in.size() < 3 || node.in.size() > 4) return false;
  for (size_t i = 0; i < 3; ++i) {
    if (!r.is_fed(node, i)) return false;
  }
  return node.in.size() == 3 || node.in[3] == ir::kNoValue || r.is_fed(node, 3) ||
         (r.shape(node.in[3]).is_static() && r.rank(node.in[3]) == 4 && r.shape(node.in[3])[0].value() == 1);
}

/// One packed projection, then the mask as in keeps_attention.
bool keeps_packed_attention(const Rows& r, const Node& node) {
  if (!r.is_fed(node, 0)) return false;
  return node.in.size() == 1 || node.in[1] == ir::kNoValue || r.is_fed(node, 1) ||
         (r.shape(node.in[1]).is_static() && r.rank(node.in[1]) == 4 && r.shape(node.in[1])[0].value() == 1);
}

/// Tables and positions (cos, sin, position_ids) row by row, or the same for each.
bool keeps_rotary(const Rows& r, const Node& node) {
  const bool has_positions = node.in.size() > 3 && node.in[3] != ir::kNoValue;
  for (size_t i = 1; i < node.in.size(); ++i) {
    if (node.in[i] == ir::kNoValue || r.is_fed(node, i) || r.repeats_one_row(node.in[i])) continue;
    // With positions the tables are [positions, channels]; else they have a row for each of the batch.
    if (i == 3 || !has_positions) return false;
  }
  return r.is_fed(node, 0) && (!has_positions || (!r.is_fed(node, 1) && !r.is_fed(node, 2)));
}

bool keeps_pooling(const Rows& r, const Node& node) { return r.is_fed(node, 0) && r.is_fed(node, 1); }

const std::unordered_map<std::string_view, Rule>& rules() {
  static const std::unordered_map<std::string_view, Rule> table{
      {"conv", keeps_first},
      {"qconv_nhwc", keeps_first},
      {"batch_norm", keeps_first},
      {"max_pool", keeps_first},
      {"average_pool", keeps_first},
      {"global_average_pool", keeps_first},
      {"global_max_pool", keeps_first},
      {"lrn", keeps_first},
      {"qlinear", keeps_first},
      {"l2_normalize", keeps_along_last},
      {"softmax", keeps_along_last},
      {"layer_norm", keeps_along_last},
      {"rms_norm", keeps_along_last},
      {"add_layer_norm", keeps_aligned},
      {"qadd", keeps_aligned},
      {"clip", keeps_aligned},
      {"max", keeps_aligned},
      {"min", keeps_aligned},
      {"sum", keeps_aligned},
      {"gelu", keeps_aligned},
      {"matmul", keeps_product},
      {"gemm", keeps_gemm},
      {"linear", keeps_linear},
      {"float8_rows", keeps_float8_rows},
      {"float8_values", keeps_float8_values},
      {"float8_product", keeps_float8_product},
      {"gather", keeps_gather},
      {"concat", keeps_concat},
      {"split", keeps_split},
      {"slice", keeps_slice},
      {"reduce_sum", keeps_reduction},
      {"reduce_mean", keeps_reduction},
      {"reduce_max", keeps_reduction},
      {"reduce_l2", keeps_reduction},
      {"transpose", keeps_transpose},
      {"quantize_linear", keeps_quantized},
      {"dequantize_linear", keeps_quantized},
      {"attention_bsnd", keeps_attention},
      {"attention_qkv", keeps_packed_attention},
      {"masked_mean_pool", keeps_pooling},
      {"rotary_embedding", keeps_rotary},
  };
  return table;
}

/// Index notation of dots alone: the result is computed element by element.
bool is_elementwise(const ir::OpSchema& op) {
  return !op.dims.empty() && op.dims.find_first_not_of(".,->") == std::string::npos;
}

bool node_keeps_rows(const Rows& r, const Node& node) {
  const ir::OpSchema& op = node.op->schema;
  if (op.is_random || op.is_control || op.updates_state()) return false;
  // Values with `rows` leading rows of one size each: bytes that do not move keep their row.
  if (op.is_view) return r.first_only(node) && r.leads(node.in[0]);
  const auto rule = rules().find(node.op_name());
  if (rule != rules().end()) return rule->second(r, node);
  return is_elementwise(op) && keeps_aligned(r, node);
}

struct WeightsRead {
  double bytes = 0, elements = 0;
};

/// Weights that one run of the program reads; of a table that rows are gathered from, only those rows.
WeightsRead weights_read(const compile::Program& program) {
  WeightsRead read;
  for (const compile::Step& step : program.steps) {
    for (const compile::SlotId id : step.in) {
      if (id == compile::kNoSlot || program.slot(id).kind != compile::SlotKind::constant) continue;
      const double bytes = std::min(static_cast<double>(program.slot(id).bytes), step.cost.bytes);
      read.bytes += bytes;
      read.elements += bytes * 8 / static_cast<double>(tensor::bits_of(program.slot(id).dtype));
    }
  }
  return read;
}

}  // namespace

bool rows_are_independent(const ir::Graph& bound, int64_t rows) {
  Rows r{bound, rows, std::vector<bool>(bound.values().size(), false)};
  for (ValueId id : bound.inputs()) {
    if (!r.leads(id)) return false;
    r.depends[ir::index(id)] = true;
  }
  for (const Node& node : bound.nodes()) {
    if (node.op == nullptr) continue;
    if (std::none_of(node.in.begin(), node.in.end(), [&](ValueId id) { return r.is_fed(id); })) {
      if (node.op->schema.is_random || node.op->schema.is_control) return false;
      continue;
    }
    for (ValueId id : node.out) {
      if (id == ir::kNoValue) continue;
      if (!r.leads(id)) return false;
      r.depends[ir::index(id)] = true;
    }
    if (!node_keeps_rows(r, node)) return false;
  }
  return std::all_of(bound.outputs().begin(), bound.outputs().end(),
                     [&](ValueId id) { return r.is_fed(id); });
}

SlicePlan plan_slices(const compile::Program& one_row, int64_t rows, int threads) {
  // Half of the last-level cache of the processors this was tuned on; the rest is for weights and neighbours.
  constexpr int64_t kCacheBytes = int64_t{16} << 20;
  const int64_t arena = std::max<int64_t>(1, one_row.memory.arena_bytes);
  const auto worth = [&](int64_t slice_rows) {
    return slice_rows * one_row.memory.sum_bytes >= 2 * one_row.memory.constant_bytes;
  };
  // Lanes that run at the same time all read the weights, from a cache they share or from memory. A core that
  // does this many operations for each byte wants under 3 GB/s of f32 weights, 12 of 8-bit ones. Of a few
  // times the cache's size much is still there when the next lane reads it: then so many for each weight and
  // lane do, by which all lanes together want 35 GB/s.
  constexpr double kFlopPerByte = 96, kFlopPerWeightAndLane = 30;
  const double flop = one_row.cost().flop;
  const WeightsRead read = weights_read(one_row);
  const bool is_near = read.bytes <= 8.0 * kCacheBytes;
  const double apart = kFlopPerByte * read.bytes, near = kFlopPerWeightAndLane * threads * read.elements;
  const double least = is_near ? std::min(apart, near) : apart;
  const auto computes = [&](int64_t slice_rows) { return static_cast<double>(slice_rows) * flop > least; };
  // Waking the other threads takes a core 10 to 20 us, and they look for more work as long again: a batch
  // that one thread is through with in that time stays with it. In seconds, at a core's modest speeds.
  constexpr double kWake = 20e-6, kFlopPerSecond = 30e9, kBytesPerSecond = 10e9;
  const double moved = std::max(one_row.cost().bytes, static_cast<double>(one_row.memory.sum_bytes));
  const bool is_short = static_cast<double>(rows) * (flop / kFlopPerSecond + moved / kBytesPerSecond) < kWake;
  SlicePlan plan;
  for (int64_t slice = rows / threads; threads > 1 && !is_short && slice >= 1; --slice) {
    const bool even = rows % slice == 0 && rows / slice % threads == 0;
    if (!even || (slice > 1 && slice * arena * threads > 2 * kCacheBytes)) continue;
    if (worth(slice) || computes(slice)) return {rows / slice, threads};
    break;
  }
  if (rows * arena <= kCacheBytes) return plan;
  for (int64_t slice = rows / 2; slice >= 1; --slice) {
    if (rows % slice != 0 || (slice > 1 && slice * arena > kCacheBytes)) continue;
    if (worth(slice)) plan.slices = rows / slice;
    break;
  }
  return plan;
}

}  // namespace trireme::engine
