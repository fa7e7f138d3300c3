// Converts graphs with quantize/dequantize pairs to integer arithmetic.
#include "passes/precision/quantized.h"

#include <algorithm>
#include <cmath>

#include "ops/dense/activation.h"
#include "passes/precision/narrow_types.h"
#include "passes/rewriter.h"
#include "tensor/absent.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::DType;
using tensor::Tensor;

/// A value that is available in 8 bits: real = scale * (q - zero).
struct Quantized {
  ValueId q, scale, zero;
  int64_t axis = 1;  ///< of a vector of scales
};

/// True for a constant whose content is available.
bool is_readable(const Rewriter& rw, ValueId id) {
  const Tensor* t = rw.known(id);
  return t != nullptr && !tensor::is_absent(*t);
}

/// The operands of a quantize or dequantize node with constant parameters; a missing zero point becomes a
/// zero of `type`.
std::optional<Quantized> parameters(Rewriter& rw, const Node& node, DType type) {
  if (!is_readable(rw, node.in[1]) || node.attrs.get_int("block_size", 0) != 0) return std::nullopt;
  const int64_t axis = node.attrs.get_int("axis", 1);
  if (node.in.size() > 2 && node.in[2] != ir::kNoValue) {
    if (!is_readable(rw, node.in[2])) return std::nullopt;
    return Quantized{node.in[0], node.in[1], node.in[2], axis};
  }
  // A zero point has as many elements as its scale.
  return Quantized{node.in[0], node.in[1], rw.constant(Tensor::zeros(type, rw.known(node.in[1])->dims())),
                   axis};
}

std::optional<Quantized> dequantized(Rewriter& rw, ValueId id) {
  const auto node = rw.producer(id, "dequantize_linear");
  if (!node || !is_8_bit(rw.graph().type(node->in[0]).dtype)) return std::nullopt;
  return parameters(rw, *node, rw.graph().type(node->in[0]).dtype);
}

bool per_tensor(const Rewriter& rw, const Quantized& v) { return rw.known(v.scale)->elements() == 1; }

bool is_all_zero(const Tensor* t) {
  if (t == nullptr || tensor::is_absent(*t)) return false;
  const std::vector<int64_t> values = t->to_ints();
  return std::all_of(values.begin(), values.end(), [](int64_t v) { return v == 0; });
}

/// The bias as i32 [n] in units of x_scale * w_scale; nullopt if it is not constant, has not one value per
/// column or does not fit.
std::optional<Tensor> integer_bias(const Rewriter& rw, ValueId id, const std::vector<double>& steps) {
  std::vector<double> real;
  if (const auto dq = rw.producer(id, "dequantize_linear")) {
    const Tensor *q = rw.known(dq->in[0]), *scale = rw.known(dq->in[1]);
    const bool zero_is_0 = dq->in.size() < 3 || dq->in[2] == ir::kNoValue || is_all_zero(rw.known(dq->in[2]));
    if (!is_readable(rw, dq->in[0]) || !is_readable(rw, dq->in[1]) || !zero_is_0 || q->dtype() != DType::i32)
      return std::nullopt;
    const std::vector<double> s = scale->to_doubles();
    real = q->to_doubles();
    if (s.size() != 1 && s.size() != real.size()) return std::nullopt;
    for (size_t i = 0; i < real.size(); ++i) real[i] *= s[s.size() == 1 ? 0 : i];
  } else if (const Tensor* t = rw.known(id);
             t != nullptr && t->dtype() == DType::f32 && !tensor::is_absent(*t)) {
    real = t->to_doubles();
  } else {
    return std::nullopt;
  }
  const tensor::Dims dims = rw.graph().type(id).shape.to_dims();  // known, since the content is
  const auto n = static_cast<int64_t>(steps.size());
  if (tensor::element_count(dims) != n || (!dims.empty() && dims.back() != n)) return std::nullopt;
  std::vector<int32_t> out(real.size());
  for (size_t i = 0; i < real.size(); ++i) {
    const double v = std::nearbyint(real[i] / steps[i]);
    if (!(std::abs(v) < 2147483647.0)) return std::nullopt;
    out[i] = static_cast<int32_t>(v);
  }
  return Tensor::from<int32_t>({static_cast<int64_t>(out.size())}, std::span<const int32_t>(out));
}

std::vector<double> product_steps(const Rewriter& rw, const Quantized& x, const Quantized& w,
                                  int64_t channels) {
  const double xs = rw.known(x.scale)->to_doubles()[0];
  const std::vector<double> ws = rw.known(w.scale)->to_doubles();
  std::vector<double> steps;
  for (int64_t c = 0; c < channels; ++c)
    steps.push_back(xs * ws[ws.size() == 1 ? 0 : static_cast<size_t>(c)]);
  return steps;
}

