// What a warp keeps of eight query vectors while it passes over keys and values on tensor cores.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/dense/mma.h"
#include "backend/cuda/device/step.h"
#include "backend/cuda/dense/words.h"

namespace trireme::cuda {

/// Sums of kVectors query vectors over tokens, transposed: tiles of 16 channels by vectors, of which a lane
/// has two as multiply_add (mma.h) has its columns. Row `group` of tile t is channel `group` of number t, row
/// group + 8 that of number t + kTiles: numbers count the channels of a lane's pieces of 16 bytes.
template <class T, int kDim>
struct PagedMmaState {
  static constexpr int kVectors = 8, kTokens = 16, kPiece = 8;  // kPiece: channels of 16 bytes
  static constexpr int kHalves = kDim / 64;                     // accesses of a lane to a value
  static constexpr int kTiles = 4 * kHalves;                    // of 16 channels
  static constexpr int kRow = kDim + 4;                         // of a vector in shared memory
  float y[kTiles][4] = {};
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  /// Scores -> exponentials; corrects what was summed before for the new largest score.
  template <class Lane>
  TRIREME_DEVICE void soften(const Lane& lane, float (&score)[4]) {
    TRIREME_UNROLL
    for (int i = 0; i < 2; ++i) {
      float most = score[i] > score[2 + i] ? score[i] : score[2 + i];
      most = top[i] > most ? top[i] : most;
      for (int mask = 4; mask < kWarp; mask *= 2) {
        const float other = lane.shuffle_xor(most, mask);
        most = other > most ? other : most;
      }
      const float base = most == -INFINITY ? 0.0f : most;  // nothing seen yet: exponentials of -inf are 0
      const float before = expf(top[i] - base);
      score[i] = expf(score[i] - base);
      score[2 + i] = expf(score[2 + i] - base);
      top[i] = most;
      sum[i] = sum[i] * before + (score[i] + score[2 + i]);
      for (int t = 0; t < kTiles; ++t) {
        y[t][i] *= before;
        y[t][2 + i] *= before;
      }
    }
  }

  /// A word of channel `number` (kPiece of each half) of two tokens.
  TRIREME_DEVICE static uint32_t two_tokens(const Words (&first)[kHalves], const Words (&second)[kHalves],
                                            int number) {
    const uint32_t low = first[number / kPiece].word[number % kPiece / 2];
    const uint32_t high = second[number / kPiece].word[number % kPiece / 2];
    return number % 2 == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
  }

  /// Adds the values of kTokens tokens by their exponentials.
  template <class Lane>
  TRIREME_DEVICE void add_values(const Lane& lane, const float (&p)[4], const Words (&value)[4][kHalves]) {
    uint32_t whole[2], rest[2];
    TRIREME_UNROLL
    for (int r = 0; r < 2; ++r) {
      const uint32_t two = pack_two<T>(p[2 * r], p[2 * r + 1]);
      T rounded[2];
      __builtin_memcpy(static_cast<void*>(rounded), &two, sizeof two);
      whole[r] = transpose_words(lane, two);
      rest[r] = transpose_words(
          lane, pack_two<T>(p[2 * r] - to_float(rounded[0]), p[2 * r + 1] - to_float(rounded[1])));
    }
    TRIREME_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      const uint32_t channels[4] = {
          two_tokens(value[0], value[1], t), two_tokens(value[0], value[1], t + kTiles),
          two_tokens(value[2], value[3], t), two_tokens(value[2], value[3], t + kTiles)};
      multiply_add<T>(lane, y[t], channels, whole);
      multiply_add<T>(lane, y[t], channels, rest);
    }
  }

  /// Writes the warp's state to `rows` [warps, kVectors, kRow] and `sums` [warps, kVectors, 2] in shared
  /// memory.
  template <class Lane>
  TRIREME_DEVICE void store(const Lane& lane, int count, float* rows, float* sums) {
    const int group = lane.thread() % kWarp / 4, four = lane.thread() % 4;
    TRIREME_UNROLL
    for (int i = 0; i < 2; ++i) {
      for (int mask = 4; mask < kWarp; mask *= 2) sum[i] += lane.shuffle_xor(sum[i], mask);
      const int vector = four * 2 + i, number = lane.thread() / kWarp * kVectors + vector;
      if (vector >= count) continue;
      if (group == 0) sums[2 * number] = top[i], sums[2 * number + 1] = sum[i];
      TRIREME_UNROLL
      for (int t = 0; t < 2 * kTiles; t += 4) {  // four neighbouring channels
        const int half = t / kTiles * 2;
        const float four_channels[4] = {y[t % kTiles][half + i], y[t % kTiles + 1][half + i],
                                        y[t % kTiles + 2][half + i], y[t % kTiles + 3][half + i]};
        store_step<4>(four_channels, rows + number * kRow + (t / kPiece * 8 + group) * kPiece + t % kPiece);
      }
    }
  }
};

}  // namespace trireme::cuda
