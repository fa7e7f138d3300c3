// Data parallelism and ZeRO for a rank's step graph.
#include "passes/partition/data_parallel.h"

#include <algorithm>
#include <bit>

#include "ops/collective/parts.h"
#include "ops/optim/norm_blocks.h"
#include "ops/table.h"

namespace trireme::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::ValueId;
using tensor::Placement;

constexpr const char* kAxis = "dp";

ValueId add(Graph& graph, std::string_view op, std::vector<ValueId> in, ir::Attrs attrs,
            const std::string& from) {
  return graph.add1(ops::table().need(op), std::move(in), std::move(attrs), from);
}

bool has_ranks(const Graph& graph) { return graph.mesh.extent(kAxis) > 1; }

/// `shard` with its placement along dp replaced.
tensor::Shard placed(const Graph& graph, tensor::Shard shard, int dim) {
  if (graph.mesh.has(kAxis))
    shard.set(graph.mesh.index_of(kAxis), dim < 0 ? Placement{} : Placement::split(dim));
  return shard;
}

ir::Attrs split_attrs(const Graph& graph, const std::vector<int>& coordinates, int dim) {
  return ops::group_attrs(graph.mesh, coordinates, kAxis).set("dim", int64_t{dim});
}

/// Consecutive items in buckets of about `limit` bytes each, where `together` tells which items may share a
/// bucket. Even in small models a bucket is a small fraction of all bytes, so that communication overlaps
/// with computation and little of it is left at the end.
template <class Bytes, class Together>
std::vector<std::vector<size_t>> in_buckets(size_t count, int64_t limit, Bytes bytes, Together together) {
  constexpr int64_t kShares = 8;
  int64_t total = 0;
  for (size_t i = 0; i < count; ++i) total += bytes(i);
  limit = std::min(limit, total / kShares);
  std::vector<std::vector<size_t>> buckets;
  int64_t held = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool fits = !buckets.empty() && held < limit && together(buckets.back().back(), i);
    if (!fits) buckets.emplace_back(), held = 0;
    buckets.back().push_back(i);
    held += bytes(i);
  }
  return buckets;
}

/// The layer for which a value was computed, for messages.
std::string source(const Graph& graph, ValueId id) {
  const Node* node = graph.producer(id);
  return node == nullptr ? graph.value(id).name : node->from;
}

std::string sum_name(const std::string& name, size_t level) { return base::concat(name, ".sum", level); }

/// Computes the sums of a step whose micro-batches are all in one graph.
class StepSummer {
 public:
  StepSummer(Graph& graph, std::vector<StepSum>& sums, const StepSums& how)
      : graph_(graph), sums_(sums), how_(how) {}

  void run() {
    const size_t first = graph_.nodes().size();
    const bool is_reduced = how_.is_apart && how_.is_last;  // else placed as when it was kept
    for (StepSum& s : sums_) {
      if (has_ranks(graph_) && !is_reduced)
        graph_.value(s.value).shard.set(graph_.mesh.index_of(kAxis), s.unreduced);
    }
    if (how_.reduce_each && !is_reduced) reduce();
    how_.is_last ? complete() : keep();
    if (!how_.reduce_each && how_.is_last) reduce();
    hoist(graph_, first);
  }

 private:
  ValueId level(const StepSum& s, size_t i) {
    const ValueId id = graph_.add_state(sum_name(s.name, i), graph_.type(s.value));
    graph_.value(id).shard = graph_.value(s.value).shard;
    return id;
  }

  /// Adds this micro-batch to the kept partial sums.
  void keep() {
    const ValueId count = need_input(graph_, kCountInput, {tensor::DType::i64, tensor::Shape{}});
    const auto levels = static_cast<size_t>(std::bit_width(how_.micro_batches - (how_.is_apart ? 0 : 1)));
    for (StepSum& s : sums_) {
      std::vector<ValueId> in{count, s.value};
      for (size_t i = 0; i < levels; ++i) in.push_back(level(s, i));
      const std::string from = source(graph_, s.value);
      s.value = graph_.add(ops::table().need("tree_accumulate"), in, {}, levels, from)[0];
    }
  }

