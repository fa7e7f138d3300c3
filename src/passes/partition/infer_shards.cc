// The type check of a rank's graph: infers the placements of all values from those of its sources, node by
// node and axis by axis, and reports every missing or superfluous communication step between ranks (training
// contract C1).
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ir/updates.h"
#include "ops/optim/update_layout.h"
#include "passes/partition/collective_types.h"
#include "passes/partition/cut_match.h"
#include "passes/partition/partition.h"
#include "tensor/absent.h"

namespace trireme::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeView;
using ir::ValueId;
using tensor::Placement;
using tensor::PlacementKind;
using tensor::Shard;

/// Operands of an update that must have equal placements: a parameter, its gradient, its moments.
struct UpdateGroup {
  std::vector<size_t> operands;
  bool is_elementwise = true;       ///< each rank may update its own part
  bool is_linear = false;           ///< partial sums may be accumulated
  std::optional<size_t> copy = {};  ///< the result that is a rounded copy of the parameter
};

/// True if the update works element by element, or has the norms of whole parameters as operands.
bool is_elementwise_update(const Node& node) {
  const ops::UpdateLayout layout = ops::update_layout(node.op_name());
  return layout.is_elementwise || layout.has_squares(ops::group_operands(node.attrs, node.in.size())) ||
         (layout.takes_squares && node.attrs.get_int("adapt", 1) == 0);
}

/// The groups of operands of an update without a cut rule of its own.
std::vector<UpdateGroup> update_groups(const Node& node) {
  const std::string_view op = node.op_name();
  std::vector<UpdateGroup> groups;
  if (op == "ema_update") return {{.operands = {0, 1}, .is_linear = true}};
  if (op == "ema_weights") {
    for (size_t i = 2; i + 1 < node.in.size(); i += 2) groups.push_back({.operands = {i, i + 1}});
    return groups;
  }
  if (!ops::is_group_update(op)) return groups;
  const ops::UpdateLayout layout = ops::update_layout(op);
  const ops::UpdateCopies copies(node.attrs, layout, node.in.size());
  for (size_t g = 0; g < layout.groups(copies.first_operand); ++g) {
    UpdateGroup group{.operands = {layout.param(g), layout.grad(g)},
                      .is_elementwise = is_elementwise_update(node)};
    for (size_t s = 0; s < layout.states; ++s) group.operands.push_back(layout.state(g, s));
    groups.push_back(std::move(group));
  }
  for (size_t c = 0; c < copies.groups.size(); ++c) {
    const size_t operand = copies.first_operand + c;
    UpdateGroup& group = groups[static_cast<size_t>(copies.groups[c])];
    if (node.in[operand] != ir::kNoValue) group.operands.push_back(operand);
    group.copy = copies.first_result + c;
  }
  return groups;
}

/// The value of a small constant whose elements are all equal; else nullopt.
std::optional<double> uniform_value(const Graph& graph, ValueId id) {
  constexpr int64_t kMaxElements = 1 << 16;
  const tensor::Tensor* t = graph.known(id);
  if (t == nullptr || t->elements() == 0 || t->elements() > kMaxElements || !tensor::is_float(t->dtype()) ||
      tensor::is_absent(*t))
    return std::nullopt;
  const std::vector<double> values = t->to_doubles();
  const bool is_uniform = std::all_of(values.begin(), values.end(), [&](double v) { return v == values[0]; });
  return is_uniform ? std::optional(values[0]) : std::nullopt;
}

/// Bit d is set if a value that is the same on all ranks may also serve as a part along dimension d of a
/// larger one, since it repeats along d or is computed from such values (for example a gradient that is
/// broadcast over the elements of a sum).
using FreeDims = uint32_t;
constexpr FreeDims kAllFree = ~0u;

/// The dimensions along which a constant repeats, such as positions for each row of a batch.
FreeDims repeated_dims(const tensor::Tensor& t) {
  constexpr int64_t kMaxBytes = 1 << 24;
  if (t.elements() == 0 || t.bytes() > kMaxBytes || tensor::bits_of(t.dtype()) < 8 || tensor::is_absent(t))
    return 0;
  FreeDims free = 0;
  int64_t run = t.bytes() / t.elements();  // bytes under one index of dimension d
  for (size_t d = t.rank(); d-- > 0;) {
    const int64_t extent = t.dims()[d], block = run * extent;
    bool repeats = d < 32;
    for (int64_t at = 0; repeats && at < t.bytes(); at += block)
      repeats = std::memcmp(t.raw() + at, t.raw() + at + run, static_cast<size_t>(block - run)) == 0;
    if (repeats) free |= 1u << d;
    run = block;
  }
  return free;
}

