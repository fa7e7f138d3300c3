// Recognizes the forms in which exporters write layer norm, RMS norm, group norm and softmax.
#include <algorithm>

#include "passes/rewriter.h"
#include "passes/fuse/transformer.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

/// The operand of a reduction over one axis with kept dimensions, and the axis.
struct Reduced {
  ValueId x = ir::kNoValue;
  size_t axis = 0;
  bool operator==(const Reduced& other) const { return x == other.x && axis == other.axis; }
};

std::optional<Reduced> reduced(const Rewriter& rw, ValueId id, std::string_view op) {
  const auto reduce = rw.producer(id, op);
  if (!reduce || reduce->attrs.get_int("keepdims", 1) == 0 || reduce->in.size() < 2) return std::nullopt;
  const auto axes = rw.ints(reduce->in[1]);
  const auto dims = rw.dims(reduce->in[0]);
  if (!axes || axes->size() != 1 || !dims || dims->empty()) return std::nullopt;
  return Reduced{reduce->in[0], ir::normal_axis((*axes)[0], dims->size())};
}

/// A mean over one axis. TensorFlow's converter writes one over the last of three as a pool over lines.
std::optional<Reduced> mean_of(const Rewriter& rw, ValueId id) {
  if (const auto pool = rw.producer(id, "global_average_pool")) {
    const auto dims = rw.dims(pool->in[0]);
    return dims && dims->size() == 3 ? std::optional(Reduced{pool->in[0], 2}) : std::nullopt;
  }
  return reduced(rw, id, "reduce_mean");
}

/// x of x^2, written as pow(x, 2) or mul(x, x).
std::optional<ValueId> squared(const Rewriter& rw, ValueId id) {
  if (const auto pow = rw.producer(id, "pow"); pow && rw.is_scalar(pow->in[1], 2)) return pow->in[0];
  if (const auto mul = rw.producer(id, "mul"); mul && mul->in[0] == mul->in[1]) return mul->in[0];
  return std::nullopt;
}

/// sqrt(mean(v^2) + eps) over one axis.
struct RootMeanSquare {
  Reduced v;
  double eps;
};

std::optional<RootMeanSquare> mean_square(const Rewriter& rw, ValueId id) {
  const auto add = rw.producer(id, "add");
  const auto parts = add ? rw.scalar_operand(*add) : std::nullopt;
  if (!parts) return std::nullopt;
  const auto square = mean_of(rw, parts->second);
  const auto v = square ? squared(rw, square->x) : std::nullopt;
  if (!v) return std::nullopt;
  return RootMeanSquare{{*v, square->axis}, parts->first};
}

std::optional<RootMeanSquare> root_mean_square(const Rewriter& rw, ValueId id) {
  if (const auto root = rw.producer(id, "sqrt")) return mean_square(rw, root->in[0]);
  const auto pow = rw.producer(id, "pow");
  return pow && rw.is_scalar(pow->in[1], 0.5) ? mean_square(rw, pow->in[0]) : std::nullopt;
}

/// 1 / sqrt(mean(v^2) + eps).
std::optional<RootMeanSquare> inverse_root(const Rewriter& rw, ValueId id) {
  if (const auto r = rw.producer(id, "reciprocal")) return root_mean_square(rw, r->in[0]);
  if (const auto d = rw.producer(id, "div"); d && rw.is_scalar(d->in[0], 1))
    return root_mean_square(rw, d->in[1]);
  const auto pow = rw.producer(id, "pow");
  return pow && rw.is_scalar(pow->in[1], -0.5) ? mean_square(rw, pow->in[0]) : std::nullopt;
}

/// The value that the node normalizes: value / sqrt(mean(v^2) + eps), as div or as mul by the reciprocal.
struct Normalised {
  ValueId value;
  RootMeanSquare rms;
};

std::optional<Normalised> normalised(const Rewriter& rw, const Node& node) {
  if (node.op_name() == "div") {
    const auto rms = root_mean_square(rw, node.in[1]);
    return rms ? std::optional(Normalised{node.in[0], *rms}) : std::nullopt;
  }
  if (node.op_name() != "mul") return std::nullopt;
  for (size_t side : {size_t{0}, size_t{1}}) {
    if (const auto rms = inverse_root(rw, node.in[1 - side])) return Normalised{node.in[side], *rms};
  }
  return std::nullopt;
}

