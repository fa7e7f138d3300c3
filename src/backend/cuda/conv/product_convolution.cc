// Convolutions as products: im2col by pieces of the result's points, then a product of the library.
#include "backend/cuda/conv/product_convolution.h"

#include <algorithm>

#include "backend/cuda/conv/image_rows.h"
#include "backend/cuda/conv/transpose.h"

namespace trireme::cuda {
namespace {

constexpr int64_t kMostColumnBytes = int64_t{64} << 20;
constexpr int64_t kColumnAlignment = 256;

int64_t in_whole_lines(int64_t bytes) {
  return (bytes + kColumnAlignment - 1) / kColumnAlignment * kColumnAlignment;
}

class ProductConvolution final : public ConvolutionPlan {
 public:
  ProductConvolution(const GemmPlace& place, const ConvolutionShape& s)
      : shape_(s), points_(s.batch * s.out_points()), depth_(s.channels * s.taps()) {
    reads_x_ = s.x_channels_last && s.taps() == 1 && s.in == s.out && s.pad == std::array<int64_t, 3>{} &&
               s.stride == std::array<int64_t, 3>{1, 1, 1};
    turns_weights_ = s.taps() > 1 && s.channels > 1;
    // Pieces of 4 points or a multiple, so that the results of each begin on 16 bytes.
    const int64_t most = std::max(kMostColumnBytes / (depth_ * kBytes) / 4, int64_t{1}) * 4;
    piece_ = reads_x_ ? points_ : std::min(most, points_);
    product_ = prepare_gemm(place, product(piece_));
    if (points_ % piece_ != 0) last_product_ = prepare_gemm(place, product(points_ % piece_));
  }

  int64_t workspace_bytes() const override {
    const int64_t last = last_product_ == nullptr ? 0 : last_product_->workspace_bytes();
    return weight_bytes() + column_bytes() + std::max(product_->workspace_bytes(), last) + kColumnAlignment;
  }

  void run(tensor::Stream& stream, const ConvolutionPointers& p, void* workspace) const override {
    const auto address = reinterpret_cast<uintptr_t>(workspace);
    std::byte* weights = static_cast<std::byte*>(workspace) +
                         (in_whole_lines(static_cast<int64_t>(address)) - static_cast<int64_t>(address));
    std::byte* columns = weights + weight_bytes();
    if (turns_weights_) {
      const int64_t extents[] = {shape_.filters, shape_.channels, shape_.taps()};
      transpose({stream, shape_.type}, p.w, weights, extents);
    }
    for (int64_t first = 0; first < points_; first += piece_) {
      const int64_t count = std::min(piece_, points_ - first);
      if (!reads_x_) image_rows(stream, shape_, {first, count}, p.x, columns);
      const int64_t behind = first * shape_.filters * kBytes;
      const GemmPlan& plan = count == piece_ ? *product_ : *last_product_;
      plan.run(stream,
               {.a = reads_x_ ? p.x : columns,
                .b = turns_weights_ ? weights : p.w,
                .out = static_cast<std::byte*>(p.result) + behind,
                .bias = shape_.bias ? p.bias : nullptr,
                .residual = shape_.residual ? static_cast<const std::byte*>(p.residual) + behind : nullptr},
               columns + column_bytes());
    }
  }

 private:
  static constexpr int64_t kBytes = sizeof(float);

  int64_t weight_bytes() const { return turns_weights_ ? in_whole_lines(shape_.w_elements() * kBytes) : 0; }
  int64_t column_bytes() const { return reads_x_ ? 0 : in_whole_lines(piece_ * depth_ * kBytes); }

  GemmShape product(int64_t points) const {
    GemmShape g{.m = points, .n = shape_.filters, .k = depth_, .transpose_b = true};
    g.finish.bias = shape_.bias;
    g.finish.residual = shape_.residual;
    g.finish.residual_row = shape_.residual ? shape_.filters : 0;
    g.finish.residual_column = shape_.residual ? 1 : 0;
    g.finish.act = shape_.act;
    g.finish.act_before_residual = shape_.act_before_residual;
    return g;
  }

  ConvolutionShape shape_;
  int64_t points_, depth_, piece_ = 1;
  bool reads_x_ = false, turns_weights_ = false;
  std::shared_ptr<const GemmPlan> product_,
      last_product_;  ///< of a piece, and of what is left behind the last
};

}  // namespace

bool is_product_convolution(const ConvolutionShape& s) {
  return s.kind == ConvolutionKind::forward && s.type == tensor::DType::f32 && s.groups == 1 &&
         s.y_channels_last && !gemm_options_from_environment().tf32;
}

std::unique_ptr<ConvolutionPlan> make_product_convolution(const GemmPlace& place, const ConvolutionShape& s) {
  return std::make_unique<ProductConvolution>(place, s);
}

}  // namespace trireme::cuda
