// Draws of tokens. Sums over a row's tokens are of whole numbers, and a cut or a draw is found by sixteen-way
// search: no row is sorted.
#pragma once

#include "backend/cuda/random/sample_kernels.h"
#include "tensor/sample_math.h"

namespace trireme::cuda {

/// A block a row [n]. Tokens are ordered by a code: value first, then place, the first of equals first. Each
/// search reads the row once for four bits of the code: 8 to 13 reads for top_k and for top_p, 5 for the
/// draw, from the second-level cache.
template <class T>
struct SampleTokens {
  static constexpr int kThreads = 512;
  static constexpr int kWays = 16;
  static constexpr int64_t kSharedBytes =
      (kThreads / kWarp + 2) * kWays * static_cast<int64_t>(sizeof(uint64_t));
  SampleArgs args;
  int place_bits;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    uint64_t* scratch = lane.template shared<uint64_t>();
    for (int64_t row = lane.block(); row < args.rows; row += lane.blocks()) {
      const int64_t place = args.seen == nullptr ? -1 : args.row_places[row];
      const Row r{static_cast<const T*>(args.x) + row * args.n,
                  place >= 0 && place < args.places ? args.seen + place * args.n : nullptr,
                  args.settings + row * args.columns};
      const int64_t drawn = draw(lane, scratch, r, args.counters + row * 2);
      if (lane.thread() == 0) args.y[row] = drawn;
      if (args.log_probability == nullptr) continue;
      const float log = log_probability(lane, scratch, r.x, drawn);
      if (lane.thread() == 0) args.log_probability[row] = log;
    }
  }

 private:
  /// A row's scores: logits after the penalties.
  struct Row {
    const T* x;
    const int32_t* seen;
    const float* setting;
    TRIREME_DEVICE float at(int64_t i) const {
      const float v = to_float(x[i]);
      return seen == nullptr ? v : tensor::penalized(v, seen[i], setting[4], setting[5], setting[6]);
    }
  };

  /// Value and place of a token: greater codes come first.
  TRIREME_DEVICE uint64_t code_of(float v, int64_t i) const {
    return uint64_t{tensor::ordered_bits(v)} << place_bits | static_cast<uint64_t>(args.n - 1 - i);
  }

