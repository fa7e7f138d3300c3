// Which weights tensor-parallel ranks split: the precedence of rules, divisibility, and the printed decision.
#include "passes/partition/shard_rules.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "base/error.h"
#include "passes/name_match.h"
#include "passes/partition/shard_roles.h"

namespace trireme::passes {
namespace {

using tensor::Placement;
using tensor::Shard;

constexpr const char* kHeadAxis = "tp";      // splits key heads and everything else
constexpr const char* kReplicaAxis = "tpr";  // splits everything but key heads

/// Names of weights that are split in the models that Trireme builds or imports; biases follow their weights.
/// Other weights are found by structure.
struct NamedRule {
  std::string_view pattern, model;
};
constexpr NamedRule kNamed[] = {
    {"*attn.c_attn.weight", "GPT-2"},
    {"*attn.c_proj.weight", "GPT-2"},
    {"*mlp.c_fc.weight", "GPT-2"},
    {"*mlp.c_proj.weight", "GPT-2"},
    {"*wte.weight", "GPT-2"},
    {"*lm_head.weight", "language model"},
    {"*self_attn.q_proj.weight", "Llama"},
    {"*self_attn.k_proj.weight", "Llama"},
    {"*self_attn.v_proj.weight", "Llama"},
    {"*self_attn.o_proj.weight", "Llama"},
    {"*mlp.gate_proj.weight", "Llama"},
    {"*mlp.up_proj.weight", "Llama"},
    {"*mlp.down_proj.weight", "Llama"},
    {"*embed_tokens.weight", "Llama"},
    {"*.qkv.weight", "BERT or ViT"},
    {"*attention.self.query.weight", "BERT"},
    {"*attention.self.key.weight", "BERT"},
    {"*attention.self.value.weight", "BERT"},
    {"*attention.output.dense.weight", "BERT or ViT"},
    {"*intermediate.dense.weight", "BERT or ViT"},
    {"*output.dense.weight", "BERT or ViT"},
    {"*word_embeddings.weight", "BERT"},
};

/// Those that are tables or heads of vocabularies, which are split whatever their size.
constexpr std::string_view kVocabularies[] = {"*wte.weight", "*lm_head.weight", "*embed_tokens.weight",
                                              "*word_embeddings.weight"};

/// The model whose rule matches a name; the bias of a weight follows the weight.
std::string_view model_of(std::string name) {
  constexpr std::string_view kBias = ".bias";
  if (name.ends_with(kBias)) name = name.substr(0, name.size() - kBias.size()) + ".weight";
  for (const NamedRule& r : kNamed) {
    if (name_matches(r.pattern, name)) return r.model;
  }
  return {};
}

/// A tensor-parallel axis of the mesh that has more than one rank.
struct TensorAxis {
  size_t index;
  std::string name;
  int ranks;
};

std::vector<TensorAxis> tensor_axes(const tensor::MeshShape& mesh) {
  std::vector<TensorAxis> axes;
  for (const char* name : {kReplicaAxis, kHeadAxis}) {
    if (mesh.extent(name) > 1) axes.push_back({mesh.index_of(name), name, mesh.extent(name)});
  }
  return axes;
}

bool is_weight(const ir::Value& v) {
  const bool kind = v.kind == ir::ValueKind::param || v.kind == ir::ValueKind::state;
  return kind && v.type.shape.is_static() && v.type.shape.elements().value_or(0) > 1;
}

/// Places weights by explicit rules, then by names and structure.
class Placer {
 public:
  Placer(const ir::Graph& graph, const Strategy& strategy)
      : graph_(graph), strategy_(strategy), axes_(tensor_axes(strategy.mesh())) {
    for (const std::string& text : strategy.rules) rules_.push_back(parse_shard_rule(text));
    if (!axes_.empty()) splits_ = find_splits(graph, kVocabularies, strategy.ep > 1);
    need_experts();
    drop_groups();
  }

  std::vector<PlacedWeight> run() {
    std::vector<PlacedWeight> placed;
    for (const ir::Value& v : graph_.values()) {
      if (!is_weight(v)) continue;
      PlacedWeight w{.name = v.name, .dims = v.type.shape.to_dims(), .shard = {}, .why = "whole"};
      if (!axes_.empty() && !by_rules(w)) by_structure(w);
      placed.push_back(std::move(w));
    }
    for (size_t i = 0; i < rules_.size(); ++i) {
      base::require(used_.contains(i) || axes_.empty(), "shard rule '", strategy_.rules[i],
                    "' fits no weight");
    }
    return placed;
  }

