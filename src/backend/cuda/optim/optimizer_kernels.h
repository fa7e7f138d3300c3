// Updates and averages of many tensors. The rules round once an operation, as
// backend/cpu/optim/update_rules.h writes them.
#pragma once

#include <cstdint>

#include "backend/cuda/device/exact.h"
#include "backend/cuda/optim/update_table.h"

namespace trireme::cuda {

struct SgdRule {
  static constexpr int kStates = 1;
  float l2, momentum, keep;
  bool nesterov;
  TRIREME_DEVICE void operator()(const UpdateNumbers& k, float& p, float g, float* s) const {
    g = exact::times(g, k.grad_scale);
    if (l2 != 0) g = exact::plus(g, exact::times(l2, p));
    if (momentum != 0) {
      s[0] = k.is_first != 0 ? g : exact::plus(exact::times(momentum, s[0]), exact::times(keep, g));
      g = nesterov ? exact::plus(g, exact::times(momentum, s[0])) : s[0];
    }
    p = exact::plus(p, -exact::times(k.lr, g));
  }
};

/// `decays`: decoupled weight decay (AdamW).
struct AdamRule {
  static constexpr int kStates = 2;
  float l2, beta1, take1, beta2, take2, epsilon;
  bool decays;
  TRIREME_DEVICE void operator()(const UpdateNumbers& k, float& p, float g, float* s) const {
    g = exact::times(g, k.grad_scale);
    if (l2 != 0) g = exact::plus(g, exact::times(l2, p));
    s[0] = exact::plus(exact::times(beta1, s[0]), exact::times(take1, g));
    s[1] = exact::plus(exact::times(beta2, s[1]), exact::times(exact::times(take2, g), g));
    const float below = exact::plus(exact::times(exact::root(s[1]), k.root), epsilon);
    const float step = exact::times(k.rate, exact::divided(s[0], below));
    p = exact::plus(exact::times(p, decays ? k.decay : 1.0f), -step);
  }
};

/// p: the average, g: the value.
struct AverageRule {
  static constexpr int kStates = 0;
  TRIREME_DEVICE void operator()(const UpdateNumbers& k, float& p, float g, float*) const {
    p = exact::plus(exact::times(k.rate, p), exact::times(k.root, g));
  }
};

/// The rule over all elements of a table; a skipped step copies where results are not in place. Adam: 28
/// bytes an element, momentum 20, SGD and averages 12; a copy 2 more.
template <class Rule>
struct UpdateMany {
  UpdateTable table;
  const UpdateNumbers* numbers;
  Rule rule;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const UpdateNumbers k = *numbers;
    for (int64_t chunk = lane.block(); chunk < table.first_chunk[table.count]; chunk += lane.blocks()) {
      const int at = table.group_of(chunk);
      const UpdateGroup& g = table.group[at];
      const int64_t begin = (chunk - table.first_chunk[at]) * UpdateTable::kChunk;
      const int64_t end = begin + UpdateTable::kChunk < g.n ? begin + UpdateTable::kChunk : g.n;
      const int64_t each = is_aligned(g) ? 4 : 1;
      for (int64_t i = begin + lane.thread() * each; i < end; i += lane.threads() * each)
        step(k, g, i, end - i < each ? end - i : each);
    }
  }

 private:
  TRIREME_DEVICE void step(const UpdateNumbers& k, const UpdateGroup& g, int64_t at, int64_t count) const {
    constexpr int kStates = Rule::kStates;
    float p[4], d[4], s[kStates + 1][4] = {};
    load_pack(g.param + at, count, p);
    load_pack(g.grad + at, count, d);
    for (int j = 0; j < kStates; ++j) {
      if (g.state[j] != nullptr) load_pack(g.state[j] + at, count, s[j]);
    }
    if (k.is_skipped == 0) {
      for (int i = 0; i < 4; ++i) {
        float own[kStates + 1] = {};
        for (int j = 0; j < kStates; ++j) own[j] = s[j][i];
        rule(k, p[i], d[i], own);
        for (int j = 0; j < kStates; ++j) s[j][i] = own[j];
      }
    }
    store_param(g, p, at, count);
    for (int j = 0; j < kStates; ++j) {
      if (g.state_out[j] != nullptr) store_pack(s[j], count, g.state_out[j] + at);
    }
  }
};

/// tree_accumulate: level `top` (the trailing ones of count) gets the value and the levels below it; the
/// others are copied where they are not in place.
struct TreeAccumulate {
  static constexpr int kMostLevels = 62;
  const int64_t* count;
  const float* value;
  const float* held[kMostLevels];
  float* out[kMostLevels];
  int levels;
  int64_t n;
  int64_t* fault;
  int64_t step;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    int top = 0;
    while ((*count >> top & 1) != 0) ++top;
    if (top >= levels) {
      if (lane.block() == 0 && lane.thread() == 0) report_fault(fault, step, *count);
      return;
    }
    const int64_t stride = lane.blocks() * lane.threads() * 4;
    for (int64_t at = (lane.block() * lane.threads() + lane.thread()) * 4; at < n; at += stride) {
      float sum[4], v[4];
      load_pack(value + at, n - at, sum);
      for (int level = 0; level < levels; ++level) {
        const bool is_copied = level != top && out[level] != held[level];
        if (level >= top && !is_copied) continue;
        load_pack(held[level] + at, n - at, v);
        if (is_copied) store_pack(v, n - at, out[level] + at);
        for (int i = 0; i < 4 && level < top; ++i) sum[i] = v[i] + sum[i];
      }
      store_pack(sum, n - at, out[top] + at);
    }
  }
};

}  // namespace trireme::cuda
