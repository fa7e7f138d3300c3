// Groups the parameters of a graph; adds norm, clipping, multi-tensor updates and averages.
#include "passes/train/optimizer.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "ops/optim/update_layout.h"
#include "ops/table.h"
#include "passes/name_match.h"
#include "passes/train/gradient_norm.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

constexpr double kMostFactor = 1e30;    // of rates and decays, so that they are finite in f32
constexpr double kMostBeta = 0.999999;  // at 1 the first update would be divided by 1 - beta^1 = 0

const std::vector<std::string> kKindNames{"sgd", "adam", "adamw", "lamb", "lars", "adafactor", "muon"};

const std::string& name_of(OptimizerKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

/// The default decay of a kind, for weight_decay -1.
double own_decay(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adamw:
    case OptimizerKind::lamb: return 0.01;
    case OptimizerKind::muon: return 0.1;
    default: return 0;
  }
}

/// True for kinds that update each element independently.
bool is_elementwise(OptimizerKind kind) {
  return kind == OptimizerKind::sgd || kind == OptimizerKind::adam || kind == OptimizerKind::adamw;
}
/// True for kinds that scale a parameter's step by norms of the whole parameter.
bool is_trusting(OptimizerKind kind) { return kind == OptimizerKind::lamb || kind == OptimizerKind::lars; }

/// How a parameter is updated; parameters with equal rules share a node.
struct Rule {
  OptimizerKind kind;
  double decay = 0, lr_scale = 1;
  bool adapt = true;    // LAMB, LARS: scale by the ratio of norms
  bool vector = false;  // Adafactor: full second moment
  std::string axes;     // mesh axes over which norms of whole parameters are summed
  bool operator==(const Rule&) const = default;
};

/// "PATTERN key=value ...": overrides for the parameters that the pattern names.
struct Override {
  std::string pattern;
  std::optional<OptimizerKind> kind;
  std::optional<double> decay, lr_scale;
};

/// The value of a key in a group; errors name the group.
double number(const std::string& group, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  base::require(error == std::errc() && end == text.data() + text.size(), "optimizer group '", group,
                "': not a number: '", text, "'");
  base::require(value >= 0 && value <= kMostFactor, "optimizer group '", group, "': ", text,
                " is not a number from 0 to ", kMostFactor);
  return value;
}

Override parse_override(const std::string& group) {
  Override o;
  std::istringstream words(group);
  words >> o.pattern;
  base::require(!o.pattern.empty(), "an optimizer group is PATTERN key=value ..., found nothing");
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (key == "kind") {
      const auto at = std::find(kKindNames.begin(), kKindNames.end(), value);
      base::require(at != kKindNames.end(), "optimizer group '", group, "': no kind '", value, "'");
      o.kind = static_cast<OptimizerKind>(at - kKindNames.begin());
    } else if (key == "weight_decay") {
      o.decay = number(group, value);
    } else if (key == "lr_scale") {
      o.lr_scale = number(group, value);
    } else {
      base::fail_invalid("optimizer group '", group, "': unknown key '", key,
                         "'; known: kind, weight_decay, lr_scale");
    }
  }
  return o;
}

std::string short_number(double v) {
  std::ostringstream out;
  out << v;
  return out.str();
}

/// The state of one call of add_optimizer.
class Planner {
 public:
  Planner(ir::Graph& graph, std::span<const ParamGradient> gradients, const OptimizerOptions& options)
      : graph_(graph), gradients_(gradients), options_(options) {
    for (const std::string& g : options.groups) overrides_.push_back(parse_override(g));
    matched_.resize(overrides_.size());
  }