 private:
  bool by_rules(PlacedWeight& w) {
    bool any = false;
    std::set<std::string> done;
    for (size_t i = 0; i < rules_.size(); ++i) {
      const ShardRule& rule = rules_[i];
      if (!name_matches(rule.pattern, w.name)) continue;
      any = true;
      used_.insert(i);
      w.why = base::concat("rule ", strategy_.rules[i]);
      if (rule.dim < 0) return true;
      if (!done.insert(rule.axis).second) continue;
      const auto axis =
          std::find_if(axes_.begin(), axes_.end(), [&](const TensorAxis& a) { return a.name == rule.axis; });
      if (axis == axes_.end()) continue;
      base::require(rule.dim < static_cast<int>(w.dims.size()), "shard rule '", strategy_.rules[i], "': '",
                    w.name, "' is ", tensor::to_string(w.dims));
      const int64_t extent = w.dims[static_cast<size_t>(rule.dim)];
      base::require(extent % (int64_t{rule.sections} * axis->ranks) == 0, "shard rule '", strategy_.rules[i],
                    "': dimension ", rule.dim, " of '", w.name, "' ", tensor::to_string(w.dims), " in ",
                    rule.sections, " sections does not divide over ", axis->ranks, " ranks");
      w.shard.set(axis->index, Placement::split(rule.dim, rule.sections));
    }
    return any;
  }

  void by_structure(PlacedWeight& w) const {
    const auto split = splits_.find(w.name);
    if (split == splits_.end()) return;
    const WeightSplit& s = split->second;
    if (undivided_.contains(w.name)) {
      w.why = base::concat("whole: ", s.blocks, " blocks of a row do not divide");
      return;
    }
    const std::string_view model = model_of(w.name);
    const auto dropped = dropped_.find(s.group);
    if (dropped != dropped_.end()) {
      w.why = "whole: " + dropped->second;
      return;
    }
    if (model.empty() && !strategy_.automatic && s.role != WeightRole::experts) return;
    w.why =
        base::concat(s.why, model.empty() ? ", found in the graph" : base::concat(", by name (", model, ")"));
    for (const TensorAxis& axis : axes_of(s))
      w.shard.set(axis.index, Placement::split(static_cast<int>(s.dim), s.sections));
  }

  void need_experts() const {
    const auto is_expert = [](const auto& split) { return split.second.role == WeightRole::experts; };
    base::require(strategy_.ep == 1 || std::any_of(splits_.begin(), splits_.end(), is_expert),
                  "ep = ", strategy_.ep, ": the model has no experts to share out; leave it out");
  }

  std::vector<TensorAxis> axes_of(const WeightSplit& s) const {
    std::vector<TensorAxis> axes = axes_;
    if (s.has_key_heads) std::erase_if(axes, [](const TensorAxis& a) { return a.name == kReplicaAxis; });
    return axes;
  }

  /// The reason why a weight cannot be split over its axes; empty if it can.
  std::string refusal(const std::string& name, const tensor::Dims& dims, const WeightSplit& s) const {
    int64_t ranks = 1;
    for (const TensorAxis& axis : axes_of(s)) ranks *= axis.ranks;
    const int64_t extent = dims[s.dim] / s.sections;
    if (s.role == WeightRole::experts && s.units % ranks != 0)
      return base::concat("'", name, "' ", tensor::to_string(dims), " has ", s.units, " experts, which ",
                          ranks, " ranks do not divide");
    if (s.units > 1 && s.units % ranks != 0)
      return base::concat("'", name, "' ", tensor::to_string(dims), " has ", s.units, " heads, which ", ranks,
                          " ranks do not divide");
    if (s.role != WeightRole::vocabulary && extent % ranks != 0)
      return base::concat(
          "'", name, "' ", tensor::to_string(dims), " has ", extent, s.sections == 1 ? "" : " times 3",
          s.role == WeightRole::rows ? " rows" : " columns", ", which ", ranks, " ranks do not divide");
    return {};
  }

  /// If a weight does not divide, its group stays whole. This is an error if a name demands the split
  /// (classes excepted), unless an explicit rule says otherwise.
  void drop_groups() {
    // Messages name the weight of the queries first, never a bias.
    for (const bool of_keys : {false, true}) {
      for (const auto& [name, s] : splits_) {
        const ir::Value* value = find(name);
        base::check(value != nullptr, "a split of no weight");
        if (value->type.shape.rank() >= 2 && s.has_key_heads == of_keys) drop_group(name, *value, s);
      }
    }
  }

