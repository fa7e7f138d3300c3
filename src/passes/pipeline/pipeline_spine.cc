// The view of a forward graph that pipeline cuts are based on.
#include "passes/pipeline/pipeline_spine.h"

#include <algorithm>
#include <tuple>

#include "ir/updates.h"

namespace trireme::passes {

using ir::Node;
using ir::ValueId;

Spine::Spine(const ir::Graph& g) : graph(g) {
  find_dependences();
  find_nodes();
  find_crossings();
}

void Spine::find_dependences() {
  depends_.assign(graph.values().size(), 0);
  for (size_t i = 0; i < graph.values().size(); ++i) {
    const ir::ValueKind kind = graph.values()[i].kind;
    if (kind == ir::ValueKind::input) depends_[i] = kInput;
    if (kind == ir::ValueKind::param || kind == ir::ValueKind::state) depends_[i] = kWeight;
  }
  for (const Node& node : graph.nodes()) {
    char depends = 0;
    for (ValueId id : node.in) {
      if (id != ir::kNoValue) depends |= depends_[index(id)];
    }
    for (ValueId id : node.out) {
      if (id != ir::kNoValue) depends_[index(id)] = depends;
    }
  }
}

void Spine::find_nodes() {
  const size_t count = graph.nodes().size();
  on_spine_.assign(count, 0);
  std::vector<char> wanted(graph.values().size(), 0);
  // Updates of states that nothing else reads are at the end of the order, far from their layer, so they are
  // not part of the spine.
  for (ValueId id : graph.outputs()) wanted[index(id)] = 1;
  for (size_t n = count; n-- > 0;) {
    const Node& node = graph.nodes()[n];
    const bool is_read = std::any_of(node.out.begin(), node.out.end(),
                                     [&](ValueId id) { return id != ir::kNoValue && wanted[index(id)]; });
    if (!is_read) continue;
    on_spine_[n] = std::any_of(node.out.begin(), node.out.end(),
                               [&](ValueId id) { return id != ir::kNoValue && is_activation(id); });
    for (ValueId id : node.in) {
      if (id != ir::kNoValue) wanted[index(id)] = 1;
    }
  }
  for (size_t n = 0; n < count; ++n) {
    if (!on_spine_[n]) continue;
    if (!weights_of(graph.nodes()[n]).empty()) weighted.push_back(nodes.size());
    nodes.push_back(n);
  }
}

void Spine::collect_weights(ValueId id, std::vector<ValueId>& out) const {
  if (id == ir::kNoValue || is_activation(id) || (depends_[index(id)] & kWeight) == 0) return;
  const Node* producer = graph.producer(id);
  if (producer == nullptr) {
    if (std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
    return;
  }
  for (ValueId operand : producer->in) collect_weights(operand, out);
}

std::vector<ValueId> Spine::weights_of(const Node& node) const {
  std::vector<ValueId> out;
  for (ValueId id : node.in) collect_weights(id, out);
  return out;
}

namespace {

/// Bytes of a value; unknown extents count as 1.
int64_t known_bytes(const tensor::TensorType& type) {
  int64_t elements = 1;
  for (const tensor::Dim& d : type.shape.dims()) elements *= d.is_static() ? d.value() : 1;
  return tensor::bytes_of(type.dtype, elements);
}

}  // namespace

/// By value: whether it is the new content of a state.
std::vector<char> Spine::find_contents() const {
  std::vector<char> is_content(graph.values().size(), 0);
  for (const Node& node : graph.nodes()) {
    if (!node.op->schema.updates_state()) continue;
    for (const ir::StateUpdate& u : ir::updates_of(node)) {
      if (node.out[u.result] != ir::kNoValue) is_content[index(node.out[u.result])] = 1;
    }
  }
  return is_content;
}

void Spine::find_crossings() {
  const std::vector<char> is_content = find_contents();
  // The positions at which each activation is produced and read by the spine.
  const size_t count = nodes.size();
  std::vector<std::vector<size_t>> reads(graph.values().size());
  for (size_t p = 0; p < count; ++p) {
    for (ValueId id : graph.nodes()[nodes[p]].in) {
      if (id == ir::kNoValue || !is_activation(id)) continue;
      auto& at = reads[index(id)];
      if (at.empty() || at.back() != p) at.push_back(p);
    }
  }
  for (ValueId id : graph.outputs()) reads[index(id)].push_back(count);
  crossings_.assign(count + 1, {});
  std::vector<ValueId> alive;
  for (size_t p = 0; p < count; ++p) {
    // Alive before position p: computed earlier, and read at p or later.
    std::erase_if(alive, [&](ValueId id) { return reads[index(id)].back() < p; });
    Crossing& here = crossings_[p];
    here.values = alive.size();
    for (ValueId id : alive) {
      here.bytes += known_bytes(graph.type(id));
      if (is_content[index(id)]) here.level = CutLevel::never;
    }
    if (alive.size() == 1) {
      const auto& at = reads[index(alive[0])];
      const auto later = at.end() - std::lower_bound(at.begin(), at.end(), p);
      const Node& next = graph.nodes()[nodes[p]];
      const std::vector<ValueId> weights = weights_of(next);
      const bool is_matrix = std::any_of(weights.begin(), weights.end(),
                                         [&](ValueId id) { return graph.type(id).shape.rank() >= 2; });
      if (here.level != CutLevel::never)
        here.level = later >= 2 || is_matrix ? CutLevel::stream : CutLevel::single;
    }
    for (ValueId id : graph.nodes()[nodes[p]].out) {
      if (id != ir::kNoValue && !reads[index(id)].empty()) alive.push_back(id);
    }
  }
}

size_t Spine::window(size_t j) const {
  size_t best = weighted[j];
  const auto score = [&](size_t at) {
    const Crossing& c = crossings_[at];
    return std::tuple(c.level, c.values, c.bytes);
  };
  // The last of the best: nodes without weights that follow a weighted node stay with it.
  for (size_t at = weighted[j]; at > weighted[j - 1] + 1; --at) {
    if (score(at - 1) < score(best)) best = at - 1;
  }
  return best;
}

std::vector<size_t> Spine::begins(const PipelineCut& cut) const {
  std::vector<size_t> out;
  for (const PipelineCut::Begin& b : cut.begins) {
    base::check(b.weighted > 0 && b.weighted < weighted.size(), "a part begins at weighted node ", b.weighted,
                " of ", weighted.size());
    const std::vector<ValueId> weights = weights_of(graph.nodes()[nodes[weighted[b.weighted]]]);
    base::check(std::any_of(weights.begin(), weights.end(),
                            [&](ValueId id) { return graph.value(id).name == b.weight; }),
                "the part that begins with weight '", b.weight, "' begins elsewhere for these sizes");
    out.push_back(window(b.weighted));
  }
  return out;
}

std::vector<size_t> Spine::part_of_nodes(const PipelineCut& cut) const {
  const std::vector<size_t> firsts = begins(cut);
  std::vector<size_t> part(graph.nodes().size(), kFloating);
  for (size_t p = 0; p < nodes.size(); ++p) {
    part[nodes[p]] = static_cast<size_t>(std::upper_bound(firsts.begin(), firsts.end(), p) - firsts.begin());
  }
  // Nodes that no output needs but a state does are placed where their operands are.
  for (size_t n = 0; n < part.size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (on_spine_[n]) continue;
    size_t last = 0;
    bool is_activation_node = false;
    for (ValueId id : node.in) {
      if (id == ir::kNoValue || !is_activation(id)) continue;
      is_activation_node = true;
      last = std::max(last, part[index(graph.value(id).producer)]);
    }
    if (is_activation_node) part[n] = last;
  }
  return part;
}

}  // namespace trireme::passes
