// Backward operators give the same bits for every number of threads, because the shapes alone determine the
// order of sums.
#include <gtest/gtest.h>

#include "ops/test_eval.h"
#include "tests/op_cases.h"

namespace trireme::ops {
namespace {

using namespace testing;  // NOLINT: the tests' own vocabulary
using tests::OpCase;

std::vector<OpCase> cases() {
  const auto f = [](tensor::Dims dims, uint64_t seed) {
    return random_tensor(DType::f32, std::move(dims), -1, 1, seed);
  };
  const Tensor ids = random_tensor(DType::i64, {3000}, 0, 40),
               ids_many = random_tensor(DType::i64, {900}, 0, 5000);
  std::vector<OpCase> all{
      {"gather_grad", {f({3000, 65}, 1), ids}, {{"shape", std::vector<int64_t>{40, 65}}}},
      {"gather_grad",
       {f({900, 33}, 1), ids_many, f({5000, 33}, 2)},
       {{"shape", std::vector<int64_t>{5000, 33}}}},
      {"reduce_sum", {f({20000, 64}, 1), ints({0})}},
      {"reduce_sum", {f({3000, 1500}, 1), ints({0})}},
      {"reduce_sum", {f({7, 900, 130}, 1), ints({1})}},
      {"softmax_grad", {f({300, 700}, 1), f({300, 700}, 2)}},
      {"softmax_grad", {f({30, 70, 90}, 1), f({30, 70, 90}, 2)}, {{"axis", int64_t{1}}}},
      {"resize_grad",
       {f({2, 3, 40, 40}, 1), Tensor(), Tensor(), ints({2, 3, 40, 40})},
       {{"mode", std::string("linear")}, {"shape", std::vector<int64_t>{2, 3, 17, 19}}}},
      {"grid_sample_grad_x",
       {f({2, 3, 30, 30}, 1), f({2, 30, 30, 2}, 2)},
       {{"shape", std::vector<int64_t>{2, 3, 9, 9}}}},
  };
  for (const std::string name : {"rnn", "gru", "lstm"}) {
    const int64_t gates = name == "rnn" ? 1 : name == "gru" ? 3 : 4;
    std::vector<Tensor> in{f({9, 6, 20}, 1), f({2, gates * 24, 20}, 2), f({2, gates * 24, 24}, 3),
                           f({2, 2 * gates * 24}, 4)};
    in.resize(8);
    in.push_back(f({9, 2, 6, 24}, 5));
    all.push_back({name + "_grad", in, {{"direction", std::string("bidirectional")}}, 7});
  }
  return all;
}

TEST(Backward, TheSameBitsForEveryThreadCount) {
  for (const OpCase& c : cases()) {
    base::ThreadPool one(1), two(2), five(5);
    const auto want = evaluate(table().need(c.op), c.attrs, c.in, c.results, one);
    for (base::ThreadPool* pool : {&two, &five}) {
      const auto got = evaluate(table().need(c.op), c.attrs, c.in, c.results, *pool);
      for (size_t r = 0; r < c.results; ++r) EXPECT_TRUE(got[r].same_as(want[r])) << c.op << " result " << r;
    }
  }
}

}  // namespace
}  // namespace trireme::ops