bool is_free(FreeDims free, const Placement& p) {
  return p.is_split() && p.sections == 1 && p.dim < 32 && (free >> p.dim & 1u) != 0;
}

class Inference {
 public:
  explicit Inference(const Graph& graph) : graph_(graph), shards_(graph.values().size()) {}

  std::vector<Shard> run() {
    free_.assign(axes(), std::vector<FreeDims>(shards_.size(), 0));
    for (size_t i = 0; i < shards_.size(); ++i) {
      const ir::Value& v = graph_.values()[i];
      if (v.kind != ir::ValueKind::computed) shards_[i] = v.shard;
      if (v.kind != ir::ValueKind::constant || !v.data.defined()) continue;
      const bool is_uniform = uniform_value(graph_, ValueId(static_cast<uint32_t>(i))).has_value();
      const FreeDims free = is_uniform ? kAllFree : repeated_dims(v.data);
      for (size_t a = 0; a < axes(); ++a) free_[a][i] = free;
    }
    for (const Node& node : graph_.nodes()) infer(node);
    return std::move(shards_);
  }

 private:
  const Shard& shard(ValueId id) const {
    static const Shard whole;
    return id == ir::kNoValue ? whole : shards_[ir::index(id)];
  }
  size_t axes() const { return graph_.mesh.axes().size(); }
  const tensor::MeshAxis& axis_of(size_t a) const { return graph_.mesh.axes()[a]; }

  std::string name_of(const Node& node, size_t i) const {
    const std::string& name = graph_.value(node.in[i]).name;
    return base::concat("operand ", i, name.empty() ? "" : base::concat(" '", name, "'"));
  }

  /// Reports the refusal with the information needed to find and correct the node.
  [[noreturn]] void refuse(const Node& node, size_t axis, const std::string& why) const {
    std::string operands;
    for (size_t i = 0; i < node.in.size(); ++i) {
      if (node.in[i] == ir::kNoValue) continue;
      const std::string& name = graph_.value(node.in[i]).name;
      operands += base::concat(operands.empty() ? "" : ", ", name.empty() ? std::to_string(i) : name, " ",
                               shard(node.in[i]).on(axis).to_string());
    }
    base::fail_invalid("node '", node.from, "' (", node.op_name(), "), mesh axis ", axis_of(axis).name, ": ",
                       why, " [", operands, "]");
  }

  void infer(const Node& node) {
    std::vector<Shard> in;
    for (const ValueId id : node.in) in.push_back(shard(id));
    for (size_t a = 0; a < axes(); ++a) {
      const AxisTypes types = types_of(node, in, a);
      if (!types.refusal.empty()) refuse(node, a, types.refusal);
      for (size_t r = 0; r < node.out.size(); ++r) {
        if (node.out[r] != ir::kNoValue) shards_[ir::index(node.out[r])].set(a, types.out.at(r));
      }
      check_updates(node, types.out, a);
      check_recorded(node, a);
    }
  }

  /// The new content of a state must have the state's placement.
  void check_updates(const Node& node, const std::vector<Placement>& out, size_t a) const {
    for (const ir::StateUpdate& u : ir::updates_of(node)) {
      const Placement was = shard(node.in[u.operand]).on(a);
      const Placement becomes = u.result < out.size() ? out[u.result] : was;
      if (was == becomes) continue;
      refuse(
          node, a,
          base::concat("the state ", name_of(node, u.operand), " is ", was.to_string(), " and would become ",
                       becomes.to_string(), becomes.is_partial() ? ": a reduction is missing" : ""));
    }
  }

  /// A placement that a pass has recorded must equal the inferred one.
  void check_recorded(const Node& node, size_t a) const {
    for (const ValueId id : node.out) {
      if (id == ir::kNoValue) continue;
      const Placement recorded = graph_.value(id).shard.on(a), inferred = shard(id).on(a);
      if (recorded.is_replicated() || recorded == inferred) continue;
      refuse(
          node, a,
          base::concat("its result was placed as ", recorded.to_string(), " and is ", inferred.to_string()));
    }
  }