  OptimizerPlan run(const OptimizerInputs& inputs) {
    embeddings_ = embedding_names(graph_);
    embeddings_.insert(embeddings_.end(), inputs.embeddings.begin(), inputs.embeddings.end());
    coordinates_ = inputs.coordinates;
    lr_ = need_input(graph_, kLrInput, {DType::f32, Shape{}});
    step_ = need_input(graph_, kStepInput, {DType::i64, Shape{}});
    group();
    // A pipeline stage without trained weights computes the norm with the others.
    if (gradients_.empty() && graph_.mesh.extent("pp") == 1) return std::move(plan_);
    add_control(inputs);
    plan_.text = describe_rule() + describe_control(inputs);
    plan_.updated.resize(gradients_.size());
    for (size_t g = 0; g < rules_.size(); ++g) add_group(g);
    add_average();
    describe_states();
    return std::move(plan_);
  }

  std::vector<OptimizerKind> kinds(const std::vector<std::string>& embeddings) {
    embeddings_ = embedding_names(graph_);
    embeddings_.insert(embeddings_.end(), embeddings.begin(), embeddings.end());
    std::vector<OptimizerKind> list;
    for (size_t i = 0; i < gradients_.size(); ++i) list.push_back(rule_of(i).kind);
    return list;
  }

 private:
  /// The value that the update changes.
  ValueId target(size_t i) const {
    return gradients_[i].target != ir::kNoValue ? gradients_[i].target : gradients_[i].param;
  }
  /// The type of this rank's part of the parameter.
  const TensorType& type(size_t i) const { return graph_.type(target(i)); }
  tensor::Shard shard(size_t i) const {
    return gradients_[i].gradient == ir::kNoValue ? tensor::Shard{}
                                                  : graph_.value(gradients_[i].gradient).shard;
  }
  const std::string& name(size_t i) const { return graph_.value(gradients_[i].param).name; }

  /// True for the parameters that Muon is intended for: matrices between other layers.
  bool is_hidden_matrix(size_t i) const {
    const auto excluded = [&](const std::string& p) { return name_matches(p, name(i)); };
    const bool is_embedding = std::find(embeddings_.begin(), embeddings_.end(), name(i)) != embeddings_.end();
    return type(i).shape.rank() == 2 && !is_embedding &&
           std::none_of(options_.muon_exclude.begin(), options_.muon_exclude.end(), excluded);
  }

  /// The kind's defaults, changed by the first override whose pattern names the parameter.
  Rule rule_of(size_t i) {
    const bool is_vector = type(i).shape.rank() < 2;
    Rule rule{.kind = options_.kind};
    const Override* own = nullptr;
    for (size_t o = 0; o < overrides_.size() && own == nullptr; ++o) {
      if (!name_matches(overrides_[o].pattern, name(i))) continue;
      own = &overrides_[o];
      matched_[o] = true;
    }
    if (own != nullptr && own->kind) rule.kind = *own->kind;
    if (rule.kind == OptimizerKind::muon && !is_hidden_matrix(i)) rule.kind = OptimizerKind::adamw;
    rule.adapt = !is_vector;
    rule.vector = is_vector && rule.kind == OptimizerKind::adafactor;
    if (!is_trusting(rule.kind)) rule.adapt = true;
    if (is_trusting(rule.kind) && rule.adapt && gradients_[i].gradient != ir::kNoValue)
      rule.axes = split_axes(graph_, gradients_[i].gradient);
    const double decay = options_.weight_decay < 0 ? own_decay(rule.kind) : options_.weight_decay;
    rule.decay = is_vector && !options_.decay_vectors ? 0 : decay;
    if (own != nullptr) {
      rule.decay = own->decay.value_or(rule.decay);
      rule.lr_scale = own->lr_scale.value_or(1);
    }
    return rule;
  }

