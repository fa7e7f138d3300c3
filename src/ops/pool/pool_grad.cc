// Gradients of pooling: the rules, and the backward ops over windows in ONNX layout.
#include "ops/pool/pool_grad.h"

#include "ops/conv/window.h"
#include "ops/pool/pool_cuts.h"
#include "ops/table.h"

namespace trireme::ops {

using tensor::Dims;

namespace {

constexpr const char* kNoSecond = "a gradient itself: second derivatives are not taken";

/// The spatial extents as an attribute.
std::vector<int64_t> spatial(const Dims& x, size_t begin, size_t end) {
  return {x.begin() + static_cast<int64_t>(begin), x.begin() + static_cast<int64_t>(end)};
}

/// The window attributes of the pooling, except those unknown to the backward op.
ir::Attrs window_attributes(const ir::Attrs& attrs, std::initializer_list<const char*> dropped) {
  ir::Attrs out = attrs;
  for (const char* name : dropped) out.erase(name);
  return out;
}

/// sign(x) |x|^(p - 1) times the value of its window; 0 where the norm is 0.
ValueId lp_chain(GradBuilder& g, int64_t p, ValueId spread) {
  const ValueId x = g.in(0);
  if (p == 1) return g.mul(g.op("sign", {x}), spread);
  if (p == 2) return g.mul(x, spread);
  const ValueId power = g.op("pow", {g.op("abs", {x}), g.scalar(static_cast<double>(p - 1), x)});
  return g.mul(g.mul(g.op("sign", {x}), power), spread);
}

/// dy / y^(p - 1), or 0 where y is 0.
ValueId lp_share(GradBuilder& g, int64_t p) {
  if (p == 1) return g.grad();
  const ValueId y = g.out(), zero = g.scalar(0, y);
  const ValueId above = g.op("greater", {y, zero});
  const ValueId safe = g.op("where", {above, y, g.scalar(1, y)});
  const ValueId power = p == 2 ? safe : g.op("pow", {safe, g.scalar(static_cast<double>(p - 1), y)});
  return g.op("where", {above, g.div(g.grad(), power), zero});
}

ir::Cost walk_cost(const ir::NodeView& n, size_t dy) {
  ir::Cost cost;
  for (const tensor::TensorType& t : n.in) cost.bytes += static_cast<double>(tensor::bytes_of(t));
  cost.bytes += static_cast<double>(tensor::bytes_of(n.out[0]));
  cost.flop = static_cast<double>(n.in[dy].shape.elements().value_or(0));
  for (int64_t k : n.attrs.get_ints("kernel_shape")) cost.flop *= static_cast<double>(k);
  return cost;
}

std::vector<ir::AttrSpec> pool_attrs(std::vector<ir::AttrSpec> more) {
  std::vector<ir::AttrSpec> attrs = window_attrs();
  attrs.push_back({"ceil_mode", "int", "a last window that starts inside the padded input counts"});
  attrs.insert(attrs.end(), more.begin(), more.end());
  return attrs;
}

}  // namespace

Gradients max_pool_gradients(GradBuilder& g) {
  Gradients out = g.none();
  out[0] = g.op("max_pool_grad", {g.in(0), g.grad()}, window_attributes(g.attrs(), {"storage_order"}));
  return out;
}

Gradients average_pool_gradients(GradBuilder& g) {
  const Dims x = g.dims(g.in(0));
  ir::Attrs attrs = g.attrs();
  attrs.set("in_shape", spatial(x, 2, x.size()));
  return {g.op("average_pool_grad", {g.grad()}, attrs)};
}

Gradients lp_pool_gradients(GradBuilder& g) {
  const Dims x = g.dims(g.in(0));
  const int64_t p = g.attrs().get_int("p", 2);
  ir::Attrs attrs = window_attributes(g.attrs(), {"p"});
  attrs.set("in_shape", spatial(x, 2, x.size()));
  attrs.set("sum", int64_t{1});
  return {lp_chain(g, p, g.op("average_pool_grad", {lp_share(g, p)}, attrs))};
}

Gradients global_average_pool_gradients(GradBuilder& g) {
  const Dims x = g.dims(g.in(0)), y = g.dims(g.out());
  const double points = static_cast<double>(tensor::element_count(x)) /
                        static_cast<double>(std::max<int64_t>(1, tensor::element_count(y)));
  return {g.expand(g.scaled(g.grad(), 1 / points), x)};
}

Gradients global_max_pool_gradients(GradBuilder& g) {
  const Dims x = g.dims(g.in(0));
  if (x.size() > 5) base::fail_unsupported("the maximum over ", x.size() - 2, " axes is not differentiated");
  return {g.op("max_pool_grad", {g.in(0), g.grad()}, {{"kernel_shape", spatial(x, 2, x.size())}})};
}

Gradients global_lp_pool_gradients(GradBuilder& g) {
  const int64_t p = g.attrs().get_int("p", 2);
  return {lp_chain(g, p, g.expand(lp_share(g, p), g.dims(g.in(0))))};
}

Gradients max_unpool_gradients(GradBuilder& g) {
  if (g.has(2)) base::fail_unsupported("max_unpool with an output_shape operand is not differentiated");
  // The indices refer to the flattened result.
  const ValueId flat = g.reshape(g.grad(), {tensor::element_count(g.dims(g.grad()))});
  Gradients out = g.none();
  out[0] = g.op("gather", {flat, g.in(1)}, {{"axis", int64_t{0}}});
  return out;
}

Gradients roi_align_gradients(GradBuilder& g) {
  const Dims x = g.dims(g.in(0));
  ir::Attrs attrs = g.attrs();
  for (const char* name : {"output_height", "output_width"}) attrs.erase(name);
  // Regions are proposals and are treated as constants, as is usual.
  Gradients out = g.none();
  out[0] = g.op("roi_align_grad", {g.in(0), g.in(1), g.in(2), g.grad()}, attrs);
  return out;
}

Gradients max_pool_nhwc_gradients(GradBuilder& g) {
  return {g.op("max_pool_nhwc_grad", {g.in(0), g.grad()}, g.attrs())};
}

Gradients average_pool_nhwc_gradients(GradBuilder& g) {
  ir::Attrs attrs = g.attrs();
  attrs.set("in_shape", spatial(g.dims(g.in(0)), 1, 3));
  return {g.op("average_pool_nhwc_grad", {g.grad()}, attrs)};
}

ir::OpSchema max_pool_grad() {
  return {.name = "max_pool_grad",
          .doc = "gradient of max_pool towards x: dy of each window goes to its first maximum; x, dy -> dx",
          .cut = max_pool_grad_cut,
          .min_in = 2,
          .max_in = 2,
          .attrs = pool_attrs({}),
          .infer = [](const ir::NodeView& n) { return std::vector<tensor::TensorType>{n.in[0]}; },
          .cost = [](const ir::NodeView& n) { return walk_cost(n, 1); },
          .why_no_grad = kNoSecond};
}

ir::OpSchema average_pool_grad() {
  return {.name = "average_pool_grad",
          .doc = "gradient of average_pool towards x: every window spreads its share of dy; dy -> dx",
          .cut = linear_pool_cut,
          .attrs = pool_attrs({{"count_include_pad", "int", "padding counts in the divisor"},
                               {"in_shape", "ints", "spatial extents of x"},
                               {"sum", "int", "1: shares are not divided (lp_pool)"}}),
          .infer =
              [](const ir::NodeView& n) {
                std::vector<tensor::Dim> out{n.in[0].shape[0], n.in[0].shape[1]};
                for (int64_t d : n.attrs.get_ints("in_shape")) out.emplace_back(d);
                return std::vector<tensor::TensorType>{{n.in[0].dtype, tensor::Shape(std::move(out))}};
              },
          .cost = [](const ir::NodeView& n) { return walk_cost(n, 0); },
          .why_no_grad = kNoSecond};
}

ir::OpSchema roi_align_grad() {
  return {.name = "roi_align_grad",
          .doc = "gradient of roi_align towards x; operands x, regions, images, dy -> dx",
          .cut = roi_align_grad_cut,
          .min_in = 4,
          .max_in = 4,
          .attrs = {{"coordinate_transformation_mode", "string", "half_pixel or output_half_pixel"},
                    {"mode", "string", "avg or max"},
                    {"sampling_ratio", "int", "samples per cell and axis; 0 = ceil of the cell's extent"},
                    {"spatial_scale", "float", "factor from region to feature coordinates, default 1"}},
          .infer = [](const ir::NodeView& n) { return std::vector<tensor::TensorType>{n.in[0]}; },
          .why_no_grad = kNoSecond};
}

}  // namespace trireme::ops
