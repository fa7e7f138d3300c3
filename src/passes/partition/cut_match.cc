// Interprets cut rules: notation as letters, letters as placements, placements as results.
#include "passes/partition/cut_match.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::passes {
namespace {

using tensor::Placement;
using tensor::PlacementKind;

std::vector<std::string> split_parts(const std::string& text) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

bool contains(const std::string& set, char letter) { return set.find(letter) != std::string::npos; }

/// The letters for the dimensions that "..." stands for in index notation: A, B, C, … from the right.
std::string ellipsis_letters(size_t count) {
  std::string out;
  for (size_t i = count; i-- > 0;) out += static_cast<char>('A' + i);
  return out;
}

/// One part of index notation with its "..." replaced by letters for a tensor of this shape. Dimensions of
/// extent 1 that broadcast are never cut; `extents` holds the extent of each ellipsis letter.
std::string spell(const std::string& part, const tensor::TensorType& type, const std::string& whole) {
  std::string named = part;
  if (part.rfind("...", 0) == 0) {
    const size_t rank = type.shape.rank(), tail = part.size() - 3;
    named = ellipsis_letters(rank - std::min(rank, tail)) + part.substr(3);
  }
  for (size_t d = 0; d < named.size() && d < type.shape.rank(); ++d) {
    const tensor::Dim& extent = type.shape[d];
    if (contains(whole, named[d]) || (extent.is_static() && extent.value() == 1)) named[d] = '.';
  }
  return named;
}

ir::CutRule rule_from_notation(const ir::OpSchema& op, const ir::NodeView& node) {
  ir::CutRule rule;
  const size_t arrow = op.dims.find("->");
  if (arrow == std::string::npos) return rule;
  const std::vector<std::string> in = split_parts(op.dims.substr(0, arrow));
  const std::vector<std::string> out = split_parts(op.dims.substr(arrow + 2));
  if (node.in.size() > in.size() || node.out.size() > out.size()) return rule;
  for (size_t i = 0; i < node.in.size(); ++i) {
    rule.notation += i == 0 ? "" : ",";
    if (node.present(i)) rule.notation += spell(in[i], node.in[i], op.whole);
  }
  rule.notation += "->";
  for (size_t i = 0; i < node.out.size(); ++i)
    rule.notation += (i == 0 ? "" : ",") + spell(out[i], node.out[i], op.whole);
  rule.sums = op.sums;
  return rule;
}

/// Collectives over other axes may pass all dimensions but those that they split or gather.
ir::CutRule rule_of_collective(const ir::OpSchema& op, const ir::NodeView& node) {
  ir::CutRule rule;
  std::vector<std::string> out;
  char next = 'a';
  const size_t step = op.name == "gather_into" ? 2 : 1;
  for (size_t i = 0; i < node.in.size(); ++i) {
    const size_t rank = node.in[i].shape.rank();
    std::string letters;
    for (size_t d = 0; d < rank; ++d) letters += i % step == 0 && next <= 'z' ? next++ : '.';
    for (const char* dim : {"dim", "split", "concat"}) {
      if (node.attrs.has(dim)) letters[ir::normal_axis(node.attrs.need_int(dim), rank)] = '.';
    }
    if (i % step != 0) letters = out.back();
    rule.notation += (i == 0 ? "" : ",") + letters;
    if (i % step == 0) out.push_back(letters);
    rule.uneven += letters;
  }
  rule.notation += "->";
  for (size_t i = 0; i < out.size(); ++i) rule.notation += (i == 0 ? "" : ",") + out[i];
  const bool is_sum = node.attrs.get_string("op", "sum") == "sum" && !op.updates_state();
  if (is_sum && node.in.size() == 1) rule.linear = {0b1};
  return rule;
}

/// Broadcast extents of 1 have no letter, so the dimensions of a letter have the same extent or, if views
/// join and split them, a multiple of the rule's units.
bool divides(int64_t extent, int ranks, int sections) {
  return extent % (static_cast<int64_t>(ranks) * sections) == 0;
}

std::string name_of(size_t operand) { return base::concat("operand ", operand); }

}  // namespace

ir::CutRule cut_rule_of(const ir::OpSchema& op, const ir::NodeView& node) {
  if (op.cut) return op.cut(node);
  return op.changes_placement ? rule_of_collective(op, node) : rule_from_notation(op, node);
}

CutMatcher::Result match_cut(const ir::CutRule& rule, const ir::NodeView& node,
                             std::span<const Placement> in) {
  CutMatcher::Result first = CutMatcher(rule, node).match(in);
  if (first.refusal.empty()) return first;
  for (const ir::CutRule& other : rule.others) {
    CutMatcher::Result result = CutMatcher(other, node).match(in);
    if (result.refusal.empty()) return result;
  }
  return first;
}

