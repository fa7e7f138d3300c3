// The activation that fused products apply to their results.
#include "ops/dense/activation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/grad.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using K = ActivationKind;
using tensor::kActivationNames;

tensor::Tensor scalar_of(tensor::DType type, double value) {
  return tensor::visit_dtype(type,
                             [&](auto t) { return tensor::Tensor::scalar(static_cast<decltype(t)>(value)); });
}

/// A bound of a clip: `absent` if it is left out, nullopt if it is computed.
std::optional<double> bound(const ir::NodeView& node, size_t i, double absent) {
  if (!node.present(i)) return absent;
  const tensor::Tensor* value = node.value(i);
  if (value == nullptr || value->elements() != 1 || tensor::bits_of(value->dtype()) < 8) return std::nullopt;
  return value->to_doubles()[0];
}

}  // namespace

ActivationSpec activation_of(const ir::Attrs& attrs) {
  const std::string name = attrs.get_string("activation", "none");
  const auto at = std::find(kActivationNames.begin(), kActivationNames.end(), name);
  base::require(at != kActivationNames.end(), "unknown activation '", name, "'");
  ActivationSpec s{.kind = static_cast<K>(at - kActivationNames.begin())};
  s.lo = static_cast<float>(attrs.get_float("lo", 0));
  s.hi = static_cast<float>(attrs.get_float("hi", 6));
  s.alpha = static_cast<float>(attrs.get_float("alpha", s.kind == K::leaky ? 0.01 : 0.2));
  s.beta = static_cast<float>(attrs.get_float("beta", 0.5));
  s.before_residual = attrs.get_int("act_before_residual", 0) != 0;
  return s;
}

std::vector<ir::AttrSpec> activation_attrs() {
  return {{"activation", "string",
           "none, relu, clip, sigmoid, silu, hardswish, hardsigmoid, gelu_erf, gelu_tanh, tanh or leaky"},
          {"lo", "float", "lower end of clip, default 0"},
          {"hi", "float", "upper end of clip, default 6"},
          {"alpha", "float", "slope of leaky (default 0.01) and hardsigmoid (default 0.2)"},
          {"beta", "float", "offset of hardsigmoid, default 0.5"},
          {"act_before_residual", "int", "act(x) + residual instead of act(x + residual)"}};
}

std::optional<ir::Attrs> ending_of(std::string_view op, const ir::NodeView& node) {
  const auto named = [](K kind) {
    return ir::Attrs{{"activation", std::string(kActivationNames[static_cast<size_t>(kind)])}};
  };
  const ir::Attrs& given = node.attrs;
  if (op == "relu") return named(K::relu);
  if (op == "sigmoid") return named(K::sigmoid);
  if (op == "tanh") return named(K::tanh);
  if (op == "hard_swish") return named(K::hardswish);
  if (op == "swish" && given.get_float("alpha", 1) == 1) return named(K::silu);
  if (op == "gelu")
    return named(given.get_string("approximate", "none") == "tanh" ? K::gelu_tanh : K::gelu_erf);
  if (op == "leaky_relu") return named(K::leaky).set("alpha", given.get_float("alpha", 0.01));
  if (op == "hard_sigmoid") {
    return named(K::hardsigmoid)
        .set("alpha", given.get_float("alpha", 0.2))
        .set("beta", given.get_float("beta", 0.5));
  }
  if (op != "clip") return std::nullopt;
  constexpr double kMax = std::numeric_limits<float>::max();
  const auto lo = bound(node, 1, -kMax), hi = bound(node, 2, kMax);
  return lo && hi ? std::optional(named(K::clip).set("lo", *lo).set("hi", *hi)) : std::nullopt;
}

double activate(const ActivationSpec& s, double x) {
  switch (s.kind) {
    case K::none: return x;
    case K::relu: return x < 0 ? 0 : x;
    case K::clip: return x < double(s.lo) ? double(s.lo) : x > double(s.hi) ? double(s.hi) : x;
    case K::sigmoid: return 1 / (1 + std::exp(-x));
    case K::silu: return x / (1 + std::exp(-x));
    case K::hardswish: return x * std::clamp(x / 6 + 0.5, 0.0, 1.0);
    case K::hardsigmoid: return std::clamp(double(s.alpha) * x + double(s.beta), 0.0, 1.0);
    case K::gelu_erf: return 0.5 * x * (1 + std::erf(x * 0.70710678118654752440));
    case K::gelu_tanh: return 0.5 * x * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case K::tanh: return std::tanh(x);
    case K::leaky: return x < 0 ? double(s.alpha) * x : x;
  }
  return x;
}

