// The order in which an import adds nodes: files should list them in order, and some do not.
#include "model/onnx/importer.h"

namespace trireme::model::onnx {
namespace {

/// Places in the list of the nodes that each node reads from, by itself or in its bodies.
std::vector<std::vector<size_t>> sources_of(const std::vector<NodeProto>& nodes) {
  std::unordered_map<std::string_view, size_t> makers;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (std::string_view name : nodes[i].output) {
      if (!name.empty()) makers.emplace(name, i);
    }
  }
  std::vector<std::vector<size_t>> sources(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto read = [&](std::string_view name) {
      if (const auto at = makers.find(name); at != makers.end() && at->second != i)
        sources[i].push_back(at->second);
    };
    for (std::string_view name : nodes[i].input) read(name);
    for (const AttributeProto& a : nodes[i].attribute) {
      if (a.g == nullptr) continue;
      for (std::string_view name : free_names(*a.g)) read(name);
    }
  }
  return sources;
}

bool is_in_order(const std::vector<std::vector<size_t>>& sources) {
  for (size_t i = 0; i < sources.size(); ++i) {
    for (size_t from : sources[i]) {
      if (from > i) return false;
    }
  }
  return true;
}

}  // namespace

std::vector<const NodeProto*> in_order(const std::vector<NodeProto>& nodes) {
  std::vector<const NodeProto*> order;
  order.reserve(nodes.size());
  const std::vector<std::vector<size_t>> sources = sources_of(nodes);
  if (is_in_order(sources)) {
    for (const NodeProto& node : nodes) order.push_back(&node);
    return order;
  }
  struct Visit {
    size_t node, next;  // the next source to look at
  };
  std::vector<bool> is_seen(nodes.size(), false);
  std::vector<Visit> path;  // no recursion: a chain may be as long as the file
  for (size_t first = 0; first < nodes.size(); ++first) {
    if (!is_seen[first]) path.push_back({first, 0});
    is_seen[first] = true;
    while (!path.empty()) {
      Visit& at = path.back();
      if (at.next == sources[at.node].size()) {
        order.push_back(&nodes[at.node]);
        path.pop_back();
        continue;
      }
      const size_t from = sources[at.node][at.next++];
      if (!is_seen[from]) path.push_back({from, 0});
      is_seen[from] = true;
    }
  }
  return order;
}

}  // namespace trireme::model::onnx
