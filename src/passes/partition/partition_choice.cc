// The candidate placements of a node and their costs.
#include "passes/partition/partition_choice.h"

#include <algorithm>

#include "base/error.h"
#include "ir/updates.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::Placement;

/// The work that takes about as long as sending one byte, on CPUs as well as on GPUs with fast links.
constexpr double kFlopPerByte = 64, kMemoryBytesPerByte = 4;

const ir::CutRule& rule_at(const ir::CutRule& rule, size_t i) { return i == 0 ? rule : rule.others[i - 1]; }

/// The gradients that an update reads should have the placement of its states.
void wish_for_updates(const ir::Graph& graph, const ir::Node& node, Wishes& wishes) {
  const ir::NodeView view = graph.view(node);
  const ir::CutRule rule = cut_rule_of(node.op->schema, view);
  const CutMatcher matcher(rule, view);
  for (const ir::StateUpdate& u : ir::updates_of(node)) {
    const std::optional<Placement>& p = wishes[index(node.in[u.operand])];
    if (!p) continue;
    std::optional<CutFit> fit = CutFit{std::vector<Placement>(node.in.size()), {}};
    if (p->is_split()) {
      const char letter = matcher.in_letter(u.operand, static_cast<size_t>(p->dim));
      fit = letter == '.' ? std::nullopt : matcher.cut(letter, p->sections);
    }
    for (size_t i = 0; fit && i < node.in.size(); ++i) {
      if (node.in[i] != ir::kNoValue && graph.value(node.in[i]).kind == ir::ValueKind::computed)
        wishes[index(node.in[i])] = fit->in[i];
    }
  }
}

/// A node with one operand that is read once passes the wish for its result on to the operand.
void hand_back(const ir::Graph& graph, const ir::Node& node, Wishes& wishes) {
  const std::optional<Placement> p = wishes[index(node.out[0])];
  if (!p || graph.value(node.in[0]).kind != ir::ValueKind::computed || wishes[index(node.in[0])]) return;
  if (!p->is_split()) {
    wishes[index(node.in[0])] = p;
    return;
  }
  const ir::NodeView view = graph.view(node);
  const ir::CutRule rule = cut_rule_of(node.op->schema, view);
  const CutMatcher matcher(rule, view);
  const char letter = matcher.out_letter(0, static_cast<size_t>(p->dim));
  const std::optional<CutFit> fit = letter == '.' ? std::nullopt : matcher.cut(letter, p->sections);
  if (fit && fit->out[0] == *p) wishes[index(node.in[0])] = fit->in[0];
}

}  // namespace

Wishes find_wishes(const ir::Graph& graph, const Partitioning& how, const AxisRank& rank) {
  Wishes wishes(graph.values().size());
  std::vector<uint32_t> readers(graph.values().size());
  for (size_t i = 0; i < graph.values().size(); ++i) {
    const ir::Value& v = graph.values()[i];
    if (v.kind != ir::ValueKind::state) continue;
    const auto at = how.placed.find(v.name);
    wishes[i] = at == how.placed.end() ? Placement{} : at->second.on(rank.axis);
  }
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const auto at = how.outputs.find(graph.output_names()[i]);
    const Placement wish = at == how.outputs.end() ? Placement{} : at->second.on(rank.axis);
    // An output that may stay a partial sum gets no wish, as if only nodes read it.
    if (!wish.is_partial()) wishes[index(graph.outputs()[i])] = wish;
    ++readers[index(graph.outputs()[i])];
  }
  for (const ir::Node& node : graph.nodes()) {
    for (ValueId id : node.in) {
      if (id != ir::kNoValue) ++readers[index(id)];
    }
  }
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    const ir::Node& node = graph.nodes()[n];
    if (node.op->schema.updates_state()) wish_for_updates(graph, node, wishes);
    const bool is_simple = node.out.size() == 1 && node.out[0] != ir::kNoValue && !node.in.empty() &&
                           node.in[0] != ir::kNoValue && readers[index(node.in[0])] == 1;
    const bool has_one_operand =
        is_simple && std::all_of(node.in.begin() + 1, node.in.end(), [&](ValueId id) {
          return id == ir::kNoValue || graph.value(id).kind == ir::ValueKind::constant;
        });
    if (has_one_operand) hand_back(graph, node, wishes);
  }
  return wishes;
}

