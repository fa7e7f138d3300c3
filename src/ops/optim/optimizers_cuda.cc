// Kernels of updates, averages, gradient norms and clipping on NVIDIA GPUs.
#include "ops/cuda_kernels.h"
#include "ops/optim/update_node_cuda.h"

namespace trireme::ops {
namespace {

using tensor::DType;

/// A kernel that calls `launch(call, operands)` for the tensors of a node.
template <class Form>
ir::Kernel device_update_kernel(std::string op, Form form_of) {
  auto prepare = [op, form_of](const ir::KernelInit& init) {
    const auto node = std::make_shared<const UpdateNode>(init.node, op);
    auto run = [node, launch = form_of(init.node.attrs)](const ir::RunArgs& args) {
      const std::vector<cuda::UpdateTensor> tensors = node->tensors(args);
      launch({args.stream, tensors, args.workspace}, node->operands(args));
    };
    return ir::BoundKernel{run, cuda::kUpdateWorkspaceBytes};
  };
  return {.name = "multi_tensor", .refuse = refuse_wide_update, .prepare = prepare};
}

auto sgd_form(const ir::Attrs& attrs) {
  const cuda::SgdForm form{.lr_scale = attrs.get_float("lr_scale", 1),
                           .l2 = attrs.get_float("weight_decay", 0),
                           .momentum = attrs.get_float("momentum", 0),
                           .keep = 1 - attrs.get_float("dampening", 0),
                           .nesterov = attrs.get_int("nesterov", 0) != 0};
  return [form](const cuda::UpdateCall& call, const cuda::UpdateOperands& o) {
    cuda::sgd_update(call, o, form);
  };
}

auto adam_form(const ir::Attrs& attrs) {
  const cuda::AdamForm form{.lr_scale = attrs.get_float("lr_scale", 1),
                            .weight_decay = attrs.get_float("weight_decay", 0),
                            .beta1 = attrs.get_float("beta1", 0.9),
                            .beta2 = attrs.get_float("beta2", 0.999),
                            .epsilon = attrs.get_float("epsilon", 1e-8),
                            .decoupled = attrs.get_int("decoupled", 1) != 0};
  return [form](const cuda::UpdateCall& call, const cuda::UpdateOperands& o) {
    cuda::adam_update(call, o, form);
  };
}

/// ema_weights(step, skip, (average, value) ...).
ir::Kernel ema_weights_kernel() {
  auto refuse = [](const ir::NodeView& node) -> ir::Refusal {
    if (node.in.size() < 4) return "nothing to average";
    return refuse_dtype(node, 2, {DType::f32});
  };
  auto prepare = [](const ir::KernelInit& init) {
    std::vector<int64_t> elements;
    for (size_t i = 2; i < init.node.in.size(); i += 2)
      elements.push_back(tensor::element_count(init.node.in_dims(i)));
    const double keep = init.node.attrs.get_float("keep", 0.999);
    const bool ramp = init.node.attrs.get_int("ramp", 0) != 0;
    auto run = [=](const ir::RunArgs& args) {
      std::vector<cuda::UpdateTensor> tensors(elements.size());
      for (size_t g = 0; g < elements.size(); ++g) {
        tensors[g].param = in_ptr<float>(args, 2 + 2 * g);
        tensors[g].grad = in_ptr<float>(args, 3 + 2 * g);
        tensors[g].param_out = out_ptr<float>(args, g);
        tensors[g].n = elements[g];
      }
      cuda::average_update({args.stream, tensors, args.workspace}, ramp ? in_ptr<int64_t>(args, 0) : nullptr,
                           in_ptr<uint8_t>(args, 1), keep);
    };
    return ir::BoundKernel{run, cuda::kUpdateWorkspaceBytes};
  };
  return {.name = "multi_tensor", .refuse = refuse, .prepare = prepare};
}

/// (state, value, skip?) -> new state.
ir::Kernel ema_update_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const int64_t n = tensor::element_count(init.node.in_dims(0));
    const double keep = init.node.attrs.get_float("keep", 0.9);
    const bool has_flag = init.node.present(2);
    auto run = [=](const ir::RunArgs& args) {
      cuda::UpdateTensor t;
      t.param = in_ptr<float>(args, 0);
      t.grad = in_ptr<float>(args, 1);
      t.param_out = out_ptr<float>(args, 0);
      t.n = n;
      cuda::average_update({args.stream, {&t, 1}, args.workspace}, nullptr,
                           has_flag ? in_ptr<uint8_t>(args, 2) : nullptr, keep);
    };
    return ir::BoundKernel{run, cuda::kUpdateWorkspaceBytes};
  };
  auto refuse = [](const ir::NodeView& node) { return refuse_dtype(node, 0, {DType::f32}); };
  return {.name = "multi_tensor", .refuse = refuse, .prepare = prepare};
}

/// (count, value, levels ...) -> new levels.
ir::Kernel tree_kernel() {
  auto refuse = [](const ir::NodeView& node) -> ir::Refusal {
    if (node.in.size() - 2 > cuda::kMostTreeLevels) return "too many levels";
    return refuse_dtype(node, 1, {DType::f32});
  };
  auto prepare = [](const ir::KernelInit& init) {
    const int64_t n = tensor::element_count(init.node.in_dims(1));
    const size_t levels = init.node.in.size() - 2;
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      cuda::tree_accumulate(args.stream, {.count = in_ptr<int64_t>(args, 0),
                                          .value = in_ptr<float>(args, 1),
                                          .held = {args.in + 2, levels},
                                          .out = {args.out, levels},
                                          .n = n,
                                          .fault = args.fault,
                                          .step = args.step});
    }};
  };
  return {.name = "flat", .refuse = refuse, .prepare = prepare};
}