  /// Groups are in the order of their first parameter; every override must name some parameter.
  void group() {
    for (size_t i = 0; i < gradients_.size(); ++i) {
      const Rule rule = rule_of(i);
      const auto at = std::find(rules_.begin(), rules_.end(), rule);
      if (at == rules_.end()) {
        rules_.push_back(rule);
        members_.push_back({i});
      } else {
        members_[static_cast<size_t>(at - rules_.begin())].push_back(i);
      }
    }
    // A pipeline stage holds only some parameters, so another stage may hold those that an override names.
    const bool is_stage = graph_.mesh.extent("pp") > 1;
    for (size_t o = 0; o < overrides_.size(); ++o) {
      base::require(matched_[o] || is_stage, "optimizer group '", overrides_[o].pattern,
                    "' names no parameter that an earlier group leaves");
    }
  }

  /// The norm of all gradients, the factor by which they are multiplied, and whether the step is skipped.
  void add_control(const OptimizerInputs& inputs) {
    const ValueId norm = add_gradient_norm(graph_, gradients_, inputs.coordinates);
    const TensorType scalar{DType::f32, Shape{}};
    std::vector<ValueId> in{norm, ir::kNoValue, ir::kNoValue, inputs.loss, ir::kNoValue};
    if (inputs.scaled_loss) in[1] = need_input(graph_, kGradScaleInput, scalar);
    if (inputs.has_limits) {
      in[2] = need_input(graph_, kNormLimitInput, scalar);
      if (inputs.loss != ir::kNoValue) in[4] = need_input(graph_, kLossLimitInput, scalar);
    }
    while (in.back() == ir::kNoValue) in.pop_back();
    const std::vector<ValueId> out =
        graph_.add(ops::table().need("clip_coefficient"), in, {{"max_norm", options_.clip_norm}}, 3);
    grad_scale_ = out[0];
    plan_.skipped = out[1];
    plan_.grad_norm = out[2];
  }

  /// Adds the state `suffix` of parameter i, with the placement of its gradient.
  ValueId state(size_t i, const char* suffix, TensorType t, std::string copy_of = {}) {
    const std::string full = name(i) + "." + suffix;
    plan_.states.push_back({full, t, std::move(copy_of), shard(i), name(i)});
    const ValueId id = graph_.add_state(full, std::move(t));
    graph_.value(id).shard = shard(i);
    return id;
  }

  /// Adds the states of parameter i to graph and plan, in the order in which the update op takes them.
  std::vector<ValueId> states_of(const Rule& rule, size_t i) {
    const TensorType t = type(i);  // a copy, as adding a state moves the values
    switch (rule.kind) {
      case OptimizerKind::adam:
      case OptimizerKind::adamw:
      case OptimizerKind::lamb: return {state(i, "adam_m", t), state(i, "adam_v", t)};
      case OptimizerKind::sgd:
        if (options_.momentum == 0) return {};
        return {state(i, "momentum", t)};
      case OptimizerKind::lars:
      case OptimizerKind::muon: return {state(i, "momentum", t)};
      case OptimizerKind::adafactor: break;
    }
    if (rule.vector) return {state(i, "adafactor_v", t)};
    tensor::Dims row = t.shape.to_dims(), col = row;
    row[row.size() - 1] = 1;
    col[col.size() - 2] = 1;
    return {state(i, "adafactor_row", {t.dtype, Shape::of(row)}),
            state(i, "adafactor_col", {t.dtype, Shape::of(col)})};
  }

  std::string op_of(const Rule& rule) const {
    switch (rule.kind) {
      case OptimizerKind::sgd: return options_.momentum == 0 ? "sgd_update" : "momentum_update";
      case OptimizerKind::adam:
      case OptimizerKind::adamw: return "adam_update";
      case OptimizerKind::lamb: return "lamb_update";
      case OptimizerKind::lars: return "lars_update";
      case OptimizerKind::muon: return "muon_update";
      case OptimizerKind::adafactor: break;
    }
    return rule.vector ? "adafactor_vector_update" : "adafactor_update";
  }

  /// The default of a kind, for epsilon 0.
  double epsilon(OptimizerKind kind) const {
    if (options_.epsilon != 0) return options_.epsilon;
    if (kind == OptimizerKind::muon) return 1e-7;
    return kind == OptimizerKind::lamb ? 1e-6 : 1e-8;
  }

