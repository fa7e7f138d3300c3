// Updates scaled by norms, which are sums in f64 of chunks of blocks in their order, whoever holds them.
#pragma once

#include <cstdint>

#include "backend/cuda/optim/gradient_norm_kernels.h"
#include "backend/cuda/optim/trust_rules.h"

namespace trireme::cuda {

/// A parameter of `blocks` blocks of equal length, which are `chunks` tasks each.
struct TrustGroup {
  UpdateGroup at;
  int64_t blocks, block_elements, chunks;
  int64_t first_block;  // among those of all parameters
  int64_t first_sum;    // of its chunks
};

/// Fits the parameters of a launch.
struct TrustTable {
  static constexpr int kMost = 64;
  static constexpr int64_t kChunk = 8192;  // elements
  TrustGroup group[kMost];
  int64_t first_task[kMost + 1];
  int count;

  TRIREME_DEVICE int group_of(int64_t task) const { return group_of_task(first_task, count, task); }
  /// Elements [begin, end) of a group's task.
  static TRIREME_DEVICE void extent_of(const TrustGroup& g, int64_t local, int64_t& begin, int64_t& end) {
    const int64_t block = local / g.chunks, last = (block + 1) * g.block_elements;
    begin = block * g.block_elements + local % g.chunks * kChunk;
    end = begin + kChunk < last ? begin + kChunk : last;
  }
};

/// Four neighbouring elements with their states, or fewer.
template <int kStates>
struct TrustPack {
  float p[4], g[4], s[kStates][4] = {};

  TRIREME_DEVICE TrustPack(const UpdateGroup& from, const float* const (&states)[2], int64_t at, int64_t n) {
    load_pack(from.param + at, n, p);
    load_pack(from.grad + at, n, g);
    for (int j = 0; j < kStates; ++j) load_pack(states[j] + at, n, s[j]);
  }
  TRIREME_DEVICE void store_states(float* const (&out)[2], int64_t at, int64_t n) const {
    for (int j = 0; j < kStates; ++j) {
      if (out[j] != nullptr) store_pack(s[j], n, out[j] + at);
    }
  }
};

/// f(first element, how many) of this thread's packs of [begin, end): four where 16 bytes are aligned.
template <class Lane, class F>
TRIREME_DEVICE void for_packs(const Lane& lane, const UpdateGroup& g, int64_t begin, int64_t end, F f) {
  const int64_t each = is_aligned(g) && begin % 4 == 0 ? 4 : 1;
  for (int64_t i = begin + lane.thread() * each; i < end; i += lane.threads() * each)
    f(i, end - i < each ? end - i : each);
}

/// begin() of every element: states, where they are kept, and two sums of squares of each task. LAMB: 24
/// bytes an element, Adafactor 16, LARS 8.
template <class Rule>
struct MeasureTrust {
  TrustTable table;
  const TrustNumbers* numbers;
  Rule rule;
  double* sums;  // [2, tasks]
  int64_t tasks;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    double* scratch = lane.template shared<double>();
    const TrustNumbers k = *numbers;
    for (int64_t task = lane.block(); task < table.first_task[table.count]; task += lane.blocks()) {
      const int number = table.group_of(task);
      const TrustGroup& g = table.group[number];
      int64_t begin, end;
      TrustTable::extent_of(g, task - table.first_task[number], begin, end);
      double param = 0, update = 0;
      for_packs(lane, g.at, begin, end, [&](int64_t at, int64_t n) {
        TrustPack<Rule::kStates> x(g.at, g.at.state, at, n);
        for (int i = 0; i < 4 && k.is_skipped == 0; ++i) {  // what is not there is 0, and so is its u
          float own[Rule::kStates];
          for (int j = 0; j < Rule::kStates; ++j) own[j] = x.s[j][i];
          const auto u = static_cast<double>(rule.begin(k, x.p[i], x.g[i], own));
          for (int j = 0; j < Rule::kStates; ++j) x.s[j][i] = own[j];
          param += static_cast<double>(x.p[i]) * static_cast<double>(x.p[i]);
          update += u * u;
        }
        if (Rule::kEarly) x.store_states(g.at.state_out, at, n);
      });
      param = block_reduce(lane, param, scratch, PlusWide{});
      update = block_reduce(lane, update, scratch, PlusWide{});
      if (lane.thread() == 0) {
        const int64_t at = g.first_sum + task - table.first_task[number];
        sums[at] = param;
        sums[tasks + at] = update;
      }
    }
  }
};

