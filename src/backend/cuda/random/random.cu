// Launchers of random numbers.
#include "backend/cuda/random/random.h"

#include "backend/cuda/device/launch.h"
#include "backend/cuda/random/random_kernels.h"
#include "base/error.h"
#include "tensor/shape.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
void run_dropout(On on, const DropoutTrain& s, const int64_t* rng, const void* x, void* y) {
  DropoutStep<T> kernel{};
  kernel.x = static_cast<const T*>(x);
  kernel.y = static_cast<T*>(y);
  kernel.rng = rng;
  kernel.count = tensor::element_count(s.extent);
  if (kernel.count == 0) return;
  kernel.begin = s.begin;
  kernel.row_elements = s.row_elements;
  kernel.rank = static_cast<int>(s.extent.size());
  for (size_t d = 0; d < s.extent.size(); ++d) {
    kernel.extent[d] = Divider(s.extent[d], kernel.count);
    kernel.steps[d] = s.steps[d];
  }
  kernel.threshold = s.threshold;
  kernel.op = s.op;
  kernel.scale = s.scale;
  const int64_t each = kernel.is_run() ? 4 : 1;
  launch(on.stream, "dropout_train",
         {blocks_for(cuda_stream(on.stream), kernel.count / (each * kThreads) + 1, 32), kThreads}, kernel);
}

}  // namespace

DropoutTrain merged(DropoutTrain s) {
  DropoutTrain out = s;
  out.extent.clear();
  out.steps.clear();
  for (size_t d = 0; d < s.extent.size(); ++d) {
    if (s.extent[d] == 1) continue;
    if (!out.extent.empty() && out.steps.back() == s.steps[d] * s.extent[d]) {
      out.extent.back() *= s.extent[d];
      out.steps.back() = s.steps[d];
    } else {
      out.extent.push_back(s.extent[d]);
      out.steps.push_back(s.steps[d]);
    }
  }
  return out;
}

void dropout_train(On on, const DropoutTrain& s, const int64_t* rng, const void* x, void* y) {
  switch (on.dtype) {
    case tensor::DType::f32: return run_dropout<float>(on, s, rng, x, y);
    case tensor::DType::f16: return run_dropout<Half>(on, s, rng, x, y);
    case tensor::DType::bf16: return run_dropout<BFloat16>(on, s, rng, x, y);
    default: base::fail(base::ErrorCode::internal, "no dropout of ", name_of(on.dtype), " on the device");
  }
}

void draw(On on, const DrawArgs& args) {
  if (args.n == 0) return;
  launch(on.stream, "draw",
         {blocks_for(cuda_stream(on.stream), (args.n + kThreads - 1) / kThreads, 16), kThreads},
         DrawNumbers{args, on.dtype});
}

}  // namespace trireme::cuda
