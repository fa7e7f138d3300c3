// Checks an op's cut rule against the op itself: carries out every cut that the rule allows, part by part,
// and compares the combined results of the parts with those of the whole.
#include "tests/cut_trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "ops/table.h"
#include "passes/partition/partition_parts.h"
#include "tensor/shard.h"
#include "tests/row_trial.h"

namespace trireme::tests {
namespace {

/// The notation of a rule, parsed.
struct ParsedCut {
  std::vector<std::string> in, out;
};

ParsedCut parse_cut(const std::string& notation) {
  ParsedCut p;
  std::vector<std::string>* side = &p.in;
  side->emplace_back();
  for (size_t i = 0; i < notation.size(); ++i) {
    if (notation[i] == '-') {
      side = &p.out;
      side->emplace_back();
      ++i;
    } else if (notation[i] == ',') {
      side->emplace_back();
    } else {
      side->back() += notation[i];
    }
  }
  return p;
}

/// Copies the indices [begin, begin + extent of `part`) of each section of dimension `dim` of `x` to `part`.
void copy_part(const tensor::Tensor& x, tensor::Tensor& part, size_t dim, int64_t sections, int64_t begin) {
  const tensor::Dims &whole = x.dims(), &small = part.dims();
  const int64_t width = x.elements() == 0 ? 0 : x.bytes() / x.elements();
  const int64_t outer =
      std::accumulate(whole.begin(), whole.begin() + int64_t(dim), int64_t{1}, std::multiplies<>());
  const int64_t inner =
      std::accumulate(whole.begin() + int64_t(dim) + 1, whole.end(), int64_t{1}, std::multiplies<>());
  const int64_t section = whole[dim] / sections, size = small[dim] / sections, run = size * inner * width;
  for (int64_t i = 0; i < outer * sections; ++i) {
    const std::byte* a = x.raw() + (i * section + begin) * inner * width;
    std::byte* b = part.mutable_raw() + i * run;
    if (run > 0) std::memcpy(b, a, size_t(run));
  }
}

/// Carries out the cuts of one rule along one letter.
class CutTrial {
 public:
  CutTrial(const CutCase& c, const ir::CutRule& rule, char letter, const std::vector<tensor::Tensor>& whole)
      : case_(c), rule_(rule), parsed_(parse_cut(rule.notation)), letter_(letter), whole_(whole), pool_(2) {}

  bool run() {
    SCOPED_TRACE(case_.op + " cut along " + letter_ + " of " + rule_.notation);
    if (!fits()) return false;
    std::vector<std::vector<tensor::Tensor>> results;
    for (int i = 0; i < case_.parts; ++i) results.push_back(run_part(i));
    for (size_t r = 0; r < case_.results; ++r) {
      if (parsed_.out[r].find(letter_) == std::string::npos) whole_result(results, r);
    }
    return true;
  }

 private:
  int64_t sections(bool is_result, size_t at, size_t dim) const {
    for (const ir::CutRule::Sections& s : rule_.sections) {
      if (s.is_result == is_result && s.position == at && s.dim == dim) return s.sections;
    }
    return 1;
  }

  bool has(const std::string& of) const { return of.find(letter_) != std::string::npos; }

  /// Whether the case's number of parts is allowed: whole units, and equal parts unless the rule says else.
  bool fits() const {
    for (const ir::CutRule::Units& u : rule_.units) {
      if (u.letter == letter_ && u.units % case_.parts != 0) return false;
    }
    for (const ir::CutRule::Single& s : rule_.single) {
      if (case_.in[s.operand].dims()[s.dim] != 1) return false;
    }
    const bool uneven = rule_.uneven.find(letter_) != std::string::npos;
    for (size_t r = 0; r < case_.results; ++r) {
      const size_t dim = parsed_.out[r].find(letter_);
      if (dim == std::string::npos || uneven) continue;
      if (whole_[r].dims()[dim] / sections(true, r, dim) % case_.parts != 0) return false;
    }
    for (size_t i = 0; i < case_.in.size(); ++i) {
      const size_t dim = parsed_.in[i].find(letter_);
      if (dim == std::string::npos || uneven) continue;
      if (case_.in[i].dims()[dim] / sections(false, i, dim) % case_.parts != 0) return false;
    }
    return true;
  }

