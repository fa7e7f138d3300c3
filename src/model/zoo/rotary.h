// Rotary positions (Su et al. 2021) and the ways in which published models stretch them over longer
// sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace trireme::model::zoo {

inline constexpr int64_t kMaxPositions = int64_t{1} << 24;  ///< a table of angles is kept for each
inline constexpr int64_t kMaxAngles = int64_t{1} << 28;     ///< positions times channels: 1 GiB of tables

enum class RotaryKind {
  plain,   ///< as trained
  linear,  ///< all wavelengths `factor` times as long
  llama3,  ///< long wavelengths stretched, short ones kept, those between in part, by turns in `original`
  yarn,    ///< the same by channels: Peng et al. 2023
  table,   ///< each wavelength `stretch[i]` times as long: LongRoPE, and factors stored in a file
};

struct RotarySpec {
  RotaryKind kind = RotaryKind::plain;
  double theta = 10000;        ///< base of the wavelengths
  double factor = 1;           ///< of the stretch
  int64_t original = 0;        ///< length of the sequences that were trained on first
  double low = 1, high = 4;    ///< llama3: turns in `original` below which all, above which none is stretched
  double fast = 32, slow = 1;  ///< yarn: turns in `original` between which channels are stretched in part
  bool is_rounded = true;      ///< yarn: the bounds are whole channels
  double gain = 1;             ///< multiplies cosines and sines
  std::vector<double> stretch;
};

/// Radians per position of each of channels / 2 pairs. Throws invalid_argument for a table of another length.
std::vector<double> rotary_frequencies(const RotarySpec& spec, int64_t channels);

/// Cosines and sines of the angles of every position, f32 [positions, channels / 2] each, times the gain.
struct RotaryTables {
  tensor::Tensor cosine, sine;
};
RotaryTables rotary_tables(const RotarySpec& spec, int64_t positions, int64_t channels);

/// The gain that yarn has by default: 0.1 weight ln(factor) + 1.
double yarn_gain(double factor, double weight = 1);

}  // namespace trireme::model::zoo
