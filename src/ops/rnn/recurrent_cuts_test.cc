// Recurrent layers with the batch cut, against the whole.
#include <gtest/gtest.h>

#include "ops/test_eval.h"
#include "tests/cut_trial.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;
using testing::values;
using tests::expect_cuts;

TEST(RecurrentCut, Batch) {
  struct Layer {
    std::string op;
    int64_t gates;
    size_t results;
  };
  for (const Layer& l : {Layer{"rnn", 1, 2}, {"gru", 3, 2}, {"lstm", 4, 3}}) {
    const Tensor x = values({5, 2, 3}, 1), w = values({1, l.gates * 4, 3}, 2),
                 r = values({1, l.gates * 4, 4}, 3);
    const Tensor b = values({1, l.gates * 8}, 4), h = values({1, 2, 4}, 5);
    const Tensor lengths = Tensor::from<int32_t>({2}, {5, 3});
    const ir::Attrs attrs{{"hidden_size", int64_t{4}}};
    std::vector<Tensor> in{x, w, r, b, lengths, h};
    EXPECT_EQ(expect_cuts({.op = l.op, .in = in, .attrs = attrs, .results = l.results}), "b") << l.op;
    in.resize(8);
    in.insert(in.end(), {values({5, 1, 2, 4}, 6), h, {}});
    EXPECT_EQ(expect_cuts({.op = l.op + "_grad", .in = in, .attrs = attrs, .results = 7}), "b") << l.op;
    // The layout with the batch first.
    const ir::Attrs first{{"hidden_size", int64_t{4}}, {"layout", int64_t{1}}};
    EXPECT_EQ(
        expect_cuts({.op = l.op, .in = {values({2, 5, 3}, 1), w, r}, .attrs = first, .results = l.results}),
        "b");
  }
}

}  // namespace
}  // namespace trireme::ops
