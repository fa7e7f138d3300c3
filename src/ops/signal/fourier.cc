// The discrete Fourier transform: iterative radix 2, and for other lengths Bluestein's algorithm on top of it
// (Bluestein 1970, "A linear filtering approach to the computation of the discrete Fourier transform").
#include "ops/signal/fourier.h"

#include <cmath>
#include <numbers>
#include <utility>

namespace trireme::ops {
namespace {

std::vector<Complex> roots_of(int64_t n) {
  std::vector<Complex> roots(static_cast<size_t>(n / 2));
  for (size_t j = 0; j < roots.size(); ++j) {
    roots[j] = std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(j) / static_cast<double>(n));
  }
  return roots;
}

// Written explicitly, because std::complex checks for NaN in every multiplication.
Complex mul(Complex a, Complex b) {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

}  // namespace

Fourier::Fourier(int64_t n) : n_(n), is_power_((n & (n - 1)) == 0) {
  if (is_power_) {
    roots_ = roots_of(n);
    return;
  }
  padded_ = 1;
  while (padded_ < 2 * n - 1) padded_ *= 2;
  roots_ = roots_of(padded_);
  for (int64_t t = 0; t < n; ++t) {
    // t^2 is reduced modulo 2 n, which keeps the angle small and exact.
    const int64_t square = static_cast<int64_t>(static_cast<uint64_t>(t) * static_cast<uint64_t>(t) %
                                                static_cast<uint64_t>(2 * n));
    chirp_.push_back(
        std::polar(1.0, -std::numbers::pi * static_cast<double>(square) / static_cast<double>(n)));
  }
  chirp_bins_.assign(static_cast<size_t>(padded_), Complex(0));
  for (int64_t t = 0; t < n; ++t) {
    const Complex c = std::conj(chirp_[static_cast<size_t>(t)]);
    chirp_bins_[static_cast<size_t>(t)] = c;
    if (t > 0) chirp_bins_[static_cast<size_t>(padded_ - t)] = c;
  }
  radix2(chirp_bins_.data(), padded_, roots_);
}

void Fourier::radix2(Complex* x, int64_t n, const std::vector<Complex>& roots) const {
  for (int64_t i = 1, j = 0; i < n; ++i) {  // bit reversal
    int64_t bit = n / 2;
    for (; j & bit; bit /= 2) j ^= bit;
    j ^= bit;
    if (i < j) std::swap(x[i], x[j]);
  }
  for (int64_t half = 1; half < n; half *= 2) {
    const int64_t step = n / (2 * half);
    for (int64_t start = 0; start < n; start += 2 * half) {
      for (int64_t k = 0; k < half; ++k) {
        const Complex a = x[start + k], b = mul(x[start + k + half], roots[static_cast<size_t>(k * step)]);
        x[start + k] = a + b;
        x[start + k + half] = a - b;
      }
    }
  }
}

void Fourier::run(Complex* x, Complex* scratch, bool inverse) const {
  // The inverse transform (without 1 / n) is the conjugate of the transform of the conjugate.
  if (inverse) {
    for (int64_t i = 0; i < n_; ++i) x[i] = std::conj(x[i]);
  }
  if (is_power_) {
    radix2(x, n_, roots_);
  } else {
    for (int64_t i = 0; i < padded_; ++i) {
      scratch[i] = i < n_ ? mul(x[i], chirp_[static_cast<size_t>(i)]) : Complex(0);
    }
    radix2(scratch, padded_, roots_);
    // Multiplies by the chirp's spectrum, then transforms back by conjugation.
    for (int64_t i = 0; i < padded_; ++i)
      scratch[i] = std::conj(mul(scratch[i], chirp_bins_[static_cast<size_t>(i)]));
    radix2(scratch, padded_, roots_);
    const double scale = 1.0 / static_cast<double>(padded_);
    for (int64_t i = 0; i < n_; ++i)
      x[i] = mul(std::conj(scratch[i]) * scale, chirp_[static_cast<size_t>(i)]);
  }
  if (inverse) {
    for (int64_t i = 0; i < n_; ++i) x[i] = std::conj(x[i]);
  }
}

}  // namespace trireme::ops
