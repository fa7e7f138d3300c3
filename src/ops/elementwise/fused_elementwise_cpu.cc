// fused_elementwise by the interpreter of vector tiles: operands are full, rows, columns or scalars.
#include <algorithm>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/elementwise/fused_program.h"
#include "ops/elementwise/fused.h"
#include "ops/elementwise/vector_tiles_cpu.h"

namespace trireme::ops {
namespace {

cpu::FusedRef ref_of(const std::string& text) {
  const int index = std::stoi(text.substr(1));
  switch (text[0]) {
    case 'r': return cpu::fused_reg(index);
    case 'i': return cpu::fused_input(index);
    case 'o': return cpu::fused_output(index);
    default: return cpu::fused_constant(index);
  }
}

cpu::FusedProgram fused_program_of(const ir::NodeView& n) {
  cpu::FusedProgram program;
  for (double c : n.attrs.get_floats("constants")) program.constants.push_back(static_cast<float>(c));
  const std::vector<double> params = n.attrs.get_floats("params");
  const std::vector<std::string> steps = n.attrs.get_strings("steps");
  for (size_t s = 0; s < steps.size(); ++s) {
    const FusedStepText step = parse_fused_step(steps[s]);
    const Params p = params.size() >= 2 * s + 2 ? Params{params[2 * s], params[2 * s + 1]} : Params{};
    const cpu::FusedRef dst = ref_of(step.dst), a = ref_of(step.operands[0]);
    if (step.function == "muladd") {
      program.steps.push_back(cpu::fused_muladd(dst, a, ref_of(step.operands[1]), ref_of(step.operands[2])));
    } else if (const auto binary = cpu::binary_op_of(step.function)) {
      program.steps.push_back(cpu::fused_binary(*binary, dst, a, ref_of(step.operands[1])));
    } else if (const auto gradient = gradient_tile_of(step.function, p)) {
      program.steps.push_back(
          cpu::fused_gradient(gradient->op, dst, a, ref_of(step.operands[1]), gradient->params));
    } else {
      const auto unary = unary_tile_of(step.function, p);
      base::require(unary.has_value(), "fused_elementwise: no vector function '", step.function, "'");
      program.steps.push_back(cpu::fused_unary(unary->op, dst, a, unary->params));
    }
  }
  program.outputs = static_cast<int>(n.out.size());
  return program;
}

/// A view of the result as [rows, cols] in which every operand is full, a row, a column or a scalar.
struct Split {
  int64_t rows = 1, cols = 1;
  std::vector<cpu::FusedShape> shapes;
};

std::optional<cpu::FusedShape> shape_at(const tensor::Dims& padded, const tensor::Dims& out, size_t split) {
  const auto all_one = [&](size_t from, size_t to) {
    return std::all_of(padded.begin() + static_cast<int64_t>(from), padded.begin() + static_cast<int64_t>(to),
                       [](int64_t d) { return d == 1; });
  };
  const auto same = [&](size_t from, size_t to) {
    return std::equal(padded.begin() + static_cast<int64_t>(from), padded.begin() + static_cast<int64_t>(to),
                      out.begin() + static_cast<int64_t>(from));
  };
  const size_t rank = out.size();
  if (same(0, rank)) return cpu::FusedShape::full;
  if (all_one(0, rank)) return cpu::FusedShape::scalar;
  if (all_one(0, split) && same(split, rank)) return cpu::FusedShape::row;
  if (same(0, split) && all_one(split, rank)) return cpu::FusedShape::column;
  return std::nullopt;
}

std::optional<Split> find_split(const ir::NodeView& n) {
  const tensor::Dims out = n.out_dims(0);
  for (size_t split = 0; split <= out.size(); ++split) {
    Split s;
    for (size_t d = 0; d < out.size(); ++d) (d < split ? s.rows : s.cols) *= out[d];
    for (size_t i = 0; i < n.in.size(); ++i) {
      tensor::Dims padded = n.in_dims(i);
      padded.insert(padded.begin(), out.size() - padded.size(), 1);
      const auto shape = shape_at(padded, out, split);
      if (!shape) break;
      s.shapes.push_back(*shape);
    }
    if (s.shapes.size() == n.in.size()) return s;
  }
  return std::nullopt;
}

ir::Refusal refuse_fused(const ir::NodeView& n) {
  for (const auto* types : {&n.in, &n.out}) {
    for (const tensor::TensorType& t : *types) {
      if (t.dtype != tensor::DType::f32) return base::concat("an operand or result is ", name_of(t.dtype));
    }
  }
  for (const tensor::TensorType& t : n.out) {
    if (t.shape != n.out[0].shape) return "results of different shapes";
  }
  if (!find_split(n)) return "an operand is neither full nor a row, a column or a scalar of the result";
  return std::nullopt;
}

ir::BoundKernel prepare_fused(const ir::KernelInit& init) {
  const cpu::FusedProgram program = fused_program_of(init.node);
  const Split split = *find_split(init.node);
  cpu::verify_fused(program, static_cast<int>(split.shapes.size()));
  return {[program, split](const ir::RunArgs& args) {
    std::array<cpu::FusedInput, kMaxFusedInputs> inputs;
    std::array<float*, kMaxFusedOutputs> outputs;
    for (size_t i = 0; i < split.shapes.size(); ++i) {
      inputs[i] = {static_cast<const float*>(args.in[i]), split.shapes[i]};
    }
    const size_t results = static_cast<size_t>(program.outputs);
    for (size_t i = 0; i < results; ++i) outputs[i] = static_cast<float*>(args.out[i]);
    cpu::run_fused(program,
                   {{inputs.data(), split.shapes.size()}, {outputs.data(), results}, split.rows, split.cols},
                   cpu::pool_of(args.stream));
  }};
}

/// Whether only the last step writes a result, so that no operand is read after a result was written.
bool writes_last(const ir::NodeView& n) {
  const std::vector<std::string> steps = n.attrs.get_strings("steps");
  return std::none_of(steps.begin(), steps.end() - 1, [](const std::string& s) { return s[0] == 'o'; });
}

}  // namespace

std::vector<ir::Kernel> fused_elementwise_cpu_kernels() {
  ir::Kernel in_place{.name = "vector_in_place"};
  in_place.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (!writes_last(n)) return "a result is written before the last step";
    return refuse_fused(n);
  };
  in_place.prepare = prepare_fused;
  // An operand of the result's size is full, and each of its tiles is read before the result overwrites it.
  in_place.may_overwrite = (1u << kMaxFusedInputs) - 1;
  ir::Kernel k{.name = "vector"};
  k.refuse = refuse_fused;
  k.prepare = prepare_fused;
  return {in_place, k};
}

}  // namespace trireme::ops
