// Gradients of rnn, gru and lstm against finite differences: all options, lengths and directions.
#include "ops/test_grad.h"

namespace trireme::ops {
namespace {

using namespace testing;  // NOLINT: the tests' own vocabulary

Tensor small_values(tensor::Dims dims, uint64_t seed) {
  return testing::random_tensor(DType::f64, std::move(dims), -0.7, 0.7, seed);
}

struct Options {
  std::string direction = "forward";
  bool batch_first = false, has_bias = true, has_state = true, has_lengths = true;
  ir::Attrs attrs = {};
};

void check(const std::string& op, int64_t gates, const Options& o) {
  SCOPED_TRACE(op + " " + o.direction);
  const int64_t seq = 4, batch = 3, input = 2, n = 3, d = o.direction == "bidirectional" ? 2 : 1;
  const tensor::Dims state = o.batch_first ? tensor::Dims{batch, d, n} : tensor::Dims{d, batch, n};
  std::vector<Tensor> in{
      small_values(o.batch_first ? tensor::Dims{batch, seq, input} : tensor::Dims{seq, batch, input}, 1),
      small_values({d, gates * n, input}, 2), small_values({d, gates * n, n}, 3)};
  in.push_back(o.has_bias ? small_values({d, 2 * gates * n}, 4) : Tensor());
  in.push_back(o.has_lengths ? Tensor::from<int32_t>({batch}, std::vector<int32_t>{4, 0, 3}) : Tensor());
  in.push_back(o.has_state ? small_values(state, 5) : Tensor());
  if (gates == 4) {
    in.push_back(o.has_state ? small_values(state, 6) : Tensor());
    in.push_back(o.has_bias ? small_values({d, 3 * n}, 7) : Tensor());
  }
  ir::Attrs attrs = o.attrs;
  attrs.set("direction", o.direction);
  attrs.set("layout", int64_t{o.batch_first});
  expect_gradient({.op = op, .in = in, .attrs = attrs, .results = gates == 4 ? size_t{3} : size_t{2}});
}

TEST(RecurrentGrad, DirectionsLayoutsAndAbsentOperands) {
  const std::pair<const char*, int64_t> layers[] = {{"rnn", 1}, {"gru", 3}, {"lstm", 4}};
  for (const auto& [op, gates] : layers) {
    for (const char* direction : {"forward", "reverse", "bidirectional"})
      check(op, gates, {.direction = direction});
    check(op, gates, {.batch_first = true});
    check(op, gates, {.has_bias = false, .has_state = false, .has_lengths = false});
    check(op, gates, {.attrs = {{"clip", 0.4}}});
  }
}

TEST(RecurrentGrad, OptionsOfTheCells) {
  check("gru", 3, {.attrs = {{"linear_before_reset", int64_t{1}}}});
  check("lstm", 4, {.attrs = {{"input_forget", int64_t{1}}}});
  using Names = std::vector<std::string>;
  check("rnn", 1, {.attrs = {{"activations", Names{"Softplus"}}}});
  check("rnn", 1, {.attrs = {{"activations", Names{"Elu"}}, {"activation_alpha", std::vector<double>{0.6}}}});
  check("lstm", 4, {.attrs = {{"activations", Names{"HardSigmoid", "Softsign", "LeakyRelu"}}}});
  ir::Attrs scaled{{"activations", Names{"Sigmoid", "ScaledTanh"}}};
  scaled.set("activation_alpha", std::vector<double>{1.2});
  scaled.set("activation_beta", std::vector<double>{0.8});
  check("gru", 3, {.attrs = scaled});
}

/// f32 kernels for changing weights against the kernels in double: forward and every gradient.
TEST(RecurrentGrad, LstmBlocksAgreeWithDouble) {
  const int64_t seq = 7, batch = 5, input = 9, n = 18;
  for (const char* direction : {"forward", "reverse", "bidirectional"}) {
    for (const bool has_all : {true, false}) {
      const int64_t d = std::string(direction) == "bidirectional" ? 2 : 1;
      const ir::Attrs attrs{{"direction", std::string(direction)}};
      std::vector<Tensor> in{small_values({seq, batch, input}, 1), small_values({d, 4 * n, input}, 2),
                             small_values({d, 4 * n, n}, 3)};
      in.push_back(has_all ? small_values({d, 8 * n}, 4) : Tensor());
      in.push_back(Tensor());
      for (uint64_t seed : {5, 6}) in.push_back(has_all ? small_values({d, batch, n}, seed) : Tensor());
      std::vector<Tensor> back = in;
      back.push_back(Tensor());
      back.push_back(small_values({seq, d, batch, n}, 8));
      for (uint64_t seed : {9, 10}) back.push_back(has_all ? small_values({d, batch, n}, seed) : Tensor());
      const auto in_f32 = [](std::vector<Tensor> all) {
        for (Tensor& t : all) {
          if (t.defined()) t = run("cast", {t}, {{"to", int64_t{1}}})[0];
        }
        return all;
      };
      const auto agree = [&](const char* op, const std::vector<Tensor>& operands, size_t results) {
        const auto want = run(op, operands, attrs, results), got = run(op, in_f32(operands), attrs, results);
        for (size_t r = 0; r < std::min<size_t>(results, 6); ++r) {  // there are no peepholes here
          const std::vector<double> w = want[r].to_doubles(), g = got[r].to_doubles();
          for (size_t i = 0; i < w.size(); ++i)
            ASSERT_NEAR(g[i], w[i], 2e-5 * std::max(1.0, std::fabs(w[i])))
                << op << " result " << r << " at " << i;
        }
      };
      agree("lstm", in, 3);
      agree("lstm_grad", back, 7);
    }
  }
}

}  // namespace
}  // namespace trireme::ops
