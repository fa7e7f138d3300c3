// pow, bit_shift, gelu, where, clip, dropout: elementwise ops with mixed types, variants or optional bounds.
#include "ops/elementwise/special.h"
#include "ops/cut.h"
#include "ops/grad.h"
#include "ops/precision_rules.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::TensorType;

/// The exponent, cast to the base's type.
ValueId exponent_of(GradBuilder& g) {
  const bool same = g.type(g.in(0)).dtype == g.type(g.in(1)).dtype;
  return same ? g.in(1) : g.op("cast_like", {g.in(1), g.in(0)});
}

/// dx = dy e x^(e - 1), which is 0 for any x if e is 0. de = dy y ln x, which is 0 if x is 0.
Gradients pow_rule(GradBuilder& g) {
  const ValueId x = g.in(0), dy = g.grad();
  Gradients out(2);
  const tensor::Tensor* known = g.known(1);
  if (known != nullptr && known->elements() == 1) {
    const double e = known->to_doubles()[0];
    const ValueId power = e == 2 ? x : g.op("pow", {x, g.scalar(e - 1, x)});
    out[0] = e == 0 ? g.zeros_like(x) : g.to_operand(g.mul(dy, g.scaled(power, e)), 0);
    return out;
  }
  const ValueId e = exponent_of(g), zero = g.scalar(0, x);
  const ValueId slope = g.mul(e, g.op("pow", {x, g.plus(e, -1)}));
  const ValueId is_zero = g.op("equal", {e, zero});
  out[0] = g.to_operand(g.mul(dy, g.op("where", {is_zero, zero, slope})), 0);
  if (!tensor::is_float(g.type(g.in(1)).dtype)) return out;
  const ValueId base = g.op("where", {g.op("equal", {x, zero}), g.scalar(1, x), x});
  const ValueId de = g.to_operand(g.mul(g.mul(dy, g.out()), g.op("log", {base})), 1);
  out[1] = g.type(de).dtype == g.type(g.in(1)).dtype ? de : g.op("cast_like", {de, g.in(1)});
  return out;
}

/// dx = dy where low <= x <= high; a bound gets the gradient of the elements that it replaced.
Gradients clip_rule(GradBuilder& g) {
  Gradients out = g.none();
  std::vector<ValueId> in{g.grad()};
  for (size_t i = 0; i < out.size(); ++i) in.push_back(g.in(i));
  out[0] = g.op("clip_grad", in);
  const ValueId zero = g.scalar(0, g.grad());
  for (size_t i = 1; i < out.size(); ++i) {
    if (!g.has(i)) continue;
    // If the bounds cross, the upper one determines the result.
    const ValueId lifted = i == 2 && g.has(1) ? g.op("max", {g.in(0), g.in(1)}) : g.in(0);
    const ValueId replaced = g.op(i == 1 ? "less" : "greater", {lifted, g.in(i)});
    out[i] = g.to_operand(g.op("where", {replaced, g.grad(), zero}), i);
  }
  return out;
}

ir::OpSchema pow_schema() {
  return {.name = "pow",
          .doc = "y = base ^ exponent, in the type of the base",
          .precision = kRange,
          .dims = "...,...->...",
          .min_in = 2,
          .max_in = 2,
          .infer =
              [](const ir::NodeView& n) {
                base::require(pow_row(n.in[0].dtype, n.in[1].dtype) != nullptr, "op 'pow' ",
                              no_type(n.in[0].dtype));
                return std::vector{TensorType{n.in[0].dtype, broadcast_all(n)}};
              },
          .grad = rule(pow_rule),
          .onnx = "Pow"};
}