  AxisTypes types_of(const Node& node, const std::vector<Shard>& in, size_t a) {
    // Ranks along pp have different graphs, so their values say nothing about this rank's.
    if (axis_of(a).extent == 1 || axis_of(a).name == "pp")
      return {.out = std::vector<Placement>(node.out.size())};
    if (converts_placements(node)) return convert_placements(graph_, node, in, a);
    std::vector<Placement> on;
    for (const Shard& s : in) on.push_back(s.on(a));
    const bool is_common =
        std::all_of(on.begin(), on.end(), [](const Placement& p) { return p.is_replicated(); });
    if (node.op_name() == "dropout_train") {
      std::string refusal = check_mask(node, on, in);
      if (!refusal.empty()) return {.refusal = std::move(refusal)};
    }
    if (node.op_name() == "dropout_train") return {.out = {on[0]}};
    if (node.op_name() == "block_squares") return squares(node, on);
    if (node.op_name() == "trust_squares") return squares_of_groups(node, on);
    if (node.op->schema.updates_state() && !node.op->schema.cut) return updated(node, on);
    return is_common ? common(node, on, in, a) : matched(node, on, in, a);
  }

  FreeDims free_of(const Node& node, size_t i, size_t a) const {
    return node.in[i] == ir::kNoValue ? 0 : free_[a][ir::index(node.in[i])];
  }

  /// Whether the operands have the placements of a fit, or may be used as if they had.
  bool fits(const Node& node, const std::vector<Placement>& on, const CutFit& fit, size_t a) const {
    for (size_t i = 0; i < on.size(); ++i) {
      const bool may_stand = on[i].is_replicated() && is_free(free_of(node, i, a), fit.in[i]);
      if (!(on[i] == fit.in[i] || may_stand)) return false;
    }
    return true;
  }

  /// The types of a node whose operands are the same on all ranks: so are its results, unless a pass has
  /// recorded that they are parts.
  AxisTypes common(const Node& node, const std::vector<Placement>& on, const std::vector<Shard>& in,
                   size_t a) {
    AxisTypes types = common(node, graph_.view(node), on, a);
    // An extent of 1 in a shape operand, which broadcasts in a part, may be more than 1 in the whole.
    if (is_recorded(node, types.out, a) || !node.op->schema.shape_operand) return types;
    const std::optional<NodeView> whole = whole_view(node, in, a);
    return whole ? common(node, *whole, on, a) : types;
  }

  AxisTypes common(const Node& node, const NodeView& view, const std::vector<Placement>& on, size_t a) {
    AxisTypes types{.out = std::vector<Placement>(node.out.size())};
    const ir::CutRule rule = cut_rule_of(node.op->schema, view);
    const CutMatcher matcher(rule, view);
    for (const char letter : matcher.letters()) {
      const std::optional<CutFit> fit = matcher.cut(letter);
      if (!fit || !fits(node, on, *fit, a)) continue;
      for (size_t r = 0; r < node.out.size(); ++r) {
        if (node.out[r] == ir::kNoValue || !fit->out[r].is_split()) continue;
        free_[a][ir::index(node.out[r])] |= 1u << fit->out[r].dim;
        if (graph_.value(node.out[r]).shard.on(a) == fit->out[r]) types.out[r] = fit->out[r];
      }
    }
    return types;
  }

  /// Matches split operands together with operands that may serve as parts.
  std::optional<AxisTypes> match_free(const Node& node, const std::vector<Placement>& on, size_t a) const {
    const NodeView view = graph_.view(node);
    const ir::CutRule rule = cut_rule_of(node.op->schema, view);
    const CutMatcher matcher(rule, view);
    for (const char letter : matcher.letters()) {
      const std::optional<CutFit> fit = matcher.cut(letter);
      if (fit && fits(node, on, *fit, a)) return AxisTypes{.out = fit->out};
    }
    return std::nullopt;
  }

