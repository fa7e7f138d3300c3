// Shape arithmetic on counts: computed element by element for arithmetic operators, by two evaluations for
// operators that only move elements.
#include "ops/counts.h"

#include <algorithm>

#include "ops/table.h"
#include "tensor/binary_math.h"

namespace trireme::ops {
namespace {

namespace math = tensor::math;
using ir::NodeView;
using tensor::Dims;
using tensor::Tensor;

/// The count fixed + each * n; anything if the parts do not fit into 64 bits.
Count checked(__int128 fixed, __int128 each) {
  constexpr __int128 kMost = int64_t{1} << 62;
  if (fixed > kMost || fixed < -kMost || each > kMost || each < -kMost) return Count::any();
  return {static_cast<int64_t>(fixed), static_cast<int64_t>(each)};
}

/// -1, 0 or 1 if `c` has this sign for every n >= 1.
std::optional<int> sign_of(const Count& c) {
  if (c.is_any) return std::nullopt;
  if (c.each == 0) return (c.fixed > 0) - (c.fixed < 0);
  if (c.each > 0 && c.fixed + c.each > 0) return 1;
  if (c.each < 0 && c.fixed + c.each < 0) return -1;
  return std::nullopt;
}

Count sum_of(const Count& a, const Count& b) {
  if (a.is_any || b.is_any) return Count::any();
  return checked(__int128{a.fixed} + b.fixed, __int128{a.each} + b.each);
}
Count difference(const Count& a, const Count& b) {
  if (a.is_any || b.is_any) return Count::any();
  return checked(__int128{a.fixed} - b.fixed, __int128{a.each} - b.each);
}
Count product(const Count& a, const Count& b) {
  if (a == Count{} || b == Count{}) return {};
  if (a.is_any || b.is_any || (a.each != 0 && b.each != 0)) return Count::any();
  return checked(__int128{a.fixed} * b.fixed, __int128{a.fixed} * b.each + __int128{a.each} * b.fixed);
}
/// The quotient if it is exact for every n; otherwise anything, because a rounded quotient is not linear in
/// n.
Count quotient(const Count& a, const Count& b) {
  if (a.is_any || b.is_any || sign_of(b).value_or(0) == 0) return Count::any();
  if (b.each == 0) {
    if (a.each == 0) return {a.fixed / b.fixed, 0};
    const bool is_exact = a.fixed % b.fixed == 0 && a.each % b.fixed == 0;
    return is_exact ? Count{a.fixed / b.fixed, a.each / b.fixed} : Count::any();
  }
  if (a.fixed != 0 || b.fixed != 0 || a.each % b.each != 0) return Count::any();
  return {a.each / b.each, 0};
}
Count smaller(const Count& a, const Count& b) {
  const auto sign = sign_of(difference(a, b));
  return !sign ? Count::any() : *sign <= 0 ? a : b;
}
Count larger(const Count& a, const Count& b) {
  const auto sign = sign_of(difference(a, b));
  return !sign ? Count::any() : *sign >= 0 ? a : b;
}
template <class Accept>
Count compared(const Count& a, const Count& b, Accept accept) {
  const auto sign = sign_of(difference(a, b));
  return sign ? Count{accept(*sign) ? 1 : 0, 0} : Count::any();
}
Count equal(const Count& a, const Count& b) {
  return compared(a, b, [](int sign) { return sign == 0; });
}
Count less(const Count& a, const Count& b) {
  return compared(a, b, [](int sign) { return sign < 0; });
}
Count less_or_equal(const Count& a, const Count& b) {
  return compared(a, b, [](int sign) { return sign <= 0; });
}
Count greater(const Count& a, const Count& b) { return less(b, a); }
Count greater_or_equal(const Count& a, const Count& b) { return less_or_equal(b, a); }

using Binary = Count (*)(const Count&, const Count&);

/// The arithmetic on counts of a functor of tensor/binary_math.h; null if there is none.
template <class Functor>
constexpr Binary kOfCounts = nullptr;
template <>
constexpr Binary kOfCounts<math::Add> = sum_of;
template <>
constexpr Binary kOfCounts<math::Sub> = difference;
template <>
constexpr Binary kOfCounts<math::Mul> = product;
template <>
constexpr Binary kOfCounts<math::Div> = quotient;
template <>
constexpr Binary kOfCounts<math::Min> = smaller;
template <>
constexpr Binary kOfCounts<math::Max> = larger;
template <>
constexpr Binary kOfCounts<math::Equal> = equal;
template <>
constexpr Binary kOfCounts<math::Less> = less;
template <>
constexpr Binary kOfCounts<math::LessOrEqual> = less_or_equal;
template <>
constexpr Binary kOfCounts<math::Greater> = greater;
template <>
constexpr Binary kOfCounts<math::GreaterOrEqual> = greater_or_equal;

/// The arithmetic of an integer operator on two counts; variadic operators are folded.
Binary binary_of(std::string_view op) {
  struct Row {
    std::string_view name;
    Binary make;
  };
  static constexpr Row kRows[] = {
#define BINARY_ROW(name, Functor, ...) {#name, kOfCounts<math::Functor>},
#define COMPARE_ROW(name, Functor, ...) {#name, kOfCounts<math::Functor>},
#define FOLD_ROW(name, Functor, ...) {#name, kOfCounts<math::Functor>},
#define FOLD_OF_ROW(name, step, Functor, onnx, formula, flop, precision, gradient, divides) \
  {#name, divides ? nullptr : kOfCounts<math::Functor>},
#include "tensor/elementwise_rows.inc"
  };
  for (const Row& row : kRows) {
    if (row.name == op) return row.make;
  }
  return nullptr;
}

bool is_extent(tensor::DType type) { return type == tensor::DType::i64 || type == tensor::DType::i32; }
bool is_whole(tensor::DType type) { return is_extent(type) || type == tensor::DType::boolean; }

/// Index of the operand's element that element `i` of the result [y] reads by broadcasting.
size_t broadcast_from(const Dims& x, const Dims& y, size_t i) {
  size_t at = 0, step = 1;
  for (size_t back = 0; back < y.size(); ++back) {
    const size_t extent = static_cast<size_t>(y[y.size() - 1 - back]);
    const size_t place = i % extent;
    i /= extent;
    if (back >= x.size()) continue;
    const size_t own = static_cast<size_t>(x[x.size() - 1 - back]);
    if (own != 1) at += place * step;
    step *= own;
  }
  return at;
}

/// One result whose elements are made from the broadcast operands' elements.
template <class Make>
Counts elementwise(const NodeView& n, const std::vector<Counts>& in, Make make) {
  const Dims y = n.out_dims(0);
  Counts out(static_cast<size_t>(tensor::element_count(y)));
  for (size_t i = 0; i < out.size(); ++i) {
    Counts of;
    for (size_t k = 0; k < in.size(); ++k) of.push_back(in[k][broadcast_from(n.in_dims(k), y, i)]);
    out[i] = make(of);
  }
  return out;
}

Count chosen(const Counts& of) {
  if (of[1] == of[2]) return of[1];
  return of[0].is_any ? Count::any() : of[0].fixed != 0 ? of[1] : of[2];
}

/// The product of all elements; only tensors of one dimension are needed here.
Counts product_of_all(const Counts& in) {
  Count all{1, 0};
  for (const Count& c : in) all = product(all, c);
  return {all};
}

Tensor tensor_of(const Counts& counts, const tensor::TensorType& type, int64_t n) {
  Tensor t = Tensor::empty(type.dtype, type.shape.to_dims());
  tensor::visit_dtype(type.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_arithmetic_v<T>) {
      auto out = t.mutable_data<T>();
      for (size_t i = 0; i < counts.size(); ++i)
        out[i] = static_cast<T>(counts[i].is_any ? 0 : counts[i].at(n));
    }
  });
  return t;
}

/// A node whose operands are counts.
struct CountNode {
  const ir::OpDef& op;
  const NodeView& node;
  const std::vector<Counts>& in;
  base::ThreadPool& pool;
};

/// Evaluates the node for one n with unknown elements set to 0, except that element `moved->second` of
/// operand `moved->first` is set to 1.
std::vector<std::vector<int64_t>> evaluate_at(const CountNode& c, int64_t rows,
                                              std::optional<std::pair<size_t, size_t>> moved = {}) {
  std::vector<Tensor> operands;
  for (size_t i = 0; i < c.in.size(); ++i) {
    if (!c.node.present(i)) {
      operands.emplace_back();
    } else if (are_plain(c.in[i])) {
      operands.push_back(*c.node.value(i));
    } else {
      Counts counts = c.in[i];
      if (moved && moved->first == i) counts[moved->second] = {1, 0};
      operands.push_back(tensor_of(counts, c.node.in[i], rows));
    }
  }
  std::vector<std::vector<int64_t>> out;
  for (const Tensor& t : evaluate(c.op, c.node.attrs, operands, c.node.out_count, c.pool))
    out.push_back(t.defined() ? t.to_ints() : std::vector<int64_t>{});
  return out;
}

/// Whether the results are linear in the operands that are not plain, with the others fixed.
bool is_linear(const ir::OpDef& op, const NodeView& n, const std::vector<Counts>& in) {
  if (!op.schema.cut || in.size() > 32) return false;
  uint32_t open = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    if (are_plain(in[i])) continue;
    if (!is_extent(n.in[i].dtype)) return false;
    open |= 1u << i;
  }
  for (const tensor::TensorType& t : n.out) {
    if (!is_extent(t.dtype)) return false;
  }
  const std::vector<uint32_t> masks = op.schema.cut(n).linear;
  return std::any_of(masks.begin(), masks.end(), [&](uint32_t mask) { return (open & ~mask) == 0; });
}

