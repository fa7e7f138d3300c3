// rnn, gru, lstm: recurrent layers over time in one or two directions: types and cost.
#include "ops/rnn/recurrent_cuts.h"
#include "ops/grad.h"
#include "ops/rnn/recurrent_kernels.h"
#include "ops/rnn/recurrent_plan.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Shape;
using tensor::TensorType;

std::vector<TensorType> infer(const ir::NodeView& n, size_t gates) {
  const Shape &x = n.in[0].shape, &r = n.in[2].shape;
  const tensor::DType type = n.in[0].dtype;
  const bool batch_first = n.attrs.get_int("layout", 0) != 0;
  if (!x.has_rank()) return {{type, Shape::unknown(4)}, {type, Shape::unknown(3)}, {type, Shape::unknown(3)}};
  base::require(x.rank() == 3, "recurrent layer over ", x.to_string(), ", takes 3 axes");
  const Dim batch = batch_first ? x[0] : x[1], seq = batch_first ? x[1] : x[0];
  const bool r_known = r.has_rank() && r.rank() == 3;
  const Dim directions(n.attrs.get_string("direction", "forward") == "bidirectional" ? 2 : 1);
  const Dim hidden = n.attrs.has("hidden_size") ? Dim(n.attrs.need_int("hidden_size"))
                     : r_known                  ? r[2]
                                                : Dim::unknown();
  bool all_static = true;
  for (size_t i = 0; i < n.in.size(); ++i)
    all_static = all_static && (!n.present(i) || n.in[i].shape.is_static());
  if (all_static) plan_recurrent(n, gates);  // checks the node
  const Shape y = batch_first ? Shape{batch, seq, directions, hidden} : Shape{seq, directions, batch, hidden};
  const Shape last = batch_first ? Shape{batch, directions, hidden} : Shape{directions, batch, hidden};
  return {{type, y}, {type, last}, {type, last}};
}

ir::CostFn cost(size_t gates) {
  return [gates](const ir::NodeView& n) {
    const RecurrentPlan p = plan_recurrent(n, gates);
    ir::Cost c;
    for (size_t i = 0; i < n.in.size(); ++i) c.bytes += n.present(i) ? double(tensor::bytes_of(n.in[i])) : 0;
    for (const TensorType& t : n.out) c.bytes += double(tensor::bytes_of(t));
    const double cells = double(p.seq) * double(p.batch) * double(p.directions) * double(p.hidden);
    c.flop = cells * double(gates) * (2.0 * double(p.input + p.hidden) + 20.0);
    return c;
  };
}

std::vector<ir::AttrSpec> attrs() {
  return {{"activation_alpha", "floats", "parameter of each activation"},
          {"activation_beta", "floats", "second parameter of each activation"},
          {"activations", "strings", "functions of the gates for each direction"},
          {"clip", "float", "gates are clamped to [-clip, clip] before their activation"},
          {"direction", "string", "forward, reverse or bidirectional"},
          {"hidden_size", "int", "extent of the state"},
          {"layout", "int", "1: operands and results have the batch first"}};
}

/// A single node computes all gradients: its operands are the forward operands in their places, then the
/// gradients of y, of the last state and of the last cell.
Gradients recurrent_rule(GradBuilder& g, const char* name) {
  Gradients out = g.none();
  std::vector<ValueId> in;
  for (size_t i = 0; i < 8; ++i) in.push_back(g.in(i));
  for (size_t r = 0; r < 3; ++r) in.push_back(g.grad(r));
  const std::vector<ValueId> all = g.ops(name, in, g.attrs(), 7);
  // The results are gradients of x, w, r, b, initial_h, initial_c, peepholes.
  constexpr size_t kOperand[] = {0, 1, 2, 3, 5, 6, 7};
  for (size_t r = 0; r < 7; ++r) {
    if (kOperand[r] < out.size() && g.has(kOperand[r])) out[kOperand[r]] = all[r];
  }
  return out;
}

