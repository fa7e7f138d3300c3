// Prompts over pages, a block a tile of new tokens of a head over all their keys; and the writing of pages.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/attention/paged_attention.h"
#include "backend/cuda/attention/paged_view.h"
#include "tensor/small_float_math.h"

namespace trireme::cuda {

/// Sequences of more than kFewRows new tokens: a block takes kRows of them for one head and walks over its
/// keys in tiles of shared memory; kParts threads share a row and hold its channels in turn. Dao et al. 2022.
template <class Q, class T, int kDim>
struct PagedTiles {
  static constexpr int kRows = 32, kParts = kDim > 128 ? 8 : 4, kEach = kDim / kParts;
  static constexpr int kThreads = kRows * kParts, kMostThreads = kThreads;
  static constexpr int kRun = 8;  // keys between two corrections
  static constexpr int64_t kSharedBytes = 2 * kRows * kDim * static_cast<int64_t>(sizeof(float));
  PagedView view;
  const Q* q;
  const T *k_pages, *v_pages;
  Q* y;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    int64_t before = 0;  // blocks' tasks of the sequences before this one
    for (int64_t s = 0; s < view.sequences; ++s) {
      const int64_t fresh = view.fresh(s), tiles = fresh > kFewRows ? (fresh + kRows - 1) / kRows : 0;
      // The first of this block's tasks: number i with i % blocks == block.
      int64_t i = (lane.block() - before % lane.blocks() + lane.blocks()) % lane.blocks();
      for (; i < tiles * view.heads; i += lane.blocks()) run(lane, s, i % view.heads, i / view.heads * kRows);
      before += tiles * view.heads;
    }
  }

 private:
  struct State {
    float top = -INFINITY, sum = 0;
    float y[kEach] = {};
  };

  template <class Lane>
  TRIREME_DEVICE void run(const Lane& lane, int64_t s, int64_t head, int64_t first) const {
    float* keys = lane.template shared<float>();
    float* values = keys + kRows * kDim;
    const int part = lane.thread() % kParts;
    const int64_t fresh = view.fresh(s), row = first + lane.thread() / kParts;
    const int64_t at = ((view.starts[s] + row) * view.heads + head) * view.dim;
    const int64_t seen = row < fresh ? view.seen(s, row) : 0;
    float query[kEach];
    for (int i = 0; i < kEach; ++i) {
      const int channel = i * kParts + part;
      query[i] = row < fresh && channel < view.dim ? to_float(q[at + channel]) * view.scale : 0.0f;
    }
    State state;
    const int64_t last = first + kRows < fresh ? first + kRows : fresh, end = view.seen(s, last - 1);
    const int64_t start = view.first_of(view.seen(s, first)) / kRows * kRows;
    for (int64_t token = start; token < end; token += kRows) {
      lane.sync();
      for (int i = lane.thread(); i < kRows * (kDim / kPack<T>); i += kThreads) {
        const int j = i / (kDim / kPack<T>), channel = i % (kDim / kPack<T>)*kPack<T>;
        const int64_t from = token + j < end ? view.place(s, head / view.group(), token + j) : -1;
        float none[kPack<T>] = {}, *k_to = keys + j * kDim + channel, *v_to = values + j * kDim + channel;
        if (from < 0) {
          for (int c = 0; c < kPack<T>; ++c) k_to[c] = v_to[c] = none[c];
        } else {
          load_row<kPack<T>>(view, k_pages + from, channel, k_to);
          load_row<kPack<T>>(view, v_pages + from, channel, v_to);
        }
      }
      lane.sync();
      for (int j = 0; j < kRows; j += kRun)
        visit(lane, {view.first_of(seen) - token, seen - token}, j, query, state);
    }
    if (row >= fresh) return;
    const float scale = state.sum > 0 ? 1.0f / state.sum : 0.0f;
    for (int i = 0; i < kEach; ++i) {
      const int channel = i * kParts + part;
      if (channel < view.dim) y[at + channel] = from_float<Q>(state.y[i] * scale);
    }
  }

  /// Rows [first, last) of the tiles, as far as they reach.
  struct SeenRows {
    int64_t first, last;
  };

