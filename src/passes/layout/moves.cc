// Merges a chain of transposes and reshapes by tracking the parts of its axes.
#include "passes/layout/moves.h"

#include <algorithm>
#include <numeric>

#include "ops/conv/window.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::Dims;

/// A part of an axis that moves as a whole. Places::order lists the parts in the order of the source; an
/// added extent of 1 that belongs to no axis of the source comes last.
using Part = size_t;

/// The positions of the source's parts after some steps of a chain: axis i consists of the parts axes[i],
/// outermost first.
struct Places {
  Dims extents;                         // of each part
  std::vector<Part> order;              // all parts in the order of the source, outermost first
  std::vector<std::vector<Part>> axes;  // of the present value in the chain

  explicit Places(const Dims& source) : extents(source), order(source.size()) {
    std::iota(order.begin(), order.end(), size_t{0});
    for (const Part part : order) axes.push_back({part});
  }

  void transpose(const std::vector<int64_t>& perm) {
    std::vector<std::vector<Part>> moved;
    for (const int64_t axis : perm) moved.push_back(axes[static_cast<size_t>(axis)]);
    axes = std::move(moved);
  }

  Part add(int64_t extent, std::vector<Part>::iterator after) {
    extents.push_back(extent);
    order.insert(after, extents.size() - 1);
    return extents.size() - 1;
  }

  /// Splits `part` into an outer part of extent `outer`, which keeps its number, and an inner one; returns
  /// the inner one.
  Part split(Part part, int64_t outer) {
    const int64_t inner = extents[part] / outer;
    extents[part] = outer;
    const Part rest = add(inner, std::find(order.begin(), order.end(), part) + 1);
    for (std::vector<Part>& axis : axes) {
      const auto at = std::find(axis.begin(), axis.end(), part);
      if (at != axis.end()) axis.insert(at + 1, rest);
    }
    return rest;
  }

  /// Distributes the parts over the extents `to`; false if an extent would cut through a part unevenly.
  bool reshape(const Dims& to) {
    std::vector<Part> left;  // innermost first
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis)
      left.insert(left.end(), axis->rbegin(), axis->rend());
    std::vector<std::vector<Part>> made;
    for (const int64_t extent : to) {
      std::vector<Part> axis;
      int64_t product = 1;
      if (extent == 1) {
        const bool has_one = !left.empty() && extents[left.back()] == 1;
        axis.push_back(has_one ? left.back() : add(1, order.end()));
        if (has_one) left.pop_back();
      }
      while (product < extent) {
        if (left.empty()) return false;
        const Part part = left.back();
        left.pop_back();
        const int64_t wanted = extent / product;
        if (extents[part] > wanted) {
          if (extents[part] % wanted != 0) return false;
          left.push_back(split(part, wanted));
        }
        if (wanted % extents[part] != 0) return false;
        product *= extents[part];
        axis.push_back(part);
      }
      made.push_back(std::move(axis));
    }
    for (; !left.empty(); left.pop_back()) {  // extents of 1 without an axis of their own
      if (made.empty()) return false;
      made.back().push_back(left.back());
    }
    axes = std::move(made);
    return true;
  }
};

bool is_view(const ir::Graph& graph, const Node& node) {
  return node.op->schema.is_view && graph.type(node.in[0]).dtype == graph.type(node.out[0]).dtype;
}

const Node* move(const ir::Graph& graph, ValueId id) {
  const Node* node = graph.producer(id);
  return node != nullptr && (node->op_name() == "transpose" || is_view(graph, *node)) ? node : nullptr;
}

/// The most nodes of a chain; exporters write fewer than ten.
constexpr size_t kLongestChain = 64;

/// The source of the chain that ends in `y`, and the chain's nodes from first to last.
struct Chain {
  ValueId source;
  std::vector<Node> nodes;
};

Chain chain_of(const ir::Graph& graph, ValueId y) {
  Chain chain{y, {}};
  const Node* node = move(graph, chain.source);
  for (; node != nullptr && chain.nodes.size() < kLongestChain; node = move(graph, chain.source)) {
    chain.nodes.push_back(*node);
    chain.source = node->in[0];
  }
  std::reverse(chain.nodes.begin(), chain.nodes.end());
  return chain;
}

std::optional<Places> follow(const Rewriter& rw, const Chain& chain) {
  Places places(*rw.dims(chain.source));
  for (const Node& node : chain.nodes) {
    if (node.op_name() == "transpose") {
      std::vector<int64_t> perm = node.attrs.get_ints("perm");
      if (perm.empty()) {
        perm.resize(places.axes.size());
        std::iota(perm.rbegin(), perm.rend(), int64_t{0});
      }
      places.transpose(perm);
    } else {
      const auto to = rw.dims(node.out[0]);
      if (!to || !places.reshape(*to)) return std::nullopt;
    }
  }
  return places;
}

/// The shape and name that a chain has to produce.
struct Result {
  Dims dims;
  std::string from;
};

