// Cut rules of the ops that move elements. Each letter stands for a dimension of the result.
#include "ops/shape/shape_cuts.h"

#include <algorithm>
#include <numeric>

#include "ops/cut.h"
#include "ops/shape/fill_ops.h"
#include "ops/shape/shape_rules.h"

namespace trireme::ops {
namespace {

using ir::CutRule;
using ir::NodeView;
using tensor::Dims;

/// Notation of the operands after the first, which are small and stay whole.
std::string whole_operands(const NodeView& n) {
  std::string out;
  for (size_t i = 1; i < n.in.size(); ++i) {
    out += ',';
    if (n.present(i)) out += std::string(n.in[i].shape.rank(), '.');
  }
  return out;
}

CutRule one_to_one(const NodeView& n, const std::string& x, const std::string& y) {
  return {.notation = x + whole_operands(n) + "->" + y, .linear = {0b1}, .uneven = y};
}

/// Number of equal sections if [from, from + part) is one of several equal sections of `whole`; otherwise 0.
int sections_of(int64_t from, int64_t part, int64_t whole) {
  if (part <= 0 || whole % part != 0 || from % part != 0) return 0;
  return static_cast<int>(whole / part);
}

/// Of a slice: where it begins in each dimension, and whether its step is 1.
struct SliceBounds {
  std::vector<int64_t> from;
  std::vector<bool> is_plain;  ///< step 1
};

SliceBounds bounds_of(const NodeView& n, const Dims& whole) {
  SliceBounds b{std::vector<int64_t>(whole.size(), 0), std::vector<bool>(whole.size(), true)};
  const auto starts = known_ints(n, 1), ends = known_ints(n, 2), axes = known_ints(n, 3),
             steps = known_ints(n, 4);
  if (!starts || !ends || (n.present(3) && !axes) || (n.present(4) && !steps)) {
    b.is_plain.assign(whole.size(), false);
    return b;
  }
  for (size_t k = 0; k < starts->size(); ++k) {
    const size_t d = axes ? ir::normal_axis((*axes)[k], whole.size()) : k;
    const int64_t step = steps ? (*steps)[k] : 1;
    b.from[d] = slice_range((*starts)[k], (*ends)[k], step, whole[d]).start;
    b.is_plain[d] = step == 1;
  }
  return b;
}

/// The common rule of slice (whole -> part) and of its gradient (part -> whole).
CutRule slices_cut(const NodeView& n, bool is_backward) {
  const Dims part = is_backward ? n.in_dims(0) : n.out_dims(0);
  const Dims whole = is_backward ? n.out_dims(0) : n.in_dims(0);
  const SliceBounds bounds = bounds_of(n, whole);
  std::string letters = cut_letters(part.size());
  CutRule rule;
  for (size_t d = 0; d < part.size(); ++d) {
    const int sections = sections_of(bounds.from[d], part[d], whole[d]);
    if (!bounds.is_plain[d] || sections == 0) letters[d] = '.';
    if (letters[d] != '.' && sections > 1) rule.sections.push_back({is_backward, 0, d, sections});
  }
  rule.notation = letters + whole_operands(n) + "->" + letters;
  rule.linear = {0b1};
  rule.uneven = letters;
  return rule;
}

}  // namespace

CutRule transpose_cut(const NodeView& n) {
  const size_t rank = n.in[0].shape.rank();
  const std::vector<int64_t> perm = n.attrs.get_ints("perm");
  const std::string x = cut_letters(rank);
  std::string y;
  for (size_t i = 0; i < rank; ++i) y += x[perm.empty() ? rank - 1 - i : static_cast<size_t>(perm[i])];
  return one_to_one(n, x, y);
}

CutRule expand_cut(const NodeView& n) {
  const tensor::Shape &x = n.in[0].shape, &y = n.out[0].shape;
  const std::string all = cut_letters(y.rank());
  std::string from;
  for (size_t d = 0; d < x.rank(); ++d) {
    const size_t at = y.rank() - x.rank() + d;
    from += x[d] == y[at] ? all[at] : '.';
  }
  return one_to_one(n, from, all);
}

CutRule tile_cut(const NodeView& n) {
  const tensor::Shape &x = n.in[0].shape, &y = n.out[0].shape;
  std::vector<bool> whole(x.rank());
  for (size_t d = 0; d < x.rank(); ++d) whole[d] = x[d] != y[d];
  CutRule rule = same_dims_cut(n, whole);
  rule.linear = {0b1};
  return rule;
}

CutRule concat_cut(const NodeView& n) {
  const size_t rank = n.out[0].shape.rank(), axis = ir::normal_axis(n.attrs.need_int("axis"), rank);
  std::string letters = cut_letters(rank);
  const bool is_even = std::all_of(n.in.begin(), n.in.end(), [&](const tensor::TensorType& t) {
    return t.shape[axis] == n.in[0].shape[axis];
  });
  CutRule rule{.linear = {0xffffffffu}};
  if (n.in.size() > 32) rule.linear.clear();
  if (!is_even) letters[axis] = '.';
  if (is_even && n.in.size() > 1) rule.sections = {{true, 0, axis, static_cast<int>(n.in.size())}};
  for (size_t i = 0; i < n.in.size(); ++i) rule.notation += (i == 0 ? "" : ",") + letters;
  rule.notation += "->" + letters;
  rule.uneven = letters;
  return rule;
}

CutRule split_cut(const NodeView& n) {
  const tensor::Shape& x = n.in[0].shape;
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", 0), x.rank());
  std::string letters = cut_letters(x.rank());
  const int64_t whole = x[axis].value();
  std::vector<int64_t> sizes;
  if (n.present(1)) {
    sizes = known_ints(n, 1).value_or(std::vector<int64_t>{});
  } else {
    const int64_t pieces = n.attrs.get_int("num_outputs", static_cast<int64_t>(n.out_count));
    if (whole % pieces == 0) sizes.assign(static_cast<size_t>(pieces), whole / pieces);
  }
  const bool is_even =
      !sizes.empty() && std::all_of(sizes.begin(), sizes.end(), [&](int64_t s) { return s == sizes[0]; });
  CutRule rule;
  if (!is_even) letters[axis] = '.';
  if (is_even && sizes.size() > 1) rule.sections = {{false, 0, axis, static_cast<int>(sizes.size())}};
  rule.notation = letters + whole_operands(n) + "->";
  for (size_t i = 0; i < n.out.size(); ++i) rule.notation += (i == 0 ? "" : ",") + letters;
  rule.linear = {0b1};
  rule.uneven = letters;
  return rule;
}

CutRule slice_cut(const NodeView& n) { return slices_cut(n, false); }
CutRule slice_grad_cut(const NodeView& n) { return slices_cut(n, true); }

CutRule blocks_cut(const NodeView& n) {
  const Dims x = n.in_dims(0), y = n.out_dims(0);
  CutRule rule = one_to_one(n, "a.cd", "a.cd");
  rule.uneven = "a";
  rule.units = {{'c', std::min(x[2], y[2])}, {'d', std::min(x[3], y[3])}};
  return rule;
}

namespace {

/// Dimensions [x0, x1) of the operand and [y0, y1) of the result, which hold the same elements.
struct Run {
  size_t x0, x1, y0, y1;
};

std::vector<Run> runs_of(const Dims& x, const Dims& y) {
  std::vector<Run> runs;
  size_t i = 0, j = 0;
  while (i < x.size() || j < y.size()) {
    Run run{i, i, j, j};
    int64_t in = 1, out = 1;
    do {
      // The side with fewer elements so far takes its next dimension, which may have an extent of 1.
      const bool takes_x = j == y.size() || (i < x.size() && in <= out);
      if (takes_x)
        in *= x[i++];
      else
        out *= y[j++];
    } while (in != out && (i < x.size() || j < y.size()));
    run.x1 = i;
    run.y1 = j;
    runs.push_back(run);
  }
  return runs;
}

/// The first dimension of [from, to) with more than one element; `to` if there is none.
size_t leading(const Dims& dims, size_t from, size_t to) {
  while (from < to && dims[from] == 1) ++from;
  return from;
}

struct ViewRule {
  std::string x, y;
  CutRule rule;
};

/// Cuts a run in its leading dimensions.
void cut_leading(ViewRule& v, const Run& run, const Dims& x, const Dims& y) {
  const size_t i = leading(x, run.x0, run.x1), j = leading(y, run.y0, run.y1);
  if (i == run.x1 || j == run.y1) return;
  const char letter = cut_letters(1, j)[0];
  v.x[i] = v.y[j] = letter;
  if (x[i] != y[j]) v.rule.units.push_back({letter, std::gcd(x[i], y[j])});
}

/// For a run of one dimension against several: cuts the second of these, which gives as many sections as the
/// first one has elements. Returns false if there is no such dimension.
bool cut_sections(ViewRule& v, const Run& run, const Dims& x, const Dims& y) {
  const size_t i = leading(x, run.x0, run.x1), j = leading(y, run.y0, run.y1);
  if (i == run.x1 || j == run.y1 || x[i] == y[j]) return false;
  const bool joins = x[i] < y[j];  // several dimensions become one
  const Dims& many = joins ? x : y;
  const size_t first = joins ? i : j, one = joins ? j : i, end = joins ? run.x1 : run.y1;
  const size_t second = leading(many, first + 1, end);
  const int64_t total = joins ? y[j] : x[i];
  int64_t product = 1;
  for (size_t d = first; d < end; ++d) product *= many[d];
  if (second == end || product != total) return false;
  const char letter = cut_letters(1, joins ? second : one)[0];
  (joins ? v.x : v.y)[second] = letter;
  (joins ? v.y : v.x)[one] = letter;
  v.rule.units.push_back({letter, many[second]});
  v.rule.sections.push_back({joins, 0, one, static_cast<int>(many[first])});
  return true;
}

/// Pairs extents of 1 that have the same number of elements before them, in their order: a micro-batch of one
/// row is a part of a batch.
void cut_single(ViewRule& v, const Dims& x, const Dims& y) {
  int64_t before_x = 1;
  for (size_t i = 0; i < x.size(); before_x *= x[i++]) {
    if (x[i] != 1) continue;
    int64_t before_y = 1;
    for (size_t j = 0; j < y.size() && before_y <= before_x; before_y *= y[j++]) {
      if (y[j] != 1 || v.y[j] != '.' || before_y != before_x) continue;
      v.x[i] = v.y[j] = cut_letters(1, j)[0];
      break;
    }
  }
}

}  // namespace

CutRule view_cut(const NodeView& n) {
  const Dims x = n.in_dims(0), y = n.out_dims(0);
  const std::vector<Run> runs = tensor::element_count(x) == 0 ? std::vector<Run>{} : runs_of(x, y);
  const auto finish = [&](ViewRule v) {
    v.rule.notation = v.x + whole_operands(n) + "->" + v.y;
    v.rule.linear = {0b1};
    for (char c : v.y) {
      const bool is_same = std::none_of(v.rule.units.begin(), v.rule.units.end(),
                                        [&](const auto& u) { return u.letter == c; });
      if (c != '.' && is_same) v.rule.uneven += c;
    }
    return v.rule;
  };
  const ViewRule none{std::string(x.size(), '.'), std::string(y.size(), '.'), {}};
  ViewRule first = none;
  for (const Run& run : runs) cut_leading(first, run, x, y);
  if (!runs.empty()) cut_single(first, x, y);
  CutRule rule = finish(first);
  for (const Run& run : runs) {
    ViewRule other = none;
    if (cut_sections(other, run, x, y)) rule.others.push_back(finish(other));
  }
  return rule;
}

CutRule squeeze_cut(const NodeView& n) {
  CutRule rule = view_cut(n);
  if (!n.present(1)) rule = {.linear = {0b1}};
  return rule;
}

CutRule center_crop_pad_cut(const NodeView& n) {
  const std::vector<int64_t> axes = n.attrs.get_ints("axes");
  std::vector<bool> whole(n.in[0].shape.rank(), axes.empty());
  for (int64_t a : axes) whole[ir::normal_axis(a, whole.size())] = true;
  CutRule rule = same_dims_cut(n, whole);
  rule.linear = {0b1};
  return rule;
}

CutRule trilu_cut(const NodeView& n) {
  std::vector<bool> whole(n.in[0].shape.rank());
  whole[whole.size() - 1] = whole[whole.size() - 2] = true;
  CutRule rule = same_dims_cut(n, whole);
  rule.linear = {0b1};
  return rule;
}

CutRule pad_cut(const NodeView& n) {
  std::vector<bool> whole(n.in[0].shape.rank(), true);
  if (n.value(1) != nullptr && (!n.present(3) || n.value(3) != nullptr)) {
    const Pads pads = pads_of(n);
    for (size_t d = 0; d < whole.size(); ++d) whole[d] = pads.before[d] != 0 || pads.after[d] != 0;
  }
  CutRule rule = same_dims_cut(n, whole);
  if (!n.present(2)) rule.linear = {0b1};  // otherwise every rank would add the padding value
  return rule;
}

CutRule reverse_sequence_cut(const NodeView& n) {
  const size_t rank = n.in[0].shape.rank();
  std::string letters = cut_letters(rank);
  letters[ir::normal_axis(n.attrs.get_int("time_axis", 0), rank)] = '.';
  const char batch = letters[ir::normal_axis(n.attrs.get_int("batch_axis", 1), rank)];
  return {.notation = letters + "," + batch + "->" + letters, .linear = {0b1}, .uneven = letters};
}

CutRule one_hot_cut(const NodeView& n) {
  const size_t rank = n.in[0].shape.rank();
  const std::string indices = cut_letters(rank);
  std::string y = indices;
  y.insert(ir::normal_axis(n.attrs.get_int("axis", -1), rank + 1), ".");
  return {.notation = indices + whole_operands(n) + "->" + y, .uneven = indices};
}

CutRule constant_of_shape_cut(const NodeView& n) {
  const std::string y = cut_letters(n.out[0].shape.rank());
  return {.notation = ".->" + y, .uneven = y};
}

CutRule columns_cut(const NodeView& n) {
  const auto letters = [](const tensor::Shape& s) { return "ab" + std::string(s.rank() - 2, '.'); };
  CutRule rule = one_to_one(n, letters(n.in[0].shape), letters(n.out[0].shape));
  rule.units = {{'b', std::min(n.in_dims(0)[1], n.out_dims(0)[1])}};
  rule.uneven = "a";
  return rule;
}

void localise_shape(ir::LocalNode& n) { n.attrs.set("shape", n.out[0]); }

}  // namespace trireme::ops
