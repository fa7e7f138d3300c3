// A chain of elementwise functions as one pass over memory: a tiny interpreter whose registers are L1-sized
// tiles.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/elementwise/binary_ops.h"
#include "backend/cpu/elementwise/gradient_ops.h"
#include "backend/cpu/elementwise/unary_ops.h"
#include "base/threads/thread_pool.h"

namespace trireme::cpu {

/// What a step computes: one of the three tables, or one of the two three-operand functions.
enum class FusedKind : uint8_t {
  unary,     // dst = UnaryOp(op)(a; params)
  binary,    // dst = BinaryOp(op)(a, b)
  select,    // dst = c != 0 ? a : b
  muladd,    // dst = a * b + c
  gradient,  // dst = GradientOp(op)(a, b; params): a is dy, b the function's operand or result
};

/// A place a step reads or writes.
struct FusedRef {
  enum class Kind : uint8_t { none, reg, input, output, constant } kind = Kind::none;
  uint8_t index = 0;
};

inline FusedRef fused_reg(int i) { return {FusedRef::Kind::reg, static_cast<uint8_t>(i)}; }
inline FusedRef fused_input(int i) { return {FusedRef::Kind::input, static_cast<uint8_t>(i)}; }
inline FusedRef fused_output(int i) { return {FusedRef::Kind::output, static_cast<uint8_t>(i)}; }
inline FusedRef fused_constant(int i) { return {FusedRef::Kind::constant, static_cast<uint8_t>(i)}; }

struct FusedStep {
  FusedKind kind = FusedKind::unary;
  uint8_t op = 0;    // UnaryOp, BinaryOp or GradientOp, by kind
  FusedRef dst;      // reg or output
  FusedRef a, b, c;  // reg already written, output already written, input or constant
  UnaryParams params;
};

FusedStep fused_unary(UnaryOp op, FusedRef dst, FusedRef a, UnaryParams params = {});
FusedStep fused_binary(BinaryOp op, FusedRef dst, FusedRef a, FusedRef b);
FusedStep fused_gradient(GradientOp op, FusedRef dst, FusedRef a, FusedRef b, UnaryParams params = {});
FusedStep fused_select(FusedRef dst, FusedRef c, FusedRef a, FusedRef b);
FusedStep fused_muladd(FusedRef dst, FusedRef a, FusedRef b, FusedRef c);

/// How an input covers the [rows, cols] of the result.
enum class FusedShape : uint8_t {
  full,    // [rows, cols]
  row,     // [cols], the same for each row
  column,  // [rows], the same along each row
  scalar,  // [1]
};

struct FusedInput {
  const float* data;
  FusedShape shape;
};

constexpr int kFusedRegisters = 16;
constexpr int kFusedInputs = 16;
constexpr int kFusedOutputs = 8;

struct FusedProgram {
  std::vector<FusedStep> steps;
  std::vector<float> constants;
  int outputs = 1;
};

/// Checks references, limits and the write-before-read rule. Throws invalid_argument naming the step. Call
/// once, when the program is made; run_fused trusts it.
void verify_fused(const FusedProgram& program, int inputs);

struct FusedArgs {
  std::span<const FusedInput> inputs;
  std::span<float* const> outputs;  // [rows, cols] each
  int64_t rows = 1;
  int64_t cols = 0;
};

/// Executes the program over [rows, cols]: each input is read once, each output written once.
/// An output may be the memory of a full input that no step reads after the output's first write.
/// Bytes: 4 (full inputs + outputs) rows cols; flops: the sum over the steps. The result does not depend on
/// the number of threads. Cost on a tiny tensor: about 10 ns a step.
void run_fused(const FusedProgram& program, const FusedArgs& args, base::ThreadPool& pool);

}  // namespace trireme::cpu
