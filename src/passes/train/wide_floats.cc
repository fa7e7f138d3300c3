// Turns graphs in 16-bit floats into f32.
#include "passes/train/wide_floats.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <variant>

#include "ops/table.h"
#include "tensor/absent.h"

namespace trireme::passes {
namespace {

using tensor::DType;
using tensor::Tensor;

constexpr int64_t kOnnxFloat = 1, kOnnxFloat16 = 10, kOnnxBfloat16 = 16;

bool is_half(DType type) { return type == DType::f16 || type == DType::bf16; }

/// A param that training would take.
bool is_half_weight(const ir::Value& v) {
  return v.kind == ir::ValueKind::param && is_half(v.type.dtype) && v.type.shape.rank() > 0;
}

class Widening {
 public:
  void widen(ir::Graph& graph) {
    for (size_t i = 0; i < graph.values().size(); ++i) {
      ir::Value& v = graph.value(ir::ValueId(static_cast<uint32_t>(i)));
      if (!is_half(v.type.dtype)) continue;
      v.type.dtype = DType::f32;
      if (v.data.defined()) v.data = widened_data(v.data);
    }
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      ir::Node& node = graph.node(ir::NodeId(static_cast<uint32_t>(n)));
      if (node.op == nullptr) continue;
      const std::vector<std::pair<std::string, ir::AttrValue>> attrs = node.attrs.items();
      for (const auto& [name, value] : attrs) attribute(node, name, value);
    }
    graph.infer_all();
  }

 private:
  /// Attributes that name an element type, or hold elements.
  void attribute(ir::Node& node, const std::string& name, const ir::AttrValue& value) {
    if (const auto* type = std::get_if<int64_t>(&value)) {
      const bool names_type = name == "to" || name == "dtype" || name == "output_dtype";
      if (names_type && (*type == kOnnxFloat16 || *type == kOnnxBfloat16)) node.attrs.set(name, kOnnxFloat);
    } else if (const auto* data = std::get_if<Tensor>(&value)) {
      if (data->defined() && is_half(data->dtype())) node.attrs.set(name, widened_data(*data));
    } else if (const auto* body = std::get_if<ir::GraphPtr>(&value)) {
      auto wide = std::make_shared<ir::Graph>(**body);
      widen(*wide);
      node.attrs.set(name, ir::GraphPtr(std::move(wide)));
    }
  }

  /// Tensors that share their content share what is made of it.
  Tensor widened_data(const Tensor& half) {
    if (tensor::is_absent(half)) return tensor::absent(DType::f32, half.dims());
    Tensor& wide = made_[half.raw()];
    if (!wide.defined() || wide.dims() != half.dims())
      wide = ops::evaluate(ops::table().need("cast"), {{"to", kOnnxFloat}}, {half}, 1, pool_)[0];
    kept_.push_back(half);  // so that no other takes its address
    return wide;
  }

  std::unordered_map<const std::byte*, Tensor> made_;
  std::vector<Tensor> kept_;
  base::ThreadPool pool_{1};
};

}  // namespace

size_t widen_half_floats(ir::Graph& graph) {
  const auto values = graph.values();
  const auto count = static_cast<size_t>(std::count_if(values.begin(), values.end(), is_half_weight));
  if (count > 0) Widening().widen(graph);
  return count;
}

}  // namespace trireme::passes