  struct Part {
    tensor::Dims dims, begin;
  };
  Part part_of(const tensor::Dims& dims, const std::string& text, bool is_result, size_t at,
               int index) const {
    Part p{dims, tensor::Dims(dims.size(), 0)};
    const size_t dim = text.find(letter_);
    if (dim == std::string::npos) return p;
    const int64_t count = sections(is_result, at, dim), section = dims[dim] / count;
    p.begin[dim] = tensor::part_begin(section, case_.parts, index);
    p.dims[dim] = (tensor::part_begin(section, case_.parts, index + 1) - p.begin[dim]) * count;
    return p;
  }

  tensor::Placement placement(const std::string& text, bool is_result, size_t at) const {
    const size_t dim = text.find(letter_);
    if (dim == std::string::npos) return {};
    return tensor::Placement::split(static_cast<int>(dim), static_cast<int>(sections(is_result, at, dim)));
  }

  std::vector<tensor::Tensor> run_part(int index) {
    std::vector<tensor::Tensor> in = case_.in;
    ir::NodeView view{.attrs = case_.attrs, .in = {}, .out = {}, .known = {}, .is_present = {}};
    view.out_count = case_.results;
    passes::CutFit fit;
    for (size_t i = 0; i < in.size(); ++i) {
      view.is_present.push_back(in[i].defined());
      view.in.push_back(in[i].defined() ? in[i].type() : tensor::TensorType{});
      view.known.push_back(in[i].defined() ? &case_.in[i] : nullptr);
      Part p = in[i].defined() ? part_of(in[i].dims(), parsed_.in[i], false, i, index) : Part{};
      if (in[i].defined() && p.dims != in[i].dims()) {
        tensor::Tensor from = in[i];
        const size_t dim = parsed_.in[i].find(letter_);
        in[i] = tensor::Tensor::empty(from.dtype(), p.dims);
        copy_part(from, in[i], dim, sections(false, i, dim), p.begin[dim]);
      }
      // An operand that is added to partial results must be added by one part only.
      const bool partial = has(rule_.sums) && (rule_.added >> i & 1) != 0 && p.dims == in[i].dims();
      if (partial && index > 0 && in[i].defined()) in[i] = tensor::Tensor::zeros(in[i].dtype(), p.dims);
      fit.in.push_back(placement(parsed_.in[i], false, i));
    }
    std::vector<Part> out;
    for (size_t r = 0; r < whole_.size(); ++r) {
      view.out.push_back(whole_[r].type());
      out.push_back(r < case_.results ? part_of(whole_[r].dims(), parsed_.out[r], true, r, index) : Part{});
      fit.out.push_back(r < case_.results ? placement(parsed_.out[r], true, r) : tensor::Placement{});
    }
    const ir::OpDef& op = ops::table().need(case_.op);
    const passes::PartNode part =
        passes::part_node(op.schema, view, fit, {.ranks = case_.parts, .index = index});
    for (const auto& [i, value] : part.constants) in[i] = value;
    std::vector<tensor::Tensor> got = ops::evaluate(op, part.attrs, in, case_.results, pool_);
    for (size_t r = 0; r < case_.results; ++r) {
      const size_t dim = parsed_.out[r].find(letter_);
      if (dim == std::string::npos) continue;
      EXPECT_EQ(got[r].dims(), out[r].dims) << "result " << r;
      tensor::Tensor want = tensor::Tensor::empty(got[r].dtype(), out[r].dims), from = whole_[r];
      copy_part(from, want, dim, sections(true, r, dim), out[r].begin[dim]);
      expect_near(got[r].to_doubles(), want.to_doubles(), r);
    }
    return got;
  }

  /// Checks results without the letter: partial sums or maxima, each part's own, or the same in all parts.
  void whole_result(const std::vector<std::vector<tensor::Tensor>>& results, size_t r) {
    std::vector<double> total = results[0][r].to_doubles();
    if (has(rule_.own)) return;
    for (size_t i = 1; i < results.size(); ++i) {
      const std::vector<double> next = results[i][r].to_doubles();
      ASSERT_EQ(next.size(), total.size());
      if (!has(rule_.sums) && !has(rule_.maxes)) expect_near(next, total, r);
      for (size_t e = 0; e < total.size(); ++e) {
        if (has(rule_.sums)) total[e] += next[e];
        if (has(rule_.maxes)) total[e] = std::max(total[e], next[e]);
      }
    }
    expect_near(total, whole_[r].to_doubles(), r);
  }

