// layer_norm_grad, rms_norm_grad, lrn_grad: backward ops of normalisations over rows and over neighbouring
// channels.
#include "ops/norm/norm_cuts.h"
#include "ops/norm/norm_kernels.h"
#include "ops/norm/rounded.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Shape;
using tensor::TensorType;

void require_like(const ir::NodeView& n, size_t i, const TensorType& x) {
  if (!n.present(i) || !n.in[i].shape.is_static() || !x.shape.is_static()) return;
  base::require(n.in[i] == x, "operand ", i, " is ", n.in[i].to_string(), " beside ", x.to_string());
}

/// The shape must be that of x; the type may have fewer bits.
void require_shape_of(const ir::NodeView& n, size_t i, const TensorType& x) {
  if (!n.present(i) || !n.in[i].shape.is_static() || !x.shape.is_static()) return;
  base::require(n.in[i].shape == x.shape && tensor::is_float(n.in[i].dtype), "operand ", i, " is ",
                n.in[i].to_string(), " beside ", x.to_string());
}

ir::CostFn norm_grad_cost(double flop) {
  return [flop](const ir::NodeView& n) {
    ir::Cost c{.flop = flop * static_cast<double>(n.in[1].shape.elements().value_or(0))};
    for (const auto* types : {&n.in, &n.out}) {
      for (const TensorType& t : *types) c.bytes += static_cast<double>(tensor::bytes_of(t));
    }
    return c;
  };
}

/// The operands are dy, x, scale (absent: 1) and add (absent: 0); dx is like x, the others like the scale.
std::vector<TensorType> infer_row_norm(const ir::NodeView& n) {
  const TensorType& x = n.in[1];
  require_shape_of(n, 0, x);
  require_like(n, 3, x);
  if (!x.shape.has_rank()) return {x, x, x};
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", -1), x.shape.rank());
  const std::vector<Dim>& dims = x.shape.dims();
  const TensorType columns{x.dtype,
                           Shape(std::vector<Dim>(dims.begin() + static_cast<int64_t>(axis), dims.end()))};
  if (n.present(2)) {
    require_like(n, 2, columns);
    return {x, n.in[2], n.in[2]};
  }
  return {x, columns, columns};
}

ir::OpSchema row_norm(std::string name, std::string doc, size_t results) {
  ir::OpSchema s{.name = std::move(name),
                 .doc = std::move(doc),
                 .half_rows = {.operands = 0b11, .alone = 0b1, .rounded = static_cast<int>(results)},
                 .cut = row_norm_grad_cut,
                 .min_in = 2,
                 .max_in = 4,
                 .max_out = results + 1,
                 .attrs = {{"axis", "int", "first normalised axis, default -1"},
                           {"epsilon", "float", "added to the variance, default 1e-5"},
                           rounded_attr()}};
  s.infer = [results](const ir::NodeView& n) {
    std::vector<TensorType> types = infer_row_norm(n);
    types.resize(results);
    return with_rounded(std::move(types), n.attrs);
  };
  s.cost = norm_grad_cost(17);
  s.why_no_grad = "second derivatives of normalisations are not computed";
  return s;
}

ir::OpSchema lrn_grad() {
  ir::OpSchema s{
      .name = "lrn_grad",
      .doc =
          "dx = dy b^-beta - 2 alpha beta / size x sum over windows with x of dy y / b, b = bias + alpha / "
          "size sum x^2; operands dy, x",
      .cut = lrn_cut,
      .min_in = 2,
      .max_in = 2,
      .attrs = {{"alpha", "float", "default 1e-4"},
                {"beta", "float", "default 0.75"},
                {"bias", "float", "default 1"},
                {"size", "int", "channels of the window"}},
      .infer = [](const ir::NodeView& n) {
        require_like(n, 0, n.in[1]);
        base::require(!n.in[1].shape.has_rank() || n.in[1].shape.rank() >= 2, "lrn needs channels");
        return std::vector{n.in[1]};
      }};
  s.cost = norm_grad_cost(60);
  s.why_no_grad = "second derivatives of normalisations are not computed";
  return s;
}

}  // namespace

std::vector<ir::OpDef> norm_grads_ops() {
  return {
      {row_norm("layer_norm_grad",
                "with g = dy scale and xhat = (x - mean) / deviation over the axes from `axis` on: dx = (g "
                "- mean(g) - xhat mean(g xhat)) / deviation + add, dscale = sum dy xhat, dbias = sum dy; "
                "operands dy, x, scale or none, add or none; further result: dx rounded",
                3),
       rounding(layer_norm_grad_cpu_kernels(), 3)},
      {row_norm("rms_norm_grad",
                "with g = dy scale and xhat = x / sqrt(mean(x^2) + epsilon): dx = (g - xhat mean(g xhat)) "
                "/ sqrt(mean(x^2) + epsilon) + add, dscale = sum dy xhat; operands dy, x, scale or none, "
                "add or none; further result: dx rounded",
                2),
       rounding(rms_norm_grad_cpu_kernels(), 2)},
      {lrn_grad(), lrn_grad_cpu_kernels()}};
}

}  // namespace trireme::ops
