// Reads cut rules for single entries: stricter than for ranks, which may add up partial results.
#include "passes/independence/index_rule.h"

#include <algorithm>
#include <numeric>

#include "passes/partition/cut_match.h"

namespace trireme::passes {
namespace {

IndexRuleResult refuse(std::string why) { return {.refusal = std::move(why)}; }

int64_t product(const tensor::Dims& dims, size_t from, size_t to) {
  int64_t p = 1;
  for (size_t d = from; d < to; ++d) p *= dims[d];
  return p;
}

/// A view keeps the order of elements: as many of them precede the index in the result as in the operand.
IndexRuleResult through_view(const IndexRuleInput& in) {
  if (!in.places[0]) return refuse("its extents follow the number of rows, its operand does not");
  const tensor::Dims x = in.node.in_dims(0), y = in.node.out_dims(0);
  const IndexPlace& from = *in.places[0];
  const int64_t before = product(x, 0, from.dim) * from.outer;
  if (tensor::element_count(x) == 0) return refuse("no elements to see the rows by");
  IndexPlace to;
  while (to.dim < y.size() && y[to.dim] % in.entries != 0) ++to.dim;
  const int64_t ahead = product(y, 0, to.dim);
  if (to.dim == y.size() || before % ahead != 0 || y[to.dim] % (before / ahead * in.entries) != 0)
    return refuse(base::concat("its extents cut through the rows: ", in.node.in[0].to_string(), " to ",
                               in.node.out[0].to_string()));
  to.outer = before / ahead;
  to.inner = y[to.dim] / (to.outer * in.entries);
  return {.places = {to}};
}

bool has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

/// Checks one rule of the node along one of its letters.
class LetterFit {
 public:
  LetterFit(const IndexRuleInput& in, const ir::CutRule& rule) : in_(in), rule_(rule), cut_(rule, in.node) {}

  IndexRuleResult run() {
    if (!find_letter()) return refuse(why_);
    if (!letter_is_free() || !operands_agree() || !parts_are_alike()) return refuse(why_);
    return results();
  }

 private:
  bool no(std::string why) {
    why_ = std::move(why);
    return false;
  }

  /// The letter of the index in the first operand that has it, or in the requested extents.
  bool find_letter() {
    for (size_t i = 0; i < in_.places.size(); ++i) {
      if (!in_.places[i]) continue;
      place_ = *in_.places[i];
      letter_ = cut_.in_letter(i, place_.dim);
      if (letter_ == '.')
        return no(base::concat("needs dimension ", place_.dim, " of operand ", i, " ",
                               in_.node.in[i].to_string(), " as a whole"));
      return true;
    }
    const tensor::Shape& y = in_.node.out[0].shape;
    if (in_.extents.size() > y.rank()) return no("its extents are not those of its result");
    for (size_t k = 0; k < in_.extents.size(); ++k) {
      if (in_.extents[k].is_plain()) continue;
      if (letter_ != '.') return no("two of its extents follow the number of rows");
      const size_t dim = y.rank() - in_.extents.size() + k;
      letter_ = cut_.out_letter(0, dim);
      place_ = {dim, 1, in_.extents[k].each};
    }
    return letter_ != '.' || no("its extents follow the number of rows");
  }

  /// True if entries of the letter do not interact, in any order of the results.
  bool letter_is_free() {
    if (has(rule_.sums, letter_) || has(rule_.maxes, letter_)) return no(over("a sum or maximum"));
    if (has(rule_.own, letter_)) return no(over("statistics"));
    for (const ir::CutRule::Sections& s : rule_.sections) {
      const char at = s.is_result ? cut_.out_letter(s.position, s.dim) : cut_.in_letter(s.position, s.dim);
      if (s.sections > 1 && at == letter_) return no("joins or splits the dimension of the rows");
    }
    for (const ir::CutRule::Single& s : rule_.single) {
      if (in_.node.present(s.operand) && in_.node.in_dims(s.operand)[s.dim] != 1)
        return no(base::concat("dimension ", s.dim, " of operand ", s.operand, " is not 1"));
    }
    return true;
  }
  std::string over(const std::string& what) const {
    return base::concat(what, " over dimension ", place_.dim, ", which holds the rows");
  }

  int64_t extent() const { return place_.outer * in_.entries * place_.inner; }

  /// True if units of the letter (such as heads) lie within one entry.
  bool keeps_units(int64_t whole) {
    for (const ir::CutRule::Units& u : rule_.units) {
      if (u.letter != letter_) continue;
      const bool divides = u.units > 0 && whole % u.units == 0 && place_.inner % (whole / u.units) == 0;
      if (!divides) return no(base::concat("works in ", u.units, " whole units across the rows"));
    }
    return true;
  }