  ir::Attrs attrs_of(const Rule& rule) const {
    ir::Attrs attrs{{"weight_decay", rule.decay}, {"lr_scale", rule.lr_scale}};
    switch (rule.kind) {
      case OptimizerKind::sgd:
        if (options_.momentum == 0) return attrs;
        attrs.set("momentum", options_.momentum).set("dampening", options_.dampening);
        return attrs.set("nesterov", int64_t{options_.nesterov});
      case OptimizerKind::lamb: attrs.set("adapt", int64_t{rule.adapt}); [[fallthrough]];
      case OptimizerKind::adam:
      case OptimizerKind::adamw:
        if (rule.kind != OptimizerKind::lamb)
          attrs.set("decoupled", int64_t{rule.kind == OptimizerKind::adamw});
        attrs.set("beta1", options_.beta1).set("beta2", options_.beta2);
        return attrs.set("epsilon", epsilon(rule.kind));
      case OptimizerKind::lars:
        attrs.set("momentum", options_.momentum).set("eta", options_.eta);
        return attrs.set("adapt", int64_t{rule.adapt}).set("epsilon", epsilon(rule.kind));
      case OptimizerKind::muon:
        attrs.set("momentum", options_.muon_momentum);
        attrs.set("epsilon", epsilon(rule.kind));
        attrs.set("iterate", std::string(options_.muon_iterate == MuonIterate::bf16 ? "bf16" : "f32"));
        return attrs.set(
            "adjust",
            std::string(options_.muon_adjust == MuonAdjust::original ? "original" : "match_rms_adamw"));
      case OptimizerKind::adafactor: break;
    }
    return attrs;
  }

  /// Sums of squares of the group's parameters and steps over all ranks that hold parts of them.
  ValueId whole_squares(size_t g, const std::vector<ValueId>& in, ir::Attrs& attrs) {
    std::vector<int64_t> blocks;
    for (size_t i : members_[g]) blocks.push_back(local_blocks(graph_, gradients_[i].gradient).blocks);
    attrs.set("blocks", blocks);
    ir::Attrs of_squares = attrs;
    of_squares.set("rule", name_of(rules_[g].kind));
    attrs.set("parts", int64_t{ranks_along(graph_.mesh, rules_[g].axes)});
    const ValueId own = graph_.add1(ops::table().need("trust_squares"), in, of_squares, "optimizer");
    return gathered_squares(graph_, own, rules_[g].axes, coordinates_);
  }

  /// Adds one node for all parameters of a group.
  void add_group(size_t g) {
    const Rule& rule = rules_[g];
    const std::string op = op_of(rule);
    const ops::UpdateLayout layout = ops::update_layout(op);
    std::vector<ValueId> in{lr_, step_, grad_scale_, plan_.skipped};
    for (size_t i : members_[g]) {
      if (needs_whole(rule.kind) && !split_axes(graph_, gradients_[i].gradient).empty())
        base::fail_unsupported(name_of(rule.kind), " needs the whole of '", name(i),
                               "', which is split over ", split_axes(graph_, gradients_[i].gradient));
      in.push_back(target(i));
      in.push_back(gradients_[i].gradient);
      for (ValueId s : states_of(rule, i)) in.push_back(s);
    }
    ir::Attrs attrs = attrs_of(rule);
    if (!rule.axes.empty()) in.push_back(whole_squares(g, in, attrs));
    const std::vector<ValueId> out =
        graph_.add(ops::table().need(op), in, attrs, members_[g].size() * layout.results(), "optimizer");
    for (size_t m = 0; m < members_[g].size(); ++m)
      plan_.updated[members_[g][m]] = out[layout.param_result(m)];
    describe_group(g);
  }