  /// A random mask must be equal on ranks with the same elements and different on others: its elements are
  /// numbered in the whole tensor (`dims`, `begin`), or rows are counted from the rank's own first row.
  std::string check_mask(const Node& node, std::vector<Placement>& on, const std::vector<Shard>& in) const {
    const Placement x = on[0];
    const bool has_own_rows = on[1].kind == PlacementKind::own;
    const std::vector<int64_t> dims = node.attrs.get_ints("dims"), begin = node.attrs.get_ints("begin");
    const tensor::Dims local = graph_.type(node.in[0]).shape.to_dims();
    if (has_own_rows) {
      on[1] = Placement{};
      if (x.is_split() && x.dim == 0) return {};
      return base::concat("rng begins at another row on each rank, but ", name_of(node, 0), " is ",
                          x.to_string(), ": replicas would drop different elements");
    }
    for (size_t d = 0; d < local.size() && d < dims.size(); ++d) {
      const bool is_cut = cut_on_any_axis(in[0], static_cast<int>(d));
      if (!is_cut && (dims[d] != local[d] || (d < begin.size() && begin[d] != 0))) {
        return base::concat(name_of(node, 0), " holds all ", local[d], " of dimension ", d,
                            ", its mask is that of ", dims[d], " from ", d < begin.size() ? begin[d] : 0,
                            ": replicas would drop different elements");
      }
    }
    if (!x.is_split()) return {};
    const auto d = static_cast<size_t>(x.dim);
    if (d < dims.size() && dims[d] > local[d]) return {};
    return base::concat(
        name_of(node, 0), " is ", x.to_string(),
        ", but elements are counted from 0 on every rank: the masks of the parts would be the same; "
        "dims and begin must tell where the part stands in the whole");
  }

  bool cut_on_any_axis(const Shard& s, int dim) const {
    for (size_t a = 0; a < axes(); ++a) {
      if (s.on(a).is_split() && s.on(a).dim == dim) return true;
    }
    return false;
  }

  /// Sums of squares over whole blocks: whatever dimensions of the tensors are split, the ranks' results are
  /// parts of the sums.
  AxisTypes squares(const Node& node, const std::vector<Placement>& on) const {
    for (size_t i = 0; i < on.size(); ++i) {
      if (on[i].is_partial() || on[i].kind == PlacementKind::own)
        return {.refusal = base::concat(name_of(node, i), " is ", on[i].to_string(),
                                        " before it is squared: an all_reduce or reduce_scatter is missing")};
      if (on[i].is_split() != on[0].is_split())
        return {.refusal =
                    base::concat(name_of(node, i), " is ", on[i].to_string(), " and ", name_of(node, 0), " ",
                                 on[0].to_string(), ": what is whole would be counted on every rank")};
    }
    return {.out = {on[0].is_split() ? Placement::split(0) : Placement{}}};
  }

  /// The same for the operands of an update, which come after its scalars.
  AxisTypes squares_of_groups(const Node& node, const std::vector<Placement>& on) const {
    for (size_t i = ops::kUpdateScalars; i < on.size(); ++i) {
      const bool is_alike = on[i].is_split() == on[ops::kUpdateScalars].is_split();
      if (is_alike && !on[i].is_partial() && on[i].kind != PlacementKind::own) continue;
      return {.refusal = base::concat(name_of(node, i), " is ", on[i].to_string(),
                                      on[i].is_partial() ? ": a reduction is missing" : ", others are not")};
    }
    return {.out = {on.back().is_split() ? Placement::split(0) : Placement{}}};
  }

  /// Updates without a cut rule: each parameter and its gradient and states need equal placements.
  AxisTypes updated(const Node& node, const std::vector<Placement>& on) const {
    std::vector<char> grouped(node.in.size(), 0);
    AxisTypes types{.out = std::vector<Placement>(node.out.size())};
    for (const UpdateGroup& group : update_groups(node)) {
      const Placement first = on[group.operands[0]];
      if (group.copy) types.out.at(*group.copy) = first;
      for (const size_t i : group.operands) {
        grouped[i] = 1;
        std::string refusal = check_member(node, group, on, i);
        if (!refusal.empty()) return {.refusal = std::move(refusal)};
      }
      if (first.is_split() && !group.is_elementwise) {
        return {.refusal =
                    base::concat(name_of(node, group.operands[0]), " is ", first.to_string(),
                                 ", and this update needs parameters whole: an all_gather is missing")};
      }
    }
    for (size_t i = 0; i < on.size(); ++i) {
      if (grouped[i] || on[i].is_replicated()) continue;
      return {.refusal = base::concat(name_of(node, i), " is ", on[i].to_string(),
                                      ", the update takes a whole value",
                                      on[i].is_partial() ? ": an all_reduce is missing" : "")};
    }
    for (const ir::StateUpdate& u : ir::updates_of(node)) {
      if (u.result < types.out.size()) types.out[u.result] = on[u.operand];
    }
    return types;
  }

  std::string check_member(const Node& node, const UpdateGroup& group, const std::vector<Placement>& on,
                           size_t i) const {
    const Placement want = on[group.operands[0]], is = on[i];
    if (is.is_partial() && !(group.is_linear && want == is)) {
      return base::concat(name_of(node, i), " is a partial sum when it reaches the update of ",
                          name_of(node, group.operands[0]), ": an all_reduce or reduce_scatter is missing");
    }
    if (is == want) return {};
    return base::concat(name_of(node, i), " is ", is.to_string(), ", ", name_of(node, group.operands[0]),
                        " which it updates is ", want.to_string());
  }

