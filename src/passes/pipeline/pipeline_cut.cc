// Chooses cuts of a model into pipeline parts, by layer names or so that the longest part is shortest.
#include <algorithm>
#include <cmath>
#include <limits>

#include "passes/name_match.h"
#include "passes/pipeline/pipeline_spine.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

/// Work is measured in bytes of memory traffic; this many floating-point operations take as long as one byte.
constexpr double kFlopPerByte = 10;
/// How much longer than the optimum the longest part may be for the sake of simple cuts.
constexpr double kSlack = 1.25;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// True if `text` contains `name` as whole components: "h.1" in "transformer.h.1.attn", not in "h.12".
bool has_layer(std::string_view text, std::string_view name) {
  if (name.find('*') != std::string_view::npos) return name_matches(name, text);
  const auto ends = [&](size_t at) { return at >= text.size() || text[at] == '.' || text[at] == '/'; };
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    if ((at == 0 || ends(at - 1)) && ends(at + name.size())) return true;
  }
  return false;
}

/// Chooses cuts from the windows between nodes with weights.
class CutPlanner {
 public:
  explicit CutPlanner(const Spine& spine) : spine_(spine) {
    before_.push_back(0);
    for (size_t n : spine.nodes) {
      const Node& node = spine.graph.nodes()[n];
      const ir::Cost cost = ir::cost_of(node.op->schema, spine.graph.view(node));
      before_.push_back(before_.back() + cost.flop / kFlopPerByte + cost.bytes);
    }
    for (size_t j = 0; j < spine.weighted.size(); ++j) windows_.push_back(j == 0 ? 0 : spine.window(j));
  }

  PipelineCut by_names(const std::vector<std::string>& names) const {
    std::vector<size_t> begins;
    for (const std::string& name : names) {
      const size_t at = first_of(name);
      base::require(at < spine_.nodes.size(), "no layer of the model is called '", name, "'");
      const auto next = std::lower_bound(spine_.weighted.begin(), spine_.weighted.end(), at);
      base::require(next != spine_.weighted.end(), "no weights come after the cut at layer '", name, "'");
      const auto j = static_cast<size_t>(next - spine_.weighted.begin());
      base::require(j > (begins.empty() ? 0 : begins.back()), "the cut at layer '", name,
                    "' leaves a part without weights: name cuts in the order of the layers");
      base::require(spine_.crossing(windows_[j]).level != CutLevel::never, "the cut at layer '", name,
                    "' parts a state from what is computed of it");
      begins.push_back(j);
    }
    return finished(begins);
  }

  PipelineCut by_streams(size_t parts) const {
    const std::vector<size_t> even = shortest(parts, CutLevel::stream, kInfinity);
    base::require(even.size() + 1 == parts, "the model has too few places between layers for ", parts,
                  " pipeline parts");
    return finished(shortest(parts, CutLevel::stream, longest(even) * 1.02));
  }

  PipelineCut by_cost(size_t parts) const {
    const double best = longest(shortest(parts, CutLevel::any, kInfinity));
    std::vector<size_t> chosen;
    double chosen_longest = kInfinity;
    for (CutLevel level : {CutLevel::stream, CutLevel::single, CutLevel::any}) {
      const std::vector<size_t> begins = shortest(parts, level, kInfinity);
      if (begins.size() + 1 != parts) continue;
      // Among cuts close to the shortest, prefers those that send the fewest bytes.
      const double length = longest(begins);
      if (length < chosen_longest) {
        chosen = shortest(parts, level, length * 1.02);
        chosen_longest = length;
      }
      if (length <= best * kSlack) break;
    }
    base::require(chosen.size() + 1 == parts, "the model has too few places to cut for ", parts,
                  " pipeline parts");
    return finished(chosen);
  }

 private:
  size_t first_of(const std::string& name) const {
    for (size_t p = 0; p < spine_.nodes.size(); ++p) {
      const Node& node = spine_.graph.nodes()[spine_.nodes[p]];
      if (has_layer(node.from, name)) return p;
      for (ValueId id : spine_.weights_of(node)) {
        if (has_layer(spine_.graph.value(id).name, name)) return p;
      }
    }
    return spine_.nodes.size();
  }

  double cost(size_t from_window, size_t to_window) const {
    const size_t end = to_window == windows_.size() ? spine_.nodes.size() : windows_[to_window];
    return before_[end] - before_[windows_[from_window]];
  }

  double longest(const std::vector<size_t>& begins) const {
    if (begins.empty() && windows_.empty()) return 0;
    double most = 0;
    size_t from = 0;
    for (size_t to : begins) most = std::max(most, cost(std::exchange(from, to), to));
    return std::max(most, cost(from, windows_.size()));
  }

