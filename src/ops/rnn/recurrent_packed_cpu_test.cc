// rnn, gru and lstm on packed products against the reference kernel in double, over random extents and
// options.
#include <cstring>

#include "ops/test_eval.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;
using tests::random_tensor;

int64_t draw(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

Tensor wide(const Tensor& t) {
  if (!t.defined() || t.dtype() != tensor::DType::f32) return t;
  Tensor out = Tensor::empty(tensor::DType::f64, t.dims());
  const std::vector<double> values = t.to_doubles();
  std::copy(values.begin(), values.end(), out.mutable_data<double>().begin());
  return out;
}

/// A layer and its operands: x, w, r, b, lengths, initial h, initial c, peepholes.
struct LayerNode {
  std::string op;
  size_t results = 2;
  ir::Attrs attrs;
  std::vector<Tensor> in;
};

/// Functions other than the defaults, with parameters that do not diverge over a few steps.
std::vector<std::string> functions(std::mt19937& random, size_t count) {
  const std::vector<std::string> all{"Sigmoid",     "Tanh",      "Relu", "Softsign",
                                     "HardSigmoid", "LeakyRelu", "Elu"};
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i)
    names.push_back(all[static_cast<size_t>(draw(random, 0, static_cast<int64_t>(all.size()) - 1))]);
  return names;
}

LayerNode random_layer(std::mt19937& random) {
  const int64_t kind = draw(random, 0, 2), gates = kind == 0 ? 1 : kind == 1 ? 3 : 4;
  const int64_t seq = draw(random, 1, 7), batch = draw(random, 1, 5), input = draw(random, 1, 40),
                hidden = draw(random, 1, 45);
  const std::string direction = std::vector<std::string>{
      "forward", "reverse", "bidirectional"}[static_cast<size_t>(draw(random, 0, 2))];
  const int64_t d = direction == "bidirectional" ? 2 : 1;
  const bool batch_first = draw(random, 0, 2) == 0;
  LayerNode l{kind == 0 ? "rnn" : kind == 1 ? "gru" : "lstm", kind == 2 ? size_t{3} : size_t{2}, {}, {}};
  l.attrs = {{"hidden_size", hidden}, {"direction", direction}, {"layout", int64_t{batch_first}}};
  if (draw(random, 0, 3) == 0) l.attrs.set("clip", 0.4);
  if (kind == 1 && draw(random, 0, 1) == 0) l.attrs.set("linear_before_reset", int64_t{1});
  if (kind == 2 && draw(random, 0, 3) == 0) l.attrs.set("input_forget", int64_t{1});
  if (draw(random, 0, 2) == 0)
    l.attrs.set("activations", functions(random, static_cast<size_t>(d * (kind == 0 ? 1 : gates - 1))));
  const tensor::Dims state = batch_first ? tensor::Dims{batch, d, hidden} : tensor::Dims{d, batch, hidden};
  l.in = {random_tensor(batch_first ? tensor::Dims{batch, seq, input} : tensor::Dims{seq, batch, input}, 1),
          random_tensor({d, gates * hidden, input}, 2, 0.3f),
          random_tensor({d, gates * hidden, hidden}, 3, 0.2f)};
  l.in.resize(kind == 2 ? 8 : 6);
  if (draw(random, 0, 3) > 0) l.in[3] = random_tensor({d, 2 * gates * hidden}, 4, 0.4f);
  if (draw(random, 0, 2) == 0) {
    l.in[4] = Tensor::zeros(tensor::DType::i32, {batch});
    for (int32_t& n : l.in[4].mutable_data<int32_t>()) n = static_cast<int32_t>(draw(random, 0, seq));
  }
  if (draw(random, 0, 1) == 0) l.in[5] = random_tensor(state, 5);
  if (kind == 2 && draw(random, 0, 1) == 0) l.in[6] = random_tensor(state, 6);
  if (kind == 2 && draw(random, 0, 2) == 0) l.in[7] = random_tensor({d, 3 * hidden}, 7, 0.3f);
  return l;
}

