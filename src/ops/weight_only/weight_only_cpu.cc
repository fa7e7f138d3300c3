// Kernels of weight_only_linear and dequantize_weights on CPU.
#include <cstring>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/kernel_forms.h"
#include "ops/weight_only/weight_codes_cpu.h"
#include "tensor/small_float_math.h"

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
                                  .codes = weight_codes(e.form),
                                  .n = e.n,
                                  .k = e.k,
                                  .group = weight_stride(e.form, e.k)},
                      .x = in_ptr<float>(args, kWoX),
                      .bias = opt_ptr<float>(args, kWoBias, operands),
                      .y = out_ptr<float>(args, 0),
                      .m = e.rows},
                     cpu::pool_of(args.stream));
  }};
}

/// Reads stored weights [n, k] according to their definition.
struct WeightReader {
  const uint8_t* w;
  const float* scale;
  const int8_t* zero;
  int64_t k;
  WeightForm form;

  /// Weight `i` of row `n`.
  float at(int64_t n, int64_t i) const {
    const uint8_t* row = w + n * (k * form.bits / 8);
    uint16_t half = 0;
    if (form.bits == 16) std::memcpy(&half, row + 2 * i, sizeof half);
    if (form.type == DType::bf16) return tensor::bf16_bits_to_f32(half);
    if (form.type == DType::f16) return tensor::f16_bits_to_f32(half);
    const int64_t group = n * (k / form.group) + i / form.group;
    if (form.type == DType::f8e4m3fn) return tensor::decode_small_float(form.type, row[i]) * scale[group];
    const int from = zero == nullptr ? default_zero(form.bits) : zero[group];
    return static_cast<float>(stored_weight(row, i, form.bits) - from) * scale[group];
  }
};

/// Each result is one sum in f64.
template <class T>
ir::BoundKernel bind_reference(const ir::NodeView& node) {
  const WeightOnlyExtents e = weight_only_extents(node);
  const size_t operands = node.in.size();
  return {[e, operands](const ir::RunArgs& args) {
    const T* x = in_ptr<T>(args, kWoX);
    const WeightReader weights{in_ptr<uint8_t>(args, kWoWeights), opt_ptr<float>(args, kWoScale, operands),
                               opt_ptr<int8_t>(args, kWoZero, operands), e.k, e.form};
    const T* bias = opt_ptr<T>(args, kWoBias, operands);
    cpu::pool_of(args.stream).run(e.n, [&](int64_t n) {
      for (int64_t m = 0; m < e.rows; ++m) {
        double sum = bias == nullptr ? 0 : static_cast<double>(bias[n]);
        for (int64_t i = 0; i < e.k; ++i)
          sum += static_cast<double>(x[m * e.k + i]) * static_cast<double>(weights.at(n, i));
        out_ptr<T>(args, 0)[m * e.n + n] = static_cast<T>(sum);
      }
    });
  }};
}

ir::BoundKernel prepare_dequantize(const ir::KernelInit& init) {
  const DequantizeExtents e = dequantize_extents(init.node);
  const size_t operands = init.node.in.size();
  return {[e, operands](const ir::RunArgs& args) {
    const WeightReader weights{in_ptr<uint8_t>(args, kDqWeights), opt_ptr<float>(args, kDqScale, operands),
                               opt_ptr<int8_t>(args, kDqZero, operands), e.k, e.form};
    const auto* order = opt_ptr<int32_t>(args, kDqOrder, operands);
    cpu::pool_of(args.stream).run(e.n, [&](int64_t n) {
      float* y = out_ptr<float>(args, 0) + n * e.k;
      for (int64_t i = 0; i < e.k; ++i) {
        const int64_t from = order == nullptr ? i : order[i];
        const bool is_bad = from < 0 || from >= e.k;
        if (is_bad && args.status != nullptr) args.status->fail("an index is out of range", from);
        y[i] = is_bad ? 0 : weights.at(n, from);
      }
    });
  }};
}

ir::Refusal refuse_nothing(const ir::NodeView&) { return std::nullopt; }

}  // namespace

ir::Kernel via_stored_f32(const ir::Kernel& rows, size_t weights) {
  ir::Kernel half = via_f32(rows);
  half.refuse = [refuse = half.refuse, weights](const ir::NodeView& n) -> ir::Refusal {
    const DType type = n.in[weights].dtype;
    if (type == DType::bf16 || type == DType::f16) return "weights of 16 bits meet rows in f32";
    return refuse(n);
  };
  return half;
}

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
  return {rows, via_stored_f32(rows, kWoWeights), reference};
}

std::vector<ir::Kernel> dequantize_weights_cpu_kernels() {
  return {
      {.name = "reference", .is_reference = true, .refuse = refuse_nothing, .prepare = prepare_dequantize}};
}

}  // namespace trireme::ops