  /// kRun keys from row `j` of the tiles on, of which the query vector sees `seen`.
  template <class Lane>
  TRIREME_DEVICE void visit(const Lane& lane, SeenRows seen, int j, const float* query, State& state) const {
    const float* keys = lane.template shared<float>();
    const float* values = keys + kRows * kDim;
    const int part = lane.thread() % kParts;
    float score[kRun], top = state.top;
    for (int r = 0; r < kRun; ++r) {
      float sum = 0;
      for (int i = 0; i < kEach; ++i) sum += query[i] * keys[(j + r) * kDim + i * kParts + part];
      for (int mask = kParts / 2; mask > 0; mask /= 2) sum += lane.shuffle_xor(sum, mask);
      score[r] = j + r >= seen.first && j + r < seen.last ? view.capped(sum) : -INFINITY;
      top = score[r] > top ? score[r] : top;
    }
    if (top == -INFINITY) return;
    const float before = expf(state.top - top);
    state.sum *= before;
    for (float& value : state.y) value *= before;
    for (int r = 0; r < kRun; ++r) {
      const float p = expf(score[r] - top);
      state.sum += p;
      for (int i = 0; i < kEach; ++i) state.y[i] += p * values[(j + r) * kDim + i * kParts + part];
    }
    state.top = top;
  }
};

/// A thread an element of the new keys and values.
template <class From, class T>
struct AppendPages {
  KvAppendArgs a;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t row = a.kv_heads * a.dim;
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < a.tokens * row;
         i += lane.blocks() * lane.threads()) {
      const int64_t slot = a.slots[i / row], head = i / a.dim % a.kv_heads;
      if (slot < 0) continue;
      if (slot >= a.pages * a.page_tokens) {
        report_fault(a.fault, a.step, slot);
        continue;
      }
      const int64_t page = slot / a.page_tokens, at = slot % a.page_tokens;
      const int64_t to = ((page * a.kv_heads + head) * a.page_tokens + at) * a.dim + i % a.dim;
      static_cast<T*>(a.k_pages)[to] = from_float<T>(to_float(static_cast<const From*>(a.keys)[i]));
      static_cast<T*>(a.v_pages)[to] = from_float<T>(to_float(static_cast<const From*>(a.values)[i]));
    }
  }
};

/// A warp a key or value of a head of the new tokens: its codes and behind them their scale, as the CPU's
/// encode_row() makes them.
template <class From>
struct AppendCodes {
  static constexpr int kThreads = 128, kMostThreads = kThreads, kWarps = kThreads / kWarp;
  KvAppendArgs a;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int64_t rows = 2 * a.tokens * a.kv_heads;
    for (int64_t i = lane.block() * kWarps + lane.thread() / kWarp; i < rows; i += lane.blocks() * kWarps) {
      const int64_t head = i / 2 % a.kv_heads, token = i / 2 / a.kv_heads, slot = a.slots[token];
      if (slot < 0) continue;
      if (slot >= a.pages * a.page_tokens) {
        report_fault(a.fault, a.step, slot);
        continue;
      }
      const auto* from = static_cast<const From*>(i % 2 == 0 ? a.keys : a.values);
      auto* pages = static_cast<uint8_t*>(i % 2 == 0 ? a.k_pages : a.v_pages);
      const int64_t place = (slot / a.page_tokens * a.kv_heads + head) * a.page_tokens + slot % a.page_tokens;
      write(lane, from + (token * a.kv_heads + head) * a.dim, pages + place * (a.dim + 4));
    }
  }

 private:
  template <class Lane>
  TRIREME_DEVICE void write(const Lane& lane, const From* x, uint8_t* to) const {
    const int first = lane.thread() % kWarp;
    float most = 0, nothing = 0;  // nothing: a sum of zeros, NaN where the row has an infinity or NaN
    for (int64_t c = first; c < a.dim; c += kWarp) {
      most = fmaxf(most, fabsf(to_float(x[c])));
      nothing += 0.0f * to_float(x[c]);
    }
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      most = fmaxf(most, lane.shuffle_xor(most, mask));
      nothing += lane.shuffle_xor(nothing, mask);
    }
    constexpr float kLeastNormal = 0x1p-126f;
    const bool is_whole = a.page_type == tensor::DType::i8;
    float scale = most / (is_whole ? 127.0f : 448.0f);
    if (scale < kLeastNormal) scale = 0;
    if (nothing != 0) scale = nothing;
    const float by = scale > 0 ? 1.0f / scale : 0.0f;
    for (int64_t c = first; c < a.dim; c += kWarp) {
      const float code = by == 0 ? 0.0f : to_float(x[c]) * by;
      to[c] = is_whole ? static_cast<uint8_t>(static_cast<int8_t>(nearbyintf(code)))
                       : tensor::encode_small_float(tensor::DType::f8e4m3fn, code, true);
    }
    const auto bits = bits_as<uint32_t>(scale);
    if (first < 4) to[a.dim + first] = static_cast<uint8_t>(bits >> 8 * first);
  }
};

}  // namespace trireme::cuda