  /// Adds the kept partial sums to the last micro-batch. The occupied levels are the binary digits of the
  /// number of earlier micro-batches; lower levels hold later micro-batches, and are added first.
  void complete() {
    const size_t lowest = how_.is_apart ? size_t{1} << std::countr_zero(how_.micro_batches) : 1;
    const size_t before = how_.micro_batches - lowest;
    for (StepSum& s : sums_) {
      for (size_t i = 0; before >> i != 0; ++i) {
        if ((before >> i & 1u) == 0) continue;
        const tensor::Shard shard = graph_.value(s.value).shard;
        s.value = add(graph_, "add", {level(s, i), s.value}, {}, source(graph_, s.value));
        graph_.value(s.value).shard = shard;
      }
    }
  }

  void reduce() {
    if (!has_ranks(graph_)) return;
    const auto bytes = [&](size_t i) { return tensor::bytes_of(graph_.type(sums_[i].value)); };
    const auto alike = [&](size_t a, size_t b) {
      return sums_[a].dim == sums_[b].dim && sums_[a].is_gradient == sums_[b].is_gradient &&
             graph_.type(sums_[a].value).dtype == graph_.type(sums_[b].value).dtype;
    };
    for (const auto& bucket : in_buckets(sums_.size(), how_.bucket_bytes, bytes, alike)) reduce(bucket);
  }

  void reduce(const std::vector<size_t>& bucket) {
    const int dim = sums_[bucket[0]].dim;
    std::vector<ValueId> in;
    for (size_t i : bucket) in.push_back(sums_[i].value);
    const bool scatters = dim >= 0;
    const ir::Attrs attrs = scatters ? split_attrs(graph_, how_.coordinates, dim)
                                     : ops::group_attrs(graph_.mesh, how_.coordinates, kAxis);
    const std::vector<ValueId> out = graph_.add(ops::table().need(scatters ? "reduce_scatter" : "all_reduce"),
                                                in, attrs, in.size(), source(graph_, in.back()));
    for (size_t k = 0; k < bucket.size(); ++k) {
      graph_.value(out[k]).shard = placed(graph_, graph_.value(in[k]).shard, dim);
      sums_[bucket[k]].value = out[k];
    }
  }

  Graph& graph_;
  std::vector<StepSum>& sums_;
  const StepSums& how_;
};

/// A state with this rank's part that replaces a whole state and takes its name.
ValueId make_part(Graph& graph, const ZeroParam& p) {
  tensor::TensorType type = graph.type(p.param);
  tensor::Dims dims = type.shape.to_dims();
  dims[static_cast<size_t>(p.dim)] /= graph.mesh.extent(kAxis);
  type.shape = tensor::Shape::of(dims);
  const std::string name = std::move(graph.value(p.param).name);
  graph.value(p.param).name.clear();
  const tensor::Shard shard = placed(graph, graph.value(p.param).shard, p.dim);
  const ValueId part = graph.add_state(name, type);
  graph.value(part).shard = shard;
  return part;
}

/// The casts of a state to one 16-bit float type.
struct LowReaders {
  std::vector<NodeId> casts;
  tensor::DType type = tensor::DType::f32;
  bool are_all = true;  ///< nothing reads the state itself or in another type
};
LowReaders low_readers(const Graph& graph, ValueId state) {
  LowReaders found;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (node.op == nullptr || std::find(node.in.begin(), node.in.end(), state) == node.in.end()) continue;
    const tensor::DType to = node.op_name() == "cast" ? graph.type(node.out[0]).dtype : tensor::DType::f32;
    const bool is_low = to == tensor::DType::f16 || to == tensor::DType::bf16;
    if (is_low && (found.casts.empty() || to == found.type)) {
      found.casts.push_back(NodeId(static_cast<uint32_t>(n)));
      found.type = to;
    } else {
      found.are_all = false;
    }
  }
  return found;
}

/// The state `<name>.<type>` with the extents and the placement of `param`.
ValueId make_copy(Graph& graph, ValueId param, tensor::DType type) {
  const std::string name = base::concat(graph.value(param).name, ".", tensor::name_of(type));
  const ValueId copy = graph.add_state(name, {type, graph.type(param).shape});
  graph.value(copy).shard = graph.value(param).shard;
  return copy;
}

/// The position of the first node that depends on the weight of the loss.
size_t backward_begin(const Graph& graph) {
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    for (ValueId id : graph.nodes()[n].in) {
      if (id != ir::kNoValue && graph.value(id).kind == ir::ValueKind::input &&
          graph.value(id).name == kLossWeightInput)
        return n;
    }
  }
  return graph.nodes().size();
}