bool NodeChooser::keeps_states(const CutFit& fit) {
  for (const ir::StateUpdate& u : ir::updates_of(*node_)) {
    if (fit.in[u.operand] != values_.made(node_->in[u.operand])) return false;
    if (u.result < fit.out.size() && fit.out[u.result] != fit.in[u.operand]) return false;
  }
  return true;
}

double NodeChooser::later_cost(size_t result, const Placement& p) {
  const ValueId id = node_->out[result];
  if (id == ir::kNoValue || p.is_replicated()) return 0;
  const bool has_wish = index(id) < wishes_.size() && wishes_[index(id)].has_value();
  if (!has_wish && p.is_split()) return 0;
  const Placement wish = has_wish ? *wishes_[index(id)] : Placement{};
  double bytes = static_cast<double>(tensor::bytes_of(from_.type(id)));
  // Under sequence parallelism a sum [batch, tokens, hidden] becomes a reduce-scatter, at half the cost.
  if (is_sequence_axis_ && p.is_partial() && !has_wish && is_stream(id)) bytes /= 2;
  const double cost = conversion_cost(bytes, p, wish, values_.rank().ranks);
  const bool is_joined = has_wish && p.is_partial() && bytes <= double(kSmallGradientBytes);
  return is_joined ? cost - kLatencyBytes : cost;
}

void NodeChooser::consider(const CutFit& fit, double work) {
  const auto is_own = [](const Placement& p) { return p.kind == tensor::PlacementKind::own; };
  // Statistics of a part are not those of the whole, so the rank would compute another result.
  if (std::any_of(fit.out.begin(), fit.out.end(), is_own) || !keeps_states(fit)) return;
  double cost = work;
  for (size_t i = 0; i < node_->in.size(); ++i) {
    if (node_->in[i] != ir::kNoValue) cost += values_.cost(node_->in[i], fit.in[i], half_);
    if (cost >= best_.cost) return;
  }
  for (size_t i = 0; i < node_->out.size(); ++i) {
    if (node_->out[i] == ir::kNoValue) continue;
    if (!values_.fits_other_axes(node_->out[i], fit.out[i])) return;
    cost += later_cost(i, fit.out[i]);
  }
  if (cost < best_.cost) best_ = {fit, cost};
}

void NodeChooser::consider_partial(const CutMatcher& matcher) {
  if (node_->op->schema.updates_state()) return;
  for (size_t mask = 0; mask < matcher.rule().linear.size(); ++mask) {
    const CutFit fit = matcher.partial(mask);
    const bool has_any =
        std::any_of(fit.in.begin(), fit.in.end(), [](const Placement& p) { return p.is_partial(); });
    if (has_any) consider(fit, work_);
  }
}

/// True for [batch, tokens, hidden] on its way to the residual stream: computed by products and lookups, by
/// elementwise ops, or by ops that leave elements in place.
bool NodeChooser::is_stream(ValueId id) const {
  const ir::Node* maker = from_.producer(id);
  if (maker == nullptr || from_.type(id).shape.rank() != 3 || !tensor::is_float(from_.type(id).dtype))
    return false;
  const ir::OpSchema& op = maker->op->schema;
  const bool looks_up = op.moves != 0 && !op.is_rearrangement;
  return ir::has_products(op) || looks_up || op.is_view || ir::is_elementwise(op);
}

