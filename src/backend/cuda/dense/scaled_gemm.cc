// Plans of products of 8-bit floats with one scale per row of each operand.
#include <algorithm>

#include "backend/cuda/dense/float8.h"
#include "backend/cuda/dense/gemm_finish.h"
#include "backend/cuda/dense/gemm_product.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

using tensor::DType;

/// Rounds up to the alignment of workspaces.
int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// A product into f32, then one pass that applies scales and finish.
class UnscaledPlan final : public GemmPlan {
 public:
  UnscaledPlan(const GemmShape& shape, std::unique_ptr<GemmPlan> product)
      : shape_(shape), product_(std::move(product)) {}

  int64_t workspace_bytes() const override {
    return product_ == nullptr ? 0 : sums_bytes() + product_->workspace_bytes();
  }

  void run(tensor::Stream& stream, const GemmPointers& p, void* workspace) const override {
    const GemmFinish& f = shape_.finish;
    auto* sums = static_cast<float*>(workspace);
    product_->run(stream, {.a = p.a, .b = p.b, .out = sums},
                  static_cast<std::byte*>(workspace) + sums_bytes());
    finish_scaled({stream, shape_.out}, {.product = sums,
                                         .scale_a = p.scale_a,
                                         .scale_b = p.scale_b,
                                         .bias = f.bias ? p.bias : nullptr,
                                         .residual = f.residual ? p.residual : nullptr,
                                         .out = p.out,
                                         .m = shape_.m,
                                         .n = shape_.n,
                                         .act = f.act,
                                         .act_before_residual = f.act_before_residual});
  }

 private:
  int64_t sums_bytes() const { return aligned(tensor::bytes_of(DType::f32, shape_.m * shape_.n)); }

  GemmShape shape_;
  std::unique_ptr<GemmPlan> product_;
};

/// A product without columns, rows or depth: the finish applied to zeros.
class NoProductPlan final : public GemmPlan {
 public:
  explicit NoProductPlan(const GemmShape& shape) : shape_(shape) {}
  int64_t workspace_bytes() const override { return 0; }
  void run(tensor::Stream& stream, const GemmPointers& p, void*) const override {
    const GemmFinish& f = shape_.finish;
    finish_product({stream, shape_.out}, {.out = p.out,
                                          .from_zero = true,
                                          .bias = f.bias ? p.bias : nullptr,
                                          .residual = f.residual ? p.residual : nullptr,
                                          .residual_row = f.residual_row,
                                          .residual_column = f.residual_column,
                                          .beta = f.beta,
                                          .act = f.act,
                                          .act_before_residual = f.act_before_residual,
                                          .rows = shape_.m,
                                          .n = shape_.n});
  }

 private:
  GemmShape shape_;
};

void require_plain(const GemmShape& s) {
  const GemmFinish& f = s.finish;
  const bool is_finishable =
      !f.writes_aux && !f.is_gradient && f.sums == SumsOf::none && f.beta == 1 && s.alpha == 1;
  const bool is_residual_packed = !f.residual || (f.residual_row == s.n && f.residual_column == 1);
  base::check(s.outer == 1 && s.inner == 1 && s.ldc == s.n && !s.transpose_a && s.transpose_b &&
                  is_finishable && is_residual_packed,
              "a product with vectors of scales that no kernel finishes");
}

}  // namespace

std::shared_ptr<const GemmPlan> prepare_scaled(const GemmPlace& place, const GemmShape& asked) {
  const GemmShape shape = with_leading_dimensions(asked);
  require_plain(shape);
  if (shape.m * shape.n * shape.k == 0) return std::make_shared<NoProductPlan>(shape);
  const GemmOptions options = gemm_options_from_environment();
  if (std::unique_ptr<GemmPlan> whole = make_product(place, shape, options)) return whole;
  // The library must not apply the scales without the finish, because it would round in between.
  GemmShape sums = shape;
  sums.finish = {};
  sums.scales = Scales::none;
  sums.out = DType::f32;
  if (std::unique_ptr<GemmPlan> product = make_product(place, sums, options))
    return std::make_shared<UnscaledPlan>(shape, std::move(product));
  base::fail_unsupported("no product of ", name_of(shape.in), " and ", name_of(shape.in_b),
                         " on the device: [", shape.m, ", ", shape.k, "] by [", shape.n, ", ", shape.k,
                         "]; 8-bit floats need compute capability 8.9 or newer and extents that are "
                         "multiples of 16: --precision bf16 runs on others");
}

}  // namespace trireme::cuda