  /// Matches the op's cut rule against local shapes or, if extents of 1 hide what is split, against shapes
  /// that are whole along this axis.
  AxisTypes matched(const Node& node, const std::vector<Placement>& on, const std::vector<Shard>& in,
                    size_t a) const {
    AxisTypes types = match(node, graph_.view(node), on);
    if (types.refusal.empty() && is_recorded(node, types.out, a)) return types;
    if (const std::optional<NodeView> whole = whole_view(node, in, a)) {
      AxisTypes again = match(node, *whole, on);
      if (again.refusal.empty() && (!types.refusal.empty() || is_recorded(node, again.out, a))) return again;
    }
    if (types.refusal.empty()) return types;
    std::vector<Placement> zeros = on;
    if (take_zeros_as_partial(node, zeros)) {
      AxisTypes with_zeros = match(node, graph_.view(node), zeros);
      if (with_zeros.refusal.empty()) return with_zeros;
    }
    if (std::optional<AxisTypes> with_free = match_free(node, on, a)) return *with_free;
    const ir::OpSchema& op = node.op->schema;
    if (!op.cut && op.dims.empty()) {
      types.refusal = base::concat("the op takes whole values only",
                                   op.why_no_cut.empty() ? "" : base::concat(" (", op.why_no_cut, ")"), ": ",
                                   types.refusal);
    }
    return types;
  }

  /// True unless a pass has recorded another placement of a result.
  bool is_recorded(const Node& node, const std::vector<Placement>& out, size_t a) const {
    for (size_t r = 0; r < node.out.size(); ++r) {
      if (node.out[r] == ir::kNoValue) continue;
      const Placement recorded = graph_.value(node.out[r]).shard.on(a);
      if (!recorded.is_replicated() && recorded != out[r]) return false;
    }
    return true;
  }

  AxisTypes match(const Node& node, const NodeView& view, const std::vector<Placement>& on) const {
    const ir::CutRule rule = cut_rule_of(node.op->schema, view);
    CutMatcher::Result result = match_cut(rule, view, on);
    return {std::move(result.out), std::move(result.refusal)};
  }

  /// Zeros on all ranks may also count as a partial sum, whose total is zero.
  bool take_zeros_as_partial(const Node& node, std::vector<Placement>& on) const {
    bool any = false;
    for (size_t i = 0; i < on.size(); ++i) {
      if (!on[i].is_replicated() || node.in[i] == ir::kNoValue || uniform_value(graph_, node.in[i]) != 0.0)
        continue;
      on[i] = Placement::partial_sum();
      any = true;
    }
    return any;
  }

  static void widen(tensor::TensorType& type, const Placement& p, int64_t ranks) {
    if (!p.is_split()) return;
    tensor::Dim& extent = type.shape[static_cast<size_t>(p.dim)];
    if (extent.is_static()) extent = extent.value() * ranks;
  }

  /// The node with its operands joined along one axis, so that extents of 1 that are parts of a split
  /// dimension do not look like extents that broadcast. nullopt if the result types cannot be inferred.
  std::optional<NodeView> whole_view(const Node& node, const std::vector<Shard>& in, size_t a) const {
    NodeView view = graph_.view(node);
    const int64_t ranks = axis_of(a).extent;
    for (size_t i = 0; i < view.in.size(); ++i) widen(view.in[i], in[i].on(a), ranks);
    bool is_recorded = false;
    for (size_t r = 0; r < node.out.size(); ++r) {
      if (node.out[r] == ir::kNoValue) continue;
      const Placement recorded = graph_.value(node.out[r]).shard.on(a);
      is_recorded = is_recorded || !recorded.is_replicated();
      widen(view.out[r], recorded, ranks);
    }
    if (is_recorded || node.op->schema.shape_operand) return view;
    try {
      view.out.clear();
      view.out = ir::infer_types(node.op->schema, view);
    } catch (const base::Error&) {
      return std::nullopt;  // the attributes depend on the part
    }
    return view;
  }

  const Graph& graph_;
  std::vector<Shard> shards_;
  std::vector<std::vector<FreeDims>> free_;  ///< by axis and value
};

}  // namespace

std::vector<Shard> infer_shards(const Graph& local) { return Inference(local).run(); }

}  // namespace trireme::passes
