// Elementwise ops on NVIDIA GPUs: each op and each fused chain becomes an element program, run in one launch.
#include <algorithm>
#include <limits>

#include "backend/cuda/elementwise/element_launch.h"
#include "ops/cuda_kernels.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/fused.h"

namespace trireme::ops {
namespace {

using cuda::ElementFunction;
using cuda::ElementProgram;
using cuda::ElementRef;
using cuda::ElementStep;
using cuda::ElementType;
using tensor::DType;

/// The program of a node, or the reason why there is none.
struct Made {
  ElementProgram program;
  ir::Refusal refusal;
};
Made refused(std::string why) { return {{}, std::move(why)}; }

/// A program with the node's operands and results but no steps; result k is register k.
ElementProgram program_of(const ir::NodeView& n, ElementType type) {
  ElementProgram p{.type = type, .steps = {}, .constants = {}, .inputs = {}, .outputs = {}, .extent = {}};
  for (size_t i = 0; i < n.in.size(); ++i) {
    p.inputs.push_back({n.in[i].dtype, n.present(i) ? n.in_dims(i) : tensor::Dims{}});
  }
  for (size_t k = 0; k < n.out.size(); ++k) p.outputs.push_back({n.out[k].dtype, static_cast<uint8_t>(k)});
  p.extent = n.out_dims(0);
  return p;
}

ElementStep step_of(cuda::ElementOp op, ElementRef a, ElementRef b = {}, const Params& params = {}) {
  return {.op = op, .dst = 0, .a = a, .b = b, .c = {}, .p = {params[0], params[1]}};
}

ElementRef constant(ElementProgram& p, double value) {
  p.constants.push_back(value);
  return cuda::element_constant(p.constants.size() - 1);
}

/// Applies one function to the operands; variadic ops are folded from the left.
Made single(const ir::NodeView& n, std::string_view function, const Params& params, bool divides = false) {
  const auto type = cuda::element_type_of(n.in[0].dtype);
  if (!type) return refused(no_type(n.in[0].dtype));
  const bool is_real = *type == ElementType::f32 || *type == ElementType::f64;
  if (divides && !is_real) return refused("a mean of integers");
  const auto f = cuda::element_function(function, *type);
  if (!f) return refused(base::concat("no device function '", function, "'"));
  Made made{program_of(n, *type), {}};
  ElementProgram& p = made.program;
  if (f->operands == 1) {
    p.steps.push_back(step_of(f->op, cuda::element_in(0), {}, params));
    return made;
  }
  ElementRef total = cuda::element_in(0);
  for (size_t i = 1; i < n.in.size(); ++i) {
    p.steps.push_back(step_of(f->op, total, cuda::element_in(i), params));
    total = cuda::element_reg(0);
  }
  if (n.in.size() == 1) p.steps.push_back(step_of(cuda::ElementOp::copy_, total));
  if (divides) {
    const ElementRef count = constant(p, static_cast<double>(n.in.size()));
    p.steps.push_back(step_of(cuda::ElementOp::div_, cuda::element_reg(0), count));
  }
  return made;
}

Made where_program(const ir::NodeView& n) {
  const auto type = cuda::element_type_of(n.in[1].dtype);
  if (!type) return refused(no_type(n.in[1].dtype));
  Made made{program_of(n, *type), {}};
  ElementStep step = step_of(cuda::ElementOp::select_, cuda::element_in(0), cuda::element_in(1));
  step.c = cuda::element_in(2);
  made.program.steps = {step};
  return made;
}

/// The bounds are operands with one element, read in every run.
Made clip_program(const ir::NodeView& n) {
  const auto type = cuda::element_type_of(n.in[0].dtype);
  if (!type) return refused(no_type(n.in[0].dtype));
  Made made{program_of(n, *type), {}};
  ElementRef value = cuda::element_in(0);
  for (size_t i = 1; i < n.in.size(); ++i) {
    if (!n.present(i)) continue;
    const cuda::ElementOp bound = i == 1 ? cuda::ElementOp::max_ : cuda::ElementOp::min_;
    made.program.steps.push_back(step_of(bound, value, cuda::element_in(i)));
    value = cuda::element_reg(0);
  }
  if (made.program.steps.empty()) made.program.steps = {step_of(cuda::ElementOp::copy_, value)};
  return made;
}

/// dy where low <= x <= high.
Made clip_grad_program(const ir::NodeView& n) {
  const auto type = cuda::element_type_of(n.in[0].dtype);
  if (!type) return refused(no_type(n.in[0].dtype));
  Made made{program_of(n, *type), {}};
  ElementProgram& p = made.program;
  const ElementRef zero = constant(p, 0);
  ElementRef value = cuda::element_in(0);
  const auto keep = [&](cuda::ElementOp compare, size_t bound) {
    ElementStep inside = step_of(compare, cuda::element_in(1), cuda::element_in(bound));
    inside.dst = 1;
    ElementStep choose = step_of(cuda::ElementOp::select_, cuda::element_reg(1), value);
    choose.c = zero;
    p.steps.insert(p.steps.end(), {inside, choose});
    value = cuda::element_reg(0);
  };
  if (n.present(2)) keep(cuda::ElementOp::greater_or_equal_, 2);
  if (n.present(3)) keep(cuda::ElementOp::less_or_equal_, 3);
  if (p.steps.empty()) p.steps = {step_of(cuda::ElementOp::copy_, value)};
  return made;
}

/// If the exponent has another type, the power is computed in f64, or exactly if both are integers.
Made pow_program(const ir::NodeView& n) {
  const auto base = cuda::element_type_of(n.in[0].dtype), exponent = cuda::element_type_of(n.in[1].dtype);
  if (!base || !exponent) return refused("elements without arithmetic");
  const auto is_real = [](ElementType t) { return t == ElementType::f32 || t == ElementType::f64; };
  const bool mixed = n.in[0].dtype != n.in[1].dtype;
  const ElementType type = !mixed                                 ? *base
                           : is_real(*base) || is_real(*exponent) ? ElementType::f64
                                                                  : ElementType::i64;
  Made made{program_of(n, type), {}};
  made.program.steps = {step_of(cuda::ElementOp::pow_, cuda::element_in(0), cuda::element_in(1))};
  return made;
}

ElementRef reference_of(const std::string& text) {
  const size_t index = static_cast<size_t>(std::stoi(text.substr(1)));
  switch (text[0]) {
    case 'i': return cuda::element_in(index);
    case 'c': return cuda::element_constant(index);
    // The first registers are the results.
    case 'o': return cuda::element_reg(index);
    default: return cuda::element_reg(cuda::kElementOutputs + index);
  }
}

/// The program of a fused chain. Parameters of a step are in the order of its functor, as in the row of the
/// table.
Made fused_program(const ir::NodeView& n) {
  static_assert(kMaxFusedInputs <= static_cast<int>(cuda::kElementInputs));
  static_assert(kMaxFusedOutputs <= static_cast<int>(cuda::kElementOutputs));
  for (const tensor::TensorType& t : n.out) {
    if (t.shape != n.out[0].shape) return refused("results of different shapes");
  }
  Made made{program_of(n, ElementType::f32), {}};
  ElementProgram& p = made.program;
  p.constants = n.attrs.get_floats("constants");
  const std::vector<double> params = n.attrs.get_floats("params");
  const std::vector<std::string> steps = n.attrs.get_strings("steps");
  for (size_t s = 0; s < steps.size(); ++s) {
    const FusedStepText text = parse_fused_step(steps[s]);
    const Params own = params.size() >= 2 * s + 2 ? Params{params[2 * s], params[2 * s + 1]} : Params{};
    std::vector<ElementRef> refs;
    for (const std::string& o : text.operands) refs.push_back(reference_of(o));
    ElementStep step{.op = cuda::ElementOp::muladd_,
                     .dst = reference_of(text.dst).index,
                     .a = refs[0],
                     .b = refs.size() > 1 ? refs[1] : ElementRef{},
                     .c = refs.size() > 2 ? refs[2] : ElementRef{},
                     .p = {own[0], own[1]}};
    if (text.function == "pow_scalar") {
      step.op = cuda::ElementOp::pow_;
      step.b = constant(p, own[0]);
    } else if (text.function != "muladd") {
      const auto f = cuda::element_function(text.function, p.type);
      if (!f) return refused(base::concat("no device function '", text.function, "'"));
      step.op = f->op;
    }
    p.steps.push_back(step);
  }
  return made;
}

/// The same, if all operands and results have one type: then equal bytes mean equal elements.
Made one_type_program(const ir::NodeView& n) {
  for (const auto* types : {&n.in, &n.out}) {
    for (const tensor::TensorType& t : *types) {
      if (t.dtype != n.out[0].dtype) return refused("operands and results of several types");
    }
  }
  return fused_program(n);
}

/// x stored as another type; the second operand of cast_like is not read.
Made cast_program(const ir::NodeView& n) {
  const auto type = cuda::element_type_of(n.in[0].dtype);
  if (!type || !cuda::element_type_of(n.out[0].dtype)) return refused("8-bit floats and packed types");
  Made made{program_of(n, *type), {}};
  made.program.inputs.resize(1);
  made.program.steps = {step_of(cuda::ElementOp::copy_, cuda::element_in(0))};
  return made;
}

/// Narrow integers are shifted as 64-bit values; storing them cuts off the bits outside their width.
Made bit_shift_program(const ir::NodeView& n) {
  return single(n, "bit_shift", {n.attrs.get_string("direction", "") == "LEFT" ? 1.0 : 0.0, 0.0});
}

/// Dropout in inference: x, and a mask of ones.
Made dropout_program(const ir::NodeView& n) {
  const auto type = cuda::element_type_of(n.in[0].dtype);
  if (!type) return refused(no_type(n.in[0].dtype));
  if (n.present(2) && (n.value(2) == nullptr || n.value(2)->to_ints().at(0) != 0))
    return refused("it may be training");
  Made made{program_of(n, *type), {}};
  ElementProgram& p = made.program;
  p.inputs.resize(1);
  p.steps = {step_of(cuda::ElementOp::copy_, cuda::element_in(0))};
  if (n.out.size() > 1) {
    p.steps.push_back(step_of(cuda::ElementOp::copy_, constant(p, 1)));
    p.steps.back().dst = 1;
  }
  return made;
}

using Make = std::function<Made(const ir::NodeView&)>;

/// `may_overwrite`: operands that have the element type of result 0 whenever they have its size.
ir::Kernel kernel_of(Make make, uint32_t may_overwrite) {
  ir::Kernel k{.name = "elements"};
  k.refuse = [make](const ir::NodeView& n) -> ir::Refusal {
    const Made made = make(n);
    if (made.refusal) return made.refusal;
    return cuda::refuse_elements(made.program);
  };
  k.prepare = [make = std::move(make)](const ir::KernelInit& init) -> ir::BoundKernel {
    const cuda::ElementRun run = cuda::bind_elements(make(init.node).program, init.device, init.packs);
    return {[run](const ir::RunArgs& args) { run(args.stream, args.in, args.out); }};
  };
  k.may_overwrite = may_overwrite;
  return k;
}

void add_rows(std::vector<CudaKernels>& all, const std::vector<ElementwiseRow>& rows) {
  for (const ElementwiseRow& row : rows) {
    const auto make = [&row](const ir::NodeView& n) {
      return single(n, row.function, params_of(row, n.attrs), row.divides);
    };
    all.push_back({std::string(row.name), {kernel_of(make, row.is_predicate ? 0u : 0xffffffffu)}});
  }
}

Make gelu_like(std::string name) {
  return [name](const ir::NodeView& n) {
    const bool is_tanh = n.attrs.get_string("approximate", "none") == "tanh";
    const std::string suffix = name.substr(4);  // empty or "_grad"
    return single(n, is_tanh ? "gelu_tanh" + suffix : name, {});
  };
}

}  // namespace

std::vector<CudaKernels> elementwise_cuda_kernels() {
  std::vector<CudaKernels> all;
  for (const auto* rows : {&unary_rows(), &unary_grad_rows(), &binary_rows(), &variadic_rows()})
    add_rows(all, *rows);
  all.push_back({"gelu", {kernel_of(gelu_like("gelu"), 1)}});
  all.push_back({"gelu_grad", {kernel_of(gelu_like("gelu_grad"), 3)}});
  all.push_back({"where", {kernel_of(where_program, 6)}});
  all.push_back({"clip", {kernel_of(clip_program, 1)}});
  all.push_back({"clip_grad", {kernel_of(clip_grad_program, 3)}});
  all.push_back({"pow", {kernel_of(pow_program, 1)}});
  all.push_back({"bit_shift", {kernel_of(bit_shift_program, 3)}});
  all.push_back({"dropout", {kernel_of(dropout_program, 1)}});
  for (const char* op : {"cast", "cast_like"}) all.push_back({op, {kernel_of(cast_program, 0)}});
  ir::Kernel mixed = kernel_of(fused_program, 0);
  mixed.name = "elements_mixed";
  all.push_back(
      {"fused_elementwise", {kernel_of(one_type_program, (1u << kMaxFusedInputs) - 1), std::move(mixed)}});
  return all;
}

}  // namespace trireme::ops
