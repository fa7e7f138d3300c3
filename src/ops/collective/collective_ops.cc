// Operators in which ranks communicate: their types and their adjoints (training contract C1).
#include "ops/collective/parts.h"
#include "ops/grad.h"
#include "ops/table.h"

namespace trireme::ops {

std::vector<ir::Kernel> all_reduce_cpu_kernels();
std::vector<ir::Kernel> all_gather_cpu_kernels();
std::vector<ir::Kernel> reduce_scatter_cpu_kernels();
std::vector<ir::Kernel> all_to_all_cpu_kernels();
std::vector<ir::Kernel> shard_slice_cpu_kernels();
std::vector<ir::Kernel> gather_into_cpu_kernels();

namespace {

using ir::NodeView;
using tensor::Dim;
using tensor::TensorType;

// The attributes that name the group, common to all these operators.
const std::vector<ir::AttrSpec> kGroupAttrs = {
    {"axes", "string", "mesh axes whose ranks take part, \"tp\" or \"dp,tp\" in mesh order"},
    {"parts", "ints", "extents of these axes"},
    {"index", "ints", "coordinates of this rank on these axes"}};
const ir::AttrSpec kOrderAttr = {"order", "int",
                                 "place among the collectives of a program, the same on all ranks"};
const ir::AttrSpec kDimAttr = {"dim", "int", "dimension that is split over the ranks"};
const ir::AttrSpec kSectionsAttr = {"sections", "int", "equal sections of it, each split; default 1"};
const ir::AttrSpec kExtentsAttr = {
    "extents", "ints", "whole extent of the dimension of each operand, where parts differ in length"};

std::vector<ir::AttrSpec> group_and(std::vector<ir::AttrSpec> more) {
  std::vector<ir::AttrSpec> all = kGroupAttrs;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// The dimension `dim` of operand i, which must exist.
size_t split_dim(const NodeView& n, size_t i) {
  base::require(n.in[i].shape.has_rank(), "operand ", i, " has no known rank");
  return ir::normal_axis(n.attrs.need_int("dim"), n.in[i].shape.rank());
}

TensorType with_extent(TensorType type, size_t dim, Dim extent) {
  type.shape[dim] = std::move(extent);
  return type;
}

void need_whole_bytes(const NodeView& n) {
  for (const TensorType& t : n.in) {
    base::require(tensor::bits_of(t.dtype) % 8 == 0, "elements of ", name_of(t.dtype),
                  " are packed: ranks exchange whole bytes");
  }
}

/// Infers every result from its operand with a function of the index.
template <class F>
ir::InferFn each(F type_of) {
  return [type_of](const NodeView& n) {
    need_whole_bytes(n);
    const RankGroup group = RankGroup::of(n.attrs);
    base::require(n.out_count <= n.in.size(), "a collective has a result for each operand, asked for ",
                  n.out_count, " of ", n.in.size());
    std::vector<TensorType> out;
    for (size_t i = 0; i < n.in.size(); ++i) out.push_back(type_of(n, i, group));
    return out;
  };
}

/// Part [.., e / n, ..] -> whole [.., e, ..].
TensorType gathered(const NodeView& n, size_t operand, const RankGroup& group) {
  const TensorType& part = n.in[operand];
  const size_t dim = split_dim(n, operand);
  if (!part.shape[dim].is_static()) return with_extent(part, dim, Dim::unknown());
  const int64_t held = part.shape[dim].value(), sections = n.attrs.get_int("sections", 1);
  const int64_t extent = gathered_extent(n.attrs, operand, held, group);
  const Cut cut(extent, sections, group);
  const int64_t expected = group.knows_rank() ? cut.size[static_cast<size_t>(group.rank())] : cut.size[0];
  base::require(held == expected * sections, "a part of dimension ", dim, " of ", extent, " elements has ",
                expected * sections, ", operand ", operand, " has ", held);
  return with_extent(part, dim, extent);
}

/// Whole [.., e, ..] -> this rank's part.
TensorType scattered(const NodeView& n, size_t operand, const RankGroup& group) {
  const TensorType& whole = n.in[operand];
  const size_t dim = split_dim(n, operand);
  if (!whole.shape[dim].is_static()) return with_extent(whole, dim, Dim::unknown());
  const int64_t sections = n.attrs.get_int("sections", 1);
  const Cut cut(whole.shape[dim].value(), sections, group);
  base::require(group.knows_rank() || cut.is_even(), "dimension ", dim, " of ", cut.extent,
                " does not divide over ", group.size(), " ranks, so the attribute index is needed");
  const size_t rank = group.knows_rank() ? static_cast<size_t>(group.rank()) : 0;
  return with_extent(whole, dim, sections * cut.size[rank]);
}

TensorType swapped(const NodeView& n, const RankGroup& group) {
  TensorType type = n.in[0];
  base::require(type.shape.has_rank(), "all_to_all of an operand without known rank");
  const size_t split = ir::normal_axis(n.attrs.need_int("split"), type.shape.rank());
  const size_t concat = ir::normal_axis(n.attrs.need_int("concat"), type.shape.rank());
  base::require(split != concat, "all_to_all splits one dimension and joins another, given ", split,
                " twice");
  const Dim whole = type.shape[split], part = type.shape[concat];
  base::require(!whole.is_static() || whole.value() % group.size() == 0, "dimension ", split, " of ",
                whole.is_static() ? whole.value() : 0, " does not divide over ", group.size(), " ranks");
  type.shape[split] = whole.is_static() ? Dim(whole.value() / group.size()) : Dim::unknown();
  type.shape[concat] = part.is_static() ? Dim(part.value() * group.size()) : Dim::unknown();
  return type;
}

/// The gradients that are present, and the operands they belong to.
struct Arrived {
  std::vector<size_t> operands;
  std::vector<ValueId> grads;
};

Arrived arrived(const GradBuilder& g) {
  Arrived a;
  for (size_t i = 0; i < g.results(); ++i) {
    if (g.grad(i) == ir::kNoValue) continue;
    a.operands.push_back(i);
    a.grads.push_back(g.grad(i));
  }
  return a;
}

/// The node's attributes without its place in the order; `extents` is restricted to the operands whose
/// gradients are present.
ir::Attrs adjoint_attrs(const GradBuilder& g, const Arrived& a) {
  ir::Attrs attrs = g.attrs();
  attrs.erase("order");
  attrs.erase("grad");
  const std::vector<int64_t> extents = attrs.get_ints("extents");
  if (!extents.empty()) {
    std::vector<int64_t> kept;
    for (size_t i : a.operands) kept.push_back(extents.at(i));
    attrs.set("extents", kept);
  }
  return attrs;
}

/// One collective for all gradients, as the forward node is one for all operands.
Gradients bucket(GradBuilder& g, std::string_view op, const Arrived& a, ir::Attrs attrs) {
  Gradients out = g.none();
  if (a.grads.empty()) return out;
  const std::vector<ValueId> results = g.ops(op, a.grads, std::move(attrs), a.grads.size());
  for (size_t k = 0; k < results.size(); ++k) out[a.operands[k]] = results[k];
  return out;
}

/// A gather cannot infer the extents of reduce_scatter's and shard_slice's operands, so they become an
/// attribute.
ir::Attrs with_extents(const GradBuilder& g, const Arrived& a, ir::Attrs attrs) {
  std::vector<int64_t> extents;
  for (size_t i : a.operands) {
    const tensor::Dims dims = g.dims(g.in(i));
    extents.push_back(dims[ir::normal_axis(attrs.need_int("dim"), dims.size())]);
  }
  return attrs.set("extents", extents).set("grad", std::string("replicated"));
}

bool gradient_is_partial(const ir::Attrs& attrs, std::string_view fallback) {
  const std::string grad = attrs.get_string("grad", fallback);
  base::require(grad == "partial" || grad == "replicated", "grad is \"partial\" or \"replicated\", given \"",
                grad, "\"");
  return grad == "partial";
}

Gradients all_reduce_grad(GradBuilder& g) {
  if (g.attrs().get_string("op", "sum") != "sum") {
    base::fail_unsupported(
        "a maximum over ranks has no gradient: use it for what gradients do not flow through");
  }
  const Arrived a = arrived(g);
  if (gradient_is_partial(g.attrs(), "replicated")) {
    return bucket(g, "all_reduce", a, adjoint_attrs(g, a).set("grad", std::string("partial")));
  }
  Gradients out = g.none();
  for (size_t i : a.operands) out[i] = g.grad(i);
  return out;
}

Gradients all_gather_grad(GradBuilder& g) {
  const Arrived a = arrived(g);
  ir::Attrs attrs = adjoint_attrs(g, a);
  attrs.erase("extents");
  return bucket(g, gradient_is_partial(g.attrs(), "partial") ? "reduce_scatter" : "shard_slice", a,
                std::move(attrs));
}

Gradients scatter_grad(GradBuilder& g) {
  const Arrived a = arrived(g);
  return bucket(g, "all_gather", a, with_extents(g, a, adjoint_attrs(g, a)));
}

ir::OpSchema schema(std::string name, std::string doc, std::vector<ir::AttrSpec> attrs, ir::InferFn infer) {
  attrs.push_back(kOrderAttr);
  return {.name = std::move(name),
          .doc = std::move(doc),
          .max_in = ir::kVariadic,
          .max_out = ir::kVariadic,
          .attrs = group_and(std::move(attrs)),
          .infer = std::move(infer),
          .is_collective = true,
          .changes_placement = true};
}

ir::OpSchema all_reduce_schema() {
  ir::OpSchema s = schema(
      "all_reduce", "y_i = sum or maximum over the ranks of x_i; several operands are one bucket",
      {{"op", "string", "sum (default) or max"},
       {"grad", "string",
        "the gradient of y: replicated (default; passes unchanged) or partial (is summed over the ranks)"}},
      each([](const NodeView& n, size_t i, const RankGroup&) { return n.in[i]; }));
  s.grad = rule(all_reduce_grad);
  return s;
}

ir::OpSchema all_gather_schema() {
  ir::OpSchema s = schema("all_gather", "y_i = the ranks' parts x_i side by side along dim",
                          {kDimAttr,
                           kSectionsAttr,
                           kExtentsAttr,
                           {"grad", "string",
                            "the gradient of y: partial (default; reduce_scatter follows) or replicated "
                            "(shard_slice follows)"}},
                          each(gathered));
  s.grad = rule(all_gather_grad);
  return s;
}

ir::OpSchema reduce_scatter_schema() {
  ir::OpSchema s =
      schema("reduce_scatter", "y_i = this rank's part along dim of the sum over the ranks of x_i",
             {kDimAttr, kSectionsAttr}, each(scattered));
  s.grad = rule(scatter_grad);
  return s;
}

ir::OpSchema all_to_all_schema() {
  ir::OpSchema s =
      schema("all_to_all", "y = x split along another dimension: S(concat) -> S(split)",
             {{"split", "int", "dimension that is whole before and split after"},
              {"concat", "int", "dimension that is split before and whole after"}},
             each([](const NodeView& n, size_t, const RankGroup& group) { return swapped(n, group); }));
  s.max_in = s.max_out = 1;
  s.grad = rule([](GradBuilder& g) -> Gradients {
    ir::Attrs attrs = g.attrs();
    const int64_t split = attrs.need_int("split"), concat = attrs.need_int("concat");
    attrs.erase("order");
    return {g.op("all_to_all", {g.grad()}, attrs.set("split", concat).set("concat", split))};
  });
  return s;
}

ir::OpSchema shard_slice_schema() {
  ir::OpSchema s = schema("shard_slice", "y_i = this rank's part of x_i along dim; the ranks do not talk",
                          {kDimAttr, kSectionsAttr}, each(scattered));
  s.is_collective = false;
  s.why_no_cut = "it changes the placement of its operand";
  s.grad = rule(scatter_grad);
  return s;
}

/// Marks where a replicated value enters computation that is divided among ranks: each rank's gradient is a
/// partial sum there.
ir::OpSchema gradient_sum_schema() {
  ir::OpSchema s = schema("gradient_sum", "y = x; its gradient is summed over the ranks", {},
                          each([](const NodeView& n, size_t i, const RankGroup&) { return n.in[i]; }));
  s.max_in = s.max_out = 1;
  s.is_collective = false;
  s.why_no_cut = "it marks the placement of a gradient";
  // This is not a view, because passes that remove views before differentiation would lose the mark.
  s.expand = [](ir::Graph&, const ir::Node& node) { return std::vector{node.in[0]}; };
  s.grad = rule([](GradBuilder& g) -> Gradients {
    ir::Attrs attrs = g.attrs();
    attrs.erase("order");
    return {g.op("all_reduce", {g.grad()}, std::move(attrs))};
  });
  return s;
}

ir::OpSchema gather_into_schema() {
  ir::OpSchema s = schema(
      "gather_into",
      "state_i = the ranks' parts x_i side by side along dim; operands state_0, x_0, state_1, …",
      {kDimAttr, kSectionsAttr}, [](const NodeView& n) {
        need_whole_bytes(n);
        const RankGroup group = RankGroup::of(n.attrs);
        base::require(n.in.size() % 2 == 0, "gather_into takes pairs of a state and a part, given ",
                      n.in.size(), " operands");
        std::vector<TensorType> out;
        for (size_t i = 0; i < n.in.size(); i += 2) {
          const TensorType part = scattered(n, i, group);
          base::require(!part.shape.is_static() || part == n.in[i + 1], "the part of ", n.in[i].to_string(),
                        " is ", part.to_string(), ", given ", n.in[i + 1].to_string());
          out.push_back(n.in[i]);
        }
        return out;
      });
  s.min_in = 2;
  s.why_no_grad = "an update of a state ends the computation";
  s.updates = [](size_t operands) {
    std::vector<ir::StateUpdate> list;
    for (size_t i = 0; 2 * i < operands; ++i) list.push_back({.result = i, .operand = 2 * i});
    return list;
  };
  return s;
}

}  // namespace

std::vector<ir::OpDef> collectives_ops() {
  return {{all_reduce_schema(), all_reduce_cpu_kernels()},
          {all_gather_schema(), all_gather_cpu_kernels()},
          {reduce_scatter_schema(), reduce_scatter_cpu_kernels()},
          {all_to_all_schema(), all_to_all_cpu_kernels()},
          {shard_slice_schema(), shard_slice_cpu_kernels()},
          {gather_into_schema(), gather_into_cpu_kernels()},
          {gradient_sum_schema(), {}}};
}

}  // namespace trireme::ops
