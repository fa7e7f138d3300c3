// The discrete Fourier transform of any length in O(n log n), in double.
#pragma once

#include <complex>
#include <cstdint>
#include <vector>

namespace trireme::ops {

using Complex = std::complex<double>;

/// A transform of one length, made ready: radix-2 for powers of two, Bluestein's chirp for the others.
class Fourier {
 public:
  explicit Fourier(int64_t n);
  /// Complex numbers of scratch that run needs.
  int64_t scratch() const { return is_power_ ? 0 : 2 * padded_; }
  /// x[k] = sum_t x[t] e^(-2 pi i k t / n), or with e^(+...) and without the 1/n if `inverse`.
  void run(Complex* x, Complex* scratch, bool inverse) const;

 private:
  void radix2(Complex* x, int64_t n, const std::vector<Complex>& roots) const;

  int64_t n_;
  bool is_power_;
  int64_t padded_ = 0;               // power of two >= 2 n - 1
  std::vector<Complex> roots_;       // of n or padded_: e^(-2 pi i j / n), j < n / 2
  std::vector<Complex> chirp_;       // e^(-pi i t^2 / n)
  std::vector<Complex> chirp_bins_;  // transform of the conjugate chirp, padded
};

}  // namespace trireme::ops