  void drop_group(const std::string& name, const ir::Value& value, const WeightSplit& s) {
    const auto fits = [&](const ShardRule& r) { return name_matches(r.pattern, name); };
    int64_t ranks = 1;
    for (const TensorAxis& axis : axes_of(s)) ranks *= axis.ranks;
    if (s.blocks > 0 && s.blocks % ranks != 0) {
      undivided_.insert(name);
      return;
    }
    const std::string no = refusal(name, value.type.shape.to_dims(), s);
    if (no.empty() || std::any_of(rules_.begin(), rules_.end(), fits)) return;
    base::require(
        s.role != WeightRole::experts, "expert parallel: ", no,
        "; choose another number, or leave ep out: ranks then share the inner width of each expert");
    base::require(model_of(name).empty() || s.role == WeightRole::classes, "tensor parallel: ", no,
                  "; choose another tp or a rule '", name, ":whole'");
    dropped_.emplace(s.group, no);
  }

  const ir::Value* find(const std::string& name) const {
    for (const ir::Value& v : graph_.values()) {
      if (v.name == name) return &v;
    }
    return nullptr;
  }

  const ir::Graph& graph_;
  const Strategy& strategy_;
  std::vector<TensorAxis> axes_;
  std::vector<ShardRule> rules_;
  std::set<size_t> used_;
  std::map<std::string, WeightSplit> splits_;
  std::map<size_t, std::string> dropped_;
  std::set<std::string>
      undivided_;  ///< stored weights whose rows are not cut, although their groups may be cut
};

/// A name split at its first number, for example "h.", 3, ".mlp.c_fc.weight".
struct Numbered {
  std::string before, after;
  int64_t number = -1;
};

Numbered numbered(const std::string& name) {
  const size_t at = name.find_first_of("0123456789");
  if (at == std::string::npos) return {name, {}, -1};
  size_t end = at;
  while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
  if (end - at > 9) return {name, {}, -1};
  return {name.substr(0, at), name.substr(end), std::stoll(name.substr(at, end - at))};
}

}  // namespace

Strategy choose_kv_ranks(const ir::Graph& graph, Strategy strategy) {
  if (strategy.tp == 1 || strategy.kv_ranks != 0) return strategy;
  int64_t ranks = strategy.tp;
  for (const HeadCounts& a : attention_heads(graph)) {
    // Each rank has whole key heads, or several ranks share one key head.
    const bool divides = a.kv_heads % strategy.tp == 0 || strategy.tp % a.kv_heads == 0;
    base::require(divides || a.heads % strategy.tp != 0, "tensor parallel: ", a.kv_heads, " key heads of '",
                  a.from, "' and ", strategy.tp, " ranks: neither divides the other");
    if (a.heads % strategy.tp == 0) ranks = std::gcd(ranks, a.kv_heads);
  }
  strategy.kv_ranks = static_cast<int>(ranks);
  return strategy;
}

std::vector<PlacedWeight> place_weights(const ir::Graph& graph, const Strategy& strategy) {
  return Placer(graph, strategy).run();
}

std::map<std::string, Shard> place_params(const ir::Graph& graph, const Strategy& strategy) {
  std::map<std::string, Shard> shards;
  for (PlacedWeight& w : place_weights(graph, strategy)) {
    if (!w.shard.is_replicated()) shards.emplace(std::move(w.name), std::move(w.shard));
  }
  return shards;
}

std::string to_text(const std::vector<PlacedWeight>& weights, const tensor::MeshShape& mesh) {
  struct Line {
    Numbered name;
    int64_t last;
    std::string text;
  };
  std::vector<Line> lines;
  for (const PlacedWeight& w : weights) {
    const Numbered n = numbered(w.name);
    const std::string shard = w.shard.is_replicated() ? "" : " " + w.shard.to_string(mesh);
    const std::string text = base::concat(" ", tensor::to_string(w.dims), shard, ": ", w.why);
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& l) {
      return n.number >= 0 && l.name.before == n.before && l.name.after == n.after && l.text == text &&
             l.last + 1 == n.number;
    });
    if (same != lines.end())
      same->last = n.number;
    else
      lines.push_back({n, n.number, text});
  }
  std::string all;
  for (const Line& l : lines) {
    std::string number;
    if (l.name.number >= 0) number = std::to_string(l.name.number);
    if (l.last > l.name.number) number = base::concat("{", l.name.number, "..", l.last, "}");
    all += l.name.before + number + l.name.after + l.text + "\n";
  }
  return all;
}

}  // namespace trireme::passes