  /// Adds moving averages of the updated parameters.
  void add_average() {
    if (options_.ema_keep == 0 || gradients_.empty()) return;
    std::vector<ValueId> in{step_, plan_.skipped};
    for (size_t i = 0; i < gradients_.size(); ++i) {
      in.push_back(state(i, "ema", type(i), name(i)));
      in.push_back(plan_.updated[i]);
    }
    const ir::Attrs attrs{{"keep", options_.ema_keep}, {"ramp", int64_t{options_.ema_ramp}}};
    graph_.add(ops::table().need("ema_weights"), in, attrs, gradients_.size(), "optimizer");
  }

  std::string describe_rule() const {
    std::string text = "optimizer " + name_of(options_.kind);
    const auto say = [&](const char* what, double value) {
      text += base::concat(", ", what, " ", short_number(value));
    };
    switch (options_.kind) {
      case OptimizerKind::sgd:
        say("momentum", options_.momentum);
        say("dampening", options_.dampening);
        if (options_.nesterov) text += ", nesterov";
        break;
      case OptimizerKind::lars:
        say("momentum", options_.momentum);
        say("eta", options_.eta);
        break;
      case OptimizerKind::muon: say("momentum", options_.muon_momentum); [[fallthrough]];
      case OptimizerKind::adam:
      case OptimizerKind::adamw:
      case OptimizerKind::lamb:
        say("beta1", options_.beta1);
        say("beta2", options_.beta2);
        say("epsilon", epsilon(options_.kind));
        break;
      case OptimizerKind::adafactor: break;
    }
    return text + "\n";
  }

  std::string describe_control(const OptimizerInputs& inputs) const {
    std::string text = "gradients: ";
    text += options_.clip_norm > 0 ? "norm clipped at " + short_number(options_.clip_norm) : "not clipped";
    text += "; not finite: the update is skipped";
    if (inputs.scaled_loss) text += "; unscaled by the loss scale";
    if (inputs.has_limits) text += "; spikes: the update is skipped";
    return text + "\n";
  }

  void describe_group(size_t g) {
    const Rule& rule = rules_[g];
    int64_t elements = 0;
    std::string lines;
    for (size_t i : members_[g]) {
      elements += type(i).shape.elements().value_or(0);
      lines += "  " + name(i) + " " + type(i).shape.to_string() + "\n";
    }
    plan_.text += base::concat(
        "group ", g + 1, ": ", name_of(rule.kind), ", ",
        rule.decay == 0 ? "no weight decay" : "weight decay " + short_number(rule.decay),
        rule.lr_scale == 1 ? "" : ", learning rate x " + short_number(rule.lr_scale),
        rule.adapt ? "" : ", no trust ratio", rule.axes.empty() ? "" : ", norms gathered over " + rule.axes,
        ": ", members_[g].size(), " parameters, ", elements, " elements\n", lines);
  }

  /// Appends the last line of the text: the memory that the states take.
  void describe_states() {
    int64_t bytes = 0;
    for (const OptimizerState& s : plan_.states)
      bytes += tensor::bytes_of(s.type.dtype, s.type.shape.elements().value_or(0));
    plan_.text += base::concat("states: ", plan_.states.size(), ", ", bytes, " bytes",
                               options_.ema_keep == 0 ? ""
                                                      : ", with averages of the weights (keep " +
                                                            short_number(options_.ema_keep) + ")",
                               "\n");
  }

  ir::Graph& graph_;
  std::span<const ParamGradient> gradients_;
  const OptimizerOptions& options_;
  std::vector<Override> overrides_;
  std::vector<bool> matched_;  // by override
  std::vector<std::string> embeddings_;
  std::vector<Rule> rules_;                   // by group
  std::vector<int> coordinates_;              // of this rank
  std::vector<std::vector<size_t>> members_;  // gradients of each group
  ValueId lr_{}, step_{}, grad_scale_{};
  OptimizerPlan plan_;
};

}  // namespace