  void expect_near(const std::vector<double>& got, const std::vector<double>& want, size_t r) const {
    ASSERT_EQ(got.size(), want.size()) << "result " << r;
    double largest = 1;
    for (double w : want) largest = std::isfinite(w) ? std::max(largest, std::abs(w)) : largest;
    for (size_t e = 0; e < got.size(); ++e) {
      if (got[e] == want[e] || (std::isnan(got[e]) && std::isnan(want[e]))) continue;
      ASSERT_LE(std::abs(got[e] - want[e]), case_.tolerance * largest) << "result " << r << " element " << e;
    }
  }

  const CutCase& case_;
  const ir::CutRule& rule_;
  ParsedCut parsed_;
  char letter_;
  const std::vector<tensor::Tensor>& whole_;
  base::ThreadPool pool_;
};

/// Checks that f(p + q) = f(p) + f(q) in the operands of each mask together, with the others fixed.
void expect_linear(const CutCase& c, const ir::CutRule& rule, const std::vector<tensor::Tensor>& whole) {
  base::ThreadPool pool(2);
  for (uint32_t mask : rule.linear) {
    SCOPED_TRACE(base::concat(c.op, " linear in operands ", mask));
    std::vector<tensor::Tensor> some = c.in, rest = c.in;
    for (size_t i = 0; i < c.in.size() && i < 32; ++i) {
      if ((mask >> i & 1) == 0 || !c.in[i].defined()) continue;
      some[i] = c.in[i].clone();
      rest[i] = c.in[i].clone();
      const auto a = some[i].mutable_data<double>(), b = rest[i].mutable_data<double>();
      for (size_t e = 0; e < a.size(); ++e) {
        a[e] = 0.25 * a[e] + 0.5 * std::sin(double(e));
        b[e] -= a[e];
      }
    }
    const ir::OpDef& op = ops::table().need(c.op);
    const auto p = ops::evaluate(op, c.attrs, some, c.results, pool);
    const auto q = ops::evaluate(op, c.attrs, rest, c.results, pool);
    for (size_t r = 0; r < c.results; ++r) {
      const std::vector<double> x = p[r].to_doubles(), y = q[r].to_doubles(), z = whole[r].to_doubles();
      for (size_t e = 0; e < z.size(); ++e)
        ASSERT_NEAR(x[e] + y[e], z[e], c.tolerance * (1 + std::abs(z[e]) + std::abs(x[e]))) << "result " << r;
    }
  }
}

/// The rule for the case's node.
ir::CutRule rule_of(const CutCase& c, const std::vector<tensor::Tensor>& whole) {
  ir::NodeView view{.attrs = c.attrs, .in = {}, .out = {}, .known = {}, .is_present = {}};
  view.out_count = c.results;
  for (const tensor::Tensor& t : c.in) {
    view.is_present.push_back(t.defined());
    view.in.push_back(t.defined() ? t.type() : tensor::TensorType{});
    view.known.push_back(t.defined() ? &t : nullptr);
  }
  for (size_t r = 0; r < c.results; ++r) view.out.push_back(whole[r].type());
  return ops::table().need(c.op).schema.cut(view);
}

}  // namespace

std::string expect_cuts(const CutCase& c) {
  base::ThreadPool pool(2);
  std::vector<tensor::Tensor> whole = ops::evaluate(ops::table().need(c.op), c.attrs, c.in, c.results, pool);
  whole.resize(c.results);
  const ir::CutRule rule = rule_of(c, whole);
  std::vector<ir::CutRule> ways{rule};
  ways.insert(ways.end(), rule.others.begin(), rule.others.end());
  std::string done;
  for (const ir::CutRule& way : ways) {
    std::string found;
    for (char letter : way.notation) {
      if (!std::isalpha(static_cast<unsigned char>(letter)) || found.find(letter) != std::string::npos)
        continue;
      found += letter;
      if (CutTrial(c, way, letter, whole).run()) done += letter;
    }
  }
  expect_linear(c, rule, whole);
  RowCounts counts;
  try_rows({c.op, c.in, c.attrs, c.results}, false, counts);
  return done;
}

}  // namespace trireme::tests
