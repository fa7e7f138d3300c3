// Placements of values along one mesh axis, and conversions between them (training contract C1).
#include "passes/partition/partition_values.h"

#include "base/error.h"
#include "ops/collective/parts.h"
#include "ops/table.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::Placement;

/// Weights are split for good: gathering one is the last resort.
constexpr double kWeightFactor = 1000;

bool divides(const tensor::Dims& dims, const Placement& p, int ranks) {
  return !p.is_split() || dims.at(static_cast<size_t>(p.dim)) % (int64_t{ranks} * p.sections) == 0;
}

}  // namespace

double conversion_cost(double bytes, const Placement& from, const Placement& to, int ranks) {
  if (from == to) return 0;
  if (to.is_partial() || from.kind == tensor::PlacementKind::own || to.kind == tensor::PlacementKind::own)
    return kImpossible;
  const double others = (ranks - 1.0) / ranks;
  if (from.is_replicated()) return 0;
  if (from.is_partial()) return kLatencyBytes + (to.is_split() ? 1 : 2) * bytes * others;
  const bool swaps = to.is_split() && to.dim != from.dim && to.sections == 1 && from.sections == 1;
  return kLatencyBytes + (swaps ? bytes * others / ranks : bytes * others);
}

AxisValues::AxisValues(const ir::Graph& from, const Partitioning& how, AxisRank rank,
                       const std::vector<Half>& halves)
    : from_(from), how_(how), rank_(std::move(rank)) {
  to_.name = from.name;
  to_.mesh = how.mesh;
  for (auto& of_half : readers_) of_half.resize(from.values().size());
  for (size_t n = 0; n < halves.size(); ++n) {
    for (ValueId id : from.nodes()[n].in) {
      if (id != ir::kNoValue) ++readers_[static_cast<size_t>(halves[n])][index(id)];
    }
  }
  find_weights();
  for (ValueId id : from.inputs()) forms(id);
}

bool AxisValues::is_constant(ValueId v) const { return from_.value(v).kind == ir::ValueKind::constant; }

void AxisValues::find_weights() {
  is_weight_.resize(from_.values().size());
  for (size_t i = 0; i < is_weight_.size(); ++i) {
    const ir::ValueKind kind = from_.values()[i].kind;
    is_weight_[i] = kind == ir::ValueKind::param || kind == ir::ValueKind::state;
  }
  for (const ir::Node& node : from_.nodes()) {
    bool any = false, all = true;
    for (ValueId id : node.in) {
      if (id == ir::kNoValue || is_constant(id)) continue;
      any = any || is_weight_[index(id)] != 0;
      all = all && is_weight_[index(id)] != 0;
    }
    for (ValueId id : node.out) {
      if (id != ir::kNoValue) is_weight_[index(id)] = any && all;
    }
  }
}

double AxisValues::readers(ValueId v, Half half) const {
  const std::vector<uint32_t>& of_half = readers_[static_cast<size_t>(half)];
  return index(v) < of_half.size() ? std::max(1u, of_half[index(v)]) : 1;
}

double AxisValues::bytes(ValueId v) const { return static_cast<double>(tensor::bytes_of(from_.type(v))); }

Placement AxisValues::declared_placement(ValueId v) const {
  const ir::Value& value = from_.value(v);
  const auto at = how_.placed.find(value.name);
  if (value.kind == ir::ValueKind::constant || at == how_.placed.end()) return {};
  const Placement p = at->second.on(rank_.axis);
  if (!p.is_split()) return p;
  const tensor::Dims dims = value.type.shape.to_dims();
  const auto text = [&] {
    return base::concat("'", value.name, "' ", value.type.to_string(), " cannot be ", p.to_string(),
                        " on mesh axis '", rank_.name, "' of ", rank_.ranks, " ranks: ");
  };
  base::require(p.dim >= 0 && static_cast<size_t>(p.dim) < dims.size(), text(), "it has no such dimension");
  const int64_t extent = dims[static_cast<size_t>(p.dim)];
  base::require(p.sections == 1 || extent % (int64_t{p.sections} * rank_.ranks) == 0, text(), "its ",
                p.sections, " sections of ", extent, " elements do not divide");
  base::require(tensor::part_begin(extent, rank_.ranks, rank_.ranks - 1) < extent, text(),
                "some ranks would hold nothing");
  return p;
}