/// A part on its way to its readers.
struct Gathered {
  ReadParam own;                ///< this rank's part, and of its copy if that is gathered
  std::vector<ValueId> become;  ///< values whose readers read the result
  int dim;
  ValueId part() const { return own.copy != ir::kNoValue ? own.copy : own.param; }
};

Gathered to_gather(Graph& graph, const ZeroParam& p) {
  const ValueId part = make_part(graph, p);
  const LowReaders low = low_readers(graph, p.param);
  if (low.casts.empty() || !low.are_all) return {{part}, {p.param}, p.dim};
  Gathered g{{part, make_copy(graph, part, low.type)}, {}, p.dim};
  for (const NodeId id : low.casts) {
    g.become.push_back(graph.node(id).out[0]);
    graph.erase(id);
  }
  return g;
}

}  // namespace

int zero_dim(const tensor::Dims& dims, const tensor::Shard& taken, int ranks) {
  if (ranks <= 1 || dims.empty()) return -1;
  std::vector<char> in_sections(dims.size(), 0);
  for (size_t axis = 0; axis < 8; ++axis) {
    const Placement p = taken.on(axis);
    if (p.is_split() && p.sections > 1) in_sections[static_cast<size_t>(p.dim)] = 1;
  }
  const auto divides = [&](size_t d, int64_t extent) {
    return in_sections[d] == 0 && extent >= ranks && extent % ranks == 0;
  };
  const ops::NormBlocks blocks = ops::norm_blocks(dims);
  if (divides(static_cast<size_t>(blocks.dim), blocks.blocks)) return blocks.dim;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (divides(d, dims[d])) return static_cast<int>(d);
  }
  return -1;
}

std::string lowest_sum(const std::string& name, size_t micro_batches) {
  return sum_name(name, static_cast<size_t>(std::countr_zero(micro_batches)));
}

void add_step_sums(Graph& graph, std::vector<StepSum>& sums, const StepSums& how) {
  StepSummer(graph, sums, how).run();
}

std::vector<size_t> first_uses(const Graph& graph, const std::vector<ValueId>& params) {
  std::vector<size_t> first(graph.values().size(), SIZE_MAX);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    if (graph.nodes()[n].op == nullptr) continue;
    for (ValueId id : graph.nodes()[n].in) {
      if (id != ir::kNoValue) first[index(id)] = std::min(first[index(id)], n);
    }
  }
  std::vector<size_t> list;
  for (ValueId id : params) list.push_back(first[index(id)]);
  return list;
}

std::vector<ReadParam> gather_params(Graph& graph, const std::vector<ZeroParam>& params,
                                     const std::vector<int>& coordinates, int64_t bucket_bytes) {
  std::vector<ReadParam> parts;
  std::vector<Gathered> list;
  for (const ZeroParam& p : params) {
    list.push_back(to_gather(graph, p));
    parts.push_back(list.back().own);
  }
  const int64_t ranks = graph.mesh.extent(kAxis);
  const auto bytes = [&](size_t i) { return ranks * tensor::bytes_of(graph.type(list[i].part())); };
  const auto alike = [&](size_t a, size_t b) {
    return list[a].dim == list[b].dim && graph.type(list[a].part()).dtype == graph.type(list[b].part()).dtype;
  };
  for (const auto& bucket : in_buckets(list.size(), bucket_bytes, bytes, alike)) {
    std::vector<ValueId> in;
    for (size_t i : bucket) in.push_back(list[i].part());
    const std::vector<ValueId> out =
        graph.add(ops::table().need("all_gather"), in, split_attrs(graph, coordinates, list[bucket[0]].dim),
                  in.size(), source(graph, list[bucket[0]].become[0]));
    for (size_t k = 0; k < bucket.size(); ++k) {
      graph.value(out[k]).shard = placed(graph, graph.value(in[k]).shard, -1);
      for (ValueId old : list[bucket[k]].become) graph.replace_uses(old, out[k]);
    }
  }
  return parts;
}

