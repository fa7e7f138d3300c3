// cast, cast_like, bit_cast: x as another element type.
#include "ops/elementwise/cast.h"
#include "ops/cut.h"
#include "ops/grad.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

const std::vector<ir::AttrSpec> kRounding{
    {"saturate", "int", "1 (default): 8-bit floats clamp to their largest value"},
    {"round_mode", "string", "of f8e8m0: up (default), down, nearest"}};

/// Casts the gradient to x's element type; casts from or to integers have none.
Gradients cast_rule(GradBuilder& g) {
  Gradients out = g.none();
  const bool is_real = tensor::is_float(g.type(g.in(0)).dtype) && tensor::is_float(g.type(g.out()).dtype);
  const bool same = g.type(g.in(0)).dtype == g.type(g.out()).dtype;
  // The type is given by number, since cast_like would keep x alive until the backward pass only for its
  // type.
  const int64_t to = g.type(g.in(0)).dtype == tensor::DType::f64    ? 11
                     : g.type(g.in(0)).dtype == tensor::DType::f16  ? 10
                     : g.type(g.in(0)).dtype == tensor::DType::bf16 ? 16
                                                                    : 1;
  if (is_real && same) out[0] = g.grad();
  if (is_real && !same) out[0] = g.op("cast", {g.grad()}, {{"to", to}});
  return out;
}

/// Partial sums may pass where the cast does not round: to the same or a wider float.
ir::CutRule cut_cast(const ir::NodeView& n) {
  const tensor::DType from = n.in[0].dtype, to = n.out[0].dtype;
  const bool is_exact =
      tensor::is_float(from) && tensor::is_float(to) && tensor::bits_of(to) >= tensor::bits_of(from);
  return broadcast_cut(n, is_exact ? std::vector<uint32_t>{0b1} : std::vector<uint32_t>{});
}

/// Of the second operand of cast_like only the type matters.
ir::CutRule cut_cast_like(const ir::NodeView& n) {
  ir::CutRule rule = same_dims_cut(n, std::vector<bool>(n.in[0].shape.rank()));
  rule.linear = cut_cast(n).linear;
  return rule;
}

ir::OpSchema cast_schema() {
  ir::OpSchema s{
      .name = "cast",
      .doc = "y = x as element type `to`; floats truncate and clamp to integers, integers wrap",
      .dims = "...->...",
      .cut = cut_cast,
      .attrs = kRounding,
      .infer =
          [](const ir::NodeView& n) {
            return std::vector{tensor::TensorType{dtype_from_onnx(n.attrs.need_int("to")), n.in[0].shape}};
          },
      .grad = rule(cast_rule),
      .onnx = "Cast"};
  s.attrs.push_back({"to", "int", "element type by its ONNX number, required"});
  return s;
}

ir::OpSchema cast_like_schema() {
  return {.name = "cast_like",
          .doc = "y = x in the element type of the second operand, which is not read",
          .dims = "...,_->...",
          .cut = cut_cast_like,
          .min_in = 2,
          .max_in = 2,
          .attrs = kRounding,
          .infer =
              [](const ir::NodeView& n) {
                return std::vector{tensor::TensorType{n.in[1].dtype, n.in[0].shape}};
              },
          .grad = rule(cast_rule),
          .onnx = "CastLike"};
}

ir::OpSchema bit_cast_schema() {
  return {.name = "bit_cast",
          .doc = "y = the bits of x read as element type `to` of the same width",
          .cut = elementwise_cut(),
          .attrs = {{"to", "int", "element type by its ONNX number, required"}},
          .infer =
              [](const ir::NodeView& n) {
                const tensor::DType to = dtype_from_onnx(n.attrs.need_int("to"));
                base::require(tensor::bits_of(to) == tensor::bits_of(n.in[0].dtype),
                              "bit_cast: ", name_of(n.in[0].dtype), " and ", name_of(to), " differ in width");
                return std::vector{tensor::TensorType{to, n.in[0].shape}};
              },
          .why_no_grad = "bits are not a differentiable quantity",
          .onnx = "BitCast",
          .is_view = true};
}

}  // namespace

std::vector<ir::OpDef> cast_ops() {
  return {
      {cast_schema(), cast_cpu_kernels()}, {cast_like_schema(), cast_cpu_kernels()}, {bit_cast_schema(), {}}};
}

}  // namespace trireme::ops
