// Decoding over pages on tensor cores, few new tokens a sequence: bound by the bytes of keys and values.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/attention/paged_mma_state.h"
#include "backend/cuda/attention/paged_state.h"
#include "backend/cuda/device/overlap.h"
#include "backend/cuda/dense/words.h"

namespace trireme::cuda {

/// As PagedParts, of 16-bit queries and pages with heads of a multiple of 8 channels up to kDim. A block
/// takes a part of a sequence for up to kVectors query vectors of a key head. Each of its warps reads kTokens
/// tokens at a time, their keys and values all under way at once, straight into the fragments of the tensor
/// cores: a sum over channels may meet its terms in any order, and channels of y may lie in any row of a
/// tile. Products are keys by vectors and values by probabilities, so that eight vectors fill a tile. A
/// probability is two numbers of T, which together are as good as f32.
template <class T, int kDim>
struct PagedMmaParts {
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp, kMostThreads = kThreads;
  static constexpr int kBlocksAtOnce = kDim > 64 ? 2 : 3;  // with more, registers would be spilled
  using State = PagedMmaState<T, kDim>;
  static constexpr int kVectors = State::kVectors, kTokens = State::kTokens, kPiece = State::kPiece;
  static constexpr int kSteps = kDim / 32;  // accesses of a lane to a key
  static constexpr int kHalves = State::kHalves, kRow = State::kRow;
  static constexpr int64_t kStateFloats = kWarps * kVectors * (kRow + 2);
  static constexpr int64_t kJoinFloats = kVectors * (kMostParts + 1);
  static constexpr int64_t kSharedBytes =
      (kStateFloats > kJoinFloats ? kStateFloats : kJoinFloats) * static_cast<int64_t>(sizeof(float));
  PagedView view;
  const T *q, *k_pages, *v_pages;
  float* partial;
  int32_t* tickets;
  T* y;

  static TRIREME_HD int64_t chunks_of(int64_t rows, int64_t group) {
    return (rows * group + kVectors - 1) / kVectors;
  }

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    let_next_begin(lane);
    wait_for_earlier(lane);
    const PagedView::Extent most = view.few_extent(lane);
    const auto heads = static_cast<uint32_t>(view.kv_heads);
    const uint32_t places = static_cast<uint32_t>(view.sequences) * heads;
    const auto chunks = static_cast<uint32_t>(chunks_of(kFewRows, view.group()));
    const auto needed = static_cast<uint32_t>(chunks_of(most.rows, view.group()));
    const uint32_t all = places * needed * static_cast<uint32_t>(most.parts);
    // First parts come first: what short sequences do not have is at the end.
    for (auto i = static_cast<uint32_t>(lane.block()); i < all; i += static_cast<uint32_t>(lane.blocks())) {
      const uint32_t place = i % places, part = i / places / needed, chunk = i / places % needed;
      run(lane, {place / heads, place % heads, chunk * int64_t{kVectors}, part, place * chunks + chunk});
    }
  }

 private:
  using Place = PagedPlace;
  /// Tokens of a part that some vector sees.
  struct Tokens {
    int begin, end;
  };
  /// 16 channels of the lane's query vector, and what the lane keeps of the two vectors of its columns.
  struct Vectors {
    Words query[kSteps];
    int seen[2];
    int count;  // of the block
  };

