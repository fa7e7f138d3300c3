// Recurrent layers and their gradients on the device against the CPU's reference: directions, lengths,
// layouts, functions, peepholes; few and many sequences.
#include "ops/test_eval.h"
#include "tests/run_kernels.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using testing::as_type;
using Text = std::string;

struct DeviceLayer {
  std::string op;
  int64_t seq = 5, batch = 3, input = 4, hidden = 8;
  Text direction = "forward";
  bool has_bias = true, has_lengths = false, has_states = true, has_peepholes = false, batch_first = false;
  ir::Attrs attrs = {};
  DType type = DType::f32;
};

int64_t gates_of(const std::string& op) { return op == "rnn" ? 1 : op == "gru" ? 3 : 4; }

Tensor small(const Dims& dims, uint32_t seed, DType type) {
  Tensor t = tests::random_tensor(dims, seed);
  for (float& v : t.mutable_data<float>()) v *= 0.5f;
  return as_type(t, type);
}

std::vector<Tensor> operands_of(const DeviceLayer& l) {
  const int64_t d = l.direction == "bidirectional" ? 2 : 1, rows = gates_of(l.op) * l.hidden;
  const bool is_lstm = l.op == "lstm";
  const Dims state = l.batch_first ? Dims{l.batch, d, l.hidden} : Dims{d, l.batch, l.hidden};
  std::vector<Tensor> in{
      small(l.batch_first ? Dims{l.batch, l.seq, l.input} : Dims{l.seq, l.batch, l.input}, 1, l.type),
      small({d, rows, l.input}, 2, l.type), small({d, rows, l.hidden}, 3, l.type)};
  in.resize(is_lstm ? 8 : 6);
  if (l.has_bias) in[3] = small({d, 2 * rows}, 4, l.type);
  if (l.has_lengths) {
    std::vector<int32_t> lengths;
    for (int64_t b = 0; b < l.batch; ++b) lengths.push_back(static_cast<int32_t>((b * 2 + 1) % (l.seq + 1)));
    in[4] = Tensor::from<int32_t>({l.batch}, std::span<const int32_t>(lengths));
  }
  if (l.has_states) in[5] = small(state, 5, l.type);
  if (l.has_states && is_lstm) in[6] = small(state, 6, l.type);
  if (l.has_peepholes) in[7] = small({d, 3 * l.hidden}, 7, l.type);
  return in;
}

ir::Attrs attrs_of(const DeviceLayer& l) {
  ir::Attrs attrs = l.attrs;
  attrs.set("direction", l.direction);
  attrs.set("hidden_size", l.hidden);
  if (l.batch_first) attrs.set("layout", int64_t{1});
  return attrs;
}

void expect_layer(const DeviceLayer& l) {
  SCOPED_TRACE(base::concat(l.op, " ", l.direction, " batch ", l.batch, " hidden ", l.hidden, " ",
                            name_of(l.type), l.has_lengths ? " lengths" : "",
                            l.batch_first ? " batch first" : ""));
  const double within = l.type == DType::f32 ? 2e-5 : 3e-2;
  const size_t results = l.op == "lstm" ? 3 : 2;
  std::vector<Tensor> in = operands_of(l);
  const ir::Attrs attrs = attrs_of(l);
  tests::expect_as_cpu({.op = l.op,
                        .in = in,
                        .attrs = attrs,
                        .out_count = results,
                        .relative = within,
                        .absolute = within,
                        .kernels = 1});
  if (l.type != DType::f32) return;
  base::ThreadPool pool(1);
  const std::vector<Tensor> out = evaluate(table().need(l.op), attrs, in, results, pool);
  in.resize(8);
  for (size_t i = 0; i < 3; ++i)
    in.push_back(i < results ? small(out[i].dims(), 10 + static_cast<uint32_t>(i), l.type) : Tensor());
  tests::expect_as_cpu(
      {.op = l.op + "_grad", .in = in, .attrs = attrs, .out_count = 7, .relative = 2e-4, .absolute = 1e-4});
}

TEST(RecurrentsCuda, DirectionsLengthsAndLayouts) {
  for (const char* op : {"rnn", "gru", "lstm"}) {
    for (const char* direction : {"forward", "reverse", "bidirectional"}) {
      for (const bool lengths : {false, true}) {
        for (const bool batch_first : {false, true})
          expect_layer(
              {.op = op, .direction = direction, .has_lengths = lengths, .batch_first = batch_first});
      }
    }
  }
}

TEST(RecurrentsCuda, SizesOnBothSidesOfTheProducts) {
  for (const char* op : {"rnn", "gru", "lstm"}) {
    expect_layer({.op = op, .batch = 1, .hidden = 40});
    expect_layer({.op = op, .batch = 5, .hidden = 7});  // rows that are not whole packs
    expect_layer({.op = op, .batch = 20, .hidden = 6, .direction = "bidirectional", .has_lengths = true});
    expect_layer({.op = op, .seq = 1, .batch = 2, .has_bias = false, .has_states = false});
  }
}

TEST(RecurrentsCuda, OptionsOfTheCells) {
  for (const int64_t batch : {2, 18}) {
    ir::Attrs linear{{"linear_before_reset", int64_t{1}}};
    expect_layer(
        {.op = "gru", .batch = batch, .direction = "bidirectional", .has_lengths = true, .attrs = linear});
    expect_layer({.op = "lstm", .batch = batch, .has_peepholes = true});
    for (const ir::Attrs& attrs : {ir::Attrs{{"input_forget", int64_t{1}}}, {{"clip", 0.4}}})
      expect_layer(
          {.op = "lstm", .batch = batch, .has_lengths = true, .has_peepholes = true, .attrs = attrs});
  }
  for (const char* gate : {"Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid",
                           "Elu", "Softsign", "Softplus"}) {
    expect_layer({.op = "rnn",
                  .attrs = {{"activations", std::vector<std::string>{gate}},
                            {"activation_alpha", std::vector<double>{0.3}},
                            {"activation_beta", std::vector<double>{0.6}}}});
  }
}

TEST(RecurrentsCuda, HalfPrecision) {
  for (const DType type : {DType::f16, DType::bf16}) {
    for (const char* op : {"rnn", "gru", "lstm"}) {
      expect_layer({.op = op, .batch = 2, .hidden = 16, .type = type});
      expect_layer({.op = op, .batch = 17, .hidden = 8, .has_lengths = true, .type = type});
    }
  }
}

}  // namespace
}  // namespace trireme::ops
