// Removes a pad of zeros by adding it to the padding of the convolution or pool after it.
#include "passes/layout/padded_windows.h"

#include <algorithm>

#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using Ints = std::vector<int64_t>;

/// A pad of zeros with known, nonnegative amounts for each axis.
struct Padding {
  ValueId x;
  Ints begin, end;
};

std::optional<Padding> zero_padding(const Rewriter& rw, ValueId id) {
  const auto pad = rw.producer(id, "pad");
  if (!pad || pad->in.size() < 2 || pad->attrs.get_string("mode", "constant") != "constant")
    return std::nullopt;
  const auto dims = rw.dims(pad->in[0]);
  const auto pads = rw.ints(pad->in[1]);
  const auto has = [&](size_t i) { return i < pad->in.size() && pad->in[i] != ir::kNoValue; };
  if (!dims || !pads || (has(2) && rw.scalar(pad->in[2]) != 0.0)) return std::nullopt;
  Padding p{pad->in[0], Ints(dims->size(), 0), Ints(dims->size(), 0)};
  Ints axes;
  if (has(3)) {
    const auto given = rw.ints(pad->in[3]);
    if (!given) return std::nullopt;
    axes = *given;
  } else {
    for (size_t i = 0; i < dims->size(); ++i) axes.push_back(static_cast<int64_t>(i));
  }
  if (pads->size() != 2 * axes.size()) return std::nullopt;
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t axis = ir::normal_axis(axes[i], dims->size());
    p.begin[axis] = (*pads)[i];
    p.end[axis] = (*pads)[axes.size() + i];
    if (std::min(p.begin[axis], p.end[axis]) < 0) return std::nullopt;
  }
  return p;
}

bool is_empty(const Padding& p) {
  const auto none = [](int64_t n) { return n == 0; };
  return std::all_of(p.begin.begin(), p.begin.end(), none) && std::all_of(p.end.begin(), p.end.end(), none);
}

/// The window's own padding plus the pad before it; nullopt if auto_pad computes the window's padding, or if
/// batch or channels are padded.
std::optional<Ints> joined_pads(const Node& node, const Padding& p) {
  const std::string rule = node.attrs.get_string("auto_pad", "NOTSET");
  if (!rule.empty() && rule != "NOTSET" && rule != "VALID") return std::nullopt;
  if (p.begin.size() < 3 || p.begin[0] + p.end[0] + p.begin[1] + p.end[1] != 0) return std::nullopt;
  const size_t axes = p.begin.size() - 2;
  Ints pads = rule == "VALID" ? Ints{} : node.attrs.get_ints("pads");
  if (pads.empty()) pads.assign(2 * axes, 0);
  if (pads.size() != 2 * axes) return std::nullopt;
  for (size_t i = 0; i < axes; ++i) {
    if (std::min(pads[i], pads[axes + i]) < 0) return std::nullopt;
    pads[i] += p.begin[i + 2];
    pads[axes + i] += p.end[i + 2];
  }
  return pads;
}

/// True if means may count padding: without ceil_mode, and without uncounted padding of their own.
bool counts_padding(const Node& pool) {
  if (pool.attrs.get_int("ceil_mode", 0) != 0) return false;
  const Ints pads = pool.attrs.get_ints("pads");
  const bool has_none = std::all_of(pads.begin(), pads.end(), [](int64_t n) { return n == 0; });
  return has_none || pool.attrs.get_int("count_include_pad", 0) != 0;
}

bool absorb(Rewriter& rw, const Node& node) {
  const bool averages = node.op_name() == "average_pool";
  if (averages && !counts_padding(node)) return false;
  const auto padding = zero_padding(rw, node.in[0]);
  const auto pads = padding ? joined_pads(node, *padding) : std::nullopt;
  if (!pads) return false;
  Node wider = node;
  wider.in[0] = padding->x;
  wider.attrs.erase("auto_pad");
  wider.attrs.set("pads", *pads);
  if (averages) wider.attrs.set("count_include_pad", int64_t{1});
  return rw.replace_same(node.out[0], rw.add(node.op_name(), wider.in, wider.attrs, node.from));
}

}  // namespace

size_t absorb_padding(ir::Graph& graph) {
  Rewriter rw(graph);
  size_t changes = rw.for_each("pad", [&](ir::NodeId, const Node& node) {
    const auto padding = zero_padding(rw, node.out[0]);
    if (!padding || !is_empty(*padding) || rw.uses(node.out[0]) == 0) return false;
    rw.replace(node.out[0], padding->x);
    return true;
  });
  changes += rw.for_each([&](ir::NodeId, const Node& seen) {
    if (seen.op_name() != "conv" && seen.op_name() != "average_pool") return false;
    const Node* now = rw.graph().producer(seen.out[0]);  // the operand may have been replaced
    return now != nullptr && rw.uses(seen.out[0]) > 0 && absorb(rw, Node(*now));
  });
  return changes;
}

}  // namespace trireme::passes