AxisValues::Form AxisValues::declare(ValueId v) {
  const ir::Value& value = from_.value(v);
  base::check(value.kind != ir::ValueKind::computed, "a value is read before it is computed");
  const Placement p = declared_placement(v);
  tensor::TensorType type = value.type;
  if (p.is_split()) type.shape = tensor::Shape::of(part_dims(type.shape.to_dims(), p, rank_));
  ValueId local = ir::kNoValue;
  switch (value.kind) {
    case ir::ValueKind::input: local = to_.add_input(value.name, type); break;
    case ir::ValueKind::state: local = to_.add_state(value.name, type); break;
    case ir::ValueKind::param: local = to_.add_param(value.name, part_of(value.data, p, rank_)); break;
    default: local = to_.add_constant(value.data, value.name); break;
  }
  set_shard(v, local, p);
  return {.placement = p, .local = local};
}

std::vector<AxisValues::Form>& AxisValues::forms(ValueId v) {
  if (index(v) >= forms_.size()) forms_.resize(from_.values().size());
  if (forms_[index(v)].empty()) forms_[index(v)].push_back(declare(v));
  return forms_[index(v)];
}

Placement AxisValues::made(ValueId v) { return forms(v).front().placement; }

bool AxisValues::is_cut_along(ValueId v, size_t dim) {
  for (const Form& f : forms(v)) {
    if (f.placement.is_split() && !f.is_slice && static_cast<size_t>(f.placement.dim) == dim) return true;
  }
  return false;
}

void AxisValues::set_shard(ValueId v, ValueId local, const Placement& p) {
  tensor::Shard shard = from_.value(v).shard;
  shard.set(rank_.axis, p);
  to_.value(local).shard = shard;
}

void AxisValues::define(ValueId v, const Placement& placement, ValueId local) {
  if (index(v) >= forms_.size()) forms_.resize(from_.values().size());
  forms_[index(v)] = {Form{.placement = placement, .local = local}};
  to_.value(local).name = from_.value(v).name;
  set_shard(v, local, placement);
}

void AxisValues::alias(ValueId v, ValueId same) {
  const std::vector<Form> copy = forms(same);
  if (index(v) >= forms_.size()) forms_.resize(from_.values().size());
  forms_[index(v)] = copy;
}

bool AxisValues::fits_other_axes(ValueId v, const Placement& placement) const {
  if (!placement.is_split()) return true;
  const tensor::Shard& shard = from_.value(v).shard;
  for (size_t a = 0; a < how_.mesh.axes().size(); ++a) {
    const Placement other = shard.on(a);
    if (a != rank_.axis && other.is_split() && other.dim == placement.dim &&
        other.sections != placement.sections)
      return false;
  }
  return true;
}

const AxisValues::Form* AxisValues::find(ValueId v, const Placement& p, Half half) {
  for (const Form& f : forms(v)) {
    if (f.placement == p && (f.is_kept || f.half == half)) return &f;
  }
  return nullptr;
}

double AxisValues::cost(ValueId v, const Placement& wanted, Half half) {
  if (find(v, wanted, half) != nullptr || (is_constant(v) && wanted.is_split())) return 0;
  const tensor::Dims dims = from_.type(v).shape.to_dims();
  double best = kImpossible;
  for (const Form& f : forms(v)) {
    if (!f.is_kept && f.half != half) continue;
    double cost = conversion_cost(bytes(v), f.placement, wanted, rank_.ranks);
    // A conversion for one reader serves all of them, so its cost is shared: that of sums by the readers of
    // the whole step, that of gathered tokens by those of this half of the step, if one reader (the widest
    // product) needs the conversion in any case.
    if (f.placement.is_partial()) cost /= readers(v, Half::forward) + readers(v, Half::backward) - 1;
    const bool is_tokens = rank_.name == how_.sequence_axis && dims.size() == 3 && f.placement.is_split() &&
                           f.placement.dim == 1;
    if (is_tokens && wanted.is_replicated() && readers(v, half) > 1) cost = kLatencyBytes / readers(v, half);
    if (is_weight(v) && f.placement.is_split())
      cost = divides(dims, f.placement, rank_.ranks) ? cost * kWeightFactor : kImpossible;
    best = std::min(best, cost);
  }
  return best;
}

