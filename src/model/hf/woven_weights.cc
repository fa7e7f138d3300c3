// Expert matrices that a checkpoint stores transposed, the columns of several projections alternating.
#include "model/hf/woven_weights.h"

#include <cstring>

#include "tensor/absent.h"
#include "tensor/blocks/block_format.h"

namespace trireme::model::hf {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

constexpr int64_t kBlock = 32;  // weights that share a scale

/// Repacks a block from neighbours in one byte to a scale followed by weights i and i + 16 in one byte.
void move_block(const uint8_t* codes, uint8_t scale, uint8_t* to) {
  to[0] = scale;
  for (int64_t i = 0; i < kBlock / 2; ++i) {
    const auto code = [&](int64_t at) { return codes[at / 2] >> (at % 2 * 4) & 15; };
    to[1 + i] = static_cast<uint8_t>(code(i) | code(i + kBlock / 2) << 4);
  }
}

}  // namespace

Tensor unwoven_part(const Tensor& whole, size_t part, size_t parts, const std::string& name) {
  const auto p = static_cast<int64_t>(part), count = static_cast<int64_t>(parts);
  const Dims& d = whole.dims();
  base::require((d.size() == 2 || d.size() == 3) && d.back() % count == 0, "tensor '", name, "' is ",
                whole.type().to_string(), ", no matrices of ", count, " parts");
  const bool is_bias = d.size() == 2;
  const int64_t in = is_bias ? 1 : d[1], out = d.back() / count;
  const Dims own = is_bias ? Dims{d[0], out} : Dims{d[0], out, in};
  if (tensor::is_absent(whole)) return tensor::absent(DType::f32, own);
  Tensor t = Tensor::empty(DType::f32, own);
  const auto from = whole.data<float>();
  const auto to = t.mutable_data<float>();
  for (int64_t e = 0; e < d[0]; ++e) {
    for (int64_t i = 0; i < in; ++i) {
      for (int64_t o = 0; o < out; ++o)
        to[static_cast<size_t>((e * out + o) * in + i)] =
            from[static_cast<size_t>((e * in + i) * d.back() + o * count + p)];
    }
  }
  return t;
}

Tensor woven_whole(const std::vector<Tensor>& parts) {
  const Dims& d = parts[0].dims();
  const auto count = static_cast<int64_t>(parts.size());
  const bool is_bias = d.size() == 2;
  const int64_t out = d[1], in = is_bias ? 1 : d[2];
  Tensor whole = Tensor::empty(DType::f32, is_bias ? Dims{d[0], out * count} : Dims{d[0], in, out * count});
  const auto to = whole.mutable_data<float>();
  for (int64_t p = 0; p < count; ++p) {
    const auto from = parts[static_cast<size_t>(p)].data<float>();
    for (int64_t e = 0; e < d[0]; ++e) {
      for (int64_t o = 0; o < out; ++o) {
        for (int64_t i = 0; i < in; ++i)
          to[static_cast<size_t>((e * in + i) * out * count + o * count + p)] =
              from[static_cast<size_t>((e * out + o) * in + i)];
      }
    }
  }
  return whole;
}

StoredParam unwoven_blocks(const Tensor& codes, const Tensor& scales, size_t part, size_t parts,
                           const std::string& name) {
  const auto p = static_cast<int64_t>(part), count = static_cast<int64_t>(parts);
  const Dims& d = codes.dims();
  base::require(codes.dtype() == DType::u8 && scales.dtype() == DType::u8 && d.size() == 4 &&
                    d[3] == kBlock / 2 && d[1] % count == 0 && scales.dims() == Dims{d[0], d[1], d[2]},
                "tensors '", name, "_blocks' ", codes.type().to_string(), " and '", name, "_scales' ",
                scales.type().to_string(), " are no matrices in mxfp4 of ", count, " parts");
  const int64_t out = d[1] / count, bytes = tensor::need_block_format("mxfp4").bytes;
  Tensor t = Tensor::empty(DType::u8, {d[0] * out, d[2] * bytes});
  const auto* from = reinterpret_cast<const uint8_t*>(codes.raw());
  const auto* scale = reinterpret_cast<const uint8_t*>(scales.raw());
  auto* to = reinterpret_cast<uint8_t*>(t.mutable_raw());
  for (int64_t row = 0; row < d[0] * out; ++row) {
    const int64_t theirs = row / out * d[1] + row % out * count + p;
    for (int64_t b = 0; b < d[2]; ++b)
      move_block(from + (theirs * d[2] + b) * d[3], scale[theirs * d[2] + b], to + (row * d[2] + b) * bytes);
  }
  return {.data = std::move(t), .format = "mxfp4"};
}

}  // namespace trireme::model::hf