  /// The first windows of parts 1, 2, …: minimizes the longest part or, if `limit` is given, the bytes that
  /// cross with no part longer than it. Empty if this level has too few cuts.
  std::vector<size_t> shortest(size_t parts, CutLevel level, double limit) const {
    const size_t count = windows_.size();
    const bool counts_bytes = limit < kInfinity;
    // score[k][j]: the best score if part k ends where window j begins.
    std::vector<std::vector<double>> score(parts, std::vector<double>(count + 1, kInfinity));
    std::vector<std::vector<size_t>> came(parts, std::vector<size_t>(count + 1, 0));
    for (size_t j = 1; j <= count; ++j) {
      if (allowed(j, level) && cost(0, j) <= limit) score[0][j] = counts_bytes ? 0 : cost(0, j);
    }
    for (size_t k = 1; k < parts; ++k) {
      for (size_t j = k + 1; j <= count; ++j) {
        if (!allowed(j, level)) continue;
        for (size_t i = k; i < j; ++i) {
          if (score[k - 1][i] == kInfinity || cost(i, j) > limit) continue;
          const double value = counts_bytes
                                   ? score[k - 1][i] + static_cast<double>(spine_.crossing(windows_[i]).bytes)
                                   : std::max(score[k - 1][i], cost(i, j));
          if (value >= score[k][j]) continue;
          score[k][j] = value;
          came[k][j] = i;
        }
      }
    }
    std::vector<size_t> begins;
    if (score[parts - 1][count] == kInfinity) return begins;
    for (size_t k = parts - 1, j = count; k > 0; --k) begins.push_back(j = came[k][j]);
    std::reverse(begins.begin(), begins.end());
    return begins;
  }

  bool allowed(size_t window, CutLevel level) const {
    return window == windows_.size() || spine_.crossing(windows_[window]).level <= level;
  }

  PipelineCut finished(const std::vector<size_t>& begins) const {
    PipelineCut cut;
    const double all = std::max(before_.back(), 1.0);
    size_t from = 0;
    for (size_t j : begins) {
      const Node& node = spine_.graph.nodes()[spine_.nodes[spine_.weighted[j]]];
      cut.begins.push_back({j, spine_.graph.value(spine_.weights_of(node)[0]).name});
      cut.share.push_back(cost(std::exchange(from, j), j) / all);
      cut.bytes.push_back(spine_.crossing(windows_[j]).bytes);
    }
    cut.share.push_back(windows_.empty() ? 1 : cost(from, windows_.size()) / all);
    return cut;
  }

  const Spine& spine_;
  std::vector<double> before_;   ///< work of the spine's nodes before each node
  std::vector<size_t> windows_;  ///< by weighted node: the best place to cut before it
};

}  // namespace

PipelineCut plan_pipeline_cut(const ir::Graph& graph, size_t parts, const std::vector<std::string>& names) {
  base::require(parts >= 1, "a model has at least one part");
  const Spine spine(graph);
  if (parts == 1) return {.begins = {}, .share = {1}, .bytes = {}};
  base::require(names.empty() || names.size() + 1 == parts, names.size(), " cuts make ", names.size() + 1,
                " parts, the pipeline has ", parts);
  base::require(spine.weighted.size() >= parts, "the model has ", spine.weighted.size(),
                " layers with weights, too few for ", parts, " pipeline parts");
  const CutPlanner planner(spine);
  return names.empty() ? planner.by_cost(parts) : planner.by_names(names);
}

PipelineCut plan_stream_cut(const ir::Graph& graph, size_t parts) {
  if (parts == 1) return plan_pipeline_cut(graph, 1);
  const Spine spine(graph);
  return CutPlanner(spine).by_streams(parts);
}

std::string to_text(const PipelineCut& cut, const PipelineOrder& order) {
  PipelineTimes times;
  for (double share : cut.share) times.parts.push_back({share, 2 * share, share, share});
  const PipelineSimulation simulation = simulate(order, times);
  const auto percent = [](double x) { return std::round(1000 * x) / 10; };
  std::string text = base::concat(order.shape.stages, " stages, ", order.shape.micro_batches,
                                  " micro-batches: waiting ", percent(simulation.bubble), " %\n");
  for (size_t k = 0; k < cut.parts(); ++k) {
    const size_t stage = k % static_cast<size_t>(order.shape.stages);
    const size_t chunk = k / static_cast<size_t>(order.shape.stages);
    text += base::concat("  part ", k, " on stage ", stage, ": ", percent(cut.share[k]), " % of the work");
    if (k > 0) text += base::concat(", from ", cut.begins[k - 1].weight);
    if (k + 1 < cut.parts()) text += base::concat(", passes on ", cut.bytes[k], " bytes");
    text += base::concat(", micro-batches in flight ",
                         peak_in_flight(order, static_cast<int>(stage), static_cast<int>(chunk)), "\n");
  }
  return text;
}

}  // namespace trireme::passes