ir::OpSchema bit_shift_schema() {
  return {.name = "bit_shift",
          .doc = "y = x << s or x >> s by `direction`; right shifts of signed types extend the sign",
          .dims = "...,...->...",
          .min_in = 2,
          .max_in = 2,
          .attrs = {{"direction", "string", "LEFT or RIGHT"}},
          .infer =
              [](const ir::NodeView& n) {
                const std::string d = n.attrs.get_string("direction", "");
                base::require(d == "LEFT" || d == "RIGHT",
                              "op 'bit_shift' needs direction LEFT or RIGHT, got '", d, "'");
                base::require(bit_shift_row(n.in[0].dtype) != nullptr && n.in[0].dtype == n.in[1].dtype,
                              "op 'bit_shift' takes two integer operands of one type");
                return std::vector{TensorType{n.in[0].dtype, broadcast_all(n)}};
              },
          .why_no_grad = "integer operands",
          .onnx = "BitShift"};
}

ir::OpSchema gelu_schema() {
  return {.name = "gelu",
          .doc = "y = x Phi(x): by erf, or with approximate = tanh by its usual tanh formula",
          .precision = kRounds,
          .dims = "...->...",
          .attrs = {{"approximate", "string", "none (default) or tanh"}},
          .infer =
              [](const ir::NodeView& n) {
                const std::string a = n.attrs.get_string("approximate", "none");
                base::require(a == "none" || a == "tanh", "op 'gelu' knows approximate none and tanh, got '",
                              a, "'");
                base::require(gelu_row(n.in[0].dtype, false) != nullptr, "op 'gelu' ",
                              no_type(n.in[0].dtype));
                return std::vector{TensorType{n.in[0].dtype, n.in[0].shape}};
              },
          .cost =
              [](const ir::NodeView& n) {
                return ir::Cost{29.0 * static_cast<double>(n.out[0].shape.elements().value_or(0)),
                                2.0 * static_cast<double>(tensor::bytes_of(n.out[0]))};
              },
          .grad = rule([](GradBuilder& g) -> Gradients {
            return {g.op("gelu_grad", {g.grad(), g.in(0)}, g.attrs())};
          }),
          .onnx = "Gelu"};
}

ir::OpSchema where_schema() {
  return {.name = "where",
          .doc = "y = condition ? a : b",
          .moves = 0b110,
          .dims = "...,...,...->...",
          .min_in = 3,
          .max_in = 3,
          .infer =
              [](const ir::NodeView& n) {
                base::require(n.in[0].dtype == DType::boolean && n.in[1].dtype == n.in[2].dtype,
                              "op 'where' takes a boolean and two operands of one type");
                return std::vector{TensorType{n.in[1].dtype, broadcast_all(n)}};
              },
          .grad = rule([](GradBuilder& g) -> Gradients {
            const ValueId zero = g.scalar(0, g.grad());
            return {std::nullopt, g.to_operand(g.op("where", {g.in(0), g.grad(), zero}), 1),
                    g.to_operand(g.op("where", {g.in(0), zero, g.grad()}), 2)};
          }),
          .onnx = "Where"};
}

ir::OpSchema clip_schema() {
  return {.name = "clip",
          .doc = "y = min(max(x, low), high); low and high are optional scalars",
          .moves = 0b111,
          .dims = "...,,->...",
          .max_in = 3,
          .infer =
              [](const ir::NodeView& n) {
                base::require(clip_row(n.in[0].dtype) != nullptr, "op 'clip' ", no_type(n.in[0].dtype));
                for (size_t i = 1; i < n.in.size(); ++i) {
                  base::require(!n.present(i) || n.in[i].dtype == n.in[0].dtype,
                                "op 'clip' takes bounds of x's type");
                }
                return std::vector{TensorType{n.in[0].dtype, n.in[0].shape}};
              },
          .grad = rule(clip_rule),
          .onnx = "Clip"};
}