/// Both sums of each block, a warp a block: out [2, blocks of all parameters].
struct JoinTrust {
  TrustTable table;
  const double* sums;
  int64_t tasks;
  double* out;
  int64_t blocks;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int warps = lane.threads() / kWarp, in_warp = lane.thread() % kWarp;
    for (int number = 0; number < table.count; ++number) {
      const TrustGroup& g = table.group[number];
      for (int64_t b = lane.block() * warps + lane.thread() / kWarp; b < 2 * g.blocks;
           b += lane.blocks() * warps) {
        const int64_t half = b / g.blocks, block = b % g.blocks;
        const double* from = sums + half * tasks + g.first_sum + block * g.chunks;
        double sum = 0;
        for (int64_t c = in_warp; c < g.chunks; c += kWarp) sum += from[c];
        for (int mask = kWarp / 2; mask > 0; mask /= 2) sum += lane.shuffle_xor(sum, mask);
        if (in_warp == 0) out[half * blocks + g.first_block + block] = sum;
      }
    }
  }
};

/// The step of each parameter from the sums of its blocks on all ranks, a thread a parameter.
template <class Rule>
struct TrustRates {
  TrustTable table;
  const TrustNumbers* numbers;
  Rule rule;
  const double* squares;  // [parts, 2, blocks]
  int64_t blocks, parts;
  float* rate;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    for (int t = lane.thread(); t < table.count; t += lane.threads()) {
      const TrustGroup& g = table.group[t];
      double sum[2] = {};
      for (int half = 0; half < 2; ++half) {
        for (int64_t part = 0; part < parts; ++part) {
          for (int64_t b = 0; b < g.blocks; ++b)
            sum[half] += squares[(2 * part + half) * blocks + g.first_block + b];
        }
      }
      rate[t] = static_cast<float>(rule.rate(*numbers, sum[0], sum[1], g.at.n));
    }
  }
};

/// end() of every element. LAMB and Adafactor: 16 bytes an element, LARS 20; a copy 2 more.
template <class Rule>
struct ApplyTrust {
  TrustTable table;
  const TrustNumbers* numbers;
  Rule rule;
  const float* rate;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const TrustNumbers k = *numbers;
    for (int64_t task = lane.block(); task < table.first_task[table.count]; task += lane.blocks()) {
      const int number = table.group_of(task);
      const UpdateGroup& g = table.group[number].at;
      const float by = rate[number];
      int64_t begin, end;
      TrustTable::extent_of(table.group[number], task - table.first_task[number], begin, end);
      const float* states[2] = {g.state[0], g.state[1]};
      if (Rule::kEarly) {
        states[0] = g.state_out[0];
        states[1] = g.state_out[1];
      }
      for_packs(lane, g, begin, end, [&](int64_t at, int64_t n) {
        TrustPack<Rule::kStates> x(g, states, at, n);
        for (int i = 0; i < 4 && k.is_skipped == 0; ++i) {
          float own[Rule::kStates];
          for (int j = 0; j < Rule::kStates; ++j) own[j] = x.s[j][i];
          x.p[i] = rule.end(k, by, x.p[i], x.g[i], own);
          for (int j = 0; j < Rule::kStates; ++j) x.s[j][i] = own[j];
        }
        store_param(g, x.p, at, n);
        if (!Rule::kEarly) x.store_states(g.state_out, at, n);
      });
    }
  }
};

}  // namespace trireme::cuda