ir::Refusal refuse_f64(const ir::NodeView& node) {
  if (node.in.empty()) return "no operands";
  return refuse_dtype(node, 0, {DType::f32});
}

ir::Kernel all_finite_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    std::vector<int64_t> elements;
    for (size_t i = 0; i < init.node.in.size(); ++i)
      elements.push_back(tensor::element_count(init.node.in_dims(i)));
    auto run = [elements](const ir::RunArgs& args) {
      std::vector<cuda::UpdateTensor> tensors(elements.size());
      for (size_t i = 0; i < elements.size(); ++i) {
        tensors[i].param = in_ptr<float>(args, i);
        tensors[i].n = elements[i];
      }
      cuda::all_finite({args.stream, tensors, args.workspace}, out_ptr<uint8_t>(args, 0));
    };
    return ir::BoundKernel{run, cuda::all_finite_workspace_bytes(elements)};
  };
  return {.name = "multi_tensor", .refuse = refuse_f64, .prepare = prepare};
}

std::vector<cuda::BlockedSquares> blocked_squares(const ir::NodeView& node) {
  const auto dims = node.attrs.get_ints("dims"), blocks = node.attrs.get_ints("blocks");
  std::vector<cuda::BlockedSquares> out;
  int64_t result = 0;
  for (size_t i = 0; i < node.in.size(); ++i) {
    const tensor::Dims extents = node.in_dims(i);
    cuda::BlockedSquares t{.blocks = blocks[i], .result = result};
    for (size_t d = 0; d < extents.size(); ++d)
      (static_cast<int64_t>(d) < dims[i] ? t.outer : t.inner) *= extents[d];
    t.inner /= t.blocks;
    result += t.blocks;
    out.push_back(t);
  }
  return out;
}

ir::Kernel block_squares_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const std::vector<cuda::BlockedSquares> fixed = blocked_squares(init.node);
    auto run = [fixed](const ir::RunArgs& args) {
      std::vector<cuda::BlockedSquares> tensors = fixed;
      for (size_t i = 0; i < tensors.size(); ++i) tensors[i].x = in_ptr<float>(args, i);
      cuda::block_squares(args.stream, tensors, out_ptr<double>(args, 0), args.workspace);
    };
    return ir::BoundKernel{run, cuda::block_squares_workspace_bytes(fixed)};
  };
  return {.name = "multi_tensor", .refuse = refuse_f64, .prepare = prepare};
}

ir::Kernel norm_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const ir::Attrs& attrs = init.node.attrs;
    const auto parts = attrs.get_ints("parts"), counts = attrs.get_ints("counts");
    const auto operands = attrs.get_ints("operands");
    std::vector<int64_t> held(init.node.in.size());
    std::vector<cuda::SquaresOfRanks> fixed;
    for (size_t t = 0; t < counts.size(); ++t) {
      const auto operand = static_cast<size_t>(operands[t]);
      fixed.push_back({nullptr, held[operand], counts[t], parts[operand], 0});
      held[operand] += counts[t];
    }
    for (size_t t = 0; t < counts.size(); ++t) fixed[t].stride = held[static_cast<size_t>(operands[t])];
    const bool root = attrs.get_int("root", 1) != 0;
    auto run = [=](const ir::RunArgs& args) {
      std::vector<cuda::SquaresOfRanks> tensors = fixed;
      for (size_t t = 0; t < tensors.size(); ++t)
        tensors[t].at = in_ptr<double>(args, static_cast<size_t>(operands[t]));
      cuda::norm_of_squares(args.stream, tensors, root ? out_ptr<float>(args, 0) : nullptr,
                            root ? nullptr : out_ptr<double>(args, 0), args.workspace);
    };
    return ir::BoundKernel{run, static_cast<int64_t>(counts.size() * sizeof(double))};
  };
  return {.name = "multi_tensor", .refuse = {}, .prepare = prepare};
}

ir::Kernel clip_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const ir::Attrs& attrs = init.node.attrs;
    cuda::ClipArgs fixed;
    fixed.max_norm = attrs.get_float("max_norm", 0);
    fixed.epsilon = attrs.get_float("epsilon", 1e-6);
    fixed.skip_nonfinite = attrs.get_int("skip_nonfinite", 1) != 0;
    const size_t operands = init.node.in.size(), results = init.node.out.size();
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      cuda::ClipArgs a = fixed;
      a.norm = in_ptr<float>(args, 0);
      a.grad_scale = opt_ptr<float>(args, 1, operands);
      a.norm_limit = opt_ptr<float>(args, 2, operands);
      a.loss = opt_ptr<float>(args, 3, operands);
      a.loss_limit = opt_ptr<float>(args, 4, operands);
      a.coefficient = out_ptr<float>(args, 0);
      a.skip = results > 1 ? out_ptr<uint8_t>(args, 1) : nullptr;
      a.scaled = results > 2 ? out_ptr<float>(args, 2) : nullptr;
      cuda::clip_coefficient(args.stream, a);
    }};
  };
  return {.name = "scalar", .refuse = {}, .prepare = prepare};
}

}  // namespace

std::vector<CudaKernels> optimizers_cuda_kernels() {
  return {{"sgd_update", {device_update_kernel("sgd_update", sgd_form)}},
          {"momentum_update", {device_update_kernel("momentum_update", sgd_form)}},
          {"adam_update", {device_update_kernel("adam_update", adam_form)}},
          {"ema_weights", {ema_weights_kernel()}},
          {"ema_update", {ema_update_kernel()}},
          {"tree_accumulate", {tree_kernel()}},
          {"all_finite", {all_finite_kernel()}},
          {"block_squares", {block_squares_kernel()}},
          {"norm_of_squares", {norm_kernel()}},
          {"clip_coefficient", {clip_kernel()}}};
}

}  // namespace trireme::ops