CutMatcher::CutMatcher(const ir::CutRule& rule, const ir::NodeView& node) : rule_(rule), node_(node) {
  const size_t arrow = rule.notation.find("->");
  base::check(rule.notation.empty() || arrow != std::string::npos, "cut rule '", rule.notation,
              "' has no '->'");
  if (!rule.notation.empty()) {
    in_ = split_parts(rule.notation.substr(0, arrow));
    out_ = split_parts(rule.notation.substr(arrow + 2));
  }
  in_.resize(std::max(in_.size(), node.in.size()));
  out_.resize(std::max(out_.size(), node.out.size()));
  const auto take = [&](std::string& part, const tensor::TensorType& type) {
    if (type.shape.rank() == 0) part.clear();  // absent, or without dimensions to cut
    base::check(part.empty() || part.size() == type.shape.rank(), "cut rule '", rule.notation,
                "' does not fit ", type.to_string(), " (", node.name, ")");
    for (char c : part) {
      if (c != '.' && !contains(letters_, c)) letters_ += c;
    }
  };
  for (size_t i = 0; i < node.in.size(); ++i) take(in_[i], node.in[i]);
  for (size_t i = 0; i < node.out.size(); ++i) take(out_[i], node.out[i]);
}

char CutMatcher::at(const std::vector<std::string>& of, size_t i, size_t dim) {
  return i < of.size() && dim < of[i].size() ? of[i][dim] : '.';
}

bool CutMatcher::has_fixed_sections(char letter) const {
  for (const ir::CutRule::Units& u : rule_.units) {
    if (u.letter == letter) return true;
  }
  for (const ir::CutRule::Sections& s : rule_.sections) {
    if (at(s.is_result ? out_ : in_, s.position, s.dim) == letter) return true;
  }
  return false;
}

int CutMatcher::sections_of(bool is_result, size_t position, size_t dim, int free) const {
  if (!has_fixed_sections(at(is_result ? out_ : in_, position, dim))) return free;
  for (const ir::CutRule::Sections& s : rule_.sections) {
    if (s.is_result == is_result && s.position == position && s.dim == dim) return s.sections;
  }
  return 1;
}

std::vector<Placement> CutMatcher::results_of(char letter, int sections) const {
  std::vector<Placement> out(node_.out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t dim = out_[i].find(letter);
    if (dim != std::string::npos) {
      out[i] = Placement::split(static_cast<int>(dim), sections_of(true, i, dim, sections));
    } else if (contains(rule_.sums, letter)) {
      out[i] = Placement::partial_sum();
    } else if (contains(rule_.maxes, letter)) {
      out[i] = Placement::partial_max();
    } else if (contains(rule_.own, letter)) {
      out[i] = Placement::own();
    }
  }
  return out;
}

std::optional<CutFit> CutMatcher::cut(char letter, int sections) const {
  if (sections != 1 && has_fixed_sections(letter)) return std::nullopt;
  CutFit fit{std::vector<Placement>(node_.in.size()), results_of(letter, sections)};
  const bool leaves_sums =
      std::any_of(fit.out.begin(), fit.out.end(), [](const Placement& p) { return p.is_partial(); });
  for (size_t i = 0; i < node_.in.size(); ++i) {
    const size_t dim = in_[i].find(letter);
    if (!node_.present(i)) continue;
    if (dim == std::string::npos) {
      const bool joins = leaves_sums && i < 32 && (rule_.added >> i & 1u) != 0;
      if (joins) fit.in[i] = Placement::partial_sum();
      continue;
    }
    fit.in[i] = Placement::split(static_cast<int>(dim), sections_of(false, i, dim, sections));
  }
  return fit;
}

std::optional<std::string> CutMatcher::refuse(char letter, const CutFit& fit, int ranks) const {
  for (const ir::CutRule::Units& u : rule_.units) {
    if (u.letter == letter && u.units % ranks != 0)
      return base::concat(u.units, " whole units do not divide over ", ranks, " ranks");
  }
  for (const ir::CutRule::Single& s : rule_.single) {
    const tensor::Dim& extent = node_.in[s.operand].shape[s.dim];
    if (node_.present(s.operand) && extent.value() != 1)
      return base::concat("dimension ", s.dim, " of operand ", s.operand, " is ", extent.value(), ", not 1");
  }
  const bool uneven = contains(rule_.uneven, letter);
  const auto check = [&](const Placement& p, const tensor::TensorType& t) -> std::optional<std::string> {
    if (!p.is_split()) return std::nullopt;
    const int64_t extent = t.shape[static_cast<size_t>(p.dim)].value();
    const bool leaves_none = tensor::part_begin(extent, ranks, ranks - 1) >= extent;
    if (divides(extent, ranks, p.sections) || (uneven && p.sections == 1 && !leaves_none))
      return std::nullopt;
    return base::concat("dimension ", p.dim, " of ", t.to_string(), " does not divide over ", ranks, " ranks",
                        p.sections == 1 ? "" : base::concat(" in each of ", p.sections, " sections"));
  };
  for (size_t i = 0; i < fit.in.size(); ++i) {
    if (auto no = check(fit.in[i], node_.in[i])) return no;
  }
  for (size_t i = 0; i < fit.out.size(); ++i) {
    if (auto no = check(fit.out[i], node_.out[i])) return no;
  }
  return std::nullopt;
}

