// Implements the layers of which networks are built.
#include "model/net.h"

#include <cmath>

namespace trireme::model {

using ir::ValueId;
using tensor::Dim;
using tensor::DType;
using tensor::Tensor;

Net Net::in(std::string_view name) const {
  if (name.empty()) return *this;
  return Net(graph_, params_, path_.empty() ? std::string(name) : base::concat(path_, ".", name));
}

ValueId Net::op(std::string_view name, std::vector<ValueId> in, ir::Attrs attrs) const {
  return builder().op(name, std::move(in), std::move(attrs));
}

ValueId Net::param(std::string_view name, const tensor::Dims& dims, const Init& init) const {
  const std::string full = path_.empty() ? std::string(name) : base::concat(path_, ".", name);
  StoredParam stored = params_.stored(full, dims, init);
  const bool is_plain = stored.is_plain();
  const ValueId data = graph_.add_param(full, std::move(stored.data));
  if (is_plain) return data;
  ValueId rows = ir::kNoValue;  // [rows, width]
  if (!stored.format.empty()) {
    rows = op("dequantize_blocks", {data}, {{"format", stored.format}});
  } else {
    const auto beside = [&](const char* what, Tensor& t) {
      return t.defined() ? graph_.add_param(full + what, std::move(t)) : ir::kNoValue;
    };
    std::vector<ValueId> in{data, beside("_scale", stored.scale), beside("_zero_point", stored.zero),
                            beside("_order", stored.order)};
    while (in.back() == ir::kNoValue) in.pop_back();
    ir::Attrs attrs{{"from", stored.from}};
    if (stored.group > 0) attrs = {{"bits", stored.bits}, {"group", stored.group}, {"from", stored.from}};
    rows = op("dequantize_weights", std::move(in), std::move(attrs));
  }
  return dims.size() == 2 ? rows : builder().reshape(rows, dims);
}

ValueId Net::linear(ValueId x, const LinearSpec& s) const {
  std::vector<ValueId> in{x, param("weight", {s.out, s.in}, s.init)};
  if (s.has_bias) in.push_back(param("bias", {s.out}, s.bias));
  return op("linear", std::move(in), {{"transposed", int64_t{1}}});
}

ValueId Net::embedding(ValueId ids, int64_t rows, int64_t width, const Init& init) const {
  return op("gather", {param("weight", {rows, width}, init), ids}, {{"axis", int64_t{0}}});
}

ValueId Net::layer_norm(ValueId x, int64_t width, double epsilon, bool has_bias) const {
  std::vector<ValueId> in{x, param("weight", {width}, Init::ones())};
  if (has_bias) in.push_back(param("bias", {width}, Init::zeros()));
  return op("layer_norm", std::move(in), {{"epsilon", epsilon}, {"axis", int64_t{-1}}});
}

ValueId Net::conv(ValueId x, const ConvSpec& s, const Init& init, bool has_bias) const {
  std::vector<ValueId> in{x, param("weight", {s.out, s.in, s.kernel, s.kernel}, init)};
  if (has_bias) in.push_back(param("bias", {s.out}, Init::zeros()));
  const int64_t pad = s.is_padded ? s.kernel / 2 : 0;
  return op("conv", std::move(in),
            {{"kernel_shape", std::vector<int64_t>{s.kernel, s.kernel}},
             {"strides", std::vector<int64_t>{s.stride, s.stride}},
             {"pads", std::vector<int64_t>{pad, pad, pad, pad}}});
}

ValueId Net::dropout(ValueId x, double ratio) const {
  if (ratio == 0) return x;
  return op("dropout", {x, builder().scalar(static_cast<float>(ratio))});
}

ValueId Net::attention(ValueId q, ValueId k, ValueId v, ValueId mask, const AttentionSpec& s) const {
  Builder b = builder();
  const auto split_heads = [&](ValueId x, int64_t heads) { return b.reshape(x, {0, 0, heads, s.head_dim}); };
  std::vector<ValueId> in{split_heads(q, s.heads), split_heads(k, s.kv_heads), split_heads(v, s.kv_heads)};
  in.insert(in.end(), {mask, s.sinks});
  while (in.back() == ir::kNoValue) in.pop_back();
  ir::Attrs attrs;
  if (s.is_causal) attrs.set("is_causal", int64_t{1});
  if (s.window > 0) attrs.set("left_window_size", s.window - 1);
  if (s.scale != 0) attrs.set("scale", s.scale);
  if (s.softcap != 0) attrs.set("softcap", s.softcap);
  return b.reshape(b.op("attention_bsnd", std::move(in), attrs), {0, 0, s.heads * s.head_dim});
}

ValueId Net::activation(ValueId x, const std::string& name) const {
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") {
    return op("gelu", {x}, {{"approximate", std::string("tanh")}});
  }
  if (name == "silu") return op("swish", {x});
  if (name == "gelu" || name == "relu" || name == "tanh") return op(name, {x});
  base::fail_unsupported("activation '", name,
                         "'; known: gelu, gelu_new, gelu_pytorch_tanh, relu, silu, tanh");
}

ValueId Net::max_pool(ValueId x, int64_t size, int64_t stride, int64_t pad) const {
  return op("max_pool", {x},
            {{"kernel_shape", std::vector<int64_t>{size, size}},
             {"strides", std::vector<int64_t>{stride, stride}},
             {"pads", std::vector<int64_t>{pad, pad, pad, pad}}});
}

tensor::TensorType token_type() { return {DType::i64, {Dim::symbol("batch"), Dim::symbol("seq")}}; }

tensor::TensorType image_type(int64_t channels, int64_t size) {
  return {DType::f32, {Dim::symbol("batch"), channels, size, size}};
}

ValueId leading_rows(const Net& at, ValueId rows, ValueId ids, int64_t first) {
  Builder b = at.builder();
  ValueId end = b.op("shape", {ids}, {{"start", int64_t{1}}, {"end", int64_t{2}}});  // [1]
  if (first > 0) end = b.op("add", {end, b.ints({first})});
  return b.op("slice", {rows, b.ints({first}), end, b.ints({0})});
}

void finish_model(Model& model, const std::string& name, ValueId y, const std::string& output) {
  if (model.name.empty()) model.name = name;
  if (model.format.empty()) model.format = "builder";
  model.graph.name = model.name;
  model.graph.add_output(y, output);
  model.graph.sort();
}

}  // namespace trireme::model
