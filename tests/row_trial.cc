// Compares nine entries of an index together with each entry alone, among others, and beside infinities.
#include "tests/row_trial.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "ops/table.h"
#include "passes/independence/independence.h"
#include "passes/partition/cut_match.h"

namespace trireme::tests {
namespace {

using passes::IndexPlace;
using tensor::Dims;
using tensor::Tensor;

/// For each operand, the dimension that holds the index, if any.
using Assignment = std::vector<std::optional<size_t>>;
using Entries = std::vector<int64_t>;

/// A tensor as bytes [outer, n, inner] around the index.
struct Layout {
  int64_t outer = 1, n = 1, inner_bytes = 1;
};

Layout layout_of(const Tensor& t, const IndexPlace& place) {
  Layout l;
  for (size_t d = 0; d < place.dim; ++d) l.outer *= t.dims()[d];
  l.outer *= place.outer;
  l.n = t.dims()[place.dim] / (place.outer * place.inner);
  l.inner_bytes = l.outer * l.n == 0 ? 0 : t.bytes() / (l.outer * l.n);
  return l;
}

/// The given entries, in this order.
Tensor take(const Tensor& t, const IndexPlace& place, const Entries& entries) {
  const Layout from = layout_of(t, place);
  Dims dims = t.dims();
  dims[place.dim] = place.outer * place.inner * static_cast<int64_t>(entries.size());
  Tensor out = Tensor::empty(t.dtype(), dims);
  std::byte* to = out.mutable_raw();
  for (int64_t o = 0; o < from.outer; ++o) {
    for (const int64_t e : entries) {
      std::memcpy(to, t.raw() + (o * from.n + e) * from.inner_bytes, static_cast<size_t>(from.inner_bytes));
      to += from.inner_bytes;
    }
  }
  return out;
}

/// Fills all entries except `kept` with `value`, if the type can represent it.
Tensor with_strangers(const Tensor& t, const IndexPlace& place, int64_t kept, double value) {
  Tensor out = t.clone();
  const Layout l = layout_of(t, place);
  const auto put = [&](auto elements, auto stranger) {
    const size_t inner = static_cast<size_t>(l.inner_bytes) / sizeof(stranger);
    for (size_t i = 0; i < elements.size(); ++i) {
      if (static_cast<int64_t>(i / inner) % l.n != kept) elements[i] = stranger;
    }
  };
  if (t.dtype() == tensor::DType::f32) put(out.mutable_data<float>(), static_cast<float>(value));
  if (t.dtype() == tensor::DType::f64) put(out.mutable_data<double>(), value);
  return out;
}

/// Whether the entries of all operands begin at whole bytes.
bool has_whole_bytes(const OpCase& c) {
  return std::all_of(c.in.begin(), c.in.end(),
                     [](const Tensor& t) { return !t.defined() || tensor::bits_of(t.dtype()) >= 8; });
}

constexpr int64_t kEntries = 9;

/// One node with an index in some of its operands.
class RowTrial {
 public:
  RowTrial(const OpCase& c, Assignment dims) : case_(c), dims_(std::move(dims)) {
    for (size_t i = 0; i < dims_.size(); ++i) {
      if (dims_[i]) n_ = c.in[i].dims()[*dims_[i]];
    }
    for (int64_t e = 0; e < kEntries; ++e) nine_.push_back(e % n_);
  }

  void run(bool ask_all, RowCounts& counts) {
    const std::vector<passes::IndexUse> uses = said();
    std::optional<std::vector<Tensor>> all;
    for (size_t r = 0; r < case_.results; ++r) {
      const bool is_shown = r < uses.size() && uses[r].kind == passes::IndexUse::Kind::along;
      counts.unshown += is_shown ? 0 : 1;
      if (!is_shown && !ask_all) continue;
      if (is_shown) {
        ++counts.shown;
        const std::string wrong = trial(r, uses[r].place);
        EXPECT_EQ(wrong, "") << describe(r);
      } else if (const auto place = seen_place(r); place && trial(r, *place).empty()) {
        ++counts.held_unshown[case_.op];
      }
    }
  }

 private:
  std::string describe(size_t r) const {
    std::string text = base::concat(case_.op, "(", case_.attrs.to_string(), ") result ", r, ", index in");
    for (size_t i = 0; i < dims_.size(); ++i) {
      if (dims_[i])
        text += base::concat(" dimension ", *dims_[i], " of operand ", i, " ", case_.in[i].type().to_string(),
                             ";");
    }
    return text;
  }

  /// What follow_index() says of the results; empty if the graph does not accept every number of entries.
  std::vector<passes::IndexUse> said() const {
    ir::Graph graph;
    passes::IndexedInputs inputs;
    std::vector<ir::ValueId> in;
    try {
      for (size_t i = 0; i < case_.in.size(); ++i) {
        const Tensor& t = case_.in[i];
        if (!t.defined()) {
          in.push_back(ir::kNoValue);
        } else if (!dims_[i]) {
          in.push_back(graph.add_constant(t));
        } else {
          in.push_back(graph.add_input(base::concat("x", i), t.type()));
          inputs.shapes.push_back(t.dims());
          inputs.dims.push_back(dims_[i]);
        }
      }
      const auto out = graph.add(ops::table().need(case_.op), in, case_.attrs, case_.results);
      const std::vector<passes::IndexUse> uses = passes::follow_index(graph, inputs);
      std::vector<passes::IndexUse> results;
      for (const ir::ValueId id : out) results.push_back(uses[ir::index(id)]);
      return results;
    } catch (const base::Error&) {
      return {};
    }
  }

