// pow, bit_shift, gelu, where, clip, dropout: elementwise ops with operands of mixed types, choices or
// optional bounds.
#include "ops/elementwise/special.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::TensorType;

ir::OpSchema pow_schema() {
  return {.name = "pow",
          .doc = "y = base ^ exponent, in the type of the base",
          .dims = "...,...->...",
          .min_in = 2,
          .max_in = 2,
          .infer =
              [](const ir::NodeView& n) {
                base::require(pow_row(n.in[0].dtype, n.in[1].dtype) != nullptr, "op 'pow' ",
                              no_type(n.in[0].dtype));
                return std::vector{TensorType{n.in[0].dtype, broadcast_all(n)}};
              },
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
          .onnx = "Gelu"};
}

ir::OpSchema where_schema() {
  return {.name = "where",
          .doc = "y = condition ? a : b",
          .dims = "...,...,...->...",
          .min_in = 3,
          .max_in = 3,
          .infer =
              [](const ir::NodeView& n) {
                base::require(n.in[0].dtype == DType::boolean && n.in[1].dtype == n.in[2].dtype,
                              "op 'where' takes a boolean and two operands of one type");
                return std::vector{TensorType{n.in[1].dtype, broadcast_all(n)}};
              },
          .onnx = "Where"};
}

ir::OpSchema clip_schema() {
  return {.name = "clip",
          .doc = "y = min(max(x, low), high); low and high are optional scalars",
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
          .onnx = "Clip"};
}

ir::OpSchema dropout_schema() {
  return {
      .name = "dropout",
      .doc =
          "inference: y = x, mask = all true; with training_mode the kept elements are scaled by 1/(1-ratio)",
      .max_in = 3,
      .max_out = 2,
      .attrs = {{"seed", "int", "of the mask in training mode"}},
      .infer =
          [](const ir::NodeView& n) {
            return std::vector{TensorType{n.in[0].dtype, n.in[0].shape},
                               TensorType{DType::boolean, n.in[0].shape}};
          },
      .onnx = "Dropout",
      .is_random = true};
}

}  // namespace

std::vector<ir::OpDef> special_elementwise_ops() {
  return {{pow_schema(), pow_cpu_kernels()},   {bit_shift_schema(), bit_shift_cpu_kernels()},
          {gelu_schema(), gelu_cpu_kernels()}, {where_schema(), where_cpu_kernels()},
          {clip_schema(), clip_cpu_kernels()}, {dropout_schema(), dropout_cpu_kernels()}};
}

}  // namespace trireme::ops