/// x, if v is sub(x, mean(x)) over the same axis.
std::optional<ValueId> uncentred(const Rewriter& rw, const Reduced& v) {
  const auto centred = rw.producer(v.x, "sub");
  if (!centred || mean_of(rw, centred->in[1]) != Reduced{centred->in[0], v.axis}) return std::nullopt;
  return centred->in[0];
}

/// The normalized axis and the rank of the tensor, which give the shape of its weights.
struct NormAxis {
  size_t axis, rank;
  int64_t extent;

  bool is_last() const { return axis + 1 == rank; }
};

/// The axes that a norm can take: the last one, or the channels of images (which needs layout changes).
std::optional<NormAxis> norm_axis(const Rewriter& rw, const Reduced& v) {
  const auto dims = rw.dims(v.x);
  if (!dims || rw.graph().type(v.x).dtype != tensor::DType::f32) return std::nullopt;
  const NormAxis n{v.axis, dims->size(), (*dims)[v.axis]};
  return n.is_last() || (n.axis == 1 && n.rank == 4) ? std::optional(n) : std::nullopt;
}

/// `id` as a vector, if it is a weight that varies along the normalized axis only.
std::optional<ValueId> vector_along(Rewriter& rw, ValueId id, const NormAxis& n, const std::string& from) {
  const auto w = rw.weight_dims(id);
  const size_t behind = n.rank - 1 - n.axis;
  if (!w || w->size() <= behind || w->size() > n.rank || tensor::element_count(*w) != n.extent ||
      (*w)[w->size() - 1 - behind] != n.extent)
    return std::nullopt;
  return rw.reshaped_weight(id, {n.extent}, from);
}

/// The only reader of `id`, if it is `op` with a constant operand; else nullopt.
struct AffineStep {
  Node node;
  ValueId vector;
};

std::optional<AffineStep> affine_reader(Rewriter& rw, ValueId id, std::string_view op, const NormAxis& n) {
  if (!rw.single_use(id)) return std::nullopt;
  const auto readers = rw.graph().uses();
  for (ir::NodeId reader : readers[ir::index(id)]) {
    const Node node = rw.graph().node(reader);
    if (node.op_name() != op || node.out.empty() || rw.uses(node.out[0]) == 0) continue;
    const ValueId other = node.in[0] == id ? node.in[1] : node.in[0];
    if (const auto vector = vector_along(rw, other, n, node.from)) return AffineStep{node, *vector};
  }
  return std::nullopt;
}

ValueId ones(Rewriter& rw, int64_t count) {
  const std::vector<float> values(static_cast<size_t>(count), 1.0f);
  return rw.constant(tensor::Tensor::from<float>({count}, std::span<const float>(values)));
}

/// A norm of `x` with its scale and offset.
struct Norm {
  std::string op;
  ValueId x;
  std::vector<ValueId> vectors;
  double eps;
};

bool replace_by_norm(Rewriter& rw, ValueId old, const Norm& norm, const NormAxis& n,
                     const std::string& from) {
  const std::vector<int64_t> last{0, 2, 3, 1}, first{0, 3, 1, 2};
  std::vector<ValueId> in{n.is_last() ? norm.x : rw.add("transpose", {norm.x}, {{"perm", last}}, from)};
  in.insert(in.end(), norm.vectors.begin(), norm.vectors.end());
  ValueId y = rw.add(norm.op, in, {{"axis", int64_t{-1}}, {"epsilon", norm.eps}}, from);
  if (!n.is_last()) y = rw.add("transpose", {y}, {{"perm", first}}, from);
  return rw.replace_same(old, y);
}

bool gather_norm(Rewriter& rw, const Node& node) {
  const auto found = normalised(rw, node);
  if (!found || found->value != found->rms.v.x) return false;
  const auto n = norm_axis(rw, found->rms.v);
  if (!n) return false;
  const auto x = uncentred(rw, found->rms.v);
  const auto scale = affine_reader(rw, node.out[0], "mul", *n);
  const ValueId factor = scale ? scale->vector : ones(rw, n->extent);
  const ValueId scaled = scale ? scale->node.out[0] : node.out[0];
  if (!x)
    return replace_by_norm(rw, scaled, {"rms_norm", found->value, {factor}, found->rms.eps}, *n, node.from);
  const auto bias = affine_reader(rw, scaled, "add", *n);
  Norm norm{"layer_norm", *x, {factor}, found->rms.eps};
  if (bias) norm.vectors.push_back(bias->vector);
  return replace_by_norm(rw, bias ? bias->node.out[0] : scaled, norm, *n, node.from);
}