/// True if the order of the parts has not changed, ignoring extents of 1.
bool moves_nothing(const Places& places) {
  std::vector<Part> moved, still;
  for (const std::vector<Part>& axis : places.axes) moved.insert(moved.end(), axis.begin(), axis.end());
  const auto is_one = [&](Part part) { return places.extents[part] == 1; };
  moved.erase(std::remove_if(moved.begin(), moved.end(), is_one), moved.end());
  std::remove_copy_if(places.order.begin(), places.order.end(), std::back_inserter(still), is_one);
  return moved == still;
}

/// Builds the chain anew with at most one transpose. Parts that are adjacent in the source and within one
/// axis of the result move together.
ValueId rebuild(Rewriter& rw, ValueId source, const Places& places, const Result& result) {
  if (moves_nothing(places)) return rw.reshaped(source, result.dims, result.from);
  std::vector<size_t> position(places.extents.size());
  for (size_t i = 0; i < places.order.size(); ++i) position[places.order[i]] = i;
  std::vector<std::pair<size_t, int64_t>>
      runs;  // first position in the source and extent, in the result's order
  for (const std::vector<Part>& axis : places.axes) {
    for (size_t i = 0; i < axis.size(); ++i) {
      if (i > 0 && position[axis[i]] == position[axis[i - 1]] + 1) {
        runs.back().second *= places.extents[axis[i]];
      } else {
        runs.emplace_back(position[axis[i]], places.extents[axis[i]]);
      }
    }
  }
  std::vector<size_t> by_source(runs.size());
  std::iota(by_source.begin(), by_source.end(), size_t{0});
  std::sort(by_source.begin(), by_source.end(),
            [&](size_t a, size_t b) { return runs[a].first < runs[b].first; });
  Dims dims(runs.size());
  std::vector<int64_t> perm(runs.size());
  for (size_t i = 0; i < by_source.size(); ++i) {
    dims[i] = runs[by_source[i]].second;
    perm[by_source[i]] = static_cast<int64_t>(i);
  }
  const ValueId y =
      rw.add("transpose", {rw.reshaped(source, dims, result.from)}, {{"perm", perm}}, result.from);
  return rw.reshaped(y, result.dims, result.from);
}

/// True if rebuild() ends with a transpose: every axis of the result is one contiguous run of the source.
bool ends_in_transpose(const Places& places) {
  return std::all_of(places.axes.begin(), places.axes.end(), [&](const std::vector<Part>& axis) {
    for (size_t i = 1; i < axis.size(); ++i) {
      const auto at = std::find(places.order.begin(), places.order.end(), axis[i - 1]);
      if (at + 1 == places.order.end() || *(at + 1) != axis[i]) return false;
    }
    return true;
  });
}

/// The parts of each axis of the source, outermost first.
std::vector<std::vector<Part>> parts_of_source(const Places& places, const Dims& source) {
  std::vector<std::vector<Part>> parts(source.size());
  auto at = places.order.begin();
  for (size_t axis = 0; axis < source.size(); ++axis) {
    int64_t product = 1;
    do {
      product *= places.extents[*at];
      parts[axis].push_back(*at++);
    } while (product < source[axis] && at != places.order.end());
  }
  return parts;
}

/// A chain from a channels-last image to channels-first that only permutes channels (a shuffle): the shuffle
/// becomes channels-last and the layout's transpose comes last, so that sinking finds it.
bool shuffle_channels_last(Rewriter& rw, const Chain& chain, const Places& places, const Result& result) {
  const Dims source = *rw.dims(chain.source);
  const size_t rank = source.size();
  if (rank < 3 || result.dims.size() != rank || chain.nodes[0].op_name() != "transpose" ||
      chain.nodes[0].attrs.get_ints("perm") != ops::channels_first(rank))
    return false;
  const auto parts = parts_of_source(places, source);
  Places last = places;
  std::rotate(last.axes.begin() + 1, last.axes.begin() + 2, last.axes.end());
  for (size_t i = 0; i + 1 < rank; ++i) {
    if (last.axes[i] != parts[i]) return false;
  }
  Dims dims = result.dims;
  std::rotate(dims.begin() + 1, dims.begin() + 2, dims.end());
  const ValueId y = rebuild(rw, chain.source, last, {dims, result.from});
  const ir::Attrs perm{{"perm", ops::channels_first(rank)}};
  return rw.replace_same(chain.nodes.back().out[0], rw.add("transpose", {y}, perm, result.from));
}

