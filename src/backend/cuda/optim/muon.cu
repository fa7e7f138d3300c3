// Launchers of Muon (Jordan et al. 2024): matrices of one shape in tables, three batched products per
// iteration.
#include "backend/cuda/optim/muon.h"

#include <algorithm>
#include <cmath>

#include "backend/cuda/optim/muon_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kNumbersBytes = 64;
static_assert(sizeof(TrustNumbers) <= kNumbersBytes);

constexpr int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }
int64_t chunks_of(int64_t n) { return (n + UpdateTable::kChunk - 1) / UpdateTable::kChunk; }

/// Splits the matrices into tables that fit one launch each and calls f(table) for every table.
template <class F>
void for_muon_tables(std::span<const UpdateTensor> tensors, F f) {
  for (size_t first = 0; first < tensors.size(); first += UpdateTable::kMost) {
    MuonTable at{{}, static_cast<int64_t>(first), tensors[first].n};
    for (const UpdateTensor& t :
         tensors.subspan(first, std::min<size_t>(UpdateTable::kMost, tensors.size() - first))) {
      UpdateTable& table = at.table;
      table.group[table.count] = {
          t.param, t.grad, {t.state[0], nullptr}, t.param_out, {t.state_out[0], nullptr}, t.n, t.copy};
      table.first_chunk[table.count + 1] = table.first_chunk[table.count] + chunks_of(t.n);
      ++table.count;
    }
    f(at);
  }
}

/// The shape of c = alpha op(a) op(b) + beta c' for `count` dense matrices; each operand is stored packed.
GemmShape product_of(int64_t count, int64_t m, int64_t n, int64_t k) {
  GemmShape s{.m = m, .n = n, .k = k};
  s.inner = count;
  s.inner_a = m * k;
  s.inner_b = k * n;
  s.inner_c = m * n;
  return s;
}

}  // namespace

MuonPlan::MuonPlan(const GemmPlace& place, const MuonForm& form, int64_t count, int64_t rows, int64_t cols)
    : form_(form), count_(count), rows_(rows), cols_(cols) {
  const int64_t low = std::min(rows, cols), high = std::max(rows, cols);
  const tensor::DType type = form.bf16 ? tensor::DType::bf16 : tensor::DType::f32;
  const bool is_tall = rows > cols;  // then the Gram matrix is x' x and multiplies from the right
  const auto plan = [&](GemmShape s, float alpha, float beta) {
    s.in = s.in_b = s.out = type;
    s.alpha = alpha;
    if (beta != 0) {
      s.finish.residual = true;
      s.finish.residual_row = s.n;
      s.finish.residual_column = 1;
      s.finish.beta = beta;
    }
    return prepare_gemm(place, s);
  };
  GemmShape gram = product_of(count, low, low, high);
  gram.transpose_a = is_tall;
  gram.transpose_b = !is_tall;
  gram_ = plan(gram, 1, 0);
  square_ = plan(product_of(count, low, low, low), static_cast<float>(form.c), static_cast<float>(form.b));
  step_ = plan(product_of(count, rows, cols, low), 1, static_cast<float>(form.a));
  const int64_t item = form.bf16 ? 2 : 4;
  chunks_at_ = kNumbersBytes;
  inverse_at_ = aligned(chunks_at_ + count * chunks_of(rows * cols) * static_cast<int64_t>(sizeof(double)));
  x_at_ = aligned(inverse_at_ + count * static_cast<int64_t>(sizeof(float)));
  y_at_ = aligned(x_at_ + count * rows * cols * item);
  gram_at_ = aligned(y_at_ + count * rows * cols * item);
  gram2_at_ = aligned(gram_at_ + count * low * low * item);
  gemm_at_ = aligned(gram2_at_ + count * low * low * item);
  bytes_ =
      gemm_at_ + std::max({gram_->workspace_bytes(), square_->workspace_bytes(), step_->workspace_bytes()});
}

void MuonPlan::run(const UpdateCall& call, const UpdateOperands& operands) const {
  auto* memory = static_cast<std::byte*>(call.workspace);
  const int64_t n = rows_ * cols_, per = chunks_of(n);
  auto* numbers = reinterpret_cast<TrustNumbers*>(memory);
  auto* sums = reinterpret_cast<double*>(memory + chunks_at_);
  auto* inverse = reinterpret_cast<float*>(memory + inverse_at_);
  std::byte *x = memory + x_at_, *y = memory + y_at_;
  std::byte *gram = memory + gram_at_, *gram2 = memory + gram2_at_, *gemm = memory + gemm_at_;
  tensor::Stream& stream = call.stream;
  launch(stream, "prepare_trust", {1, kWarp},
         PrepareTrust{.lr = {operands.lr, operands.lr_is_wide},
                      .grad_scale = {operands.grad_scale, operands.grad_scale_is_wide},
                      .step = operands.step,
                      .skip = operands.skip,
                      .lr_scale = form_.lr_scale,
                      .beta1 = 0,
                      .beta2 = 0,
                      .beta2_decay = 0,
                      .weight_decay = form_.weight_decay,
                      .out = numbers});
  const auto grid = [&](int64_t work) { return blocks_for(cuda_stream(stream), work); };
  by_float(form_.bf16 ? tensor::DType::bf16 : tensor::DType::f32, [&](auto zero) {
    using T = decltype(zero);
    for_muon_tables(call.tensors, [&](const MuonTable& at) {
      launch(stream, "start_muon", {grid(at.table.count * per), kThreads, kReduceScratchBytes},
             StartMuon<T>{at, numbers, static_cast<float>(1 - form_.momentum),
                          static_cast<float>(1 - (1 - form_.momentum)), form_.nesterov,
                          reinterpret_cast<T*>(x), sums});
    });
    launch(stream, "muon_norms", {grid((count_ + 7) / 8), kThreads},
           MuonNorms<T>{sums, count_, per, form_.epsilon, inverse});
    launch(stream, "scale_muon", flat_launch(stream, count_ * n),
           ScaleMuon<T>{reinterpret_cast<T*>(x), inverse, count_, n});
  });
  // Newton-Schulz: x = a x + (b A + c A A) x with A = x x'; for a tall x, a x + x (b A + c A A) with A = x'
  // x.
  const bool is_tall = rows_ > cols_;
  for (int64_t i = 0; i < form_.steps; ++i) {
    gram_->run(stream, {.a = x, .b = x, .out = gram}, gemm);
    square_->run(stream, {.a = gram, .b = gram, .out = gram2, .residual = gram}, gemm);
    step_->run(stream, {.a = is_tall ? x : gram2, .b = is_tall ? gram2 : x, .out = y, .residual = x}, gemm);
    std::swap(x, y);
  }
  const double rows = static_cast<double>(rows_), cols = static_cast<double>(cols_);
  const double adjust =
      form_.match_adamw ? 0.2 * std::sqrt(std::max(rows, cols)) : std::sqrt(std::max(1.0, rows / cols));
  by_float(form_.bf16 ? tensor::DType::bf16 : tensor::DType::f32, [&](auto zero) {
    using T = decltype(zero);
    for_muon_tables(call.tensors, [&](const MuonTable& at) {
      launch(stream, "apply_muon", {grid(at.table.count * per), kThreads},
             ApplyMuon<T>{at, numbers, adjust, reinterpret_cast<const T*>(x)});
    });
  });
}

}  // namespace trireme::cuda