void OptimizerOptions::fields(base::OptionList& f) {
  f.add_choice("kind", &kind, kKindNames, "the update rule");
  f.add("weight_decay", &weight_decay, "-1: the kind's own (adamw, lamb 0.01; muon 0.1; others 0)")
      .at_least(-1)
      .at_most(kMostFactor);
  f.add("decay_vectors", &decay_vectors,
        "weight decay also for biases, norms and other one-dimensional weights");
  f.add("clip_norm", &clip_norm, "largest global norm of the gradients; 0: not clipped").at_least(0);
  f.add("momentum", &momentum, "of sgd and lars").at_least(0).at_most(1);
  f.add("dampening", &dampening, "of sgd").at_least(0).at_most(1);
  f.add("nesterov", &nesterov, "sgd looks ahead");
  f.add("beta1", &beta1, "of adam, adamw, lamb; below 1").at_least(0).at_most(kMostBeta);
  f.add("beta2", &beta2, "of adam, adamw, lamb; below 1").at_least(0).at_most(kMostBeta);
  f.add("epsilon", &epsilon, "0: the kind's own (1e-8; lamb 1e-6; muon 1e-7)").at_least(0);
  f.add("eta", &eta, "trust coefficient of lars").at_least(0);
  f.add("muon_momentum", &muon_momentum, "of muon, always with Nesterov").at_least(0).at_most(1);
  f.add_choice("muon_iterate", &muon_iterate, {"f32", "bf16"}, "precision of muon's Newton-Schulz iterate");
  f.add_choice("muon_adjust", &muon_adjust, {"match_rms_adamw", "original"},
               "muon's factor on the learning rate: 0.2 sqrt(max(rows, cols)), for rates made for adamw; or "
               "sqrt(max(1, rows / cols))");
  f.add("muon_exclude", &muon_exclude,
        "matrices with these in their names get adamw, as do embeddings and vectors");
  f.add("ema_keep", &ema_keep, "averages of the weights: share kept each step; 0: none")
      .at_least(0)
      .at_most(kMostBeta);
  f.add("ema_ramp", &ema_ramp, "keep at most (1 + step) / (10 + step)");
  f.add(
      "groups", &groups,
      "overrides, first match wins: 'PATTERN key=value ...' with kind, weight_decay, lr_scale; a pattern is "
      "part of a name, or has a * and matches it all");
}

std::vector<std::string> embedding_names(const ir::Graph& graph) {
  std::vector<std::string> names;
  for (const ir::Node& node : graph.nodes()) {
    if (node.op == nullptr || node.op_name() != "gather" || node.in[0] == ir::kNoValue) continue;
    const ir::Value& v = graph.value(node.in[0]);
    if (v.kind == ir::ValueKind::state || v.kind == ir::ValueKind::param) names.push_back(v.name);
  }
  return names;
}

std::vector<OptimizerKind> optimizer_kinds(ir::Graph& graph, const std::vector<ValueId>& params,
                                           const OptimizerOptions& options,
                                           const std::vector<std::string>& embeddings) {
  std::vector<ParamGradient> gradients;
  for (ValueId id : params) gradients.push_back({.param = id, .gradient = ir::kNoValue});
  return Planner(graph, gradients, options).kinds(embeddings);
}

bool needs_whole(OptimizerKind kind) { return !is_elementwise(kind) && !is_trusting(kind); }

bool updates_parts(OptimizerKind kind, const tensor::Dims& dims, int dim, int ranks) {
  if (is_elementwise(kind)) return true;
  const ops::NormBlocks blocks = ops::norm_blocks(dims);
  return is_trusting(kind) &&
         (dims.size() < 2 || (dim == 0 && blocks.dim == 0 && blocks.blocks % ranks == 0));
}

OptimizerPlan add_optimizer(ir::Graph& graph, std::span<const ParamGradient> gradients,
                            const OptimizerOptions& options, const OptimizerInputs& inputs) {
  return Planner(graph, gradients, options).run(inputs);
}

}  // namespace trireme::passes