  std::vector<Tensor> operands(const Entries& entries) const {
    std::vector<Tensor> in = case_.in;
    for (size_t i = 0; i < in.size(); ++i) {
      if (dims_[i]) in[i] = take(in[i], {*dims_[i]}, entries);
    }
    return in;
  }
  /// Operands with the index are passed as inputs, not constants: a kernel that packs a constant in advance
  /// may depend on the number of outputs.
  std::vector<Tensor> evaluate(const std::vector<Tensor>& in) {
    ops::HostRun on(pool_);
    if (case_.op == "conv_nhwc" && dims_[1]) on.fed = {1};
    return ops::evaluate(ops::table().need(case_.op), case_.attrs, in, case_.results, on);
  }

  /// The dimension of a result that grows with the number of entries, whatever it contains.
  std::optional<IndexPlace> seen_place(size_t r) {
    try {
      const Dims nine = evaluate(operands(nine_))[r].dims();
      const Dims five = evaluate(operands({nine_.begin(), nine_.begin() + 5}))[r].dims();
      for (size_t d = 0; d < nine.size() && nine.size() == five.size(); ++d) {
        if (nine[d] != five[d] && nine[d] * 5 == five[d] * kEntries)
          return IndexPlace{d, 1, nine[d] / kEntries};
      }
    } catch (const base::Error&) {
    }
    return std::nullopt;
  }

  /// Describes how the entries' results differ; empty if they do not.
  std::string trial(size_t r, const IndexPlace& place) {
    try {
      const std::vector<Tensor> in = operands(nine_);
      const Tensor all = evaluate(in)[r];
      if (tensor::bits_of(all.dtype()) < 8) return "";
      for (const int64_t i : {int64_t{0}, int64_t{4}, kEntries - 1}) {
        const Tensor mine = take(all, place, {i});
        const auto same = [&](const Tensor& other) { return mine.same_as(other); };
        if (!same(evaluate(operands({nine_[size_t(i)]}))[r]))
          return base::concat("entry ", i, " alone differs");
        Entries among{nine_.rbegin(), nine_.rend()};
        among[size_t(i)] = nine_[size_t(i)];
        if (!same(take(evaluate(operands(among))[r], place, {i})))
          return base::concat("entry ", i, " differs among others");
        for (const double value : {double(NAN), double(INFINITY), 1e30, 0.0}) {
          std::vector<Tensor> strange = in;
          for (size_t k = 0; k < in.size(); ++k) {
            if (dims_[k]) strange[k] = with_strangers(in[k], {*dims_[k]}, i, value);
          }
          if (!same(take(evaluate(strange)[r], place, {i})))
            return base::concat("entry ", i, " differs beside entries of ", value);
        }
      }
    } catch (const base::Error& e) {
      return e.what();
    }
    return "";
  }

  const OpCase& case_;
  Assignment dims_;
  int64_t n_ = 1;
  Entries nine_;
  base::ThreadPool pool_{2};
};

/// Adds the dimensions of operands that share a letter in one of the node's rules.
void add_letters(const OpCase& c, std::set<Assignment>& ways) {
  ir::NodeView node{
      .attrs = c.attrs, .in = {}, .out = {}, .known = {}, .is_present = {}, .out_count = c.results};
  for (const Tensor& t : c.in) {
    node.is_present.push_back(t.defined());
    node.in.push_back(t.defined() ? t.type() : tensor::TensorType{});
    node.known.push_back(t.defined() ? &t : nullptr);
  }
  const ir::OpSchema& op = ops::table().need(c.op).schema;
  node.out = ir::infer_types(op, node);
  for (const tensor::TensorType& t : node.out) {
    if (!t.shape.is_static()) return;
  }
  const ir::CutRule rule = passes::cut_rule_of(op, node);
  const auto add = [&](const ir::CutRule& one) {
    const passes::CutMatcher cut(one, node);
    for (const char letter : cut.letters()) {
      Assignment way(c.in.size());
      for (size_t i = 0; i < c.in.size(); ++i) {
        for (size_t d = 0; c.in[i].defined() && d < c.in[i].rank(); ++d) {
          if (cut.in_letter(i, d) == letter) way[i] = d;
        }
      }
      ways.insert(std::move(way));
    }
  };
  add(rule);
  for (const ir::CutRule& other : rule.others) add(other);
}

std::set<Assignment> ways_of(const OpCase& c) {
  std::set<Assignment> ways;
  size_t rank = 0;
  for (size_t i = 0; i < c.in.size(); ++i) {
    for (size_t d = 0; c.in[i].defined() && d < c.in[i].rank(); ++d) {
      Assignment one(c.in.size());
      one[i] = d;
      ways.insert(std::move(one));
      rank = std::max(rank, c.in[i].rank());
    }
  }
  for (size_t d = 0; d < rank; ++d) {
    Assignment all(c.in.size());
    for (size_t i = 0; i < c.in.size(); ++i) {
      if (c.in[i].defined() && d < c.in[i].rank()) all[i] = d;
    }
    ways.insert(std::move(all));
  }
  add_letters(c, ways);
  // All operands must have the same number of entries, and at least one.
  std::erase_if(ways, [&](const Assignment& way) {
    std::set<int64_t> extents;
    for (size_t i = 0; i < way.size(); ++i) {
      if (way[i]) extents.insert(c.in[i].dims()[*way[i]]);
    }
    return extents.size() != 1 || *extents.begin() == 0;
  });
  return ways;
}

}  // namespace

void try_rows(const OpCase& c, bool ask_all, RowCounts& counts) {
  if (!has_whole_bytes(c)) return;
  for (const Assignment& way : ways_of(c)) RowTrial(c, way).run(ask_all, counts);
}

}  // namespace trireme::tests