/// Two evaluations determine a line; every result that depends on an unknown element becomes unknown.
std::vector<Counts> linear_results(const CountNode& c) {
  const std::vector<Counts>& in = c.in;
  const auto one = evaluate_at(c, 1), two = evaluate_at(c, 2);
  std::vector<Counts> out(one.size());
  for (size_t r = 0; r < one.size(); ++r) {
    for (size_t i = 0; i < one[r].size(); ++i)
      out[r].push_back(checked(__int128{2} * one[r][i] - two[r][i], __int128{two[r][i]} - one[r][i]));
  }
  for (size_t k = 0; k < in.size(); ++k) {
    for (size_t e = 0; e < in[k].size(); ++e) {
      if (!in[k][e].is_any) continue;
      const auto moved = evaluate_at(c, 1, std::pair(k, e));
      for (size_t r = 0; r < one.size(); ++r) {
        for (size_t i = 0; i < one[r].size(); ++i) {
          if (moved[r][i] != one[r][i]) out[r][i] = Count::any();
        }
      }
    }
  }
  return out;
}

}  // namespace

Counts plain_counts(const Tensor& t) {
  Counts out;
  for (int64_t v : t.to_ints()) out.push_back({v, 0});
  return out;
}

bool are_plain(const Counts& counts) {
  return std::all_of(counts.begin(), counts.end(), [](const Count& c) { return c.is_plain(); });
}

