// Which letters of an einsum are batch, rows, columns and sums.
#include "passes/fuse/einsum.h"

#include <algorithm>
#include <map>

#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::Dims;

struct Equation {
  std::string a, b, y;
};

/// "ab,bc->ac" without its blanks; nullopt for other counts of operands, repeated letters and ellipses.
std::optional<Equation> parse(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  const size_t comma = text.find(','), arrow = text.find("->");
  if (comma == std::string::npos || arrow == std::string::npos || comma > arrow) return std::nullopt;
  Equation e{text.substr(0, comma), text.substr(comma + 1, arrow - comma - 1), text.substr(arrow + 2)};
  for (const std::string* side : {&e.a, &e.b, &e.y}) {
    std::string sorted = *side;
    std::sort(sorted.begin(), sorted.end());
    const bool plain = std::all_of(side->begin(), side->end(),
                                   [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
    if (!plain || std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return std::nullopt;
  }
  return e;
}

bool has(const std::string& letters, char c) { return letters.find(c) != std::string::npos; }

/// The letters of `from` for which `wanted` holds.
template <class F>
std::string chosen(const std::string& from, F&& wanted) {
  std::string out;
  std::copy_if(from.begin(), from.end(), std::back_inserter(out), wanted);
  return out;
}

/// An operand or result with a letter for each axis.
struct Lettered {
  ValueId value;
  std::string letters;
};

class Opener {
 public:
  Opener(Rewriter& rw, const Node& node, Equation e) : rw_(rw), node_(node), e_(std::move(e)) {}

  bool run() {
    const auto a = rw_.dims(node_.in[0]), b = rw_.dims(node_.in[1]);
    if (!a || !b || a->size() != e_.a.size() || b->size() != e_.b.size()) return false;
    for (size_t i = 0; i < a->size(); ++i) extents_[e_.a[i]] = (*a)[i];
    for (size_t i = 0; i < b->size(); ++i) {
      const auto at = extents_.try_emplace(e_.b[i], (*b)[i]);
      if (at.first->second != (*b)[i]) return false;  // an extent of 1 that is repeated
    }
    const std::string batch = chosen(e_.y, [&](char c) { return has(e_.a, c) && has(e_.b, c); });
    const std::string rows = chosen(e_.a, [&](char c) { return !has(e_.b, c); });
    const std::string columns = chosen(e_.b, [&](char c) { return !has(e_.a, c); });
    const std::string sums = chosen(e_.a, [&](char c) { return has(e_.b, c) && !has(e_.y, c); });
    if (batch.empty() || sums.empty()) return false;
    for (const char c : rows + columns) {
      if (!has(e_.y, c)) return false;  // a sum over one operand alone
    }
    const ValueId left = joined({node_.in[0], e_.a}, batch, rows, sums);
    const ValueId right = joined({node_.in[1], e_.b}, batch, sums, columns);
    const ValueId product = rw_.add("matmul", {left, right}, {}, node_.from);
    const std::string letters = batch + rows + columns;
    Dims apart;
    for (const char c : letters) apart.push_back(extents_.at(c));
    return rw_.replace_same(node_.out[0], ordered({reshaped(product, apart), letters}, e_.y));
  }

 private:
  int64_t size(const std::string& letters) const {
    int64_t product = 1;
    for (const char c : letters) product *= extents_.at(c);
    return product;
  }

  ValueId reshaped(ValueId x, const Dims& to) {
    if (rw_.dims(x) == to) return x;
    const ValueId shape = rw_.constant(
        tensor::Tensor::from<int64_t>({static_cast<int64_t>(to.size())}, std::span<const int64_t>(to)));
    return rw_.add("reshape", {x, shape}, {{"allowzero", int64_t{1}}}, node_.from);
  }

  ValueId ordered(const Lettered& x, const std::string& to) {
    if (x.letters == to) return x.value;
    std::vector<int64_t> perm;
    for (const char c : to) perm.push_back(static_cast<int64_t>(x.letters.find(c)));
    return rw_.add("transpose", {x.value}, {{"perm", perm}}, node_.from);
  }

  /// [batch without its last letter, the last letter, first, second].
  ValueId joined(const Lettered& x, const std::string& batch, const std::string& first,
                 const std::string& second) {
    return reshaped(
        ordered(x, batch + first + second),
        {size(batch.substr(0, batch.size() - 1)), extents_.at(batch.back()), size(first), size(second)});
  }

  Rewriter& rw_;
  const Node& node_;
  const Equation e_;
  std::map<char, int64_t> extents_;
};

}  // namespace

size_t open_einsum(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each("einsum", [&](ir::NodeId, const Node& node) {
    if (node.in.size() != 2 || rw.uses(node.out[0]) == 0) return false;
    auto equation = parse(node.attrs.get_string("equation", ""));
    return equation && Opener(rw, node, std::move(*equation)).run();
  });
}

}  // namespace trireme::passes