double activation_slope(const ActivationSpec& s, double x) {
  const double sigmoid = 1 / (1 + std::exp(-x));
  switch (s.kind) {
    case K::none: return 1;
    case K::relu: return x > 0 ? 1 : 0;
    case K::clip: return x > double(s.lo) && x < double(s.hi) ? 1 : 0;
    case K::sigmoid: return sigmoid * (1 - sigmoid);
    case K::silu: return sigmoid * (1 + x * (1 - sigmoid));
    case K::hardswish: return x < -3 ? 0 : x > 3 ? 1 : x / 3 + 0.5;
    case K::hardsigmoid: {
      const double y = double(s.alpha) * x + double(s.beta);
      return y > 0 && y < 1 ? double(s.alpha) : 0;
    }
    case K::gelu_erf:
      return 0.5 * (1 + std::erf(x * 0.70710678118654752440)) +
             x * 0.39894228040143267794 * std::exp(-0.5 * x * x);
    case K::gelu_tanh: {
      constexpr double kScale = 0.79788456080286535588, kCube = 0.044715;
      const double t = std::tanh(kScale * (x + kCube * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kScale * (1 + 3 * kCube * x * x);
    }
    case K::tanh: return 1 - std::tanh(x) * std::tanh(x);
    case K::leaky: return x > 0 ? 1 : double(s.alpha);
  }
  return 1;
}

double finish(const ActivationSpec& spec, double sum, double residual) {
  return spec.before_residual ? activate(spec, sum) + residual : activate(spec, sum + residual);
}

ir::ValueId expand_activation(ir::Graph& g, ir::ValueId x, const ActivationSpec& s) {
  auto add = [&](const char* op, ir::Attrs attrs = {}) {
    return g.add1(table().need(op), {x}, std::move(attrs));
  };
  switch (s.kind) {
    case K::none: return x;
    case K::relu: return add("relu");
    case K::clip: {
      const ir::ValueId lo = g.add_constant(scalar_of(g.type(x).dtype, double(s.lo)));
      const ir::ValueId hi = g.add_constant(scalar_of(g.type(x).dtype, double(s.hi)));
      return g.add1(table().need("clip"), {x, lo, hi});
    }
    case K::sigmoid: return add("sigmoid");
    case K::silu: return add("swish", {{"alpha", 1.0}});
    case K::hardswish: return add("hard_swish");
    case K::hardsigmoid: return add("hard_sigmoid", {{"alpha", double(s.alpha)}, {"beta", double(s.beta)}});
    case K::gelu_erf: return add("gelu", {{"approximate", std::string("none")}});
    case K::gelu_tanh: return add("gelu", {{"approximate", std::string("tanh")}});
    case K::tanh: return add("tanh");
    case K::leaky: return add("leaky_relu", {{"alpha", double(s.alpha)}});
  }
  return x;
}

ir::ValueId expand_slope(ir::Graph& g, ir::ValueId dy, ir::ValueId x, const ActivationSpec& s) {
  const size_t first = g.nodes().size();
  const ir::ValueId y = expand_activation(g, x, s);
  std::vector<char> wanted(g.values().size(), 0);
  std::vector<ir::ValueId> grads(g.values().size(), ir::kNoValue);
  wanted[index(x)] = 1;
  grads[index(y)] = dy;
  backpropagate(g, first, std::move(wanted), grads);
  return grads[index(x)];
}

ir::ValueId expand_finish(ir::Graph& graph, ir::ValueId x, ir::ValueId residual, const ActivationSpec& spec) {
  const ir::OpDef& add = table().need("add");
  if (residual == ir::kNoValue) return expand_activation(graph, x, spec);
  if (spec.before_residual) return graph.add1(add, {expand_activation(graph, x, spec), residual});
  return expand_activation(graph, graph.add1(add, {x, residual}), spec);
}

}  // namespace trireme::ops
