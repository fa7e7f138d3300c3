// Plans of convolutions: f32 as products, cuDNN where it takes the shape, else the plain kernel. A finish
// that cuDNN does not do is computed by a kernel of ours afterwards.
#include "backend/cuda/conv/convolution.h"

#include "backend/cuda/conv/product_convolution.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

bool has_finish(const ConvolutionShape& s) { return s.bias || s.residual || s.act.kind != Activation::none; }

ConvolutionShape without_finish(ConvolutionShape s) {
  s.bias = s.residual = s.act_before_residual = false;
  s.act = {};
  return s;
}

class ComposedConvolution final : public ConvolutionPlan {
 public:
  ComposedConvolution(const ConvolutionShape& shape, std::unique_ptr<ConvolutionPlan> library)
      : shape_(shape), library_(std::move(library)) {}
  int64_t workspace_bytes() const override { return library_ == nullptr ? 0 : library_->workspace_bytes(); }
  void run(tensor::Stream& stream, const ConvolutionPointers& p, void* workspace) const override {
    if (library_ != nullptr) {
      library_->run(stream, p, workspace);
    } else {
      convolve(stream, shape_, p);
    }
    if (has_finish(shape_)) finish_channels(stream, shape_.type, finish_args(p));
  }

 private:
  ChannelFinishArgs finish_args(const ConvolutionPointers& p) const {
    const bool forward = shape_.kind == ConvolutionKind::forward;
    const int64_t points = forward ? shape_.out_points() : shape_.in_points();
    const bool last = forward ? shape_.y_channels_last : shape_.x_channels_last;
    return {.out = p.result,
            .bias = shape_.bias ? p.bias : nullptr,
            .residual = shape_.residual ? p.residual : nullptr,
            .outer = last ? shape_.batch * points : shape_.batch,
            .channels = forward ? shape_.filters : shape_.channels,
            .inner = last ? 1 : points,
            .act = shape_.act,
            .act_before_residual = shape_.act_before_residual};
  }

  ConvolutionShape shape_;
  std::unique_ptr<ConvolutionPlan> library_;
};

}  // namespace

std::shared_ptr<const ConvolutionPlan> prepare_convolution(const GemmPlace& place,
                                                           const ConvolutionShape& s) {
  base::check(s.kind != ConvolutionKind::weights || !has_finish(s), "a finish of the gradient of weights");
  const bool is_empty = s.x_elements() == 0 || s.y_elements() == 0 || s.w_elements() == 0;
  if (!is_empty) {
    if (is_product_convolution(s)) return make_product_convolution(place, s);
    if (auto whole = make_convolution(place, s)) return whole;
    if (auto bare = has_finish(s) ? make_convolution(place, without_finish(s)) : nullptr)
      return std::make_shared<ComposedConvolution>(s, std::move(bare));
  }
  return std::make_shared<ComposedConvolution>(s, nullptr);
}

}  // namespace trireme::cuda