ir::OpSchema backward(const char* name, const char* doc, size_t gates) {
  ir::OpSchema s{.name = name,
                 .doc = doc,
                 .cut = recurrent_grad_cut,
                 .min_in = 3,
                 .max_in = 11,
                 .min_out = 7,
                 .max_out = 7,
                 .attrs = attrs()};
  if (gates == 3) s.attrs.push_back({"linear_before_reset", "int", "of the forward op"});
  if (gates == 4) s.attrs.push_back({"input_forget", "int", "of the forward op"});
  s.infer = [gates](const ir::NodeView& n) {
    const RecurrentPlan p = plan_recurrent(n, gates);
    const tensor::DType type = n.in[0].dtype;
    const int64_t rows = p.gates * p.hidden;
    const Shape state = p.batch_first ? Shape{Dim(p.batch), Dim(p.directions), Dim(p.hidden)}
                                      : Shape{Dim(p.directions), Dim(p.batch), Dim(p.hidden)};
    return std::vector<TensorType>{n.in[0],
                                   n.in[1],
                                   n.in[2],
                                   {type, {Dim(p.directions), Dim(2 * rows)}},
                                   {type, state},
                                   {type, state},
                                   {type, {Dim(p.directions), Dim(3 * p.hidden)}}};
  };
  s.cost = [gates](const ir::NodeView& n) {
    const RecurrentPlan p = plan_recurrent(n, gates);
    ir::Cost c;
    for (size_t i = 0; i < n.in.size(); ++i) c.bytes += n.present(i) ? double(tensor::bytes_of(n.in[i])) : 0;
    for (const TensorType& t : n.out) c.bytes += double(tensor::bytes_of(t));
    // The cost of the forward pass, and of two products for each of its products.
    const double cells = double(p.seq) * double(p.batch) * double(p.directions) * double(p.hidden);
    c.flop = cells * double(gates) * (6.0 * double(p.input + p.hidden) + 60.0);
    return c;
  };
  s.why_no_grad = "a backward op: second derivatives are not taken";
  return s;
}

}  // namespace

std::vector<ir::OpDef> recurrents_ops() {
  ir::OpSchema rnn{.name = "rnn",
                   .doc = "h = f(x W + h R + b) over time; operands x, w, r, b, sequence_lens, initial_h",
                   .is_product = true,
                   .cut = recurrent_cut,
                   .min_in = 3,
                   .max_in = 6,
                   .max_out = 2,
                   .attrs = attrs(),
                   .infer = [](const ir::NodeView& n) { return infer(n, 1); },
                   .cost = cost(1),
                   .grad = rule([](GradBuilder& g) { return recurrent_rule(g, "rnn_grad"); }),
                   .onnx = "RNN"};
  ir::OpSchema gru{
      .name = "gru",
      .doc = "gated recurrent unit, gates z, r, h; operands x, w, r, b, sequence_lens, initial_h",
      .is_product = true,
      .cut = recurrent_cut,
      .min_in = 3,
      .max_in = 6,
      .max_out = 2,
      .attrs = attrs(),
      .infer = [](const ir::NodeView& n) { return infer(n, 3); },
      .cost = cost(3),
      .grad = rule([](GradBuilder& g) { return recurrent_rule(g, "gru_grad"); }),
      .onnx = "GRU"};
  gru.attrs.push_back({"linear_before_reset", "int", "the reset gate scales h R + b instead of h"});
  ir::OpSchema lstm{
      .name = "lstm",
      .doc =
          "long short-term memory, gates i, o, f, c; operands x, w, r, b, sequence_lens, initial_h, "
          "initial_c, peepholes",
      .is_product = true,
      .cut = recurrent_cut,
      .min_in = 3,
      .max_in = 8,
      .max_out = 3,
      .attrs = attrs(),
      .infer = [](const ir::NodeView& n) { return infer(n, 4); },
      .cost = cost(4),
      .grad = rule([](GradBuilder& g) { return recurrent_rule(g, "lstm_grad"); }),
      .onnx = "LSTM"};
  lstm.attrs.push_back({"input_forget", "int", "the forget gate is 1 - the input gate"});
  return {
      {std::move(rnn), rnn_cpu_kernels()},
      {std::move(gru), gru_cpu_kernels()},
      {std::move(lstm), lstm_cpu_kernels()},
      {backward("rnn_grad", "rnn back through time; operands of rnn, then the gradients of its results", 1),
       recurrent_grad_cpu_kernels(1)},
      {backward("gru_grad", "gru back through time; operands of gru, then the gradients of its results", 3),
       recurrent_grad_cpu_kernels(3)},
      {backward("lstm_grad", "lstm back through time; operands of lstm, then the gradients of its results",
                4),
       recurrent_grad_cpu_kernels(4)}};
}

}  // namespace trireme::ops
