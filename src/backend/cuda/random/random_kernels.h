// Kernels that draw by counter (Philox4x32-10).
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/device/divide.h"
#include "backend/cuda/elementwise/element_kernels.h"
#include "backend/cuda/random/philox.h"
#include "backend/cuda/random/random.h"

namespace trireme::cuda {

/// The mask of backend/cpu/elementwise/dropout.h: 64 elements share 16 blocks, word w of a block decides an
/// element 16 w further. Where x is one run of the whole a thread draws a block for four elements, else one
/// for each. 2 sizeof(T) bytes an element.
template <class T>
struct DropoutStep {
  static constexpr bool kIndependent = true;
  const T* x;
  T* y;
  const int64_t* rng;
  Divider extent[kDropoutRank];
  int64_t steps[kDropoutRank];
  int64_t count, begin, row_elements;
  int rank;
  uint32_t threshold, op;
  float scale;

  /// Whether neighbours in x are neighbours in the whole.
  TRIREME_HD bool is_run() const { return rank == 0 || (rank == 1 && steps[0] == 1); }

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const uint64_t seed = static_cast<uint64_t>(rng[0]);
    const uint64_t stream = uint64_t{1} << 63 | static_cast<uint64_t>(op & 0x7fffffffu) << 32 |
                            (static_cast<uint64_t>(rng[1]) & 0xffffffffu);
    const uint64_t first =
        static_cast<uint64_t>(rng[2]) * static_cast<uint64_t>(row_elements) + static_cast<uint64_t>(begin);
    const int64_t stride = lane.blocks() * lane.threads();
    const int64_t own = lane.block() * lane.threads() + lane.thread();
    if (!is_run()) {
      for (int64_t i = own; i < count; i += stride) draw_one(i, seed, stream, first);
      return;
    }
    const uint64_t last = first + static_cast<uint64_t>(count), groups = last / 64 - first / 64 + 1;
    for (int64_t t = own; t < static_cast<int64_t>(groups) * 16; t += stride) {
      const uint64_t block = first / 64 * 16 + static_cast<uint64_t>(t);
      uint32_t word[4];
      draw(block, seed, stream, word);
      for (int w = 0; w < 4; ++w) {
        const uint64_t element = block / 16 * 64 + static_cast<uint64_t>(w) * 16 + block % 16;
        if (element < first || element >= last) continue;
        put(static_cast<int64_t>(element - first), word[w]);
      }
    }
  }

 private:
  static TRIREME_DEVICE void draw(uint64_t block, uint64_t seed, uint64_t stream, uint32_t (&word)[4]) {
    const uint32_t counter[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                 static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
    const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    philox(counter, key, word);
  }
  TRIREME_DEVICE void put(int64_t i, uint32_t word) const {
    y[i] = from_float<T>(word >= threshold ? to_float(x[i]) * scale : 0.0f);
  }
  TRIREME_DEVICE void draw_one(int64_t i, uint64_t seed, uint64_t stream, uint64_t first) const {
    int64_t rest = i;
    uint64_t element = first;
    for (int d = rank - 1; d >= 0; --d) element += static_cast<uint64_t>(extent[d].step(rest) * steps[d]);
    uint32_t word[4];
    draw(element / 64 * 16 + element % 16, seed, stream, word);
    const uint64_t w = element % 64 / 16;
    put(i, w == 0 ? word[0] : w == 1 ? word[1] : w == 2 ? word[2] : word[3]);
  }
};

/// One block of draws an element, numbers in f64.
struct DrawNumbers {
  static constexpr bool kIndependent = true;
  DrawArgs args;
  tensor::DType type;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t stride = lane.blocks() * lane.threads();
    // The streams of ops/random: values and coins.
    const uint32_t stream = args.draw == Draw::bernoulli ? 2 : 1;
    const uint32_t key[2] = {static_cast<uint32_t>(args.seed), static_cast<uint32_t>(args.seed >> 32)};
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < args.n; i += stride) {
      const auto block = static_cast<uint64_t>(i);
      const uint32_t counter[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), stream,
                                   0};
      uint32_t word[4];
      philox(counter, key, word);
      const double u = uniform(word[0], word[1]);
      double v;
      if (args.draw == Draw::uniform) {
        v = args.a + (args.b - args.a) * u;
      } else if (args.draw == Draw::normal) {
        constexpr double kTwoPi = 6.283185307179586476925;
        v = args.a +
            args.b * (std::sqrt(-2 * std::log(1 - u)) * std::cos(kTwoPi * uniform(word[2], word[3])));
      } else {
        v = u < load_element<double>(args.probability_type, args.probability, i) ? 1 : 0;
      }
      store_element<double>(type, args.y, i, v);
    }
  }

 private:
  /// 53 bits in [0, 1), as base/rng.h has them.
  static TRIREME_DEVICE double uniform(uint32_t high, uint32_t low) {
    return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
  }
};

}  // namespace trireme::cuda
