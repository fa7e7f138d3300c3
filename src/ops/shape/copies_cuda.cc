// Ops that copy elements with strides, on NVIDIA GPUs: the same plans as on the CPU, in units of up to 16
// bytes.
#include "backend/cuda/index/copy.h"
#include "ops/cuda_kernels.h"
#include "ops/shape/copy_ops.h"
#include "ops/shape/fill_ops.h"

namespace trireme::ops {
namespace {

using Plan = std::vector<CopyJob> (*)(const ir::NodeView&);
using Needs = std::function<ir::Refusal(const ir::NodeView&)>;

ir::Refusal refuse_packed_operand(const ir::NodeView& n) {
  if (tensor::bits_of(n.in[0].dtype) < 8) return "packed elements";
  return std::nullopt;
}

cuda::StridedCopy wide_copy(const CopyPlan& plan, tensor::DType dtype) {
  return cuda::widened({.extent = plan.extent,
                        .x_steps = plan.in_steps,
                        .y_steps = plan.out_steps,
                        .x_base = plan.in_base,
                        .y_base = plan.out_base,
                        .unit_bytes = element_bytes_of(dtype)});
}

struct Job {
  cuda::StridedCopy copy;
  size_t in, out;
};
std::vector<Job> jobs_of(const ir::NodeView& n, Plan plan) {
  std::vector<Job> jobs;
  for (const CopyJob& job : plan(n)) jobs.push_back({wide_copy(job.plan, n.out[0].dtype), job.in, job.out});
  return jobs;
}

/// With `zeroes`, results are zero where nothing is copied to.
ir::Kernel strided(Plan plan, Needs needs = {}, bool zeroes = false) {
  ir::Kernel k{.name = "strided"};
  k.refuse = [plan, needs](const ir::NodeView& n) -> ir::Refusal {
    if (ir::Refusal no = refuse_packed_operand(n)) return no;
    if (ir::Refusal no = needs ? needs(n) : std::nullopt) return no;
    for (const Job& job : jobs_of(n, plan)) {
      if (ir::Refusal no = cuda::refuse_copy(job.copy)) return no;
    }
    return std::nullopt;
  };
  k.prepare = [plan, zeroes](const ir::KernelInit& init) {
    const std::vector<Job> jobs = jobs_of(init.node, plan);
    const int64_t bytes = zeroes ? tensor::bytes_of(init.node.out[0]) : 0;
    return ir::BoundKernel{[jobs, bytes](const ir::RunArgs& args) {
      if (bytes > 0) cuda::fill_zero(args.stream, args.out[0], bytes);
      for (const Job& job : jobs) {
        if (args.out[job.out] != nullptr)
          cuda::copy_strided(args.stream, job.copy, args.in[job.in], args.out[job.out]);
      }
    }};
  };
  return k;
}

cuda::PadMode pad_mode(const std::string& mode) {
  return mode == "edge"      ? cuda::PadMode::edge
         : mode == "wrap"    ? cuda::PadMode::wrap
         : mode == "reflect" ? cuda::PadMode::reflect
                             : cuda::PadMode::constant;
}

ir::Kernel pad_kernel() {
  ir::Kernel k{.name = "elements"};
  k.refuse = [needs = needs_values({1, 3})](const ir::NodeView& n) -> ir::Refusal {
    if (ir::Refusal no = refuse_packed_operand(n)) return no;
    if (n.in_dims(0).size() > cuda::kCopyRank) return "more than 8 dimensions";
    return needs(n);
  };
  k.prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    cuda::PadArgs pad{.x_dims = n.in_dims(0),
                      .y_dims = n.out_dims(0),
                      .before = pads_of(n).before,
                      .mode = pad_mode(n.attrs.get_string("mode", "constant")),
                      .unit_bytes = element_bytes_of(n.in[0].dtype)};
    const bool has_value = n.present(2);
    return ir::BoundKernel{[pad, has_value](const ir::RunArgs& args) {
      cuda::PadArgs a = pad;
      a.x = args.in[0];
      a.value = has_value ? args.in[2] : nullptr;
      a.y = args.out[0];
      cuda::pad(args.stream, a);
    }};
  };
  return k;
}

ir::Kernel constant_kernel() {
  ir::Kernel k{.name = "fill"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (tensor::bits_of(n.out[0].dtype) < 8) return "packed elements";
    return std::nullopt;
  };
  k.prepare = [](const ir::KernelInit& init) {
    const tensor::Tensor value = init.node.attrs.get_tensor("value");
    uint64_t unit = 0;
    if (value.defined()) std::memcpy(&unit, value.raw(), static_cast<size_t>(value.bytes()));
    const int64_t bytes = tensor::bytes_of(init.node.out[0]);
    const int64_t unit_bytes = element_bytes_of(init.node.out[0].dtype);
    return ir::BoundKernel{
        [=](const ir::RunArgs& args) { cuda::fill(args.stream, args.out[0], bytes, unit, unit_bytes); }};
  };
  return k;
}

}  // namespace

std::vector<CudaKernels> copies_cuda_kernels() {
  return {{"transpose", {strided(plan_transpose)}},
          {"expand", {strided(plan_expand)}},
          {"tile", {strided(plan_tile)}},
          {"concat", {strided(plan_concat)}},
          {"split", {strided(plan_split)}},
          {"slice", {strided(plan_slice, needs_values({1, 2, 3, 4}))}},
          {"slice_grad", {strided(plan_slice_grad, needs_values({1, 2, 3, 4}), /*zeroes=*/true)}},
          {"depth_to_space", {strided(plan_depth_to_space)}},
          {"space_to_depth", {strided(plan_space_to_depth)}},
          {"pad", {pad_kernel()}},
          {"constant_of_shape", {constant_kernel()}}};
}

}  // namespace trireme::ops