CutFit CutMatcher::partial(size_t mask) const {
  CutFit fit{std::vector<Placement>(node_.in.size()),
             std::vector<Placement>(node_.out.size(), Placement::partial_sum())};
  for (size_t i = 0; i < fit.in.size() && i < 32; ++i) {
    if ((rule_.linear[mask] >> i & 1u) != 0 && node_.present(i)) fit.in[i] = Placement::partial_sum();
  }
  return fit;
}

CutMatcher::Result CutMatcher::match_partial(std::span<const Placement> in) const {
  size_t first = 0;
  while (!in[first].is_partial()) ++first;
  if (in[first].is_max)
    return {.refusal = base::concat(name_of(first),
                                    " awaits a maximum over the ranks: an all_reduce of "
                                    "maxima is missing")};
  for (size_t mask = 0; mask < rule_.linear.size(); ++mask) {
    const CutFit fit = partial(mask);
    if (std::equal(in.begin(), in.end(), fit.in.begin())) return {.out = fit.out};
  }
  for (uint32_t mask : rule_.linear) {
    if ((mask >> first & 1u) == 0) continue;
    for (size_t i = 0; i < in.size(); ++i) {
      const bool joins = (mask >> i & 1u) != 0 && node_.present(i);
      if (joins && !in[i].is_partial())
        return {.refusal =
                    base::concat(name_of(first), " is a partial sum, ", name_of(i), " is ", in[i].to_string(),
                                 " and would count once for every rank: reduce ", name_of(first), " before")};
    }
  }
  return {.refusal = base::concat(name_of(first),
                                  " is a partial sum and the op is not linear in it: an "
                                  "all_reduce or reduce_scatter is missing")};
}

CutMatcher::Result CutMatcher::match_split(std::span<const Placement> in) const {
  size_t first = 0;
  while (!in[first].is_split()) ++first;
  const Placement& p = in[first];
  const char letter = in_letter(first, static_cast<size_t>(p.dim));
  if (letter == '.')
    return {.refusal = base::concat(name_of(first), " is ", p.to_string(),
                                    ", a dimension that the op needs "
                                    "whole: an all_gather is missing")};
  const std::optional<CutFit> fit = cut(letter, has_fixed_sections(letter) ? 1 : p.sections);
  for (size_t i = 0; i < in.size(); ++i) {
    // A rank's own statistics match its part of the values that they were computed from.
    const bool own = in[i].kind == PlacementKind::own && contains(rule_.own, letter);
    if (in[i] == fit->in[i] || !node_.present(i) || (own && fit->in[i].is_replicated())) continue;
    if (in[i].is_partial())
      return {.refusal = base::concat(name_of(i), " is a partial sum beside the split ", name_of(first),
                                      ": an all_reduce or reduce_scatter is missing")};
    return {.refusal = base::concat(name_of(i), " is ", in[i].to_string(), " where ", name_of(first), " ",
                                    p.to_string(), " needs ", fit->in[i].to_string())};
  }
  return {.out = fit->out};
}

CutMatcher::Result CutMatcher::match(std::span<const Placement> in) const {
  base::check(in.size() == node_.in.size(), "one placement for each operand");
  const auto any = [&](PlacementKind kind) {
    return std::any_of(in.begin(), in.end(), [&](const Placement& p) { return p.kind == kind; });
  };
  // match_split checks which operands beside a split one may be partial: only those that are added.
  if (any(PlacementKind::split)) return match_split(in);
  if (any(PlacementKind::partial)) return match_partial(in);
  std::vector<Placement> out(node_.out.size());
  // A result is the rank's own if any operand is, even if the others are common to all ranks.
  if (any(PlacementKind::own)) std::fill(out.begin(), out.end(), Placement::own());
  return {.out = std::move(out)};
}

}  // namespace trireme::passes
