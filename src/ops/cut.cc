// Cut rules that many ops share.
#include "ops/cut.h"

namespace trireme::ops {

std::string cut_letters(size_t count, size_t first) {
  std::string out;
  for (size_t i = first; i < first + count; ++i) {
    out += i < 26 ? static_cast<char>('a' + i) : i < 52 ? static_cast<char>('A' + i - 26) : '.';
  }
  return out;
}

ir::CutRule broadcast_cut(const ir::NodeView& node, std::vector<uint32_t> linear) {
  const tensor::Shape& y = node.out[0].shape;
  const std::string all = cut_letters(y.rank());
  ir::CutRule rule{.linear = std::move(linear), .uneven = all};
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (i > 0) rule.notation += ',';
    if (!node.present(i)) continue;
    const tensor::Shape& x = node.in[i].shape;
    for (size_t d = 0; d < x.rank(); ++d) {
      const size_t at = y.rank() - x.rank() + d;
      rule.notation += x[d] == y[at] ? all[at] : '.';
    }
  }
  rule.notation += "->";
  for (size_t i = 0; i < node.out.size(); ++i) rule.notation += (i == 0 ? "" : ",") + all;
  return rule;
}

ir::CutFn elementwise_cut(std::vector<uint32_t> linear) {
  return [linear](const ir::NodeView& node) { return broadcast_cut(node, linear); };
}

ir::CutRule same_dims_cut(const ir::NodeView& node, const std::vector<bool>& whole) {
  std::string letters = cut_letters(whole.size());
  for (size_t d = 0; d < whole.size(); ++d) {
    if (whole[d]) letters[d] = '.';
  }
  ir::CutRule rule{.notation = letters, .uneven = letters};
  for (size_t i = 1; i < node.in.size(); ++i) {
    rule.notation += ',';
    if (node.present(i)) rule.notation += std::string(node.in[i].shape.rank(), '.');
  }
  rule.notation += "->";
  for (size_t i = 0; i < node.out.size(); ++i) rule.notation += (i == 0 ? "" : ",") + letters;
  return rule;
}

}  // namespace trireme::ops