ir::OpSchema dropout_schema() {
  return {
      .name = "dropout",
      .doc =
          "inference: y = x, mask = all true; with training_mode the kept elements are scaled by 1/(1-ratio)",
      .precision = kRounds,
      .dims = "...,,->...,...",
      .max_in = 3,
      .max_out = 2,
      .attrs = {{"seed", "int", "of the mask in training mode"}},
      .infer =
          [](const ir::NodeView& n) {
            return std::vector{TensorType{n.in[0].dtype, n.in[0].shape},
                               TensorType{DType::boolean, n.in[0].shape}};
          },
      // The mask depends on the seed only, so the same op masks and scales the gradient.
      .grad = rule([](GradBuilder& g) -> Gradients {
        Gradients out = g.none();
        std::vector<ValueId> in{g.grad()};
        for (size_t i = 1; i < out.size(); ++i) in.push_back(g.in(i));
        out[0] = g.op("dropout", in, g.attrs());
        return out;
      }),
      .onnx = "Dropout",
      .is_random = true};
}

ir::OpSchema gelu_grad_schema() {
  ir::OpSchema s = gelu_schema();
  s.name = "gelu_grad";
  s.doc = "dx = dy (Phi(x) + x phi(x)), or the derivative of the tanh formula; operands dy, x";
  s.precision = {};
  s.dims = "...,...->...";
  s.min_in = s.max_in = 2;
  s.cost = [](const ir::NodeView& n) {
    return ir::Cost{34.0 * static_cast<double>(n.out[0].shape.elements().value_or(0)),
                    3.0 * static_cast<double>(tensor::bytes_of(n.out[0]))};
  };
  s.infer = [](const ir::NodeView& n) {
    base::require(n.in[0].dtype == n.in[1].dtype && gelu_row(n.in[0].dtype, false) != nullptr,
                  "op 'gelu_grad' takes two operands of one floating point type");
    return std::vector{TensorType{n.in[0].dtype, broadcast_all(n)}};
  };
  s.grad = {};
  s.why_no_grad = kSecondDerivative;
  s.onnx = "";
  return s;
}

ir::OpSchema clip_grad_schema() {
  ir::OpSchema s{.name = "clip_grad",
                 .doc = "dx = low <= x <= high ? dy : 0; operands dy, x, low, high",
                 .precision = kUnknown,
                 .moves = 0b1,
                 .dims = "...,...,,->...",
                 .min_in = 2,
                 .max_in = 4,
                 .infer = [](const ir::NodeView& n) {
                   base::require(n.in[0] == n.in[1], "op 'clip_grad' takes dy like x");
                   return std::vector{n.in[0]};
                 }};
  s.why_no_grad = kSecondDerivative;
  return s;
}

}  // namespace

std::vector<ir::OpDef> special_elementwise_ops() {
  std::vector<ir::OpDef> ops{{pow_schema(), pow_cpu_kernels()},
                             {bit_shift_schema(), bit_shift_cpu_kernels()},
                             {gelu_schema(), gelu_cpu_kernels()},
                             {where_schema(), where_cpu_kernels()},
                             {clip_schema(), clip_cpu_kernels()},
                             {dropout_schema(), dropout_cpu_kernels()},
                             {gelu_grad_schema(), gelu_grad_cpu_kernels()},
                             {clip_grad_schema(), clip_grad_cpu_kernels()}};
  for (ir::OpDef& op : ops) {
    const std::string& name = op.schema.name;
    if (name == "dropout") {
      // The mask of training mode depends on element indices, and a part does not know its place in the
      // tensor.
      op.schema.cut = [](const ir::NodeView& n) {
        const tensor::Tensor* training = n.value(2);
        const bool draws = n.present(2) && (training == nullptr || training->to_ints()[0] != 0);
        return draws ? ir::CutRule{} : broadcast_cut(n, {0b1});
      };
      continue;
    }
    std::vector<uint32_t> linear;
    if (name == "where") linear = {0b110};
    if (name == "gelu_grad" || name == "clip_grad") linear = {0b1};
    op.schema.cut = elementwise_cut(std::move(linear));
  }
  return ops;
}

}  // namespace trireme::ops
