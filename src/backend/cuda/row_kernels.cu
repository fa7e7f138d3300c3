// Launchers of the kernels over rows.
#include "backend/cuda/row_kernels.h"

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/loss_kernels.h"
#include "backend/cuda/norm_grad_kernels.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

/// f(T{}) for the three types of elements.
template <class F>
void by_type(tensor::DType dtype, F f) {
  switch (dtype) {
    case tensor::DType::f32: return f(float{});
    case tensor::DType::f16: return f(Half{});
    case tensor::DType::bf16: return f(BFloat16{});
    default: base::fail(base::ErrorCode::internal, "no CUDA kernel over ", tensor::name_of(dtype));
  }
}

/// A block a row: as many threads as there are 16-byte accesses, whole warps, at most 512.
int threads_for(int64_t n, int pack) {
  const int64_t wanted = (n + pack - 1) / pack;
  return static_cast<int>(std::clamp<int64_t>((wanted + kWarp - 1) / kWarp * kWarp, kWarp, 512));
}

template <class T, class Kernel>
void launch_rows(On on, const char* name, int64_t rows, int64_t n, const Kernel& kernel) {
  if (rows == 0 || n == 0) return;
  const auto& stream = static_cast<const CudaStream&>(on.stream);
  launch(on.stream, name, {blocks_for(stream, rows, 32), threads_for(n, kPack<T>), kReduceScratchBytes},
         kernel);
}

}  // namespace

void softmax(On on, const RowArgs& a) {
  by_type(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_rows<T>(on, "softmax", a.rows, a.n,
                   Softmax<T>{static_cast<const T*>(a.x), static_cast<T*>(a.y), a.rows, a.n});
  });
}

void layer_norm(On on, const NormArgs& a) {
  by_type(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_rows<T>(on, "layer_norm", a.row.rows, a.row.n,
                   LayerNorm<T>{static_cast<const T*>(a.row.x), a.scale, a.bias, static_cast<T*>(a.row.y),
                                a.mean, a.inv_std, a.row.rows, a.row.n, a.epsilon});
  });
}

void rms_norm(On on, const NormArgs& a) {
  by_type(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_rows<T>(on, "rms_norm", a.row.rows, a.row.n,
                   RmsNorm<T>{static_cast<const T*>(a.row.x), a.scale, static_cast<T*>(a.row.y), a.inv_std,
                              a.row.rows, a.row.n, a.epsilon});
  });
}

int64_t layer_norm_grad_workspace_bytes(int64_t rows, int64_t n) {
  constexpr int64_t kRows = LayerNormGradScale<float>::kPieceRows;
  return 2 * ((rows + kRows - 1) / kRows) * n * static_cast<int64_t>(sizeof(float));
}

void layer_norm_grad(On on, const LayerNormGradArgs& a) {
  const int64_t rows = a.row.rows, n = a.row.n;
  if (rows == 0 || n == 0) return;
  by_type(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *dy = static_cast<const T*>(a.row.x), *x = static_cast<const T*>(a.x);
    launch_rows<T>(on, "layer_norm_grad", rows, n,
                   LayerNormGradX<T>{dy, x, a.scale, a.mean, a.inv_std, static_cast<T*>(a.row.y), rows, n});
    if (a.dscale == nullptr && a.dbias == nullptr) return;
    constexpr int kThreads = 128;
    const int64_t pieces = (rows + LayerNormGradScale<T>::kPieceRows - 1) / LayerNormGradScale<T>::kPieceRows;
    float* scale_pieces = static_cast<float*>(a.workspace);
    float* bias_pieces = scale_pieces + pieces * n;
    launch(on.stream, "layer_norm_grad_scale", {pieces * ((n + kThreads - 1) / kThreads), kThreads},
           LayerNormGradScale<T>{dy, x, a.mean, a.inv_std, scale_pieces, bias_pieces, rows, n});
    const int64_t blocks = (n + kThreads - 1) / kThreads;
    if (a.dscale != nullptr)
      launch(on.stream, "sum_pieces", {blocks, kThreads}, SumPieces{scale_pieces, a.dscale, pieces, n});
    if (a.dbias != nullptr)
      launch(on.stream, "sum_pieces", {blocks, kThreads}, SumPieces{bias_pieces, a.dbias, pieces, n});
  });
}

void cross_entropy(On on, const CrossEntropyArgs& a) {
  by_type(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_rows<T>(on, "cross_entropy", a.rows, a.n,
                   CrossEntropyRows<T>{static_cast<const T*>(a.logits), a.target, a.loss, a.log_sum_exp,
                                       a.correct, a.rows, a.n});
  });
}

void cross_entropy_grad(On on, const CrossEntropyArgs& a, const float* dloss, void* dlogits) {
  by_type(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_rows<T>(on, "cross_entropy_grad", a.rows, a.n,
                   CrossEntropyGradRows<T>{static_cast<const T*>(a.logits), a.target, a.log_sum_exp, dloss,
                                           static_cast<T*>(dlogits), a.rows, a.n});
  });
}

}  // namespace trireme::cuda