/// The only reader of `id`, if there is exactly one.
std::optional<Node> only_reader(const Rewriter& rw, const std::vector<std::vector<ir::NodeId>>& readers,
                                ValueId id) {
  if (!rw.single_use(id) || ir::index(id) >= readers.size()) return std::nullopt;
  for (ir::NodeId n : readers[ir::index(id)]) {
    const Node& node = rw.graph().node(n);
    if (node.op != nullptr && rw.uses(node.out[0]) > 0) return node;
  }
  return std::nullopt;
}

/// The attributes of a clamp that integer kernels can apply to their results; nullopt for other nodes.
std::optional<ir::Attrs> clamp_of(const Rewriter& rw, const Node& node) {
  auto attrs = ops::ending_of(node.op_name(), rw.graph().view(node));
  if (!attrs) return std::nullopt;
  const ops::ActivationKind kind = ops::activation_of(*attrs).kind;
  if (kind != ops::ActivationKind::relu && kind != ops::ActivationKind::clip) return std::nullopt;
  return attrs;
}

/// The nodes after a product: an optional clamp and an optional quantization.
struct Tail {
  ValueId last;     ///< the value that the integer op replaces
  ir::Attrs clamp;  ///< empty if there is none
  std::optional<Quantized> out;

  void add_to(ir::Attrs& attrs) const {
    for (const auto& [name, value] : clamp.items()) attrs.set(name, value);
  }
};

Tail tail_of(Rewriter& rw, ValueId id) {
  const auto readers = rw.graph().uses();
  Tail tail{.last = id, .clamp = {}, .out = std::nullopt};
  const auto after = only_reader(rw, readers, id);
  if (const auto clamp = after ? clamp_of(rw, *after) : std::nullopt) {
    tail.clamp = *clamp;
    tail.last = after->out[0];
  }
  const auto quantize = only_reader(rw, readers, tail.last);
  if (!quantize || quantize->op_name() != "quantize_linear" ||
      !is_8_bit(rw.graph().type(quantize->out[0]).dtype))
    return tail;
  const auto out = parameters(rw, *quantize, rw.graph().type(quantize->out[0]).dtype);
  if (out && per_tensor(rw, *out)) {
    tail.out = out;
    tail.last = quantize->out[0];
  }
  return tail;
}

/// Operands of qconv_nhwc and qlinear in order.
std::vector<ValueId> product_operands(ValueId x, const Quantized& xq, const Quantized& w, const Tail& tail) {
  const ValueId none = ir::kNoValue;
  return {x,
          xq.scale,
          xq.zero,
          w.q,
          w.scale,
          w.zero,
          tail.out ? tail.out->scale : none,
          tail.out ? tail.out->zero : none};
}

struct QuantizedProduct {
  Quantized x, w;
  std::optional<Tensor> bias;
};

/// For an input with one scale per channel whose channels are summed separately (depthwise), multiplies the
/// weights' scales by the input's. All channels must have the same zero point. Equal scales stay as they are.
bool fold_channel_scales(Rewriter& rw, const Node& node, Quantized& x, Quantized& w) {
  if (per_tensor(rw, x)) return true;
  const Tensor *weights = rw.known(w.q), *ws = rw.known(w.scale), *xs = rw.known(x.scale);
  const tensor::Shape& shape = rw.graph().type(x.q).shape;
  if (weights == nullptr || !shape.has_rank() || weights->rank() < 3 || xs->rank() != 1) return false;
  const int64_t channels = xs->elements();
  const bool is_depthwise =
      node.attrs.get_int("group", 1) == channels && weights->dims()[0] == channels && weights->dims()[1] == 1;
  const std::vector<int64_t> zeros = rw.known(x.zero)->to_ints();
  const bool one_zero = std::all_of(zeros.begin(), zeros.end(), [&](int64_t z) { return z == zeros[0]; });
  if (!is_depthwise || !one_zero || ir::normal_axis(x.axis, shape.rank()) != 1) return false;
  if (ws->elements() != 1 && ws->elements() != channels) return false;
  std::vector<float> product;
  const std::vector<double> a = xs->to_doubles(), b = ws->to_doubles();
  for (size_t c = 0; c < a.size(); ++c)
    product.push_back(static_cast<float>(a[c] * b[b.size() == 1 ? 0 : c]));
  // A zero point of the weights has as many elements as their scale.
  const std::vector<int64_t> w_zeros = rw.known(w.zero)->to_ints();
  Tensor zero = Tensor::empty(weights->dtype(), {channels});
  for (size_t c = 0; c < product.size(); ++c)
    reinterpret_cast<uint8_t*>(zero.mutable_raw())[c] =
        static_cast<uint8_t>(w_zeros[w_zeros.size() == 1 ? 0 : c]);
  const bool is_signed = rw.graph().type(x.q).dtype == DType::i8;
  x.zero = rw.constant(is_signed ? Tensor::scalar<int8_t>(static_cast<int8_t>(zeros[0]))
                                 : Tensor::scalar<uint8_t>(static_cast<uint8_t>(zeros[0])));
  x.scale = rw.constant(Tensor::scalar<float>(1));
  w.scale = rw.constant(Tensor::from<float>({channels}, std::span<const float>(product)));
  w.zero = rw.constant(zero);
  w.axis = 0;
  return true;
}

