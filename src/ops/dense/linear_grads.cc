// linear_grad_x, linear_grad_w: the two products of linear's gradient, and the sums for its bias.
#include "ops/dense/linear_grads.h"

#include "ops/dense/activation.h"
#include "ops/dense/dense_cuts.h"
#include "ops/grad.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Dims;
using tensor::Shape;
using tensor::TensorType;

bool is_transposed(const ir::Attrs& attrs) { return attrs.get_int("transposed", 0) != 0; }

ir::AttrSpec transposed_attr() { return {"transposed", "int", "w is [n, k]"}; }
ir::AttrSpec float8_attr() { return {"float8", "int", "to become a float8_product before it is compiled"}; }

/// The type of a weight's gradient; with `wide`, f32 sums are not rounded.
tensor::DType grad_w_type(const ir::NodeView& n) {
  const tensor::DType type = n.in[0].dtype;
  const bool is_half = type == tensor::DType::f16 || type == tensor::DType::bf16;
  return is_half && n.attrs.get_int("wide", 0) != 0 ? tensor::DType::f32 : type;
}

double bytes_of_all(const ir::NodeView& n) {
  double bytes = 0;
  for (const TensorType& t : n.in) bytes += static_cast<double>(tensor::bytes_of(t));
  for (const TensorType& t : n.out) bytes += static_cast<double>(tensor::bytes_of(t));
  return bytes;
}

std::vector<TensorType> infer_x(const ir::NodeView& n) {
  const Shape &dy = n.in[0].shape, &w = n.in[1].shape;
  if (!dy.has_rank() || !w.has_rank()) return {{n.in[0].dtype, Shape::unknown_rank()}};
  base::require(dy.rank() >= 1 && w.rank() == 2, "linear_grad_x takes [..., n] and a matrix, got ",
                dy.to_string(), " and ", w.to_string());
  const size_t t = is_transposed(n.attrs);
  const Dim &columns = dy[dy.rank() - 1], &wn = w[1 - t];
  base::require(!columns.is_static() || !wn.is_static() || columns == wn, "columns differ: ", dy.to_string(),
                " and ", w.to_string());
  std::vector<Dim> dims = dy.dims();
  dims.back() = w[t];
  const Shape dx(std::move(dims));
  const bool has_activation = activation_of(n.attrs).kind != ActivationKind::none;
  base::require(has_activation == n.present(2),
                "the slope of an activation needs its argument, and only that");
  if (n.present(2) && n.in[2].shape.is_static() && dx.is_static()) {
    base::require(n.in[2].shape == dx, "an argument of shape ", n.in[2].shape.to_string(), " for a gradient ",
                  dx.to_string());
  }
  return {{n.in[0].dtype, dx}};
}

std::vector<TensorType> infer_w(const ir::NodeView& n) {
  const Shape &x = n.in[0].shape, &dy = n.in[1].shape;
  const tensor::DType type = grad_w_type(n);
  if (!x.has_rank() || !dy.has_rank()) return {{type, Shape::unknown(2)}, {type, Shape::unknown(1)}};
  base::require(x.rank() >= 1 && x.rank() == dy.rank(), "linear_grad_w takes [..., k] and [..., n], got ",
                x.to_string(), " and ", dy.to_string());
  if (x.is_static() && dy.is_static()) {
    const Dims xd = x.to_dims(), yd = dy.to_dims();
    base::require(std::equal(xd.begin(), xd.end() - 1, yd.begin()), "rows differ: ", x.to_string(), " and ",
                  dy.to_string());
  }
  const Dim &k = x[x.rank() - 1], &columns = dy[dy.rank() - 1];
  return {{type, is_transposed(n.attrs) ? Shape{columns, k} : Shape{k, columns}}, {type, Shape{columns}}};
}

std::vector<ir::ValueId> expand_x(ir::Graph& g, const ir::Node& node) {
  ir::ValueId w = node.in[1];
  if (!is_transposed(node.attrs)) {
    w = g.add1(table().need("transpose"), {w}, {{"perm", std::vector<int64_t>{1, 0}}});
  }
  const ir::ValueId dx = g.add1(table().need("matmul"), {node.in[0], w});
  const ActivationSpec act = activation_of(node.attrs);
  return {act.kind == ActivationKind::none ? dx : expand_slope(g, dx, node.in[2], act)};
}

/// Reshapes x [..., c] to [rows, c].
ir::ValueId flat(ir::Graph& g, ir::ValueId x) {
  const int64_t columns = g.type(x).shape.to_dims().back();
  const ir::ValueId shape = g.add_constant(tensor::Tensor::from<int64_t>({2}, {-1, columns}));
  return g.add1(table().need("reshape"), {x, shape});
}