bool merge(Rewriter& rw, const Node& last, bool lifts_views) {
  const ir::Graph& graph = rw.graph();
  Chain chain = chain_of(graph, last.out[0]);
  const auto transposes = std::count_if(chain.nodes.begin(), chain.nodes.end(),
                                        [](const Node& n) { return n.op_name() == "transpose"; });
  const auto dims = rw.dims(chain.source), y = rw.dims(last.out[0]);
  const bool lifts = lifts_views && transposes == 1 && last.op_name() != "transpose";
  if (transposes == 0 || !dims || !y || tensor::element_count(*dims) == 0) return false;
  const std::optional<Places> places = follow(rw, chain);
  if (!places) return false;
  if (lifts_views && transposes > 1 && shuffle_channels_last(rw, chain, *places, {*y, last.from}))
    return true;
  // Between convolutions even a transpose that moves no bytes tells sink_transposes the next layout.
  const bool is_view = !lifts_views && moves_nothing(*places);
  if (transposes == 1 && !is_view && !(lifts && ends_in_transpose(*places))) return false;
  return rw.replace_same(last.out[0], rebuild(rw, chain.source, *places, {*y, last.from}));
}

/// The axis of `source` that begins with `part`, and the product of the extents of its other parts; nullopt
/// if the part is not the outermost of its axis.
struct Outermost {
  size_t axis;
  int64_t rest;
};

std::optional<Outermost> outermost(const Places& places, Part part, const Dims& source) {
  auto at = places.order.begin();
  for (size_t axis = 0; axis < source.size(); ++axis) {
    if (*at == part) return Outermost{axis, source[axis] / places.extents[part]};
    int64_t product = 1;
    do {
      product *= places.extents[*at++];
    } while (product < source[axis] && at != places.order.end());
    if (at == places.order.end()) return std::nullopt;
  }
  return std::nullopt;
}

/// gather(moves(x), i) with one index on one axis becomes moves(slice(x)): selects queries, keys or values
/// from a joint projection.
bool select_before(Rewriter& rw, const Node& gather) {
  const auto index = rw.known(gather.in[1]) != nullptr ? rw.ints(gather.in[1]) : std::nullopt;
  const auto from = rw.dims(gather.in[0]), y = rw.dims(gather.out[0]);
  if (!index || index->size() != 1 || !from || !y || y->size() + 1 != from->size()) return false;
  const Chain chain = chain_of(rw.graph(), gather.in[0]);
  const auto source = rw.dims(chain.source);
  if (chain.nodes.empty() || !source || tensor::element_count(*source) == 0) return false;
  std::optional<Places> places = follow(rw, chain);
  const size_t axis = ir::normal_axis(gather.attrs.get_int("axis", 0), from->size());
  if (!places || places->axes[axis].size() != 1) return false;
  const Part part = places->axes[axis][0];
  const auto place = outermost(*places, part, *source);
  if (!place) return false;
  const int64_t at = (*index)[0] < 0 ? (*index)[0] + (*from)[axis] : (*index)[0];
  if (at < 0 || at >= (*from)[axis]) return false;
  const auto one = [&](int64_t value) { return rw.constant(tensor::Tensor::from<int64_t>({1}, {value})); };
  const ValueId slice = rw.add("slice",
                               {chain.source, one(at * place->rest), one((at + 1) * place->rest),
                                one(static_cast<int64_t>(place->axis))},
                               {}, gather.from);
  places->extents[part] = 1;
  places->axes.erase(places->axes.begin() + static_cast<int64_t>(axis));
  if (places->axes.empty()) return false;
  places->axes[0].insert(places->axes[0].begin(), part);
  return rw.replace_same(gather.out[0], rebuild(rw, slice, *places, {*y, gather.from}));
}

}  // namespace

namespace {

/// Values that are read by a node that is no move: the ends of chains.
std::vector<char> ends_of_chains(const ir::Graph& graph) {
  std::vector<char> ends(graph.values().size(), 0);
  for (const ValueId id : graph.outputs()) ends[ir::index(id)] = 1;
  for (const Node& node : graph.nodes()) {
    if (node.op == nullptr) continue;
    const bool moves = node.op_name() == "transpose" || is_view(graph, node);
    for (size_t i = moves ? 1 : 0; i < node.in.size(); ++i) {
      if (node.in[i] != ir::kNoValue) ends[ir::index(node.in[i])] = 1;
    }
  }
  return ends;
}

size_t merge_all(ir::Graph& graph, bool lifts_views) {
  const std::vector<char> ends = ends_of_chains(graph);
  Rewriter rw(graph);
  return rw.for_each([&](ir::NodeId, const Node& node) {
    if (rw.uses(node.out[0]) == 0) return false;
    if (node.op_name() == "gather") return select_before(rw, node);
    const bool is_end = ends[ir::index(node.out[0])] && move(rw.graph(), node.out[0]) != nullptr;
    return is_end && merge(rw, node, lifts_views);
  });
}

}  // namespace

size_t merge_moves(ir::Graph& graph) { return merge_all(graph, false); }

size_t merge_image_moves(ir::Graph& graph) {
  const auto& nodes = graph.nodes();
  return merge_all(graph, std::any_of(nodes.begin(), nodes.end(), [](const Node& node) {
                     return node.op != nullptr && node.op_name() == "conv_nhwc";
                   }));
}

}  // namespace trireme::passes