std::optional<Counts> counts_of_extents(const ir::OpDef& op, const NodeView& node, const Counts& extents) {
  if (op.schema.name == "size") return product_of_all(extents);
  if (op.schema.name != "shape") return std::nullopt;
  // start/end clamp to the rank, negatives count from its end (ONNX Shape, opset 15).
  const int64_t rank = static_cast<int64_t>(extents.size());
  const auto clamp = [rank](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  const int64_t start = clamp(node.attrs.get_int("start", 0)), end = clamp(node.attrs.get_int("end", rank));
  return Counts(extents.begin() + start, extents.begin() + std::max(start, end));
}

std::vector<Counts> follow_counts(const ir::OpDef& op, const NodeView& node, const std::vector<Counts>& in,
                                  base::ThreadPool& pool) {
  const std::string& name = op.schema.name;
  bool all_whole = std::all_of(node.out.begin(), node.out.end(),
                               [](const tensor::TensorType& t) { return is_whole(t.dtype); });
  for (size_t i = 0; i < node.in.size(); ++i)
    all_whole = all_whole && (!node.present(i) || is_whole(node.in[i].dtype));
  if (all_whole && node.out.size() == 1) {
    if (const Binary make = binary_of(name)) {
      return {elementwise(node, in, [make](const Counts& of) {
        Count all = of[0];
        for (size_t k = 1; k < of.size(); ++k) all = make(all, of[k]);
        return all;
      })};
    }
    if (name == "where") return {elementwise(node, in, chosen)};
    if (name == "reduce_prod" && node.out[0].shape.elements() == 1) return {product_of_all(in[0])};
    if (name == "cast" && node.in[0].dtype != tensor::DType::boolean &&
        node.out[0].dtype != tensor::DType::boolean)
      return {in[0]};
  }
  if (is_linear(op, node, in)) return linear_results({op, node, in, pool});
  std::vector<Counts> out;
  for (const tensor::TensorType& t : node.out)
    out.emplace_back(static_cast<size_t>(t.shape.elements().value_or(0)), Count::any());
  return out;
}

}  // namespace trireme::ops
