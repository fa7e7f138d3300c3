// Attention on the device: whole, its gradient, rotary embedding.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/cuda/dense/gemm.h"
#include "tensor/device.h"
#include "tensor/dtype.h"

namespace trireme::cuda {

/// Where element (batch, position, head, channel) lies; channels are contiguous.
struct AttentionStrides {
  int64_t batch = 0, seq = 0, head = 0;
};

/// Over [batch, head, query, key], keys contiguous. `keeps`: what is not 0 is seen; else added to the scores.
struct AttentionMask {
  bool given = false, keeps = false;
  tensor::DType type = tensor::DType::f32;
  int64_t batch = 0, head = 0, query = 0;
  int64_t keys = 0;  ///< keys behind the mask are not seen
};

/// y = softmax(scale q k' + mask) v; sums and softmax in f32. `heads` a multiple of `kv_heads`.
struct AttentionShape {
  tensor::DType type = tensor::DType::f32;  ///< f32, f16 or bf16
  int64_t batch = 0, heads = 1, kv_heads = 1, queries = 0, keys = 0, head_dim = 0, value_dim = 0;
  AttentionStrides q, k, v, y;
  AttentionMask mask;
  float scale = 1, softcap = 0;
  /// A query at position i + offset sees keys up to its own; left and right: the window around it, -1 open.
  bool causal = false;
  int64_t offset = 0, left = -1, right = -1;
  /// Valid keys of each sequence are given; then offset counts from their end if `ends_at_length`.
  bool has_lengths = false, ends_at_length = false;
};
inline constexpr int64_t kMostHeadDim = 256;

struct AttentionPointers {
  const void *q = nullptr, *k = nullptr, *v = nullptr, *mask = nullptr;
  const int64_t* lengths = nullptr;
  void* y = nullptr;
  float* lse = nullptr;  ///< [batch, heads, queries]: log sum exp of the scores; or null
};

struct AttentionGradPointers {
  const void *q = nullptr, *k = nullptr, *v = nullptr, *mask = nullptr, *y = nullptr, *dy = nullptr;
  const float* lse = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;  ///< laid out like q, k, v
};

/// Kernels of ours, tile by tile: scores never reach memory; any head up to kMostHeadDim; deterministic.
void attend(tensor::Stream& stream, const AttentionShape& shape, const AttentionPointers& p);
int64_t attention_grad_workspace_bytes(const AttentionShape& shape);
void attend_grad(tensor::Stream& stream, const AttentionShape& shape, const AttentionGradPointers& p,
                 void* workspace);

/// A library's attention for a shape; null where there is none or it does not take the shape.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
  virtual int64_t workspace_bytes() const = 0;
  virtual void run(tensor::Stream& stream, const AttentionPointers& p, void* workspace) const = 0;
  virtual void run_grad(tensor::Stream& stream, const AttentionGradPointers& p, void* workspace) const = 0;
};
std::shared_ptr<const AttentionPlan> make_attention(const GemmPlace& place, const AttentionShape& shape,
                                                    bool gives_lse, bool gradient);

/// Rotates pairs of channels of x [batch, seq, heads, dim] (any strides) by the angles of their positions.
/// cosine, sine [rows, rotated / 2], of x's type or f32; the row of a token is positions [batch, seq] (i64,
/// clamped to the rows) or its number.
struct RotaryArgs {
  const void *x = nullptr, *cosine = nullptr, *sine = nullptr;
  const int64_t* positions = nullptr;
  void* y = nullptr;
  int64_t batch = 0, seq = 0, heads = 1, dim = 0, rotated = 0, rows = 0;
  AttentionStrides at;
  bool interleaved = false, angles_f32 = false;
};
void rotate_pairs(tensor::Stream& stream, tensor::DType type, const RotaryArgs& args);

/// present [batch, heads, past + fresh, dim] = past [batch, heads, past, dim] followed by fresh (any
/// strides).
struct PresentArgs {
  const void *past = nullptr, *fresh = nullptr;
  void* present = nullptr;
  int64_t batch = 0, heads = 1, past_tokens = 0, fresh_tokens = 0, dim = 0;
  AttentionStrides at;
};
void append_present(tensor::Stream& stream, tensor::DType type, const PresentArgs& args);

}  // namespace trireme::cuda