ir::Attrs AxisValues::conversion_attrs(ValueId v, const Placement& from, const Placement& to) const {
  ir::Attrs attrs = ops::group_attrs(how_.mesh, how_.coordinates, rank_.name);
  const Placement& split = from.is_split() ? from : to;
  if (from.is_partial() && to.is_replicated()) {
    return attrs.set("op", std::string(from.is_max ? "max" : "sum"));
  }
  if (from.is_split() && to.is_split()) {
    return attrs.set("split", int64_t{to.dim}).set("concat", int64_t{from.dim});
  }
  attrs.set("dim", int64_t{split.dim}).set("sections", int64_t{split.sections});
  const tensor::Dims dims = from_.type(v).shape.to_dims();
  if (from.is_split() && !divides(dims, from, rank_.ranks))
    attrs.set("extents", std::vector<int64_t>{dims[static_cast<size_t>(from.dim)]});
  return attrs;
}

ValueId AxisValues::add(ValueId v, const Form& from, const Placement& to, const std::string& layer) {
  const char* op = from.placement.is_replicated() ? "shard_slice"
                   : from.placement.is_partial()  ? (to.is_split() ? "reduce_scatter" : "all_reduce")
                   : to.is_split()                ? "all_to_all"
                                                  : "all_gather";
  const ir::OpDef& def = ops::table().need(op);
  const ValueId local = to_.add1(def, {from.local}, conversion_attrs(v, from.placement, to), layer);
  set_shard(v, local, to);
  return local;
}

ValueId AxisValues::to_placement(ValueId v, const Placement& wanted, Half half, const std::string& layer) {
  if (const Form* found = find(v, wanted, half)) return found->local;
  const tensor::Dims dims = from_.type(v).shape.to_dims();
  Form made{.placement = wanted, .half = half};
  if (is_constant(v) && wanted.is_split()) {
    made.local = to_.add_constant(part_of(from_.value(v).data, wanted, rank_));
    made.is_slice = true;
    set_shard(v, made.local, wanted);
    forms(v).push_back(made);
    return made.local;
  }
  const Form* source = nullptr;
  double best = kImpossible;
  for (const Form& f : forms(v)) {
    if (!f.is_kept && f.half != half) continue;
    const double cost = conversion_cost(bytes(v), f.placement, wanted, rank_.ranks);
    if (cost < best) source = &f, best = cost;
  }
  base::check(source != nullptr, "no way from ", forms(v).front().placement.to_string(), " to ",
              wanted.to_string(), " (", layer, ")");
  const bool swaps = source->placement.is_split() && wanted.is_split();
  const bool is_direct = !swaps || (source->placement.dim != wanted.dim && wanted.sections == 1 &&
                                    source->placement.sections == 1 && divides(dims, wanted, rank_.ranks) &&
                                    divides(dims, source->placement, rank_.ranks));
  const bool scatters_max = source->placement.is_partial() && source->placement.is_max && wanted.is_split();
  if (!is_direct || scatters_max) {
    to_placement(v, {}, half, layer);
    source = find(v, {}, half);
  }
  made.is_slice = source->placement.is_replicated();
  // Weights and sequence-parallel values are gathered again in the backward pass, since they are split to
  // save memory.
  const bool gathers = source->placement.is_split() && wanted.is_replicated();
  made.is_kept = !(gathers && (is_weight(v) || rank_.name == how_.sequence_axis));
  made.local = add(v, *source, wanted, layer);
  forms(v).push_back(made);
  return made.local;
}

}  // namespace trireme::passes
