// Fuses activations of training steps and their gradients into the products before them.
#include "passes/fuse/product_epilogues.h"

#include "ops/table.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

bool is_tanh_form(const Node& node) { return node.attrs.get_string("approximate", "none") == "tanh"; }

ir::Attrs with_gelu(ir::Attrs attrs) { return attrs.set("activation", std::string("gelu_tanh")); }

/// True if the device has a kernel for the node of `result`; otherwise the node is erased.
bool runs_there(ir::Graph& graph, ValueId result) {
  const Node& made = *graph.producer(result);
  if (ops::choose_kernel(*made.op, graph.view(made), tensor::DeviceKind::cuda) != nullptr) return true;
  graph.erase(graph.value(result).producer);
  return false;
}

/// linear -> z, gelu(z) -> y becomes linear -> y, z.
bool finish_forward(Rewriter& rw, const Node& gelu) {
  const auto product = rw.producer(gelu.in[0], "linear");
  if (!product || product->out.size() != 1 || product->attrs.get_string("activation", "none") != "none")
    return false;
  if (product->attrs.get_int("act_before_residual", 0) != 0) return false;
  const bool is_kept = !rw.single_use(gelu.in[0]);
  ir::Graph& graph = rw.graph();
  const std::vector<ValueId> out =
      graph.add(*product->op, product->in, with_gelu(product->attrs), is_kept ? 2 : 1, product->from);
  if (!runs_there(graph, out[0])) return false;
  rw.replace(gelu.out[0], out[0]);
  if (is_kept) rw.replace(gelu.in[0], out[1]);
  return true;
}

/// linear_grad_x -> dy, gelu_grad(dy, z) -> dz becomes linear_grad_x -> dz.
bool finish_backward(Rewriter& rw, const Node& gelu) {
  const auto product = rw.producer(gelu.in[0], "linear_grad_x");
  if (!product || !rw.single_use(gelu.in[0]) || product->in.size() != 2) return false;
  ir::Graph& graph = rw.graph();
  if (graph.type(gelu.in[1]) != graph.type(gelu.in[0])) return false;
  const std::vector<ValueId> in{product->in[0], product->in[1], gelu.in[1]};
  const ValueId dz = graph.add1(*product->op, in, with_gelu(product->attrs), product->from);
  if (!runs_there(graph, dz)) return false;
  rw.replace(gelu.out[0], dz);
  return true;
}

}  // namespace

size_t finish_in_products(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each([&](ir::NodeId, const Node& node) {
    if (node.op_name() == "gelu") return is_tanh_form(node) && finish_forward(rw, node);
    return node.op_name() == "gelu_grad" && is_tanh_form(node) && finish_backward(rw, node);
  });
}

}  // namespace trireme::passes
