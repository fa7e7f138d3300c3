// conv_grad_w: the gradient of conv towards its weights, in ONNX layout [n, c, spatial...].
#include "ops/conv/conv_cuts.h"
#include "ops/conv/conv_grad.h"
#include "ops/table.h"

namespace trireme::ops {

using tensor::Dim;
using tensor::Dims;
using tensor::Shape;

ir::OpSchema conv_grad_w_schema() {
  std::vector<ir::AttrSpec> attrs = window_attrs();
  attrs.push_back({"group", "int", "channels fall into this many independent groups"});
  return {.name = "conv_grad_w",
          .doc = "dw[o, c, k] = sum over n, p of dy[n, o, p] x[n, c, p stride + k dilation - pad]",
          .cut = conv_grad_w_cut,
          .localise = localise_conv_grad_w,
          .min_in = 2,
          .max_in = 2,
          .attrs = std::move(attrs),
          .infer =
              [](const ir::NodeView& n) {
                const Shape &x = n.in[0].shape, &dy = n.in[1].shape;
                base::require(x.has_rank() && x.rank() >= 3 && dy.rank() == x.rank(), "conv_grad_w of ",
                              x.to_string(), " and ", dy.to_string());
                const int64_t group = n.attrs.get_int("group", 1);
                base::require(group >= 1 && x[1].value() % group == 0 && dy[1].value() % group == 0,
                              "conv_grad_w: ", x.to_string(), " and ", dy.to_string(), " in ", group,
                              " groups");
                std::vector<Dim> out{dy[1], Dim(x[1].value() / group)};
                for (int64_t k : n.attrs.get_ints("kernel_shape")) out.emplace_back(k);
                base::require(out.size() == x.rank(), "conv_grad_w needs kernel_shape of ", x.rank() - 2,
                              " entries");
                return std::vector<tensor::TensorType>{{n.in[0].dtype, Shape(std::move(out))}};
              },
          .cost =
              [](const ir::NodeView& n) {
                const Dims w = n.out_dims(0);
                return conv_grad_cost(n, static_cast<double>(tensor::element_count(w) / w[0]), 1);
              },
          .why_no_grad = "a gradient itself: second derivatives are not taken"};
}

}  // namespace trireme::ops
