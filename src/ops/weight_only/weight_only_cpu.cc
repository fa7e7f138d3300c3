// Kernels of weight_only_linear on CPU.
#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/dense/weight_rows.h"
#include "ops/kernel_forms.h"
#include "ops/weight_only/weight_only.h"

namespace trireme::ops {
namespace {

using tensor::DType;

ir::BoundKernel prepare_rows(const ir::KernelInit& init) {
  const WeightOnlyExtents e = weight_only_extents(init.node);
  const size_t operands = init.node.in.size();
  return {[e, operands](const ir::RunArgs& args) {
    cpu::weight_rows({.weights = {.w = in_ptr<uint8_t>(args, kWoWeights),
                                  .scale = in_ptr<float>(args, kWoScale),
                                  .zero = opt_ptr<int8_t>(args, kWoZero, operands),
                                  .bits = e.form.bits,
                                  .n = e.n,
                                  .k = e.k,
                                  .group = e.form.group},
                      .x = in_ptr<float>(args, kWoX),
                      .bias = opt_ptr<float>(args, kWoBias, operands),
                      .y = out_ptr<float>(args, 0),
                      .m = e.rows},
                     cpu::pool_of(args.stream));
  }};
}

/// One sum in f64 a result.
template <class T>
ir::BoundKernel bind_reference(const ir::NodeView& node) {
  const WeightOnlyExtents e = weight_only_extents(node);
  const size_t operands = node.in.size();
  return {[e, operands](const ir::RunArgs& args) {
    const T* x = in_ptr<T>(args, kWoX);
    const auto* scale = in_ptr<float>(args, kWoScale);
    const auto* zero = opt_ptr<int8_t>(args, kWoZero, operands);
    const auto* bias = opt_ptr<float>(args, kWoBias, operands);
    const int64_t groups = e.k / e.form.group, bytes = e.k * e.form.bits / 8;
    cpu::pool_of(args.stream).run(e.n, [&](int64_t n) {
      const uint8_t* row = in_ptr<uint8_t>(args, kWoWeights) + n * bytes;
      for (int64_t m = 0; m < e.rows; ++m) {
        double sum = bias == nullptr ? 0 : static_cast<double>(bias[n]);
        for (int64_t i = 0; i < e.k; ++i) {
          const int64_t at = n * groups + i / e.form.group;
          const int from = zero == nullptr ? default_zero(e.form.bits) : zero[at];
          const int step = stored_weight(row, i, e.form.bits) - from;
          sum += static_cast<double>(x[m * e.k + i]) * static_cast<double>(scale[at]) * step;
        }
        out_ptr<T>(args, 0)[m * e.n + n] = static_cast<T>(sum);
      }
    });
  }};
}

}  // namespace

std::vector<ir::Kernel> weight_only_linear_cpu_kernels() {
  const ir::Kernel rows{.name = "streamed",
                        .refuse = [](const ir::NodeView& n) { return refuse_dtype(n, kWoX, {DType::f32}); },
                        .prepare = prepare_rows};
  const ir::Kernel reference{.name = "reference",
                             .is_reference = true,
                             .refuse =
                                 [](const ir::NodeView& n) {
                                   return refuse_dtype(n, kWoX, {DType::f32, DType::f64});
                                 },
                             .prepare =
                                 [](const ir::KernelInit& init) {
                                   return visit_float(init.node.in[kWoX].dtype, [&](auto zero) {
                                     return bind_reference<decltype(zero)>(init.node);
                                   });
                                 }};
  return {rows, via_f32(rows), reference};
}

}  // namespace trireme::ops