bool NodeChooser::may_start(const CutMatcher& matcher, char letter) {
  bool in_operands = false;
  for (size_t i = 0; i < node_->in.size(); ++i) {
    if (node_->in[i] == ir::kNoValue) continue;
    const size_t rank = view_->in[i].shape.rank();
    for (size_t d = 0; d < rank; ++d) {
      if (matcher.in_letter(i, d) != letter) continue;
      in_operands = true;
      if (values_.is_cut_along(node_->in[i], d)) return true;
      if (is_sequence_axis_ && d == 1 && is_stream(node_->in[i]) && values_.made(node_->in[i]).is_partial())
        return true;
    }
  }
  if (in_operands) return false;
  // A letter that only results have: each rank can compute its part if a part is wanted.
  for (size_t i = 0; i < node_->out.size(); ++i) {
    if (node_->out[i] == ir::kNoValue || index(node_->out[i]) >= wishes_.size()) continue;
    const std::optional<Placement>& wish = wishes_[index(node_->out[i])];
    if (wish && wish->is_split() && matcher.out_letter(i, static_cast<size_t>(wish->dim)) == letter)
      return true;
  }
  return false;
}

std::vector<int> NodeChooser::sections_to_try(const CutMatcher& matcher, char letter) {
  std::vector<int> out;
  for (size_t i = 0; i < node_->in.size(); ++i) {
    if (node_->in[i] == ir::kNoValue) continue;
    const Placement p = values_.made(node_->in[i]);
    if (p.is_split() && matcher.in_letter(i, static_cast<size_t>(p.dim)) == letter &&
        std::find(out.begin(), out.end(), p.sections) == out.end())
      out.push_back(p.sections);
  }
  if (std::find(out.begin(), out.end(), 1) == out.end()) out.push_back(1);
  return out;
}

void NodeChooser::consider_letters(const CutMatcher& matcher) {
  const int ranks = values_.rank().ranks;
  for (char letter : matcher.letters()) {
    if (!may_start(matcher, letter)) continue;
    for (int sections : sections_to_try(matcher, letter)) {
      const std::optional<CutFit> fit = matcher.cut(letter, sections);
      if (fit && !matcher.refuse(letter, *fit, ranks)) consider(*fit, work_ / ranks);
    }
  }
}

void NodeChooser::fail_impossible() {
  const std::string where = base::concat("node '", node_->from, "' (", node_->op_name(), ")");
  for (ValueId id : node_->in) {
    if (id == ir::kNoValue || !values_.made(id).is_split()) continue;
    if (values_.cost(id, {}, half_) < kImpossible) continue;
    const ir::Value& v = from_.value(id);
    base::fail_invalid("'", v.name, "' ", v.type.to_string(), " is ", values_.made(id).to_string(),
                       " on mesh axis '", values_.rank().name, "', whose ", values_.rank().ranks,
                       " ranks do not divide it evenly, which ", where, " needs");
  }
  base::fail_invalid("no way to compute ", where, " over mesh axis '", values_.rank().name, "'");
}

CutFit NodeChooser::choose(const ir::Node& node, Half half) {
  const ir::NodeView view = from_.view(node);
  const ir::CutRule rule = cut_rule_of(node.op->schema, view);
  const ir::Cost cost = ir::cost_of(node.op->schema, view);
  node_ = &node;
  view_ = &view;
  half_ = half;
  work_ = cost.flop / kFlopPerByte + cost.bytes / kMemoryBytesPerByte;
  best_ = {};
  const bool all_whole = std::all_of(node.in.begin(), node.in.end(), [&](ValueId id) {
    return id == ir::kNoValue || values_.made(id).is_replicated();
  });
  for (size_t i = 0; i <= rule.others.size(); ++i) {
    const CutMatcher matcher(rule_at(rule, i), view);
    if (!all_whole && i == 0) consider_partial(matcher);
    consider_letters(matcher);
  }
  consider({std::vector<Placement>(node.in.size()), std::vector<Placement>(node.out.size())}, work_);
  if (best_.cost >= kImpossible) fail_impossible();
  return best_.fit;
}

}  // namespace trireme::passes
