// Every elementwise op of the table, cut along each dimension; also tests what it states about linearity.
#include <gtest/gtest.h>

#include "ops/test_eval.h"
#include "tests/cut_trial.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;

TEST(ElementwiseCut, EveryOpOfFloats) {
  size_t tried = 0;
  for (const ir::OpDef& op : table().all()) {
    const ir::OpSchema& s = op.schema;
    const bool is_unary = s.dims == "...->...", is_binary = s.dims == "...,...->...";
    if (!s.cut || s.is_random || !(is_unary || is_binary)) continue;
    const double low = s.name.starts_with("acosh") ? 1.1 : 0.1;  // where the function is defined
    std::vector<Tensor> in;
    for (uint64_t i = 0; i < (is_unary ? 1u : 2u); ++i)
      in.push_back(testing::random_tensor(DType::f64, {2, 4}, low, low + 0.8, i + 1));
    try {
      testing::run(s.name, in);
    } catch (const base::Error&) {
      continue;  // takes integers or booleans only, or needs an attribute
    }
    ++tried;
    EXPECT_EQ(tests::expect_cuts({.op = s.name, .in = in}), "ab") << s.name;
    if (is_unary) continue;
    in[1] = testing::random_tensor(DType::f64, {1, 4}, low, low + 0.8, 3);  // broadcast where it is cut
    EXPECT_EQ(tests::expect_cuts({.op = s.name, .in = in}), "ab") << s.name;
  }
  EXPECT_GE(tried, 60u);
}

}  // namespace
}  // namespace trireme::ops
