// Stored weights: their quantization from floats.
#include "ops/weight_only/weight_only.h"

#include <algorithm>
#include <cmath>

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;

/// Scale and zero point of one group, and the codes of its weights.
struct Group {
  float scale = 1;
  int zero = 0;
};

struct Range {
  int low, high;
};
Range range_of(int bits) { return bits == 8 ? Range{-128, 127} : Range{0, 15}; }

int code_of(float w, const Group& g, Range r) {
  return static_cast<int>(std::clamp(std::nearbyint(w / g.scale) + static_cast<float>(g.zero),
                                     static_cast<float>(r.low), static_cast<float>(r.high)));
}

double squared_error(const float* w, int64_t n, const Group& g, Range r) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double d =
        static_cast<double>(w[i]) - static_cast<double>(g.scale) * (code_of(w[i], g, r) - g.zero);
    sum += d * d;
  }
  return sum;
}

/// Computes scale and zero point of one group [n].
Group group_of(const float* w, int64_t n, const WeightForm& form) {
  const Range r = range_of(form.bits);
  const auto [low, high] = std::minmax_element(w, w + n);
  Group g{1, form.asymmetric ? r.low : default_zero(form.bits)};
  if (form.asymmetric) {
    const float from = std::min(*low, 0.0f), to = std::max(*high, 0.0f);
    if (to > from) g.scale = (to - from) / static_cast<float>(r.high - r.low);
    g.zero = std::clamp(static_cast<int>(std::nearbyint(-from / g.scale)) + r.low, r.low, r.high);
    return g;
  }
  const float extreme = std::abs(*low) > std::abs(*high) ? *low : *high;
  if (extreme == 0) return g;
  if (form.bits == 8) {
    g.scale = std::abs(extreme) / 127;
    return g;
  }
  // Tries scales that map the extreme to -8 or +7 steps or slightly beyond, and keeps the one with the least
  // error.
  Group best = g;
  double least = INFINITY;
  for (const float steps : {-8.0f, -8.5f, -9.0f, 7.0f, 7.5f}) {
    g.scale = extreme / steps;
    const double error = squared_error(w, n, g, r);
    if (error < least) least = error, best = g;
  }
  return best;
}

void put(uint8_t* row, int64_t i, int bits, int code) {
  if (bits == 8) {
    row[i] = static_cast<uint8_t>(code);
    return;
  }
  uint8_t& pair = row[i / 32 * 16 + i % 16];
  pair = static_cast<uint8_t>(i % 32 < 16 ? (pair & 0xf0) | code : (pair & 0x0f) | code << 4);
}

}  // namespace

WeightForm weight_form(const ir::Attrs& attrs, DType type, bool has_zero) {
  if (type == DType::bf16 || type == DType::f16) return {.bits = 16, .type = type};
  const int64_t group = attrs.get_int("group", 64);
  if (type == DType::f8e4m3fn) return {.bits = 8, .group = group, .type = type};
  base::require(type == DType::u8, "stored weights are u8, f8e4m3fn, bf16 or f16, not ", name_of(type));
  const int64_t bits = attrs.get_int("bits", 8);
  base::require(bits == 8 || bits == 4, "weights of ", bits, " bits, not 8 or 4");
  return {.bits = static_cast<int>(bits), .group = group, .asymmetric = has_zero};
}

ir::Refusal refuse_weight_form(const WeightForm& form, int64_t k) {
  if (!form.has_scales()) {
    if (k == 0 || k % 32 != 0) return base::concat("a depth of ", k, " is no multiple of 32");
    return std::nullopt;
  }
  if (form.bits != 8 && form.bits != 4) return base::concat("weights of ", form.bits, " bits");
  if (form.group != 32 && form.group != 64 && form.group != 128)
    return base::concat("groups of ", form.group, " weights, not 32, 64 or 128");
  if (k == 0 || k % form.group != 0)
    return base::concat("a depth of ", k, " is no multiple of the group of ", form.group);
  return std::nullopt;
}

StoredWeights store_weights(const WeightMatrix& weights, const WeightForm& form, WeightError& error) {
  const int64_t n = weights.n, k = weights.k, groups = k / form.group, bytes = k * form.bits / 8;
  StoredWeights out{Tensor::zeros(DType::u8, {n, bytes}), Tensor::empty(DType::f32, {n, groups}), Tensor()};
  if (form.asymmetric) out.zero = Tensor::empty(DType::i8, {n, groups});
  std::vector<float> line(static_cast<size_t>(k));
  double missed = 0, all = 0;
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t i = 0; i < k; ++i)
      line[static_cast<size_t>(i)] = weights.by_rows ? weights.at[row * k + i] : weights.at[i * n + row];
    base::require(std::all_of(line.begin(), line.end(), [](float w) { return std::isfinite(w); }),
                  "weights that are not finite have no form in int", form.bits);
    auto* to = reinterpret_cast<uint8_t*>(out.w.mutable_raw()) + row * bytes;
    for (int64_t g = 0; g < groups; ++g) {
      const float* from = line.data() + g * form.group;
      const Group own = group_of(from, form.group, form);
      const auto at = static_cast<size_t>(row * groups + g);
      out.scale.mutable_data<float>()[at] = own.scale;
      if (form.asymmetric) out.zero.mutable_data<int8_t>()[at] = static_cast<int8_t>(own.zero);
      for (int64_t i = 0; i < form.group; ++i) {
        const int code = code_of(from[i], own, range_of(form.bits));
        put(to, g * form.group + i, form.bits, code);
        const double d = static_cast<double>(from[i]) - static_cast<double>(own.scale) * (code - own.zero);
        missed += d * d;
        all += static_cast<double>(from[i]) * static_cast<double>(from[i]);
        error.largest = std::max(error.largest, std::abs(d));
      }
    }
  }
  error.relative = all > 0 ? std::sqrt(missed / all) : 0;
  return out;
}

}  // namespace trireme::ops
