// Cut rules of losses. Letters: from 'a' on the dimensions of the rows, 'v' the classes.
#include "ops/loss/loss_cuts.h"

#include "ops/cut_notation.h"

namespace trireme::ops {
namespace {

constexpr const char* kPadded = "padded";

}  // namespace

int64_t class_scores(const ir::NodeView& node) {
  return node.in_dims(0).back() - node.attrs.get_int(kPadded, 0);
}

void require_padding(const ir::NodeView& node) {
  const tensor::Shape& x = node.in[0].shape;
  const int64_t padded = node.attrs.get_int(kPadded, 0);
  base::require(padded >= 0, "padded is a number of scores, given: ", padded);
  if (padded == 0 || !x.has_rank() || !x[x.rank() - 1].is_static()) return;
  base::require(padded < x[x.rank() - 1].value(), padded, " padded scores leave no class of ", x.to_string());
}

/// Classes stay whole here; passes/partition/vocab_parallel makes the form in which they are split.
ir::CutRule cross_entropy_cut(const ir::NodeView& n) {
  const std::string rows = letters(n.in[1].shape.rank());
  CutNotation notation(n);
  notation.in(0, rows + ".").in(1, rows).out(1, rows);
  return {.notation = notation.text(), .sums = rows};
}

ir::CutRule cross_entropy_grad_cut(const ir::NodeView& n) {
  const std::string rows = letters(n.in[1].shape.rank());
  const bool is_whole = n.attrs.get_int(kPadded, 0) != 0;  // padded parts were cut already
  const std::string scores = rows + (is_whole ? "." : "v");
  CutNotation notation(n);
  notation.in(0, scores).in(1, rows).in(2, rows).out(0, scores);
  ir::CutRule rule{.notation = notation.text(), .linear = {1u << 3}};
  if (is_whole) return rule;
  rule.sections = {{false, 0, rows.size(), 1}};  // `first` describes one run of classes
  rule.uneven = "v";
  return rule;
}

void localise_cross_entropy_grad(ir::LocalNode& n) {
  const int64_t classes = n.global.in_dims(0).back();
  if (n.in[0].back() == classes) return;
  n.attrs.set("first", n.global.attrs.get_int("first", 0) + n.in_begin[0].back());
  n.attrs.set("classes", n.global.attrs.get_int("classes", classes));
}

namespace {

/// Letters of scores [rows, classes, positions...] and targets [rows, positions...].
struct ClassLetters {
  std::string scores, targets;
};

/// A mean divides by the weight of all targets, so only sums and unreduced losses can be cut.
ClassLetters class_letters(const ir::NodeView& n) {
  std::string targets = letters(n.in[1].shape.rank());
  if (n.attrs.get_string("reduction", "mean") == "mean") targets = dots(targets.size());
  std::string scores = targets;
  scores.insert(1, ".");
  return {scores, targets};
}

std::string without_dots(std::string text) {
  std::erase(text, '.');
  return text;
}

}  // namespace

ir::CutRule class_loss_cut(const ir::NodeView& n) {
  const ClassLetters l = class_letters(n);
  CutNotation notation(n);
  notation.in(0, l.scores).in(1, l.targets).out(1, l.scores);
  const bool is_sum = n.attrs.get_string("reduction", "mean") == "sum";
  if (!is_sum && n.out[0].shape.rank() > 0) notation.out(0, l.targets);
  return {.notation = notation.text(), .sums = is_sum ? without_dots(l.targets) : ""};
}

/// The operands are scores, targets, gradient of the loss, class weights.
ir::CutRule class_loss_grad_cut(const ir::NodeView& n) {
  const ClassLetters l = class_letters(n);
  CutNotation notation(n);
  notation.in(0, l.scores).in(1, l.targets).out(0, l.scores);
  if (n.in[2].shape.rank() > 0) notation.in(2, l.targets);
  return {.notation = notation.text(), .linear = {1u << 2}};
}

}  // namespace trireme::ops