  template <class Lane>
  TRIREME_DEVICE void run(const Lane& lane, Place at) const {
    const int64_t fresh = view.fresh(at.sequence), left = fresh * view.group() - at.first;
    const int64_t length = view.length(at.sequence), part = part_tokens(length), begin = at.part * part;
    // The whole block: nobody reads this part.
    if (fresh <= 0 || fresh > kFewRows || left <= 0 || begin >= length) return;
    Vectors v;
    v.count = static_cast<int>(left < kVectors ? left : kVectors);
    const int group = lane.thread() % kWarp / 4, four = lane.thread() % 4;
    const T* own = q + at.row_of(view, group < v.count ? group : 0) * view.dim;
    TRIREME_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      const int channel = s * 4 * kPiece + four * kPiece;
      v.query[s] =
          group < v.count && channel < view.dim ? *reinterpret_cast<const Words*>(own + channel) : Words{};
    }
    TRIREME_UNROLL
    for (int i = 0; i < 2; ++i) v.seen[i] = four * 2 + i < v.count ? seen_by(at, four * 2 + i) : 0;
    const int most = seen_by(at, v.count - 1), first = static_cast<int>(begin);
    const int unseen = first_of(seen_by(at, 0)), behind = first + static_cast<int>(part);
    const Tokens tokens{first > unseen ? first : unseen, behind < most ? behind : most};
    State state;
    for (int token = first + lane.thread() / kWarp * kTokens; token < tokens.end; token += kWarps * kTokens) {
      if (token + kTokens > tokens.begin) visit(lane, at, {token, tokens}, v, state);
    }
    join_warps(lane, at, v, state);
    const int64_t parts = parts_of(length);
    if (parts > 1 && is_last_part(lane, tickets + at.ticket, parts))
      join_parts<kVectors>(lane, PagedJoin<T>{view, at, v.count, parts, {view, partial}, y});
  }
  // Tokens of a sequence fit 32 bits, and so do heads of all pages, whose elements fit a memory.
  TRIREME_DEVICE int seen_by(Place at, int vector) const {
    const auto number = static_cast<uint32_t>(at.first + vector);
    return static_cast<int>(view.seen(at.sequence, number / static_cast<uint32_t>(view.group())));
  }
  TRIREME_DEVICE int first_of(int seen) const { return static_cast<int>(view.first_of(seen)); }

  /// Number of the head where a token's channels lie; -1 for one that is not to be read.
  TRIREME_DEVICE int head_of(Place at, int token, Tokens tokens) const {
    if (token < tokens.begin || token >= tokens.end) return -1;
    return static_cast<int>(view.head_number(at.sequence, at.kv, token));
  }
  TRIREME_DEVICE Words piece(const T* pages, int head, int channel) const {
    return head >= 0 && channel < view.dim ? stream_words(pages + head * view.dim + channel) : Words{};
  }

  struct Tile {
    int first;
    Tokens tokens;
  };
  /// kTokens tokens from `first` on, of which a lane reads two keys and four values.
  template <class Lane>
  TRIREME_DEVICE void visit(const Lane& lane, Place at, Tile tile, const Vectors& v, State& state) const {
    const int group = lane.thread() % kWarp / 4, four = lane.thread() % 4;
    Words key[2][kSteps], value[4][kHalves];
    bool is_there[2];
    TRIREME_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int head = head_of(at, tile.first + group + 8 * r, tile.tokens);
      is_there[r] = head >= 0;
      TRIREME_UNROLL
      for (int s = 0; s < kSteps; ++s) key[r][s] = piece(k_pages, head, (s * 4 + four) * kPiece);
    }
    TRIREME_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int head = head_of(at, tile.first + four * 2 + r % 2 + r / 2 * 8, tile.tokens);
      TRIREME_UNROLL
      for (int h = 0; h < kHalves; ++h) value[r][h] = piece(v_pages, head, (h * 8 + group) * kPiece);
    }
    float score[4] = {};
    TRIREME_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      const uint32_t *upper = key[0][s].word, *lower = key[1][s].word, *with = v.query[s].word;
      multiply_add<T>(lane, score, {upper[0], lower[0], upper[1], lower[1]}, {with[0], with[1]});
      multiply_add<T>(lane, score, {upper[2], lower[2], upper[3], lower[3]}, {with[2], with[3]});
    }
    TRIREME_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int token = tile.first + group + i / 2 * 8, seen = v.seen[i % 2];
      const bool is_seen = is_there[i / 2] && token < seen && token >= first_of(seen);
      score[i] = is_seen ? view.capped(score[i] * view.scale) : -INFINITY;
    }
    state.soften(lane, score);
    state.add_values(lane, score, value);
  }

  /// The warps' states in their order, through shared memory: the state of the part, or y if there is one
  /// part only.
  template <class Lane>
  TRIREME_DEVICE void join_warps(const Lane& lane, Place at, const Vectors& v, State& state) const {
    auto* rows = lane.template shared<float>();
    float* sums = rows + kWarps * kVectors * kRow;
    lane.sync();  // the part before may still be read
    state.store(lane, v.count, rows, sums);
    lane.sync();
    const int steps = static_cast<int>(view.dim) / 4;
    for (int i = lane.thread(); i < v.count * steps; i += kThreads)
      finish(at, i / steps, i % steps * 4, rows, sums);
  }
  /// Four channels of a vector.
  TRIREME_DEVICE void finish(Place at, int vector, int channel, const float* rows, const float* sums) const {
    const float most = largest_score(sums + 2 * vector, kWarps, 2 * kVectors);
    float total = 0, value[4] = {};
    TRIREME_UNROLL
    for (int w = 0; w < kWarps; ++w) {
      const int number = w * kVectors + vector;
      const float share = share_of(sums[2 * number], most);
      float of_warp[4];
      load_step<4>(rows + number * kRow + channel, of_warp);
      total += share * sums[2 * number + 1];
      for (int c = 0; c < 4; ++c) value[c] += share * of_warp[c];
    }
    if (parts_of(view.length(at.sequence)) == 1) {
      for (float& c : value) c = total != 0 ? c / total : 0.0f;
      return store_step<4>(value, y + at.row_of(view, vector) * view.dim + channel);
    }
    const PagedStates states(view, partial);
    const int64_t state = at.state_of(view, vector, at.part);
    store_step<4>(value, states.values + state * view.dim + channel);
    if (channel == 0) states.sums[2 * state] = most, states.sums[2 * state + 1] = total;
  }
};

}  // namespace trireme::cuda
