// What draws of tokens share: scores, their order, sums and searches over them, and the draw itself. Sums are
// of whole numbers, and a cut or a draw is found by sixteen-way search: no row is sorted.
#pragma once

#include "backend/cuda/random/sample_kernels.h"
#include "tensor/sample_math.h"

namespace trireme::cuda {

/// A token and its score: the logit after the penalties.
struct ScoredToken {
  float score;
  int64_t place;
};

/// Tokens [begin, end) of a row.
template <class T>
struct TokenRow {
  const T* x;
  const int32_t* seen;  // null: no penalties
  const float* setting;
  int64_t begin, end;

  TRIREME_DEVICE TokenRow(const SampleArgs& args, int64_t row)
      : x(static_cast<const T*>(args.x) + row * args.n),
        seen(nullptr),
        setting(args.settings + row * args.columns),
        begin(0),
        end(args.n) {
    const int64_t place = args.seen == nullptr ? -1 : args.row_places[row];
    if (place >= 0 && place < args.places) seen = args.seen + place * args.n;
  }
  TRIREME_DEVICE int64_t size() const { return end - begin; }
  TRIREME_DEVICE float score(int64_t place) const {
    const float v = to_float(x[place]);
    return seen == nullptr ? v : tensor::penalized(v, seen[place], setting[4], setting[5], setting[6]);
  }
  TRIREME_DEVICE ScoredToken at(int64_t i) const { return {score(begin + i), begin + i}; }
};

/// Tokens of a row of n are ordered by a code: score first, then place, the first of equals first.
struct TokenOrder {
  int64_t n;
  int place_bits;  // of n - 1
  TRIREME_DEVICE uint64_t code_of(ScoredToken t) const {
    return uint64_t{tensor::ordered_bits(t.score)} << place_bits | static_cast<uint64_t>(n - 1 - t.place);
  }
  TRIREME_DEVICE int64_t place_of(uint64_t code) const {
    return n - 1 - static_cast<int64_t>(code & ((uint64_t{1} << place_bits) - 1));
  }
};

struct LargerCode {
  TRIREME_DEVICE uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};
struct PlusAmount {
  TRIREME_DEVICE uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};

struct LargerLogit {
  TRIREME_DEVICE float operator()(float a, float b) const { return a > b ? a : b; }
};
struct PlusPart {
  TRIREME_DEVICE double operator()(double a, double b) const { return a + b; }
};
/// A logit's part of the sum that a log probability needs; what is no number has none.
TRIREME_DEVICE double part_of_sum(float v, float most) {
  const float below = v - most;
  return below == below ? static_cast<double>(expf(below)) : 0.0;
}
TRIREME_DEVICE float log_of(float v, float most, double sum) {
  return static_cast<float>(static_cast<double>(v) - static_cast<double>(most) - log(sum));
}

/// An amount under a code.
struct Counted {
  uint64_t code, amount;
};

/// Sums and searches of a block of kThreads over [0, size) of f(i), which gives Counted; a search reads all
/// once for four bits of the code.
struct TokenSums {
  static constexpr int kThreads = 512;
  static constexpr int kWays = 16;
  static constexpr int64_t kSharedBytes =
      (kThreads / kWarp + 2) * kWays * static_cast<int64_t>(sizeof(uint64_t));
  uint64_t* scratch;  // kSharedBytes of shared memory

  template <class Lane, class F>
  TRIREME_DEVICE uint64_t total(const Lane& lane, int64_t size, F f) const {
    uint64_t total = 0;
    for (int64_t i = lane.thread(); i < size; i += lane.threads()) total += f(i).amount;
    return block_reduce(lane, total, scratch, PlusAmount{});
  }

