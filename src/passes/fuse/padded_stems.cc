// Pads the input channels of first layers of convolutional networks to a number that suits tensor cores.
#include "passes/fuse/padded_stems.h"

#include <map>

#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::DType;
using tensor::Tensor;

constexpr int64_t kChannels = 8;  // 16 bytes of 16-bit elements

class Stems {
 public:
  explicit Stems(Rewriter& rw) : rw_(rw) {}

  bool pad(const Node& node) {
    const bool is_forward = node.op_name() == "conv_nhwc";
    if (!is_forward && node.op_name() != "conv_nhwc_grad_w") return false;
    const int64_t channels = few_channels(node);
    if (channels == 0) return false;
    Node wide = node;
    wide.in[0] = padded(node.in[0], type(node.in[0]).shape.rank() - 1, node.from);
    if (is_forward) wide.in[1] = padded(node.in[1], 1, node.from);
    const std::vector<ValueId> results = rw_.add_all(node.op_name(), wide, node.out.size());
    leave_out(rw_.graph(), node, results);
    if (is_forward) {
      rw_.replace(node.out[0], results[0]);
      return true;
    }
    if (node.out[0] != ir::kNoValue)
      rw_.replace(node.out[0],
                  rw_.add("slice", {results[0], ints({0}), ints({channels}), ints({1})}, {}, node.from));
    if (node.out.size() > 1 && node.out[1] != ir::kNoValue) rw_.replace(node.out[1], results[1]);
    return true;
  }

 private:
  const tensor::TensorType& type(ValueId id) const { return rw_.graph().type(id); }

  /// The number of channels of a 16-bit operand [n, ..., c] if it is below kChannels, else 0.
  int64_t few_channels(const Node& node) const {
    const DType dtype = type(node.in[0]).dtype;
    const bool is_plain = node.attrs.get_int("group", 1) == 1 &&
                          node.attrs.get_string("input_layout", "nhwc") == "nhwc" &&
                          (dtype == DType::bf16 || dtype == DType::f16);
    if (!is_plain || !type(node.in[0]).shape.is_static()) return 0;
    const int64_t channels = type(node.in[0]).shape.to_dims().back();
    return channels < kChannels ? channels : 0;
  }

  ValueId ints(std::vector<int64_t> values) {
    const auto count = static_cast<int64_t>(values.size());
    return rw_.constant(Tensor::from<int64_t>({count}, std::span<const int64_t>(values)));
  }

  /// The tensor with zeros after its last channel, made once for all its readers.
  ValueId padded(ValueId id, size_t axis, const std::string& from) {
    ValueId& made = padded_.try_emplace(id, ir::kNoValue).first->second;
    if (made != ir::kNoValue) return made;
    const tensor::Dims dims = type(id).shape.to_dims();
    std::vector<int64_t> ends(2 * dims.size(), 0);
    ends[dims.size() + axis] = kChannels - dims[axis];
    return made = rw_.add("pad", {id, ints(std::move(ends))}, {}, from);
  }

  Rewriter& rw_;
  std::map<ValueId, ValueId> padded_;
};

}  // namespace

size_t pad_stems(ir::Graph& graph) {
  Rewriter rw(graph);
  Stems stems(rw);
  return rw.for_each([&](ir::NodeId, const Node& node) { return stems.pad(node); });
}

}  // namespace trireme::passes