  template <class Lane>
  TRIREME_DEVICE int64_t draw(const Lane& lane, uint64_t* scratch, const Row& from,
                              const int64_t* counter) const {
    const int64_t n = args.n;
    const float* setting = from.setting;
    uint64_t most = 0;
    for (int64_t i = lane.thread(); i < n; i += lane.threads()) {
      const uint64_t c = code_of(from.at(i), i);
      most = c > most ? c : most;
    }
    most = block_reduce(lane, most, scratch, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
    const int64_t best = n - 1 - static_cast<int64_t>(most & ((uint64_t{1} << place_bits) - 1));
    if (!(setting[0] > 0)) return best;
    const float largest = from.at(best), scale = tensor::weight_scale(setting[0]);
    const auto weight = [&](float v) { return tensor::token_weight(v, largest, scale); };
    const int bits = 32 + place_bits;
    uint64_t least = 0;  // codes from here on are kept
    const auto top_k = setting[1] >= 1 ? static_cast<int64_t>(setting[1]) : n;
    if (top_k < n) {
      least = search(lane, {scratch, from}, bits, static_cast<uint64_t>(top_k), [&](float v, int64_t i) {
        return Counted{code_of(v, i), 1};
      });
    }
    const auto kept = [&](float v, int64_t i) { return code_of(v, i) >= least; };
    if (setting[2] < 1) {
      const auto counted = [&](float v, int64_t i) {
        return Counted{code_of(v, i), kept(v, i) ? weight(v) : 0};
      };
      const uint64_t goal = tensor::nucleus(setting[2], total_of(lane, scratch, from, counted));
      const uint64_t cut = search(lane, {scratch, from}, bits, goal, counted);
      least = cut > least ? cut : least;
    }
    const uint64_t least_weight = tensor::least_weight(setting[3]);
    const auto by_place = [&](float v, int64_t i) {
      const uint64_t w = kept(v, i) ? weight(v) : 0;
      return Counted{static_cast<uint64_t>(n - 1 - i), w >= least_weight ? w : 0};
    };
    const uint64_t total = total_of(lane, scratch, from, by_place);
    const DrawnWord word(static_cast<uint64_t>(counter[0]), tensor::kTokenStream,
                         static_cast<uint64_t>(counter[1]));
    const uint64_t part = tensor::drawn_part(word.word[0], word.word[1], total);
    // The first place up to which there is more than `part`.
    const uint64_t at = search(lane, {scratch, from}, place_bits, part + 1, by_place);
    return total == 0 ? best : n - 1 - static_cast<int64_t>(at);
  }

  /// Of the logits as they came; numbers that are none do not count.
  template <class Lane>
  TRIREME_DEVICE float log_probability(const Lane& lane, uint64_t* scratch, const T* x, int64_t at) const {
    auto* sums = reinterpret_cast<double*>(scratch);
    double most = -INFINITY;
    for (int64_t i = lane.thread(); i < args.n; i += lane.threads()) {
      const double v = static_cast<double>(to_float(x[i]));
      most = v > most ? v : most;
    }
    most = block_reduce(lane, most, sums, [](double a, double b) { return a > b ? a : b; });
    double sum = 0;
    for (int64_t i = lane.thread(); i < args.n; i += lane.threads()) {
      const float below = to_float(x[i]) - static_cast<float>(most);
      sum += below == below ? static_cast<double>(expf(below)) : 0.0;
    }
    sum = block_reduce(lane, sum, sums, [](double a, double b) { return a + b; });
    return static_cast<float>(static_cast<double>(to_float(x[at])) - most - log(sum));
  }

  struct Searched {
    uint64_t* scratch;
    const Row& from;
  };
  struct Counted {
    uint64_t code, amount;
  };

  template <class Lane, class F>
  TRIREME_DEVICE uint64_t total_of(const Lane& lane, uint64_t* scratch, const Row& from, F f) const {
    uint64_t total = 0;
    for (int64_t i = lane.thread(); i < args.n; i += lane.threads()) total += f(from.at(i), i).amount;
    return block_reduce(lane, total, scratch, [](uint64_t a, uint64_t b) { return a + b; });
  }

  /// The greatest code for which the amounts of codes not below it reach `goal`; 0 if none does.
  template <class Lane, class F>
  TRIREME_DEVICE uint64_t search(const Lane& lane, Searched in, int bits, uint64_t goal, F f) const {
    uint64_t prefix = 0, above = 0;
    for (int shift = (bits + 3) / 4 * 4 - 4; shift >= 0; shift -= 4) {
      uint64_t own[kWays] = {};
      for (int64_t i = lane.thread(); i < args.n; i += lane.threads()) {
        const Counted c = f(in.from.at(i), i);
        if ((c.code >> shift) >> 4 != prefix) continue;
        const int way = static_cast<int>(c.code >> shift & 15);
        for (int w = 0; w < kWays; ++w) own[w] += w == way ? c.amount : 0;
      }
      join(lane, in.scratch, own);
      const uint64_t* sums = in.scratch + kThreads / kWarp * kWays;
      int way = kWays - 1;
      while (way > 0 && above + sums[way] < goal) above += sums[way--];
      prefix = prefix << 4 | static_cast<uint64_t>(way);
      lane.sync();  // the scratch may be written again
    }
    return prefix;
  }

  /// Sums over the block behind the warps' own.
  template <class Lane>
  TRIREME_DEVICE void join(const Lane& lane, uint64_t* scratch, const uint64_t (&own)[kWays]) const {
    for (int w = 0; w < kWays; ++w) {
      uint64_t sum = own[w];
      for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += lane.shuffle_xor(sum, mask);
      if (lane.thread() % kWarp == 0) scratch[lane.thread() / kWarp * kWays + w] = sum;
    }
    lane.sync();
    if (lane.thread() < kWays) {
      uint64_t sum = 0;
      for (int warp = 0; warp < kThreads / kWarp; ++warp) sum += scratch[warp * kWays + lane.thread()];
      scratch[kThreads / kWarp * kWays + lane.thread()] = sum;
    }
    lane.sync();
  }
};

}  // namespace trireme::cuda
