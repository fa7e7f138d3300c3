// A chain of elementwise functions over broadcast operands as data: what a launch computes for each element
// of its results.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace trireme::cuda {

/// Functions of element_ops.inc, and those that are none of its kinds. The names are the ops'; some are words
/// of C++.
enum class ElementOp : uint8_t {
#define UNARY_OP(name, functor, on) name##_,
#define BINARY_OP(name, functor, on) name##_,
#include "backend/cuda/elementwise/element_ops.inc"
#undef UNARY_OP
#undef BINARY_OP
  copy_,    // a
  select_,  // a != 0 ? b : c
  muladd_,  // a b + c
};

/// Which arithmetic a program is done in; f16 and bf16 widen to f32, booleans and other integers to i64 (u64
/// to itself).
enum class ElementType : uint8_t { f32, f64, i64, u64 };

/// A value that a step reads.
struct ElementRef {
  enum class Kind : uint8_t { none, reg, input, constant } kind = Kind::none;
  uint8_t index = 0;
};
inline ElementRef element_reg(size_t i) { return {ElementRef::Kind::reg, static_cast<uint8_t>(i)}; }
inline ElementRef element_in(size_t i) { return {ElementRef::Kind::input, static_cast<uint8_t>(i)}; }
inline ElementRef element_constant(size_t i) { return {ElementRef::Kind::constant, static_cast<uint8_t>(i)}; }

/// register `dst` = op(a, b, c; p).
struct ElementStep {
  ElementOp op = ElementOp::copy_;
  uint8_t dst = 0;
  ElementRef a, b, c;
  double p[2] = {0, 0};
};

inline constexpr size_t kElementInputs = 16, kElementOutputs = 8, kElementSteps = 48;
inline constexpr size_t kElementRegisters = 24, kElementConstants = 32;
inline constexpr size_t kElementRank = 6;  ///< of the loops, after adjacent dimensions were merged

/// Steps over operands that broadcast to `extent`; the results are dense there.
struct ElementProgram {
  struct Input {
    tensor::DType dtype = tensor::DType::f32;
    tensor::Dims dims;
  };
  struct Output {
    tensor::DType dtype = tensor::DType::f32;
    uint8_t reg = 0;
  };
  ElementType type = ElementType::f32;
  std::vector<ElementStep> steps;
  std::vector<double> constants;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  tensor::Dims extent;
};

/// The function of an op's name with its number of operands; nullopt if there is none over `type`.
struct ElementFunction {
  ElementOp op;
  int operands;
};
std::optional<ElementFunction> element_function(std::string_view name, ElementType type);

/// Types that are arithmetic's: f16, bf16 -> f32; bool, i8 ... i32 -> i64. nullopt: 8-bit floats, packed
/// types.
std::optional<ElementType> element_type_of(tensor::DType dtype);

}  // namespace trireme::cuda
