// Launchers of quantization.
#include "backend/cuda/quant/quantize.h"

#include "backend/cuda/quant/quantize_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

template <class F>
void by_integer(tensor::DType type, F f) {
  switch (type) {
    case tensor::DType::u8: return f(uint8_t{});
    case tensor::DType::i8: return f(int8_t{});
    case tensor::DType::i32: return f(int32_t{});
    default:
      base::fail(base::ErrorCode::internal, "no quantization to ", tensor::name_of(type), " on the device");
  }
}

Launch elements_launch(tensor::Stream& stream, const QuantizeArgs& a) {
  return flat_launch(stream, (a.layout.elements + 3) / 4);
}

}  // namespace

void quantize_linear(tensor::Stream& stream, const QuantizeArgs& a) {
  if (a.layout.elements == 0) return;
  by_integer(a.quantized, [&](auto zero) {
    using Q = decltype(zero);
    if constexpr (sizeof(Q) == 1) {
      launch(stream, "quantize_linear", elements_launch(stream, a),
             Quantize<Q>{static_cast<const float*>(a.from), static_cast<Q*>(a.to), a.scale,
                         static_cast<const Q*>(a.zero), a.layout});
    } else {
      base::fail(base::ErrorCode::internal, "quantization to 32 bits");
    }
  });
}

void dequantize_linear(tensor::Stream& stream, const QuantizeArgs& a) {
  if (a.layout.elements == 0) return;
  by_integer(a.quantized, [&](auto zero) {
    using Q = decltype(zero);
    launch(stream, "dequantize_linear", elements_launch(stream, a),
           Dequantize<Q>{static_cast<const Q*>(a.from), static_cast<float*>(a.to), a.scale,
                         static_cast<const Q*>(a.zero), a.layout});
  });
}

}  // namespace trireme::cuda
