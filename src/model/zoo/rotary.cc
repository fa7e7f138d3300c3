// Rotary positions: wavelengths, and tables of cosines and sines.
#include "model/zoo/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trireme::model::zoo {
namespace {

using tensor::DType;
using tensor::Tensor;

/// The (fractional) channel pair that makes `turns` turns within the original length.
double pair_of(const RotarySpec& s, double turns, int64_t channels) {
  const double length = static_cast<double>(s.original);
  return static_cast<double>(channels) * std::log(length / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(s.theta));
}

/// The share of pair i that keeps its wavelength, 0 to 1 (YaRN, Peng et al. 2023).
double kept_by_channel(const RotarySpec& s, int64_t i, int64_t channels) {
  double low = pair_of(s, s.fast, channels), high = pair_of(s, s.slow, channels);
  if (s.is_rounded) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(channels - 1));
  if (low == high) high += 0.001;
  return 1 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
}

double kept_by_turns(const RotarySpec& s, double frequency) {
  const double turns = static_cast<double>(s.original) * frequency / (2 * std::numbers::pi);
  return std::clamp((turns - s.low) / (s.high - s.low), 0.0, 1.0);
}

}  // namespace

std::vector<double> rotary_frequencies(const RotarySpec& s, int64_t channels) {
  std::vector<double> frequencies(static_cast<size_t>(channels / 2));
  base::require(s.kind != RotaryKind::table || s.stretch.size() == frequencies.size(), "rotary positions of ",
                frequencies.size(), " channel pairs with ", s.stretch.size(), " factors");
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const double f = std::pow(s.theta, -2.0 * static_cast<double>(i) / static_cast<double>(channels));
    double kept = 1, factor = s.factor;
    if (s.kind == RotaryKind::linear) kept = 0;
    if (s.kind == RotaryKind::llama3) kept = kept_by_turns(s, f);
    if (s.kind == RotaryKind::yarn) kept = kept_by_channel(s, at, channels);
    if (s.kind == RotaryKind::table) kept = 0, factor = s.stretch[i];
    frequencies[i] = (1 - kept) * f / factor + kept * f;
  }
  return frequencies;
}

RotaryTables rotary_tables(const RotarySpec& spec, int64_t positions, int64_t channels) {
  const std::vector<double> frequencies = rotary_frequencies(spec, channels);
  const auto half = static_cast<int64_t>(frequencies.size());
  RotaryTables t{Tensor::empty(DType::f32, {positions, half}), Tensor::empty(DType::f32, {positions, half})};
  const auto cosine = t.cosine.mutable_data<float>(), sine = t.sine.mutable_data<float>();
  for (size_t i = 0; i < frequencies.size(); ++i) {
    for (int64_t p = 0; p < positions; ++p) {
      const double angle = static_cast<double>(p) * frequencies[i];
      const auto at = static_cast<size_t>(p * half) + i;
      cosine[at] = static_cast<float>(std::cos(angle) * spec.gain);
      sine[at] = static_cast<float>(std::sin(angle) * spec.gain);
    }
  }
  return t;
}

double yarn_gain(double factor, double weight) {
  return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

}  // namespace trireme::model::zoo