/// Operands 0 to 2 of a conv or gemm, if both factors are quantized and the weights are constant.
std::optional<QuantizedProduct> product_of(Rewriter& rw, const Node& node, int64_t channels_axis) {
  auto x = dequantized(rw, node.in[0]), w = dequantized(rw, node.in[1]);
  if (!x || !w || rw.known(w->q) == nullptr || !fold_channel_scales(rw, node, *x, *w)) return std::nullopt;
  const Tensor& weights = *rw.known(w->q);
  const int64_t channels = weights.dims()[static_cast<size_t>(channels_axis)];
  const int64_t scales = rw.known(w->scale)->elements();
  const int64_t axis = w->axis < 0 ? w->axis + static_cast<int64_t>(weights.rank()) : w->axis;
  if (scales != 1 && (scales != channels || axis != channels_axis)) return std::nullopt;
  if (rw.graph().type(node.out[0]).dtype != DType::f32) return std::nullopt;
  QuantizedProduct p{*x, *w, std::nullopt};
  if (node.in.size() > 2 && node.in[2] != ir::kNoValue) {
    p.bias = integer_bias(rw, node.in[2], product_steps(rw, *x, *w, channels));
    if (!p.bias) return std::nullopt;
  }
  return p;
}

bool convert_conv(Rewriter& rw, const Node& node) {
  if (!rw.graph().type(node.in[1]).shape.has_rank() || rw.graph().type(node.in[1]).shape.rank() != 4)
    return false;
  const auto p = product_of(rw, node, 0);
  if (!p) return false;
  const Tail tail = tail_of(rw, node.out[0]);
  const ValueId x = rw.add("transpose", {p->x.q}, {{"perm", std::vector<int64_t>{0, 2, 3, 1}}}, node.from);
  std::vector<ValueId> in = product_operands(x, p->x, p->w, tail);
  if (p->bias) in.push_back(rw.constant(*p->bias));
  ir::Attrs attrs = node.attrs;
  tail.add_to(attrs);
  const ValueId y = rw.add("qconv_nhwc", std::move(in), std::move(attrs), node.from);
  rw.replace(tail.last, rw.add("transpose", {y}, {{"perm", std::vector<int64_t>{0, 3, 1, 2}}}, node.from));
  return true;
}

bool convert_gemm(Rewriter& rw, const Node& node) {
  const bool plain = node.op_name() == "matmul" ||
                     (node.attrs.get_float("alpha", 1) == 1 && node.attrs.get_float("beta", 1) == 1 &&
                      node.attrs.get_int("transA", 0) == 0);
  const tensor::Shape& w = rw.graph().type(node.in[1]).shape;
  if (!plain || !w.has_rank() || w.rank() != 2) return false;
  const bool transposed = node.attrs.get_int("transB", 0) != 0;
  const auto p = product_of(rw, node, transposed ? 0 : 1);
  if (!p) return false;
  const Tail tail = tail_of(rw, node.out[0]);
  std::vector<ValueId> in = product_operands(p->x.q, p->x, p->w, tail);
  if (p->bias) in.push_back(rw.constant(*p->bias));
  ir::Attrs attrs{{"transposed", int64_t{transposed}}};
  tail.add_to(attrs);
  rw.replace(tail.last, rw.add("qlinear", std::move(in), std::move(attrs), node.from));
  return true;
}

/// A product of two computed operands with one scale each.
bool convert_matmul(Rewriter& rw, const Node& node) {
  const auto a = dequantized(rw, node.in[0]), b = dequantized(rw, node.in[1]);
  if (!a || !b || !per_tensor(rw, *a) || !per_tensor(rw, *b)) return false;
  if (rw.graph().type(node.out[0]).dtype != DType::f32) return false;
  for (const Quantized& v : {*a, *b}) {
    const tensor::Shape& shape = rw.graph().type(v.q).shape;
    if (!shape.has_rank() || shape.rank() < 2) return false;
  }
  Tail tail = tail_of(rw, node.out[0]);
  if (!tail.clamp.items().empty()) tail = {.last = node.out[0], .clamp = {}, .out = std::nullopt};
  std::vector<ValueId> in{a->q, a->scale, a->zero, b->q, b->scale, b->zero};
  if (tail.out) in.insert(in.end(), {tail.out->scale, tail.out->zero});
  rw.replace(tail.last, rw.add("qmatmul", std::move(in), {}, node.from));
  return true;
}