/// The factors of mean * g; `is_negative`: whether the product has a minus sign.
struct ShiftedMean {
  ValueId mean, factor;
  bool is_negative;
};

/// Matches -(mean * g), (-mean) * g or mean * g.
std::optional<ShiftedMean> shifted_mean(const Rewriter& rw, ValueId id, ValueId factor) {
  if (const auto neg = rw.producer(id, "neg")) {
    auto inner = shifted_mean(rw, neg->in[0], factor);
    if (inner) inner->is_negative = !inner->is_negative;
    return inner;
  }
  const auto mul = rw.producer(id, "mul");
  const auto parts = mul ? Rewriter::either(*mul, [&](ValueId v) { return v == factor; }) : std::nullopt;
  if (!parts) return std::nullopt;
  if (const auto neg = rw.producer(parts->second, "neg")) return ShiftedMean{neg->in[0], factor, true};
  return ShiftedMean{parts->second, factor, false};
}

/// beta of beta - mean * g, written as a sum or a difference; kNoValue if there is no beta.
std::optional<ValueId> offset_of(const Rewriter& rw, ValueId id, ValueId factor, const Reduced& mean) {
  const auto is_mean = [&](ValueId v, bool is_negative) {
    const auto m = shifted_mean(rw, v, factor);
    return m && m->is_negative == is_negative && mean_of(rw, m->mean) == mean;
  };
  if (is_mean(id, true)) return ir::kNoValue;
  if (const auto sub = rw.producer(id, "sub"); sub && is_mean(sub->in[1], false)) return sub->in[0];
  const auto add = rw.producer(id, "add");
  const auto parts = add ? Rewriter::either(*add, [&](ValueId v) { return is_mean(v, true); }) : std::nullopt;
  return parts ? std::optional(parts->second) : std::nullopt;
}

/// gamma / sqrt(mean(v^2) + eps); gamma is kNoValue if absent.
struct NormFactor {
  RootMeanSquare rms;
  ValueId gamma = ir::kNoValue;
};

std::optional<NormFactor> norm_factor(const Rewriter& rw, ValueId id) {
  if (const auto rms = inverse_root(rw, id)) return NormFactor{*rms};
  const auto mul = rw.producer(id, "mul");
  if (!mul) return std::nullopt;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    if (const auto rms = inverse_root(rw, mul->in[side])) return NormFactor{*rms, mul->in[1 - side]};
  }
  return std::nullopt;
}

/// Replaces x * factor + offset if it is a norm of x.
bool gather_shifted(Rewriter& rw, const Node& sum, ValueId x, ValueId factor, ValueId offset) {
  const auto g = norm_factor(rw, factor);
  if (!g || uncentred(rw, g->rms.v) != x) return false;
  const auto n = norm_axis(rw, g->rms.v);
  const auto beta = n ? offset_of(rw, offset, factor, {x, n->axis}) : std::nullopt;
  if (!beta) return false;
  const auto scale = g->gamma == ir::kNoValue ? std::optional(ones(rw, n->extent))
                                              : vector_along(rw, g->gamma, *n, sum.from);
  const auto bias = *beta == ir::kNoValue ? beta : vector_along(rw, *beta, *n, sum.from);
  if (!scale || !bias) return false;
  Norm norm{"layer_norm", x, {*scale}, g->rms.eps};
  if (*bias != ir::kNoValue) norm.vectors.push_back(*bias);
  return replace_by_norm(rw, sum.out[0], norm, *n, sum.from);
}

/// x g + (beta - mean g) with g = gamma / sqrt(mean((x - mean)^2) + eps): TensorFlow's form of a norm.
bool gather_shifted_norm(Rewriter& rw, const Node& sum) {
  for (const size_t side : {size_t{0}, size_t{1}}) {
    const auto product = rw.producer(sum.in[side], "mul");
    if (!product) continue;
    for (const size_t at : {size_t{0}, size_t{1}}) {
      if (gather_shifted(rw, sum, product->in[at], product->in[1 - at], sum.in[1 - side])) return true;
    }
  }
  return false;
}

/// True if all elements of the constant are `value`.
bool is_filled(const Rewriter& rw, ValueId id, double value) {
  const tensor::Tensor* t = rw.known(id);
  constexpr int64_t kMostBytes = 64 << 10;  // limits the constants expanded to groups of channels
  if (t == nullptr || !tensor::is_float(t->dtype()) || t->bytes() > kMostBytes) return false;
  const std::vector<double> all = t->to_doubles();
  return std::all_of(all.begin(), all.end(), [&](double v) { return v == value; });
}

