// Reductions, arg_max, arg_min and cumulative sums on NVIDIA GPUs.
#include <limits>

#include "backend/cuda/index/copy.h"
#include "backend/cuda/norm/reduce.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"
#include "ops/reduce/reduce.h"

namespace trireme::ops {
namespace {

using cuda::ReduceFinish;
using cuda::ReduceJoin;
using cuda::ReducePlan;
using cuda::ReduceTerm;

struct DeviceReduction {
  const char* op;
  ReduceJoin join;
  ReduceTerm term;
  ReduceFinish finish;
};

constexpr DeviceReduction kDeviceReductions[] = {
    {"reduce_sum", ReduceJoin::sum, ReduceTerm::plain, ReduceFinish::plain},
    {"reduce_mean", ReduceJoin::sum, ReduceTerm::plain, ReduceFinish::mean},
    {"reduce_max", ReduceJoin::max, ReduceTerm::plain, ReduceFinish::plain},
    {"reduce_min", ReduceJoin::min, ReduceTerm::plain, ReduceFinish::plain},
    {"reduce_prod", ReduceJoin::product, ReduceTerm::plain, ReduceFinish::plain},
    {"reduce_l1", ReduceJoin::sum, ReduceTerm::absolute, ReduceFinish::plain},
    {"reduce_l2", ReduceJoin::sum, ReduceTerm::square, ReduceFinish::root},
    {"reduce_log_sum", ReduceJoin::sum, ReduceTerm::plain, ReduceFinish::log},
    {"reduce_sum_square", ReduceJoin::sum, ReduceTerm::square, ReduceFinish::plain},
};

ReducePlan plan_of(const DeviceReduction& row, const ir::NodeView& n) {
  ReducePlan plan = cuda::plan_reduce(n.in_dims(0), reduced_axes(n));
  plan.join = row.join;
  plan.term = row.term;
  plan.finish = row.finish;
  return plan;
}

/// The extreme of no i32 is the other end of their range; totals of i32 are i64, whose range is another.
ir::BoundKernel extreme_of_none(const ReducePlan& plan) {
  using Limits = std::numeric_limits<int32_t>;
  const auto end = static_cast<uint32_t>(plan.join == ReduceJoin::max ? Limits::lowest() : Limits::max());
  const auto bytes = plan.results * static_cast<int64_t>(sizeof end);
  return {[end, bytes](const ir::RunArgs& args) {
    cuda::fill(args.stream, args.out[0], bytes, end, sizeof end);
  }};
}

ir::Kernel reduction(const DeviceReduction& row) {
  ir::Kernel k{.name = "two_stages"};
  k.refuse = [&row](const ir::NodeView& n) -> ir::Refusal {
    if (n.present(1) && n.value(1) == nullptr) return "the axes are not known before the run";
    return cuda::refuse_reduce(plan_of(row, n), n.in[0].dtype);
  };
  k.prepare = [&row](const ir::KernelInit& init) {
    const ReducePlan plan = plan_of(row, init.node);
    const tensor::DType dtype = init.node.in[0].dtype;
    const bool is_extreme = plan.join == ReduceJoin::max || plan.join == ReduceJoin::min;
    if (is_extreme && plan.terms == 0 && dtype == tensor::DType::i32) return extreme_of_none(plan);
    return ir::BoundKernel{
        [plan, dtype](const ir::RunArgs& args) {
          cuda::reduce({args.stream, dtype}, plan, args.in[0], args.out[0], args.workspace);
        },
        cuda::reduce_workspace_bytes(plan, dtype)};
  };
  return k;
}

cuda::AlongArgs along(const ir::NodeView& n, int64_t axis) {
  const tensor::Dims dims = n.in_dims(0);
  if (dims.empty()) return {};
  const AxisLoops loops = axis_loops(dims, ir::normal_axis(axis, dims.size()));
  return {.x = nullptr, .y = nullptr, .outer = loops.outer, .n = loops.n, .inner = loops.inner};
}

ir::Kernel extreme(bool is_max) {
  ir::Kernel k{.name = "rows"};
  k.refuse = [](const ir::NodeView& n) { return cuda::refuse_reduce({}, n.in[0].dtype); };
  k.prepare = [is_max](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const cuda::AlongArgs shape = along(n, n.attrs.get_int("axis", 0));
    const bool takes_last = n.attrs.get_int("select_last_index", 0) != 0;
    const tensor::DType dtype = n.in[0].dtype;
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      cuda::AlongArgs a = shape;
      a.x = args.in[0];
      a.y = args.out[0];
      cuda::arg_extreme({args.stream, dtype}, a, is_max, takes_last);
    }};
  };
  return k;
}

ir::Kernel running(bool is_product) {
  ir::Kernel k{.name = "scan"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (n.value(1) == nullptr) return "the axis is not known before the run";
    return cuda::refuse_reduce({}, n.in[0].dtype);
  };
  k.prepare = [is_product](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const cuda::AlongArgs shape = along(n, n.value(1)->to_ints().at(0));
    const cuda::ScanRule rule{is_product, n.attrs.get_int("exclusive", 0) != 0,
                              n.attrs.get_int("reverse", 0) != 0};
    const tensor::DType dtype = n.in[0].dtype;
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      cuda::AlongArgs a = shape;
      a.x = args.in[0];
      a.y = args.out[0];
      cuda::scan({args.stream, dtype}, a, rule);
    }};
  };
  return k;
}

}  // namespace

std::vector<CudaKernels> reduce_cuda_kernels() {
  std::vector<CudaKernels> all;
  for (const DeviceReduction& row : kDeviceReductions) all.push_back({row.op, {reduction(row)}});
  all.push_back({"arg_max", {extreme(true)}});
  all.push_back({"arg_min", {extreme(false)}});
  all.push_back({"cum_sum", {running(false)}});
  all.push_back({"cum_prod", {running(true)}});
  return all;
}

}  // namespace trireme::ops