TEST(RecurrentPacked, AnyOptionIsCloseToTheReferenceInDouble) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 150; ++trial) {
    const LayerNode l = random_layer(random);
    SCOPED_TRACE(base::concat(l.op, " ", l.attrs.to_string(), " x ", tensor::to_string(l.in[0].dims()),
                              l.in[4].defined() ? " lengths" : ""));
    std::vector<Tensor> exact;
    for (const Tensor& t : l.in) exact.push_back(wide(t));
    const std::vector<Tensor> want = testing::run(l.op, exact, l.attrs, l.results);
    std::vector<size_t> fed{0};
    for (size_t i : {4, 5, 6}) {
      if (i < l.in.size() && l.in[i].defined()) fed.push_back(i);
    }
    const auto alone = tests::run_kernels(l.op, l.attrs, l.in, l.results, fed, 1);
    const auto team = tests::run_kernels(l.op, l.attrs, l.in, l.results, fed, 3);
    bool found = false;
    for (size_t k = 0; k < alone.size(); ++k) {
      found |= alone[k].kernel == "packed_steps";
      for (size_t i = 0; i < l.results; ++i) {
        tests::expect_close(alone[k].out[i], want[i].to_doubles(), 1e-4, 2e-5, alone[k].kernel);
        EXPECT_TRUE(alone[k].out[i].same_as(team[k].out[i])) << alone[k].kernel;
      }
    }
    EXPECT_TRUE(found);
  }
}

/// A row of the batch has the same bits if it is alone.
TEST(RecurrentPacked, RowsDoNotSeeEachOther) {
  std::mt19937 random(9);
  for (const char* op : {"rnn", "gru", "lstm"}) {
    const int64_t gates = std::string(op) == "rnn" ? 1 : std::string(op) == "gru" ? 3 : 4;
    const Tensor w = random_tensor({1, gates * 20, 12}, 2, 0.3f),
                 r = random_tensor({1, gates * 20, 20}, 3, 0.3f);
    const Tensor x = random_tensor({4, 6, 12}, 1);
    Tensor one = Tensor::empty(tensor::DType::f32, {4, 1, 12});
    for (int64_t t = 0; t < 4; ++t)
      std::memcpy(one.mutable_data<float>().data() + t * 12, x.data<float>().data() + (t * 6 + 5) * 12, 48);
    const ir::Attrs attrs{{"hidden_size", int64_t{20}}, {"clip", 5.0}};
    const Tensor all = tests::run_kernels(op, attrs, {x, w, r}, 2, {0})[0].out[1];
    const Tensor alone = tests::run_kernels(op, attrs, {one, w, r}, 2, {0})[0].out[1];
    EXPECT_EQ(std::memcmp(all.data<float>().data() + 5 * 20, alone.raw(), 80), 0) << op;
  }
}

TEST(RecurrentPacked, LengthsOutOfRangeAreErrors) {
  const Tensor x = random_tensor({3, 2, 4}, 1), w = random_tensor({1, 5, 4}, 2),
               r = random_tensor({1, 5, 5}, 3);
  for (const Tensor& data : {x, wide(x)}) {  // on packed products and by the reference
    const auto run = [&](std::vector<int32_t> lengths) {
      const Tensor at = Tensor::from<int32_t>({2}, std::span<const int32_t>(lengths));
      const bool is_wide = data.dtype() == tensor::DType::f64;
      testing::run("rnn", {data, is_wide ? wide(w) : w, is_wide ? wide(r) : r, Tensor(), at}, {}, 2);
    };
    run({0, 3});
    for (const int32_t bad : {-1, 4, INT32_MAX, INT32_MIN}) {
      try {
        run({3, bad});
        ADD_FAILURE() << bad;
      } catch (const base::Error& e) {
        EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
        EXPECT_NE(e.message().find("length of a sequence is out of range"), std::string::npos) << e.message();
      }
    }
  }
}

}  // namespace
}  // namespace trireme::ops
