// Names and limits of element programs, and how their operands are traversed.
#include "backend/cuda/elementwise/element_program.h"

#include <algorithm>

#include "backend/cuda/elementwise/element_launch.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

enum class On : uint8_t { real, number, integer };
struct Row {
  std::string_view name;
  ElementOp op;
  int operands;
  On on;
};
constexpr Row kRows[] = {
#define UNARY_OP(name, functor, on) {#name, ElementOp::name##_, 1, On::on},
#define BINARY_OP(name, functor, on) {#name, ElementOp::name##_, 2, On::on},
#include "backend/cuda/elementwise/element_ops.inc"
#undef UNARY_OP
#undef BINARY_OP
};

/// Row-major strides of `dims` along the dimensions of `out`; 0 where the operand is broadcast.
std::vector<int64_t> steps_along(const tensor::Dims& dims, const tensor::Dims& out) {
  std::vector<int64_t> steps(out.size(), 0);
  int64_t step = 1;
  for (size_t d = dims.size(), o = out.size(); d-- > 0;) {
    --o;
    if (dims[d] != 1) steps[o] = step;
    step *= dims[d];
  }
  return steps;
}

bool is_dense(const std::vector<int64_t>& steps, const tensor::Dims& out) {
  int64_t step = 1;
  for (size_t d = out.size(); d-- > 0;) {
    if (out[d] != 1 && steps[d] != step) return false;
    step *= out[d];
  }
  return true;
}

}  // namespace

std::optional<ElementFunction> element_function(std::string_view name, ElementType type) {
  const bool is_real = type == ElementType::f32 || type == ElementType::f64;
  for (const Row& row : kRows) {
    if (row.name != name || (row.on == On::real && !is_real) || (row.on == On::integer && is_real)) continue;
    return ElementFunction{row.op, row.operands};
  }
  return std::nullopt;
}

std::optional<ElementType> element_type_of(tensor::DType dtype) {
  using tensor::DType;
  switch (dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16: return ElementType::f32;
    case DType::f64: return ElementType::f64;
    case DType::boolean:
    case DType::i8:
    case DType::u8:
    case DType::i16:
    case DType::u16:
    case DType::i32:
    case DType::u32:
    case DType::i64: return ElementType::i64;
    case DType::u64: return ElementType::u64;
    default: return std::nullopt;
  }
}

ElementLoops element_loops(const ElementProgram& program) {
  const tensor::Dims& out = program.extent;
  ElementLoops loops{.count = tensor::element_count(out), .extent = {}, .sources = {}};
  std::vector<std::vector<int64_t>> steps;
  std::vector<size_t> walked;  // operands that need coordinates
  for (const ElementProgram::Input& in : program.inputs) {
    steps.push_back(steps_along(in.dims, out));
    const bool is_one =
        std::all_of(steps.back().begin(), steps.back().end(), [](int64_t s) { return s == 0; });
    using Form = ElementLoops::Form;
    const Form form = is_dense(steps.back(), out) ? Form::dense : is_one ? Form::scalar : Form::broadcast;
    if (form == Form::broadcast) walked.push_back(loops.sources.size());
    loops.sources.push_back({form, {}});
  }
  for (size_t d = 0; d < out.size() && !walked.empty(); ++d) {
    if (out[d] == 1) continue;
    // Merges with the preceding dimension where every walked operand continues with the same step.
    const bool joins = !loops.extent.empty() && std::all_of(walked.begin(), walked.end(), [&](size_t k) {
      return loops.sources[k].steps.back() == steps[k][d] * out[d];
    });
    joins ? loops.extent.back() *= out[d] : (loops.extent.push_back(out[d]), out[d]);
    for (size_t k : walked) {
      if (joins) loops.sources[k].steps.pop_back();
      loops.sources[k].steps.push_back(steps[k][d]);
    }
  }
  return loops;
}

std::optional<std::string> refuse_elements(const ElementProgram& program) {
  if (program.inputs.size() > kElementInputs || program.outputs.size() > kElementOutputs)
    return "more operands than a launch takes";
  if (program.steps.size() > kElementSteps || program.constants.size() > kElementConstants)
    return "more steps than a launch takes";
  if (element_loops(program).extent.size() > kElementRank) return "broadcast over more than 6 dimensions";
  return std::nullopt;
}

}  // namespace trireme::cuda
