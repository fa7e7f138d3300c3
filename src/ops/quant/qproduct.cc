// Reads the constant parameters of quantized products.
#include "ops/quant/qproduct.h"

#include <algorithm>
#include <cmath>

#include "ops/kernel_forms.h"
#include "ops/quant/element_codec.h"
#include "tensor/absent.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using Q = QOperand;

/// One value per channel, from a constant that has one value or one per channel; `fallback` if it is absent.
std::vector<double> per_channel(const ir::NodeView& node, size_t i, int64_t channels, double fallback) {
  std::vector<double> values{fallback};
  if (node.present(i)) values = node.value(i)->to_doubles();
  base::require(values.size() == 1 || static_cast<int64_t>(values.size()) == channels, "operand ", i, " has ",
                values.size(), " values for ", channels, " channels");
  values.resize(static_cast<size_t>(channels), values[0]);
  return values;
}

std::vector<int32_t> integers(const std::vector<double>& values) { return {values.begin(), values.end()}; }

int32_t bound(const QProduct& p, float real, double fallback) {
  const IntegerRange range = range_of(p.out);
  double q = std::isfinite(real) ? std::nearbyint(double(real) / p.y_scale) + p.y_zero : fallback;
  if (std::isnan(q)) q = fallback;
  return static_cast<int32_t>(std::clamp(q, double(range.lowest), double(range.highest)));
}

}  // namespace

int32_t QProduct::lowest() const {
  const double lowest = double(range_of(out).lowest);
  if (activation.kind == ActivationKind::relu) return bound(*this, 0.0f, lowest);
  return activation.kind == ActivationKind::clip ? bound(*this, activation.lo, lowest)
                                                 : static_cast<int32_t>(lowest);
}

int32_t QProduct::highest() const {
  const double highest = double(range_of(out).highest);
  return activation.kind == ActivationKind::clip ? bound(*this, activation.hi, highest)
                                                 : static_cast<int32_t>(highest);
}

bool QProduct::has_bounds() const {
  return activation.kind == ActivationKind::none || (y_scale > 0 && std::isfinite(y_scale));
}

DType product_dtype(const ir::NodeView& node) {
  if (!node.present(Q::y_scale)) return DType::f32;
  base::require(node.present(Q::y_zero), "a quantized result needs a zero point, which gives its type");
  return node.in[Q::y_zero].dtype;
}

ir::Refusal refuse_unknown_parameters(const ir::NodeView& node) {
  for (size_t i : {Q::x_scale, Q::x_zero, Q::w, Q::w_scale, Q::w_zero, Q::y_scale, Q::y_zero, Q::bias}) {
    if (node.present(i) && node.value(i) == nullptr) return base::concat("operand ", i, " is not constant");
  }
  for (size_t i : {Q::x_scale, Q::x_zero, Q::y_scale, Q::y_zero}) {
    if (node.present(i) && node.value(i)->elements() != 1)
      return base::concat("operand ", i, " is not one value");
  }
  for (size_t i : {Q::x, Q::w}) {
    const DType type = node.in[i].dtype;
    if (type != DType::u8 && type != DType::i8) return base::concat("operand ", i, " is ", name_of(type));
  }
  const DType out = node.out[0].dtype;
  if (out != DType::u8 && out != DType::i8 && out != DType::f32)
    return base::concat("the result is ", name_of(out));
  return std::nullopt;
}

bool lacks_content(const ir::NodeView& node) {
  const auto is_absent = [&](size_t i) {
    return node.present(i) && node.value(i) != nullptr && tensor::is_absent(*node.value(i));
  };
  return is_absent(Q::w) || is_absent(Q::w_scale) || is_absent(Q::w_zero) || is_absent(Q::bias);
}

QProduct read_product(const ir::NodeView& node, int64_t channels) {
  QProduct p{.channels = channels};
  const double x_scale = node.value(Q::x_scale)->to_doubles().at(0);
  if (node.present(Q::x_zero)) p.x_zero = static_cast<int32_t>(node.value(Q::x_zero)->to_ints().at(0));
  for (double w_scale : per_channel(node, Q::w_scale, channels, 1))
    p.product_scale.push_back(x_scale * w_scale);
  p.w_zero = integers(per_channel(node, Q::w_zero, channels, 0));
  p.bias = integers(per_channel(node, Q::bias, channels, 0));
  if (node.present(Q::y_scale)) p.y_scale = node.value(Q::y_scale)->to_doubles().at(0);
  if (node.present(Q::y_zero)) p.y_zero = static_cast<int32_t>(node.value(Q::y_zero)->to_ints().at(0));
  p.out = node.out[0].dtype;
  p.activation = activation_of(node.attrs);
  return p;
}

QSum read_sum(const ir::NodeView& node) {
  auto real = [&](size_t i) { return node.value(i)->to_doubles()[0]; };
  QProduct q{.y_scale = real(6), .out = node.out[0].dtype, .activation = activation_of(node.attrs)};
  q.y_zero = static_cast<int32_t>(real(7));
  return {
      .fa = static_cast<float>(real(1) / q.y_scale),
      .fb = static_cast<float>(real(4) / q.y_scale),
      .shift = static_cast<float>(q.y_zero - real(2) * real(1) / q.y_scale - real(5) * real(4) / q.y_scale),
      .lowest = static_cast<float>(q.lowest()),
      .highest = static_cast<float>(q.highest())};
}

ir::Refusal refuse_sum(const ir::NodeView& node) {
  for (size_t i : {1, 2, 4, 5, 6, 7}) {
    if (node.value(i) == nullptr) return base::concat("operand ", i, " is not constant");
    if (node.value(i)->elements() != 1) return base::concat("operand ", i, " is not one value");
  }
  for (size_t i : {0, 3, 7}) {
    if (auto why = refuse_dtype(node, i, {DType::u8, DType::i8})) return why;
  }
  const ActivationSpec act = activation_of(node.attrs);
  const bool clamps = act.kind == ActivationKind::relu || act.kind == ActivationKind::clip;
  if (!clamps && act.kind != ActivationKind::none) return "the activation is no clamp";
  const QSum sum = read_sum(node);
  const float largest = 255 * (std::abs(sum.fa) + std::abs(sum.fb)) + std::abs(sum.shift);
  if (!std::isfinite(largest)) return "a factor of the scales overflows";
  const double y_scale = node.value(6)->to_doubles()[0];
  if (clamps && !(y_scale > 0)) return "the activation bounds steps that are not positive";
  return std::nullopt;
}

}  // namespace trireme::ops