/// Checks operands x, w and y of ONNX's quantized products: scales and zero points must be constant and,
/// except for those of the weights, have one element.
bool has_plain_parameters(const Rewriter& rw, const Node& node) {
  for (size_t i : {1, 2, 4, 5, 6, 7}) {
    if (node.in[i] == ir::kNoValue || rw.known(node.in[i]) == nullptr) return false;
    if (i != 4 && i != 5 && rw.known(node.in[i])->elements() != 1) return false;
  }
  const auto type = [&](size_t i) { return rw.graph().type(node.in[i]).dtype; };
  return is_8_bit(type(0)) && is_8_bit(type(3)) && is_8_bit(type(7));
}

/// The convolution of the QOperator format, with the operands of qconv_nhwc but channels first.
bool convert_qlinear_conv(Rewriter& rw, const Node& node) {
  const tensor::Shape& w = rw.graph().type(node.in[3]).shape;
  if (!has_plain_parameters(rw, node) || rw.known(node.in[3]) == nullptr || w.rank() != 4) return false;
  if (node.in.size() > 8 && node.in[8] != ir::kNoValue && rw.known(node.in[8]) == nullptr) return false;
  std::vector<ValueId> in = node.in;
  in[0] = rw.add("transpose", {in[0]}, {{"perm", std::vector<int64_t>{0, 2, 3, 1}}}, node.from);
  const ValueId y = rw.add("qconv_nhwc", std::move(in), node.attrs, node.from);
  rw.replace(node.out[0], rw.add("transpose", {y}, {{"perm", std::vector<int64_t>{0, 3, 1, 2}}}, node.from));
  return true;
}

bool convert_qlinear_matmul(Rewriter& rw, const Node& node) {
  if (!has_plain_parameters(rw, node)) return false;
  const tensor::Shape &a = rw.graph().type(node.in[0]).shape, &b = rw.graph().type(node.in[3]).shape;
  if (!a.has_rank() || !b.has_rank() || a.rank() < 2 || b.rank() < 2) return false;
  const int64_t scales = rw.known(node.in[4])->elements(), zeros = rw.known(node.in[5])->elements();
  if (rw.known(node.in[3]) != nullptr && b.rank() == 2) {
    rw.replace(node.out[0], rw.add("qlinear", node.in, {{"transposed", int64_t{0}}}, node.from));
    return true;
  }
  if (scales != 1 || zeros != 1) return false;
  rw.replace(node.out[0], rw.add("qmatmul", node.in, {}, node.from));
  return true;
}

bool convert_add(Rewriter& rw, const Node& node) {
  const auto a = dequantized(rw, node.in[0]), b = dequantized(rw, node.in[1]);
  if (!a || !b || !per_tensor(rw, *a) || !per_tensor(rw, *b)) return false;
  const tensor::Shape &as = rw.graph().type(a->q).shape, &bs = rw.graph().type(b->q).shape;
  const tensor::Shape& ys = rw.graph().type(node.out[0]).shape;
  if (!as.has_rank() || !bs.has_rank() || as.rank() != bs.rank() || !ys.has_rank()) return false;
  for (size_t i = 0; i < as.rank(); ++i) {
    // Unknown extents might broadcast; only equal names or numbers are safe.
    if (!(as[i] == bs[i])) return false;
  }
  const Tail tail = tail_of(rw, node.out[0]);
  if (!tail.out) return false;
  ir::Attrs attrs;
  tail.add_to(attrs);
  rw.replace(
      tail.last,
      rw.add("qadd", {a->q, a->scale, a->zero, b->q, b->scale, b->zero, tail.out->scale, tail.out->zero},
             std::move(attrs), node.from));
  return true;
}

}  // namespace

size_t use_integer_kernels(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each([&](ir::NodeId, const Node& node) {
    if (node.out.empty() || node.out[0] == ir::kNoValue || rw.uses(node.out[0]) == 0) return false;
    if (node.op_name() == "conv") return convert_conv(rw, node);
    if (node.op_name() == "gemm") return convert_gemm(rw, node);
    if (node.op_name() == "matmul") return convert_gemm(rw, node) || convert_matmul(rw, node);
    if (node.op_name() == "qlinear_conv") return convert_qlinear_conv(rw, node);
    if (node.op_name() == "qlinear_matmul") return convert_qlinear_matmul(rw, node);
    return node.op_name() == "add" && convert_add(rw, node);
  });
}

}  // namespace trireme::passes