/// The value under the views that make `id`.
ValueId shown(const Rewriter& rw, ValueId id) {
  for (const Node* node = rw.graph().producer(id);
       node != nullptr && node->op->schema.is_view && !node->in.empty(); node = rw.graph().producer(id)) {
    if (rw.graph().type(node->in[0]).dtype != rw.graph().type(id).dtype) break;
    id = node->in[0];
  }
  return id;
}

/// A group norm: an instance norm of x [n, c, ...] viewed as [n, groups, ...], viewed back as x, with a scale
/// and an offset for each channel.
bool gather_group_norm(Rewriter& rw, const Node& norm) {
  const ValueId x = shown(rw, norm.in[0]);
  const auto whole = rw.dims(x), groups = rw.dims(norm.in[0]);
  if (!whole || !groups || whole->size() < 3 || groups->size() < 3 || x == norm.in[0]) return false;
  if ((*whole)[0] != (*groups)[0] || (*groups)[1] == 0 || (*whole)[1] % (*groups)[1] != 0) return false;
  if (!is_filled(rw, norm.in[1], 1) || !is_filled(rw, norm.in[2], 0) || !rw.single_use(norm.out[0]))
    return false;
  const auto readers = rw.graph().uses();
  ValueId y = norm.out[0];
  while (rw.dims(y) != whole) {
    const Node* next = nullptr;
    for (const ir::NodeId id : readers[ir::index(y)]) {
      const Node& node = rw.graph().node(id);
      if (!node.out.empty() && rw.uses(node.out[0]) > 0) next = &node;
    }
    if (next == nullptr || !next->op->schema.is_view || next->in[0] != y || !rw.single_use(y)) return false;
    y = next->out[0];
  }
  const NormAxis n{1, whole->size(), (*whole)[1]};
  const auto scale = affine_reader(rw, y, "mul", n);
  const ValueId scaled = scale ? scale->node.out[0] : y;
  const auto bias = affine_reader(rw, scaled, "add", n);
  // What is missing is made in f32, which a norm of f64 does not take.
  if ((!scale || !bias) && rw.graph().type(x).dtype == tensor::DType::f64) return false;
  const std::vector<float> zero(static_cast<size_t>(n.extent), 0.0f);
  const ValueId offset =
      bias ? bias->vector
           : rw.constant(tensor::Tensor::from<float>({n.extent}, std::span<const float>(zero)));
  const ir::Attrs attrs{{"num_groups", (*groups)[1]}, {"epsilon", norm.attrs.get_float("epsilon", 1e-5)}};
  return rw.replace_same(
      bias ? bias->node.out[0] : scaled,
      rw.add("group_norm", {x, scale ? scale->vector : ones(rw, n.extent), offset}, attrs, norm.from));
}

bool gather_one_softmax(Rewriter& rw, const Node& div) {
  const auto top = rw.producer(div.in[0], "exp");
  const auto sum = reduced(rw, div.in[1], "reduce_sum");
  if (!top || !sum || sum->x != div.in[0]) return false;
  const auto shifted = rw.producer(top->in[0], "sub");
  const bool stable =
      shifted && reduced(rw, shifted->in[1], "reduce_max") == Reduced{shifted->in[0], sum->axis};
  const ValueId x = stable ? shifted->in[0] : top->in[0];
  const bool is_last = sum->axis + 1 == rw.dims(x)->size();
  const int64_t axis = is_last ? -1 : static_cast<int64_t>(sum->axis);
  return rw.replace_same(div.out[0], rw.add("softmax", {x}, {{"axis", axis}}, div.from));
}

}  // namespace

size_t gather_norms(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each([&](ir::NodeId, const Node& node) {
    if (rw.uses(node.out.empty() ? ir::kNoValue : node.out[0]) == 0) return false;
    if (node.op_name() == "add") return gather_shifted_norm(rw, node);
    if (node.op_name() == "instance_norm") return gather_group_norm(rw, node);
    return (node.op_name() == "div" || node.op_name() == "mul") && gather_norm(rw, node);
  });
}

size_t gather_softmax(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each("div", [&](ir::NodeId, const Node& node) { return gather_one_softmax(rw, node); });
}

}  // namespace trireme::passes