size_t gather_again(Graph& graph) {
  const size_t begin = backward_begin(graph);
  size_t clones = 0;
  const size_t count = graph.nodes().size();
  for (size_t n = 0; n < begin; ++n) {
    const Node node = graph.nodes()[n];
    if (node.op_name() != "all_gather" || node.attrs.get_string("axes", "") != kAxis) continue;
    const ValueId first = graph.viewed(node.in[0]);
    const Node* cast = graph.producer(first);
    const ValueId root = cast != nullptr && cast->op_name() == "cast" ? cast->in[0] : first;
    if (graph.value(root).kind != ir::ValueKind::state) continue;
    std::vector<ValueId> again;
    for (size_t m = begin; m < count; ++m) {
      for (size_t i = 0; i < graph.nodes()[m].in.size(); ++i) {
        const auto at = std::find(node.out.begin(), node.out.end(), graph.nodes()[m].in[i]);
        if (at == node.out.end() || *at == ir::kNoValue) continue;
        if (again.empty()) {
          again = graph.add(*node.op, node.in, node.attrs, node.out.size(), node.from);
          for (size_t k = 0; k < again.size(); ++k)
            graph.value(again[k]).shard = graph.value(node.out[k]).shard;
          ++clones;
        }
        graph.set_operand(NodeId(static_cast<uint32_t>(m)), i,
                          again[static_cast<size_t>(at - node.out.begin())]);
      }
    }
  }
  return clones;
}

ReadParam read_low_copy(Graph& graph, const ZeroParam& param) {
  const LowReaders low = low_readers(graph, param.param);
  const bool is_cut = param.dim >= 0;
  if (low.casts.empty() || (is_cut && !low.are_all)) return {param.param};
  const ValueId copy = make_copy(graph, param.param, low.type);
  for (const NodeId id : low.casts) {
    graph.replace_uses(graph.node(id).out[0], copy);
    graph.erase(id);
  }
  return {is_cut ? make_part(graph, param) : param.param, copy};
}

ValueId own_part(Graph& graph, const ZeroParam& param, const std::vector<int>& coordinates) {
  const tensor::Shard shard = placed(graph, graph.value(param.param).shard, param.dim);
  const ValueId part = add(graph, "shard_slice", {param.param}, split_attrs(graph, coordinates, param.dim),
                           graph.value(param.param).name);
  graph.value(part).shard = shard;
  return part;
}

void gather_updates(Graph& graph, const std::vector<NewPart>& parts, const std::vector<int>& coordinates,
                    int64_t bucket_bytes) {
  const auto bytes = [&](size_t i) { return tensor::bytes_of(graph.type(parts[i].state)); };
  const auto alike = [&](size_t a, size_t b) {
    return parts[a].dim == parts[b].dim &&
           graph.type(parts[a].state).dtype == graph.type(parts[b].state).dtype;
  };
  for (const auto& bucket : in_buckets(parts.size(), bucket_bytes, bytes, alike)) {
    std::vector<ValueId> in;
    for (size_t i : bucket) in.insert(in.end(), {parts[i].state, parts[i].part});
    graph.add(ops::table().need("gather_into"), in, split_attrs(graph, coordinates, parts[bucket[0]].dim),
              bucket.size(), "optimizer");
  }
}

void hoist(Graph& graph, size_t first) {
  const size_t count = graph.nodes().size();
  // Old nodes keep their order; a new one follows the last of its operands, in turn after that one's
  // followers.
  std::vector<size_t> after(count);
  for (size_t n = 0; n < count; ++n) {
    after[n] = n < first ? n : 0;
    if (n < first) continue;
    for (ValueId id : graph.nodes()[n].in) {
      if (id == ir::kNoValue || graph.value(id).producer == ir::kNoNode) continue;
      after[n] = std::max(after[n], after[index(graph.value(id).producer)]);
    }
  }
  std::vector<size_t> order(count);
  for (size_t n = 0; n < count; ++n) order[n] = n;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return after[a] < after[b]; });
  const std::vector<Node> nodes(graph.nodes().begin(), graph.nodes().end());
  for (size_t n = 0; n < count; ++n) {
    const auto id = NodeId(static_cast<uint32_t>(n));
    graph.node(id) = nodes[order[n]];
    if (graph.node(id).op == nullptr) continue;
    for (ValueId out : graph.node(id).out) {
      if (out != ir::kNoValue) graph.value(out).producer = id;
    }
  }
}

}  // namespace trireme::passes