std::vector<ir::ValueId> expand_w(ir::Graph& g, const ir::Node& node) {
  const bool t = is_transposed(node.attrs);
  ir::ValueId x = flat(g, node.in[0]), dy = flat(g, node.in[1]);
  if (node.attrs.get_int("wide", 0) != 0) {
    x = g.add1(table().need("cast"), {x}, {{"to", int64_t{1}}});  // 1: f32
    dy = g.add1(table().need("cast"), {dy}, {{"to", int64_t{1}}});
  }
  const ir::ValueId left =
      g.add1(table().need("transpose"), {t ? dy : x}, {{"perm", std::vector<int64_t>{1, 0}}});
  std::vector<ir::ValueId> results{g.add1(table().need("matmul"), {left, t ? x : dy})};
  if (node.out.size() > 1) {
    const ir::ValueId rows = g.add_constant(tensor::Tensor::from<int64_t>({1}, {0}));
    results.push_back(g.add1(table().need("reduce_sum"), {dy, rows}, {{"keepdims", int64_t{0}}}));
  }
  return results;
}

/// dx = dy w' is linear in both operands: d dy = g w, d w = g' dy.
Gradients grad_of_x(GradBuilder& g) {
  if (g.has(2)) base::fail_unsupported("second derivatives of activations");
  const ir::Attrs attrs{{"transposed", int64_t{is_transposed(g.attrs())}}};
  return {g.op("linear", {g.grad(), g.in(1)}, attrs), g.op("linear_grad_w", {g.grad(), g.in(0)}, attrs)};
}

/// dw = x' dy, dbias = sum of dy: d x = dy dw', d dy = x dw + dbias.
Gradients grad_of_w(GradBuilder& g) {
  const ir::Attrs attrs{{"transposed", int64_t{is_transposed(g.attrs())}}};
  const auto narrow = [&](ValueId id) {
    return g.type(id).dtype == g.type(g.in(0)).dtype ? id : g.op("cast_like", {id, g.in(0)});
  };
  const ValueId dw = narrow(g.grad(0) == ir::kNoValue ? g.zeros_like(g.out(0)) : g.grad(0));
  std::vector<ValueId> in{g.in(0), dw};
  if (g.grad(1) != ir::kNoValue) in.push_back(narrow(g.grad(1)));
  return {g.op("linear_grad_x", {g.in(1), dw}, attrs), g.op("linear", std::move(in), attrs)};
}

ir::OpSchema grad_x_schema() {
  std::vector<ir::AttrSpec> attrs = activation_attrs();
  std::erase_if(attrs, [](const ir::AttrSpec& a) { return a.name == "act_before_residual"; });
  attrs.push_back(transposed_attr());
  attrs.push_back(float8_attr());
  return {.name = "linear_grad_x",
          .doc =
              "dx = dy w', or act'(z) dy w' with the argument z of an activation: operands dy [..., n], w "
              "[k, n], z [..., k]; dx [..., k]",
          .is_product = true,
          .cut = linear_grad_x_cut,
          .min_in = 2,
          .max_in = 3,
          .attrs = std::move(attrs),
          .infer = infer_x,
          .expand = expand_x,
          .cost =
              [](const ir::NodeView& n) {
                const LinearGradExtents e = linear_grad_x_extents(n);
                return ir::Cost{2.0 * double(e.m) * double(e.k) * double(e.n), bytes_of_all(n)};
              },
          .grad = rule(grad_of_x)};
}

ir::OpSchema grad_w_schema() {
  return {.name = "linear_grad_w",
          .doc =
              "dw = x' dy over all rows, dbias = sum of the rows of dy: operands x [..., k], dy [..., n]; dw "
              "[k, n], dbias [n]; both f32 if wide",
          .is_product = true,
          .cut = linear_grad_w_cut,
          .min_in = 2,
          .max_in = 2,
          .max_out = 2,
          .attrs = {transposed_attr(), float8_attr(), {"wide", "int", "results of 16-bit operands are f32"}},
          .infer = infer_w,
          .expand = expand_w,
          .cost =
              [](const ir::NodeView& n) {
                const LinearGradExtents e = linear_grad_w_extents(n);
                const double bias = n.out.size() > 1 ? double(e.m) * double(e.n) : 0;
                return ir::Cost{2.0 * double(e.m) * double(e.k) * double(e.n) + bias, bytes_of_all(n)};
              },
          .grad = rule(grad_of_w)};
}

}  // namespace

LinearGradExtents linear_grad_x_extents(const ir::NodeView& node) {
  const Dims dy = node.in_dims(0), dx = node.out_dims(0);
  return {tensor::element_count(Dims(dy.begin(), dy.end() - 1)), dx.back(), dy.back(),
          is_transposed(node.attrs)};
}

LinearGradExtents linear_grad_w_extents(const ir::NodeView& node) {
  const Dims x = node.in_dims(0), dy = node.in_dims(1);
  return {tensor::element_count(Dims(x.begin(), x.end() - 1)), x.back(), dy.back(),
          is_transposed(node.attrs)};
}

std::vector<ir::OpDef> linear_grads_ops() {
  return {{grad_x_schema(), linear_grad_x_cpu_kernels()}, {grad_w_schema(), linear_grad_w_cpu_kernels()}};
}

}  // namespace trireme::ops
