// Draws of classes, the random words of draws, and tokens on their way from step to step.
#pragma once

#include <cstdint>

#include "backend/cuda/elementwise/element_kernels.h"
#include "backend/cuda/random/philox.h"
#include "backend/cuda/random/sample.h"

namespace trireme::cuda {

/// 64 random bits in two words.
struct DrawnWord {
  uint32_t word[4];
  TRIREME_DEVICE DrawnWord(uint64_t seed, uint64_t stream, uint64_t at) {
    const uint32_t counter[4] = {static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32),
                                 static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
    const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    philox(counter, key, word);
  }
};

/// A block a row: what is struck out, then biases, whose ids differ within a row.
template <class T>
struct EditLogits {
  EditArgs args;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for (int64_t row = lane.block(); row < args.rows; row += lane.blocks()) {
      const T* x = static_cast<const T*>(args.x) + row * args.n;
      T* y = static_cast<T*>(args.y) + row * args.n;
      const int32_t* allowed = args.allowed + row * args.words;
      const T never = from_float<T>(-INFINITY);
      for (int64_t i = lane.thread(); i < args.n; i += lane.threads())
        y[i] = (static_cast<uint32_t>(allowed[i / 32]) >> (i % 32) & 1) != 0 ? x[i] : never;
      lane.sync();
      for (int64_t i = lane.thread(); i < args.most; i += lane.threads()) {
        const int64_t id = args.ids[row * args.most + i];
        if (id < 0 || id >= args.n) continue;
        y[id] = from_float<T>(to_float(y[id]) + args.biases[row * args.most + i]);
      }
    }
  }
};

/// One block: a row's token is seen once more at its place. No two rows have one place.
struct CountTokens {
  TokenArgs args;
  int32_t* seen;  // [extent, n]
  const int64_t* tokens;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for (int64_t i = lane.thread(); i < args.count; i += lane.threads()) {
      const int64_t place = args.at[i], token = tokens[i];
      if (place < 0) continue;
      if (place < args.extent && token >= 0 && token < args.n)
        seen[place * args.n + token] += 2;
      else
        report_fault(args.fault, args.step, token);
    }
  }
};

/// One block: tokens that the host gave or the step before drew.
struct TakeTokens {
  TokenArgs args;
  const int64_t* ids;
  const int64_t* chosen;  // [extent]
  int64_t* y;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for (int64_t i = lane.thread(); i < args.count; i += lane.threads()) {
      const int64_t from = args.at[i];
      if (from < args.extent)
        y[i] = from < 0 ? ids[i] : chosen[from];
      else
        report_fault(args.fault, args.step, from);
    }
  }
};

/// Draws of classes by unnormalised log probabilities, in f64: a block a row, whose threads sum runs of
/// classes; then each takes draws.
struct Multinomial {
  static constexpr int kThreads = 256;
  MultinomialArgs args;
  tensor::DType type;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    double* scratch = lane.template shared<double>();
    double* runs = scratch + 2 * kWarp;  // [kThreads]
    const int64_t n = args.classes, run = (n + kThreads - 1) / kThreads;
    for (int64_t row = lane.block(); row < args.rows; row += lane.blocks()) {
      const auto value = [&](int64_t c) { return load_element<double>(args.x_type, args.x, row * n + c); };
      double most = value(0);
      for (int64_t c = lane.thread(); c < n; c += kThreads) most = value(c) > most ? value(c) : most;
      most = block_reduce(lane, most, scratch, [](double a, double b) { return a > b ? a : b; });
      double own = 0;
      for (int64_t c = lane.thread() * run; c < (lane.thread() + 1) * run && c < n; ++c)
        own += exp(value(c) - most);
      runs[lane.thread()] = own;
      lane.sync();
      double total = 0;
      for (int t = 0; t < kThreads; ++t) total += runs[t];
      for (int64_t s = lane.thread(); s < args.samples; s += kThreads) {
        const int64_t i = row * args.samples + s;
        const DrawnWord word(args.seed, 3, static_cast<uint64_t>(i));
        const uint64_t bits = (uint64_t{word.word[0]} << 32 | word.word[1]) >> 11;
        double left = static_cast<double>(bits) * 0x1p-53 * total;
        int t = 0;
        while (t + 1 < kThreads && left >= runs[t]) left -= runs[t++];
        int64_t c = t * run;
        const int64_t last = (t + 1) * run < n ? (t + 1) * run : n;
        for (; c + 1 < last; ++c) {
          left -= exp(value(c) - most);
          if (left < 0) break;
        }
        store_element<int64_t>(type, args.y, i, c < n ? c : n - 1);
      }
      lane.sync();  // runs may be written again
    }
  }
};

}  // namespace trireme::cuda
