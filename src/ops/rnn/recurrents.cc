// rnn, gru, lstm: recurrent layers over time, one or two directions: types and cost.
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
  if (all_static) plan_recurrent(n, gates);  // for its checks
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

}  // namespace

std::vector<ir::OpDef> recurrents_ops() {
  ir::OpSchema rnn{.name = "rnn",
                   .doc = "h = f(x W + h R + b) over time; operands x, w, r, b, sequence_lens, initial_h",
                   .min_in = 3,
                   .max_in = 6,
                   .max_out = 2,
                   .attrs = attrs(),
                   .infer = [](const ir::NodeView& n) { return infer(n, 1); },
                   .cost = cost(1),
                   .onnx = "RNN"};
  ir::OpSchema gru{
      .name = "gru",
      .doc = "gated recurrent unit, gates z, r, h; operands x, w, r, b, sequence_lens, initial_h",
      .min_in = 3,
      .max_in = 6,
      .max_out = 2,
      .attrs = attrs(),
      .infer = [](const ir::NodeView& n) { return infer(n, 3); },
      .cost = cost(3),
      .onnx = "GRU"};
  gru.attrs.push_back({"linear_before_reset", "int", "the reset gate scales h R + b instead of h"});
  ir::OpSchema lstm{
      .name = "lstm",
      .doc =
          "long short-term memory, gates i, o, f, c; operands x, w, r, b, sequence_lens, initial_h, "
          "initial_c, peepholes",
      .min_in = 3,
      .max_in = 8,
      .max_out = 3,
      .attrs = attrs(),
      .infer = [](const ir::NodeView& n) { return infer(n, 4); },
      .cost = cost(4),
      .onnx = "LSTM"};
  lstm.attrs.push_back({"input_forget", "int", "the forget gate is 1 - the input gate"});
  return {{std::move(rnn), rnn_cpu_kernels()},
          {std::move(gru), gru_cpu_kernels()},
          {std::move(lstm), lstm_cpu_kernels()}};
}

}  // namespace trireme::ops