  /// True if every operand has the letter exactly at the dimension that has the index.
  bool operands_agree() {
    for (size_t i = 0; i < in_.node.in.size(); ++i) {
      const size_t rank = in_.node.present(i) ? in_.node.in[i].shape.rank() : 0;
      for (size_t d = 0; d < rank; ++d) {
        const bool is_here = in_.places[i] && in_.places[i]->dim == d;
        if ((cut_.in_letter(i, d) == letter_) != is_here) return no(disagrees(i, d, is_here));
        if (!is_here) continue;
        const IndexPlace& p = *in_.places[i];
        if (p.outer != place_.outer || p.inner != place_.inner || in_.node.in_dims(i)[d] != extent())
          return no(base::concat("operand ", i, " holds the rows in another order"));
        if (!keeps_units(extent())) return false;
      }
    }
    return true;
  }
  std::string disagrees(size_t i, size_t d, bool is_here) const {
    const std::string at = base::concat("dimension ", d, " of operand ", i, " ", in_.node.in[i].to_string());
    return is_here ? base::concat("does not go through ", at, " row by row")
                   : base::concat(at, " meets the rows and is not by row");
  }

  /// A node that must change its attributes for a part refers to positions or extents along the letter.
  bool parts_are_alike() {
    if (!in_.schema.localise) return true;
    ir::Attrs attrs = in_.node.attrs;
    ir::LocalNode local{
        .global = in_.node, .attrs = attrs, .in = {}, .out = {}, .in_begin = {}, .out_begin = {}};
    const auto part = [&](const tensor::TensorType& t, auto letter_of, auto& dims, auto& begin) {
      dims.push_back(t.shape.to_dims());
      begin.emplace_back(dims.back().size(), 0);
      for (size_t d = 0; d < dims.back().size(); ++d) {
        if (letter_of(d) != letter_ || dims.back()[d] % in_.entries != 0) continue;
        dims.back()[d] /= in_.entries;
        begin.back()[d] = dims.back()[d];  // the second part, since the first one always begins at 0
      }
    };
    for (size_t i = 0; i < in_.node.in.size(); ++i)
      part(
          in_.node.in[i], [&](size_t d) { return cut_.in_letter(i, d); }, local.in, local.in_begin);
    for (size_t i = 0; i < in_.node.out.size(); ++i)
      part(
          in_.node.out[i], [&](size_t d) { return cut_.out_letter(i, d); }, local.out, local.out_begin);
    in_.schema.localise(local);
    return attrs.to_string() == in_.node.attrs.to_string() ||
           no("its attributes speak of places among the rows");
  }

  IndexRuleResult results() {
    IndexRuleResult found;
    for (size_t r = 0; r < in_.node.out.size(); ++r) {
      const tensor::Shape& y = in_.node.out[r].shape;
      std::optional<IndexPlace> place;
      for (size_t d = 0; d < y.rank(); ++d) {
        if (cut_.out_letter(r, d) != letter_) continue;
        if (place) return refuse("holds the rows in two dimensions of a result");
        place = {d, place_.outer, place_.inner};
        if (y[d].value() != extent()) return refuse("changes the number of rows");
      }
      found.mixed.push_back(!place);
      found.places.push_back(place);
    }
    return agrees_with_extents(found) ? found : refuse(why_);
  }

  /// Requested extents may depend on the number of entries only along the index, and must follow it there.
  bool agrees_with_extents(const IndexRuleResult& found) {
    const size_t rank = in_.node.out[0].shape.rank(), count = in_.extents.size();
    for (size_t k = 0; k < count; ++k) {
      if (in_.extents[k].is_plain()) continue;
      const std::optional<IndexPlace>& at = found.places[0];
      const bool is_index = count <= rank && at && at->dim == rank - count + k;
      if (!is_index || in_.extents[k].each != at->outer * at->inner)
        return no("its extents follow the number of rows beside them");
    }
    return true;
  }

  const IndexRuleInput& in_;
  const ir::CutRule& rule_;
  CutMatcher cut_;
  char letter_ = '.';
  IndexPlace place_;
  std::string why_;
};

}  // namespace

IndexRuleResult apply_index_rule(const IndexRuleInput& in) {
  const ir::CutRule rule = cut_rule_of(in.schema, in.node);
  if (rule.notation.empty()) {
    const std::string& why = in.schema.why_no_cut;
    return refuse(why.empty() ? "it is not said what its rows are" : why);
  }
  if (in.schema.is_view && in.node.in_dims(0) != in.node.out_dims(0)) return through_view(in);
  IndexRuleResult first = LetterFit(in, rule).run();
  for (const ir::CutRule& other : rule.others) {
    if (first.refusal.empty()) break;
    IndexRuleResult result = LetterFit(in, other).run();
    if (result.refusal.empty()) return result;
  }
  return first;
}

}  // namespace trireme::passes
