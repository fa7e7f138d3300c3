// Kernels of conversions from and to element types without arithmetic: a thread four elements, which are
// whole bytes of every type.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/index/codes.h"
#include "backend/cuda/elementwise/element_kernels.h"
#include "backend/cuda/quant/quantize_kernels.h"
#include "tensor/small_float_math.h"

namespace trireme::cuda {

inline constexpr int kCodes = 4;  ///< elements of a thread

/// Bits of a type without arithmetic, or 0; of integers of less than a byte `is_integer`.
struct CodeForm {
  int bits = 0;
  bool is_integer = false, is_signed = false;

  TRIREME_HD explicit CodeForm(tensor::DType type) {
    using tensor::DType;
    switch (type) {
      case DType::f8e4m3fn:
      case DType::f8e4m3fnuz:
      case DType::f8e5m2:
      case DType::f8e5m2fnuz:
      case DType::f8e8m0: bits = 8; break;
      case DType::f4e2m1: bits = 4; break;
      case DType::i4: bits = 4, is_integer = is_signed = true; break;
      case DType::u4: bits = 4, is_integer = true; break;
      case DType::i2: bits = 2, is_integer = is_signed = true; break;
      case DType::u2: bits = 2, is_integer = true; break;
      default: break;
    }
  }
};

/// Element i of any type as a C.
template <class C>
TRIREME_DEVICE C load_code(tensor::DType type, const void* data, int64_t i) {
  const CodeForm form(type);
  if (form.bits == 0) return load_element<C>(type, data, i);
  const int each = 8 / form.bits, shift = static_cast<int>(i % each) * form.bits;
  const auto code =
      static_cast<uint8_t>(static_cast<const uint8_t*>(data)[i / each] >> shift & ((1 << form.bits) - 1));
  if (!form.is_integer) return static_cast<C>(tensor::decode_small_float(type, code));
  const int sign = 1 << (form.bits - 1);
  return static_cast<C>(form.is_signed && (code & sign) != 0 ? static_cast<int>(code) - 2 * sign : code);
}

/// Writes elements [first, first + count) with count <= kCodes; a thread owns their bytes.
class CodeWriter {
 public:
  TRIREME_DEVICE CodeWriter(tensor::DType type, void* data, int64_t first)
      : form_(type), data_(data), at_(first) {}
  /// The next element's code, of a type that has one.
  TRIREME_DEVICE void put(uint8_t code) {
    auto* bytes = static_cast<uint8_t*>(data_);
    const int each = 8 / form_.bits, shift = static_cast<int>(at_ % each) * form_.bits;
    const auto own = static_cast<uint8_t>((code & ((1 << form_.bits) - 1)) << shift);
    // The first element of a byte clears it.
    bytes[at_ / each] = shift == 0 ? own : static_cast<uint8_t>(bytes[at_ / each] | own);
    ++at_;
  }
  TRIREME_DEVICE const CodeForm& form() const { return form_; }

 private:
  CodeForm form_;
  void* data_;
  int64_t at_;
};

/// Floats go as f64, integers as 64-bit ones.
template <class C>
struct CastCodes {
  static constexpr bool kIndependent = true;
  static constexpr int kMostThreads = 128;
  CodeCast a;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    using tensor::math::converted;
    const int64_t stride = lane.blocks() * lane.threads() * kCodes;
    for (int64_t i = (lane.block() * lane.threads() + lane.thread()) * kCodes; i < a.n; i += stride) {
      CodeWriter writer(a.to, a.y, i);
      for (int64_t j = i; j < i + kCodes && j < a.n; ++j) {
        const C v = load_code<C>(a.from, a.x, j);
        if (writer.form().bits == 0) {
          store_element<C>(a.to, a.y, j, v);
        } else if (writer.form().is_integer) {
          writer.put(static_cast<uint8_t>(converted<int64_t>(v)));
        } else {
          writer.put(tensor::encode_small_float(a.to, static_cast<float>(v), a.saturate, a.rounding));
        }
      }
    }
  }
};

/// A quotient rounded to the precision, plus the zero point, as a code.
struct QuantizeCodes {
  static constexpr bool kIndependent = true;
  static constexpr int kMostThreads = 128;
  CodeQuantize a;
  double low, high;  // of integers
  bool is_float;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t n = a.layout.elements, stride = lane.blocks() * lane.threads() * kCodes;
    for (int64_t i = (lane.block() * lane.threads() + lane.thread()) * kCodes; i < n; i += stride) {
      CodeWriter writer(a.to, a.y, i);
      for (int64_t j = i; j < i + kCodes && j < n; ++j) {
        const int64_t s = scale_index(a.layout, j);
        const double v =
            rounded(load_code<double>(a.from, a.x, j) / load_code<double>(a.scale_type, a.scale, s));
        const double zero = a.zero == nullptr ? 0.0 : load_code<double>(a.to, a.zero, s);
        if (is_float) {
          writer.put(tensor::encode_small_float(a.to, static_cast<float>(v + zero), a.saturate));
          continue;
        }
        // NaN gets the zero point.
        double q = v != v ? zero : std::nearbyint(v) + zero;
        q = q < low ? low : q > high ? high : q;
        if (writer.form().bits == 0) {
          store_element<double>(a.to, a.y, j, q);
        } else {
          writer.put(static_cast<uint8_t>(static_cast<int64_t>(q)));
        }
      }
    }
  }

 private:
  TRIREME_DEVICE double rounded(double v) const {
    if (a.precision == tensor::DType::f64) return v;
    const auto narrow = static_cast<float>(v);
    if (a.precision == tensor::DType::f16) return double(cuda::to_float(from_float<Half>(narrow)));
    if (a.precision == tensor::DType::bf16) return double(cuda::to_float(from_float<BFloat16>(narrow)));
    return double(narrow);
  }
};

/// (code - zero) scale.
struct DequantizeCodes {
  static constexpr bool kIndependent = true;
  static constexpr int kMostThreads = 128;
  CodeQuantize a;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t n = a.layout.elements, stride = lane.blocks() * lane.threads();
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < n; i += stride) {
      const int64_t s = scale_index(a.layout, i);
      const double zero = a.zero == nullptr ? 0.0 : load_code<double>(a.from, a.zero, s);
      store_element<double>(
          a.to, a.y, i,
          (load_code<double>(a.from, a.x, i) - zero) * load_code<double>(a.scale_type, a.scale, s));
    }
  }
};

}  // namespace trireme::cuda
