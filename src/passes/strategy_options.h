// The parts of a strategy that concern what one rank computes: precision of products, what is computed again,
// and how weights are stored.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/options.h"
#include "ops/blocks/blocks.h"

namespace trireme::passes {

/// fp8: as bf16, and linear products on 8-bit floats (passes/precision/float8.h).
enum class Precision { f32, bf16, f16, fp8 };

/// Of products; weights of a training, moments, statistics and results keep their types.
struct PrecisionOptions {
  Precision compute = Precision::f32;
  std::vector<std::string> keep = {};
  bool fp8_last = false;  ///< fp8: products that no other product follows are 8-bit too
  void fields(base::OptionList& f);
};

/// none: everything the backward pass reads is kept. selective: what is cheap (element by element, norms,
/// softmax, layout) is computed again from the results of products, convolutions and attention. full: only
/// values at cuts between segments are kept, and each segment's forward runs again before its backward.
enum class RecomputeMode : uint8_t { none, selective, full };
std::string_view to_string(RecomputeMode mode);

/// Which activations of a training step are computed again.
struct RecomputeOptions {
  RecomputeMode mode = RecomputeMode::none;
  int64_t activation_bytes = 0;  ///< above 0: as little as keeps activations under this many bytes

  bool is_on() const { return mode != RecomputeMode::none || activation_bytes > 0; }
  /// "none", "selective", "full" or "budget:2GiB". Throws invalid_argument, beginning with `key`, otherwise.
  static RecomputeOptions parse(std::string_view text, std::string_view key);
};

/// int8, int4: with scales of groups; from kFirstBlocks on tensor::block_formats() in their order.
enum class WeightBits {
  f32,
  int8,
  int4,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  mxfp4
};
inline constexpr WeightBits kFirstBlocks = WeightBits::q4_0;

/// How matrices under products are stored.
struct WeightOptions {
  WeightBits weights = WeightBits::f32;
  int64_t weight_group = 64;
  bool weight_zeros = false;
  ops::BlockRows weight_rows = ops::BlockRows::q8;  ///< how rows meet weights in block formats
  int64_t least_elements = 4096;                    ///< smaller weights stay as they are
  void fields(base::OptionList& f);
  /// Whether store_weights() may change a graph.
  bool stores() const { return weights != WeightBits::f32 || weight_rows != ops::BlockRows::q8; }
  /// The block format that was chosen, or null.
  const tensor::BlockFormat* blocks() const;
  bool operator==(const WeightOptions&) const = default;
};

}  // namespace trireme::passes