  /// The greatest code for which the amounts of codes not below it reach `goal`; 0 if none does.
  template <class Lane, class F>
  TRIREME_DEVICE uint64_t search(const Lane& lane, int64_t size, int bits, uint64_t goal, F f) const {
    uint64_t prefix = 0, above = 0;
    for (int shift = (bits + 3) / 4 * 4 - 4; shift >= 0; shift -= 4) {
      uint64_t own[kWays] = {};
      for (int64_t i = lane.thread(); i < size; i += lane.threads()) {
        const Counted c = f(i);
        if ((c.code >> shift) >> 4 != prefix) continue;
        const int way = static_cast<int>(c.code >> shift & 15);
        for (int w = 0; w < kWays; ++w) own[w] += w == way ? c.amount : 0;
      }
      join(lane, own);
      const uint64_t* sums = scratch + kThreads / kWarp * kWays;
      int way = kWays - 1;
      while (way > 0 && above + sums[way] < goal) above += sums[way--];
      prefix = prefix << 4 | static_cast<uint64_t>(way);
      lane.sync();  // the scratch may be written again
    }
    return prefix;
  }

 private:
  /// Sums over the block behind the warps' own.
  template <class Lane>
  TRIREME_DEVICE void join(const Lane& lane, const uint64_t (&own)[kWays]) const {
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

/// One draw: the row's settings, the token that is the most likely, and the draw's number.
struct TokenDraw {
  TokenOrder order;
  const float* setting;
  const int64_t* counter;
  int64_t best;
  float largest;  // its score

  TRIREME_DEVICE bool is_greedy() const { return !(setting[0] > 0); }
  TRIREME_DEVICE bool cuts_count() const { return setting[1] >= 1 && top_k() < order.n; }
  TRIREME_DEVICE bool cuts_share() const { return setting[2] < 1; }
  TRIREME_DEVICE int64_t top_k() const { return static_cast<int64_t>(setting[1]); }
  TRIREME_DEVICE uint64_t weight(float score) const {
    return tensor::token_weight(score, largest, tensor::weight_scale(setting[0]));
  }
  /// The weight of what no cut drops, under the place: the first place comes first.
  TRIREME_DEVICE Counted by_place(ScoredToken t, uint64_t least) const {
    const uint64_t w = order.code_of(t) >= least ? weight(t.score) : 0;
    return {static_cast<uint64_t>(order.n - 1 - t.place), w >= tensor::least_weight(setting[3]) ? w : 0};
  }
  /// Which part of a sum of weights is drawn.
  TRIREME_DEVICE uint64_t part_of(uint64_t total) const {
    const DrawnWord word(static_cast<uint64_t>(counter[0]), tensor::kTokenStream,
                         static_cast<uint64_t>(counter[1]));
    return tensor::drawn_part(word.word[0], word.word[1], total);
  }

  /// The place drawn from `tokens`, which have all that the cuts keep. `all`: the weight of the whole row,
  /// where top_k does not cut; 0: it is that of `tokens`.
  template <class Lane, class Tokens>
  TRIREME_DEVICE int64_t run(const Lane& lane, TokenSums sums, const Tokens& tokens, uint64_t all) const {
    const int64_t size = tokens.size();
    const int bits = 32 + order.place_bits;
    uint64_t least = 0;  // codes from here on are kept
    if (cuts_count()) {
      least = sums.search(lane, size, bits, static_cast<uint64_t>(top_k()), [&](int64_t i) {
        return Counted{order.code_of(tokens.at(i)), 1};
      });
    }
    if (cuts_share()) {
      const auto counted = [&](int64_t i) {
        const ScoredToken t = tokens.at(i);
        const uint64_t code = order.code_of(t);
        return Counted{code, code >= least ? weight(t.score) : 0};
      };
      const uint64_t total = all != 0 ? all : sums.total(lane, size, counted);
      const uint64_t cut = sums.search(lane, size, bits, tensor::nucleus(setting[2], total), counted);
      least = cut > least ? cut : least;
    }
    const auto placed = [&](int64_t i) { return by_place(tokens.at(i), least); };
    const uint64_t total = sums.total(lane, size, placed);
    // The first place up to which there is more than the drawn part.
    const uint64_t at = sums.search(lane, size, order.place_bits, part_of(total) + 1, placed);
    return total == 0 ? best : order.n - 1 - static_cast<int64_t>(at);
  }
};

}  // namespace trireme::cuda
