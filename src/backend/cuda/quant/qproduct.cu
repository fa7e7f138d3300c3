// Launchers of the steps around 8-bit products.
#include "backend/cuda/quant/qproduct.h"

#include <algorithm>

#include "backend/cuda/quant/dynamic_quantize_kernels.h"
#include "backend/cuda/quant/qproduct_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kRangeParts = 512;  // blocks that search for the extremes

Launch warp_launch(tensor::Stream& stream, int64_t rows) {
  return {blocks_for(cuda_stream(stream), (rows + 7) / 8, 32), kThreads};
}

}  // namespace

void pack_quant_rows(tensor::Stream& stream, const PackRowsArgs& a) {
  if (a.window.rows() == 0) return;
  const bool by_packs = a.window.channels % kQuantPad == 0 && reinterpret_cast<uintptr_t>(a.x) % 16 == 0;
  launch(stream, "pack_quant_rows", warp_launch(stream, a.window.rows()), PackRows{a, by_packs});
}

void pack_quant_columns(tensor::Stream& stream, const PackColumnsArgs& a) {
  if (a.n == 0) return;
  launch(stream, "pack_quant_columns", warp_launch(stream, quant_padded(a.n)), PackColumns{a});
}

std::shared_ptr<const GemmPlan> prepare_quant_product(const GemmPlace& place, int64_t rows, int64_t n,
                                                      int64_t k) {
  return prepare_gemm(place, {.m = rows,
                              .n = quant_padded(n),
                              .k = quant_padded(k),
                              .transpose_b = true,
                              .in = tensor::DType::i8,
                              .in_b = tensor::DType::i8,
                              .out = tensor::DType::i32});
}

void finish_integers(tensor::Stream& stream, const IntegerFinish& a) {
  if (a.rows * a.n == 0) return;
  launch(stream, "finish_integers", flat_launch(stream, a.rows * a.n), FinishIntegers{a});
}

void finish_quantized(tensor::Stream& stream, const QuantFinish& a) {
  if (a.rows * a.n == 0) return;
  launch(stream, "finish_quantized", flat_launch(stream, a.rows * ((a.n + 3) / 4)), FinishQuantized{a});
}

void quant_depthwise(tensor::Stream& stream, const QuantDepthwise& a) {
  const int64_t items = a.window.rows() * ((a.window.channels + 3) / 4);
  if (items == 0) return;
  launch(stream, "quant_depthwise", flat_launch(stream, items), QuantDepthwiseStep{a});
}

void quant_add(tensor::Stream& stream, const QuantAdd& a) {
  if (a.n == 0) return;
  launch(stream, "quant_add", flat_launch(stream, a.n), QuantAddStep{a});
}

int64_t dynamic_quantize_workspace_bytes() { return 2 * kRangeParts * static_cast<int64_t>(sizeof(float)); }

void dynamic_quantize(tensor::Stream& stream, const DynamicQuantize& a) {
  const int64_t blocks = std::clamp<int64_t>((a.n + 4 * kThreads - 1) / (4 * kThreads), 1, kRangeParts);
  auto* range = static_cast<float*>(a.workspace);
  launch(stream, "find_range", {blocks, kThreads, kReduceScratchBytes}, FindRange{a.x, a.n, range});
  launch(stream, "quantize_by_range", {blocks, kThreads, kReduceScratchBytes},
         QuantizeByRange{a, range, blocks});
}

}  // namespace trireme::cuda
