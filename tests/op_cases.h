// Valid nodes of the operators, which tests run, mutate and cut.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/schema.h"
#include "tensor/tensor.h"

namespace trireme::tests {

struct OpCase {
  std::string op;
  std::vector<tensor::Tensor> in;  ///< an undefined tensor is an absent operand
  ir::Attrs attrs = {};
  size_t results = 1;
};

std::vector<OpCase> window_cases();
std::vector<OpCase> index_cases();
std::vector<OpCase> shape_cases();
std::vector<OpCase> layer_cases();
std::vector<OpCase> product_cases();

/// Any valid node of an operator: one to three operands of one type and shape. nullopt where none is found.
std::optional<OpCase> plain_case(const ir::OpSchema& op);

}  // namespace trireme::tests
