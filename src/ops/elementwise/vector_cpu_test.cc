// Rows of the vector toolkit's functions are the kernels of operators: by name, so a name that no operator
// has would leave one without its vector kernel.
#include <gtest/gtest.h>

#include <map>

#include "ops/elementwise/elementwise.h"
#include "ops/test_eval.h"

namespace trireme::ops {
namespace {

using testing::cpu_kernel_count;

/// What the rows of vector_functions.inc are called in graphs.
constexpr std::string_view kVectorFunctions[] = {
#define UNARY_FUNCTION(name, op, cost) op,
#define GRADIENT_FUNCTION(name, op, cost) op,
#include "backend/cpu/elementwise/vector_functions.inc"
#undef UNARY_FUNCTION
#undef GRADIENT_FUNCTION
};

TEST(Vector, FunctionsBelongToOperators) {
  // Steps of fused_elementwise whose operator has another name, by an attribute or an operand.
  const std::map<std::string_view, std::string_view> steps{
      {"gelu_tanh", "gelu"}, {"gelu_tanh_grad", "gelu_grad"}, {"pow_scalar", "pow"}};
  for (const std::string_view name : kVectorFunctions) {
    if (name.empty()) continue;
    const auto step = steps.find(name);
    const ir::OpDef* op = table().find(step == steps.end() ? name : step->second);
    ASSERT_NE(op, nullptr) << name;
    EXPECT_GT(cpu_kernel_count(*op), 1u) << name << ": its vector kernel is not there";
    EXPECT_EQ(vector_operands(name), name.ends_with("_grad") ? 2u : 1u) << name;
  }
}

}  // namespace
}  // namespace trireme::ops
