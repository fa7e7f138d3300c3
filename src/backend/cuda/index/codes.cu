// Launchers of conversions to and from element types without arithmetic.
#include "backend/cuda/index/codes.h"

#include "backend/cuda/index/code_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

Launch grid_for(tensor::Stream& stream, int64_t n) {
  return flat_launch(stream, (n + kCodes - 1) / kCodes, 128);
}

}  // namespace

bool has_codes(tensor::DType dtype) { return CodeForm(dtype).bits != 0 || element_type_of(dtype); }

void cast_codes(tensor::Stream& stream, const CodeCast& a) {
  if (a.n == 0) return;
  const Launch grid = grid_for(stream, a.n);
  const auto type = element_type_of(a.from);
  if (!type ? !CodeForm(a.from).is_integer : *type == ElementType::f32 || *type == ElementType::f64) {
    launch(stream, "cast_codes", grid, CastCodes<double>{a});
  } else if (type && *type == ElementType::u64) {
    launch(stream, "cast_codes", grid, CastCodes<uint64_t>{a});
  } else {
    launch(stream, "cast_codes", grid, CastCodes<int64_t>{a});
  }
}

void quantize_codes(tensor::Stream& stream, const CodeQuantize& a) {
  if (a.layout.elements == 0) return;
  const int bits = tensor::bits_of(a.to);
  using tensor::DType;
  const bool is_signed =
      a.to == DType::i8 || a.to == DType::i16 || a.to == DType::i32 || CodeForm(a.to).is_signed;
  const bool to_float = tensor::is_float(a.to);
  const double span = std::ldexp(1.0, bits);
  launch(stream, "quantize_codes", grid_for(stream, a.layout.elements),
         QuantizeCodes{a, is_signed ? -span / 2 : 0, (is_signed ? span / 2 : span) - 1, to_float});
}

void dequantize_codes(tensor::Stream& stream, const CodeQuantize& a) {
  if (a.layout.elements == 0) return;
  launch(stream, "dequantize_codes", flat_launch(stream, a.layout.elements, 128), DequantizeCodes{a});
}

}  // namespace trireme::cuda
