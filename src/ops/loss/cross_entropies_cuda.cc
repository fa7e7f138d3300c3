// Kernels of cross entropy, its gradient and its steps for split classes on NVIDIA GPUs.
#include "backend/cuda/norm/loss.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"
#include "ops/loss/loss_cuts.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

ir::Refusal refuse_scores(const ir::NodeView& node) {
  if (node.in_dims(0).back() == 0) return "there are no classes";
  return refuse_dtype(node, 0, {DType::f32, DType::f16, DType::bf16});
}
ir::Refusal refuse_not_f32(const ir::NodeView& node) { return refuse_dtype(node, 0, {DType::f32}); }

/// `target`: index of the operand; `classes`: number of all classes unless the node states it.
cuda::CrossEntropyArgs entropy_of(const ir::NodeView& node, size_t target, int64_t classes) {
  return {.targets = {.is_wide = node.in[target].dtype == DType::i64,
                      .ignored = node.attrs.get_int("ignore_index", -100),
                      .classes = node.attrs.get_int("classes", classes)},
          .smoothing = static_cast<float>(node.attrs.get_float("label_smoothing", 0)),
          .z_loss = static_cast<float>(node.attrs.get_float("z_loss", 0)),
          .rows = tensor::element_count(node.in_dims(target)),
          .n = node.in_dims(0).empty() ? 0 : class_scores(node),
          .padded = node.attrs.get_int("padded", 0)};
}

cuda::CrossEntropyArgs with_run(cuda::CrossEntropyArgs a, const ir::RunArgs& args, size_t target) {
  a.logits = args.in[0];
  a.targets.at = args.in[target];
  a.targets.fault = args.fault;
  a.targets.step = args.step;
  a.workspace = args.workspace;
  return a;
}

cuda::EntropyResults results_of(const ir::RunArgs& args, size_t count) {
  auto at = [&](size_t i) { return i < count ? out_ptr<float>(args, i) : nullptr; };
  return {at(0), at(1), at(2), at(3)};
}

ir::Kernel entropy_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const cuda::CrossEntropyArgs fixed = entropy_of(init.node, 1, class_scores(init.node));
    const DType type = init.node.in[0].dtype;
    auto run = [fixed, type, results = init.node.out.size()](const ir::RunArgs& args) {
      cuda::cross_entropy({args.stream, type}, with_run(fixed, args, 1), results_of(args, results));
    };
    return ir::BoundKernel{run, cuda::cross_entropy_workspace_bytes(fixed.rows)};
  };
  return {.name = "rows", .refuse = refuse_scores, .prepare = prepare};
}

ir::Kernel gradient_kernel() {
  auto refuse = [](const ir::NodeView& node) -> ir::Refusal {
    if (auto why = refuse_scores(node)) return why;
    for (size_t i : {2, 3}) {
      if (auto why = refuse_dtype(node, i, {DType::f32})) return why;
    }
    return std::nullopt;
  };
  auto prepare = [](const ir::KernelInit& init) {
    const cuda::CrossEntropyArgs fixed = entropy_of(init.node, 1, class_scores(init.node));
    const DType type = init.node.in[0].dtype;
    const int64_t first = init.node.attrs.get_int("first", 0);
    return ir::BoundKernel{[fixed, type, first](const ir::RunArgs& args) {
      cuda::cross_entropy_grad({args.stream, type}, {.of = with_run(fixed, args, 1),
                                                     .log_sum_exp = in_ptr<float>(args, 2),
                                                     .dloss = in_ptr<float>(args, 3),
                                                     .dlogits = args.out[0],
                                                     .first = first});
    }};
  };
  return {.name = "rows", .refuse = refuse, .prepare = prepare, .may_overwrite = 1};
}

ir::Kernel part_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& node = init.node;
    const int64_t classes = class_scores(node), parts = node.out_dims(0).back();
    const cuda::EntropyPartArgs fixed{.of = entropy_of(node, 1, classes),
                                      .parts = parts,
                                      .part_length = (classes + parts - 1) / parts,  // as tensor::part_begin
                                      .first = node.attrs.get_int("first", 0)};
    return ir::BoundKernel{[fixed, type = node.in[0].dtype](const ir::RunArgs& args) {
      cuda::EntropyPartArgs a = fixed;
      a.of = with_run(a.of, args, 1);
      a.peaks = out_ptr<float>(args, 0);
      a.sums = out_ptr<float>(args, 1);
      cuda::entropy_part({args.stream, type}, a);
    }};
  };
  return {.name = "rows", .refuse = refuse_scores, .prepare = prepare};
}

ir::Kernel total_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const Dims peaks = init.node.in_dims(0);
    const int64_t parts = peaks.back(), rows = product(peaks, 0, peaks.size() - 1);
    const bool with_mean = init.node.in_dims(1)[0] == 4;
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      cuda::entropy_total(args.stream,
                          {in_ptr<float>(args, 0), in_ptr<float>(args, 1), in_ptr<float>(args, 2),
                           out_ptr<float>(args, 0), rows, parts, with_mean});
    }};
  };
  return {.name = "rows", .refuse = refuse_not_f32, .prepare = prepare};
}

ir::Kernel join_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const cuda::CrossEntropyArgs fixed = entropy_of(init.node, 2, 0);
    auto run = [fixed, results = init.node.out.size()](const ir::RunArgs& args) {
      cuda::entropy_join(args.stream, with_run(fixed, args, 2), in_ptr<float>(args, 0),
                         in_ptr<float>(args, 1), results_of(args, results));
    };
    return ir::BoundKernel{run, cuda::cross_entropy_workspace_bytes(fixed.rows)};
  };
  return {.name = "rows", .refuse = refuse_not_f32, .prepare = prepare};
}

}  // namespace

std::vector<CudaKernels> cross_entropies_cuda_kernels() {
  return {{"cross_entropy", {entropy_kernel()}},
          {"cross_entropy_grad", {gradient_kernel()}},
          {"cross_entropy_part", {part_kernel()}},
          {"cross_entropy_total", {total_kernel()}},
          {"cross_entropy_join", {join_kernel()}}};
}

}  // namespace trireme::ops
