// Rounding matrices to a few bits, each weight by itself or so that products come out right.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/threads/thread_pool.h"
#include "tensor/dtype.h"

namespace trireme::model::hf {

/// What weights become: whole numbers of `bits` with a scale for each group, and a zero point where they have
/// them, or 8-bit floats (E4M3) with a scale for each row.
struct RoundedForm {
  int bits = 4;
  bool is_float = false;
  int64_t group = 128;  ///< divides the depth
  bool has_zeros = false;
  tensor::DType scale_type = tensor::DType::f32;  ///< scales are numbers of this type
};

/// A matrix [n, k] in such a form.
struct RoundedMatrix {
  std::vector<uint8_t> codes;  ///< [n, k]: whole numbers from 0 on, or codes of E4M3
  std::vector<float> scale;    ///< [n, k / group]
  std::vector<uint8_t> zero;   ///< like scale; of forms without zero points the middle
  double relative = 0;         ///< |W - rounded| / |W|, by Frobenius norms
  double largest = 0;          ///< largest difference of one weight
  double of_products = 0;      ///< |(W - rounded) x| / |W x| over the texts of `moments`, by some rows; or 0
};

/// Rounds w [n, k]. `moments` [k, k], sums of x x' over the inputs of the product, or empty. With them each
/// weight is rounded after what the roundings before it did to products (Frantar et al. 2022, GPTQ, in the
/// form of Chee et al. 2023, LDLQ), those of the largest channels first; scales are those that lose least by
/// the channels' squares. Cost: k^3 / 6 + n k^2 / 2 multiply-adds. Throws invalid_argument where a number is
/// not finite.
RoundedMatrix round_weights(std::span<const float> w, int64_t k, const RoundedForm& form,
                            std::span<const float> moments, base::ThreadPool& pool);

}  // namespace trireme::model::hf
