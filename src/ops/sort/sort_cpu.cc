// CPU kernels of top_k, unique and non_max_suppression.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/sort/sort_ops.h"
#include "tensor/absent.h"

namespace trireme::ops {
namespace {

/// One lane of top_k: x[i * step], i in [0, count).
struct Lane {
  int64_t count, step, k;
  bool is_largest;
};

/// Selects the first k in a strict order: equal values are ordered by index, NaN is the largest value.
template <class T>
void select_lane(const Lane& lane, const T* x, T* y, int64_t* at, int64_t* scratch) {
  using C = Arithmetic<T>;
  const auto before = [&](int64_t a, int64_t b) {
    const C p = static_cast<C>(x[a * lane.step]), q = static_cast<C>(x[b * lane.step]);
    const bool p_nan = p != p, q_nan = q != q;
    if (p_nan != q_nan) return lane.is_largest ? p_nan : q_nan;
    if (!p_nan && p != q) return lane.is_largest ? p > q : p < q;
    return a < b;
  };
  for (int64_t i = 0; i < lane.count; ++i) scratch[i] = i;
  std::partial_sort(scratch, scratch + lane.k, scratch + lane.count, before);
  for (int64_t i = 0; i < lane.k; ++i) {
    y[i * lane.step] = x[scratch[i] * lane.step];
    if (at != nullptr) at[i * lane.step] = scratch[i];
  }
}

/// Maps f32 to an unsigned number with the same order: -0 equals 0, NaN is largest.
uint32_t order_of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  const uint32_t sign = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31);
  return x == x ? bits ^ (sign | 0x80000000u) : UINT32_MAX;
}

/// Combines value and index of x[i] in one number; larger ranks come first.
uint64_t rank_of(float x, int64_t i, bool is_largest) {
  const uint32_t order = is_largest ? order_of(x) : ~order_of(x);
  return static_cast<uint64_t>(order) << 32 | (UINT32_MAX - static_cast<uint32_t>(i));
}

int64_t index_of(uint64_t rank) { return static_cast<int64_t>(UINT32_MAX - static_cast<uint32_t>(rank)); }

/// Whether x comes after `bound`, the k-th value so far; false if only the rank can tell.
bool is_behind(float x, float bound, bool is_largest) { return is_largest ? x < bound : x > bound; }

/// Keeps the k best ranks sorted; for few results, when most elements are rejected.
void insert_ranks(const Lane& lane, const float* x, uint64_t* ranks) {
  float bound = lane.is_largest ? -HUGE_VALF : HUGE_VALF;
  for (int64_t i = 0; i < lane.count; ++i) {
    const float v = x[i * lane.step];
    if (is_behind(v, bound, lane.is_largest)) continue;
    const uint64_t rank = rank_of(v, i, lane.is_largest);
    int64_t n = std::min(i, lane.k);
    if (n == lane.k && rank < ranks[lane.k - 1]) continue;
    if (n == lane.k) --n;
    for (; n > 0 && ranks[n - 1] < rank; --n) ranks[n] = ranks[n - 1];
    ranks[n] = rank;
    if (i + 1 >= lane.k) bound = x[index_of(ranks[lane.k - 1]) * lane.step];
  }
}

/// Collects ranks above the k-th so far; whenever the buffer is full, keeps the first k. Takes linear time.
void collect_ranks(const Lane& lane, const float* x, uint64_t* ranks) {
  const int64_t room = std::min(lane.count, 2 * lane.k);
  int64_t n = 0;
  uint64_t least = 0;
  float bound = lane.is_largest ? -HUGE_VALF : HUGE_VALF;
  for (int64_t i = 0; i < lane.count; ++i) {
    const float v = x[i * lane.step];
    if (is_behind(v, bound, lane.is_largest)) continue;
    const uint64_t rank = rank_of(v, i, lane.is_largest);
    if (rank < least) continue;
    if (n == room) {
      std::nth_element(ranks, ranks + lane.k - 1, ranks + n, std::greater<>());
      n = lane.k;
      least = ranks[lane.k - 1];
      bound = x[index_of(least) * lane.step];
      if (rank < least) continue;
    }
    ranks[n++] = rank;
  }
  if (n > lane.k) std::nth_element(ranks, ranks + lane.k - 1, ranks + n, std::greater<>());
  std::sort(ranks, ranks + lane.k, std::greater<>());
}

/// For many results per lane: radix-sorts all ranks by the bytes of their values, in descending order. Equal
/// values keep the order of their indices. Returns `ranks` or `spare` ([count] each), whichever holds the
/// result.
uint64_t* sort_ranks(const Lane& lane, const float* x, uint64_t* ranks, uint64_t* spare) {
  constexpr int kDigits = 4;
  uint32_t places[kDigits][256] = {};
  for (int64_t i = 0; i < lane.count; ++i) {
    const uint64_t rank = rank_of(x[i * lane.step], i, lane.is_largest);
    ranks[i] = rank;
    for (int d = 0; d < kDigits; ++d) ++places[d][255 - (rank >> (32 + 8 * d) & 255)];
  }
  for (auto& digit : places) {
    uint32_t from = 0;
    for (uint32_t& place : digit) from += std::exchange(place, from);
  }
  for (int d = 0; d < kDigits; ++d) {
    for (int64_t i = 0; i < lane.count; ++i)
      spare[places[d][255 - (ranks[i] >> (32 + 8 * d) & 255)]++] = ranks[i];
    std::swap(ranks, spare);
  }
  return ranks;
}

/// Whether sorting everything is less work than selecting the first k and sorting these.
bool sorts_all(const Lane& lane) { return lane.k > 16 && lane.count >= 64 && 8 * lane.k >= lane.count; }

void select_floats(const Lane& lane, const float* x, float* y, int64_t* at, int64_t* scratch) {
  constexpr int64_t kFew = 16;
  if (lane.k == 0) return;
  uint64_t* ranks = reinterpret_cast<uint64_t*>(scratch);
  if (sorts_all(lane)) {
    ranks = sort_ranks(lane, x, ranks, ranks + lane.count);
  } else if (lane.k <= kFew) {
    insert_ranks(lane, x, ranks);
  } else {
    collect_ranks(lane, x, ranks);
  }
  for (int64_t i = 0; i < lane.k; ++i) {
    const int64_t from = index_of(ranks[i]);
    y[i * lane.step] = x[from * lane.step];
    if (at != nullptr) at[i * lane.step] = from;
  }
}

ir::Refusal refuse_top_k(const ir::NodeView& n) {
  if (n.value(1) == nullptr) return "k is not known before the run";
  return std::nullopt;
}

ir::Refusal refuse_ranks(const ir::NodeView& n) {
  if (auto why = refuse_top_k(n)) return why;
  if (n.in[0].dtype != tensor::DType::f32) return "value and index of an f32 make one number";
  if (tensor::element_count(n.in_dims(0)) > INT32_MAX) return "indices take more than 32 bits";
  return std::nullopt;
}

/// With kRanks, f32 by ranks; otherwise any type by comparing values.
template <bool kRanks>
ir::BoundKernel prepare_top_k(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const tensor::Dims x = n.in_dims(0), y = n.out_dims(0);
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", -1), x.size());
  int64_t outer = 1, inner = 1;
  for (size_t d = 0; d < x.size(); ++d) {
    if (d != axis) (d < axis ? outer : inner) *= x[d];
  }
  const Lane lane{x[axis], inner, y[axis], n.attrs.get_int("largest", 1) != 0};
  const bool has_indices = n.out.size() > 1;
  // Lanes are processed in fixed pieces, each with its own scratch for indices.
  const int64_t lanes = outer * inner, pieces = std::min<int64_t>(lanes, 16);
  const int64_t room = lane.count * (kRanks && sorts_all(lane) ? 2 : 1);
  return tensor::visit_dtype(n.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    return {[=](const ir::RunArgs& args) {
              cpu::pool_of(args.stream).run(pieces, [&](int64_t piece) {
                int64_t* scratch = static_cast<int64_t*>(args.workspace) + piece * room;
                for (int64_t i = lanes * piece / pieces; i < lanes * (piece + 1) / pieces; ++i) {
                  const int64_t from = i / inner * lane.count * inner + i % inner;
                  const int64_t to = i / inner * lane.k * inner + i % inner;
                  int64_t* at = has_indices ? static_cast<int64_t*>(args.out[1]) : nullptr;
                  const T* lane_x = static_cast<const T*>(args.in[0]) + from;
                  T* y_at = static_cast<T*>(args.out[0]) + to;
                  if (at != nullptr) at += to;
                  if constexpr (kRanks && std::is_same_v<T, float>)
                    select_floats(lane, lane_x, y_at, at, scratch);
                  else
                    select_lane(lane, lane_x, y_at, at, scratch);
                }
              });
            },
            pieces * room * static_cast<int64_t>(sizeof(int64_t))};
  });
}

void copy_ints(const std::vector<int64_t>& values, const ir::RunArgs& args, size_t out, size_t results) {
  if (out < results && args.out[out] != nullptr) {
    std::copy(values.begin(), values.end(), static_cast<int64_t*>(args.out[out]));
  }
}

/// The selection was already made to infer the result's type; it is repeated here and copied.
ir::BoundKernel prepare_unique(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const tensor::Dims x = n.in_dims(0);
  const int bits = tensor::bits_of(n.in[0].dtype);
  if (bits < 8) base::fail_unsupported("unique: elements of ", name_of(n.in[0].dtype), " share bytes");
  if (tensor::is_absent(*n.value(0))) return {};
  const UniqueResult r = unique_of(*n.value(0), n.attrs);
  const bool has_axis = n.attrs.has("axis");
  const size_t axis = has_axis ? ir::normal_axis(n.attrs.need_int("axis"), x.size()) : 0;
  int64_t outer = 1, count = has_axis ? x[axis] : tensor::element_count(x);
  int64_t slice = bits / 8;
  for (size_t d = 0; has_axis && d < x.size(); ++d) {
    if (d != axis) (d < axis ? outer : slice) *= x[d];
  }
  const size_t results = n.out.size();
  return {[=](const ir::RunArgs& args) {
    const int64_t kept = static_cast<int64_t>(r.first.size());
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < kept; ++i) {
        std::memcpy(
            static_cast<std::byte*>(args.out[0]) + (o * kept + i) * slice,
            static_cast<const std::byte*>(args.in[0]) + (o * count + r.first[static_cast<size_t>(i)]) * slice,
            static_cast<size_t>(slice));
      }
    }
    copy_ints(r.first, args, 1, results);
    copy_ints(r.inverse, args, 2, results);
    copy_ints(r.counts, args, 3, results);
  }};
}

ir::BoundKernel prepare_non_max_suppression(const ir::KernelInit& init) {
  return {[boxes = selected_boxes(init.node)](const ir::RunArgs& args) { copy_ints(boxes, args, 0, 1); }};
}

ir::Refusal needs_all_values(const ir::NodeView& n) {
  for (size_t i = 0; i < n.in.size(); ++i) {
    if (n.present(i) && n.value(i) == nullptr)
      return "the result's size depends on data: runs outside programs";
  }
  return std::nullopt;
}

std::vector<ir::Kernel> reference(ir::BoundKernel (*prepare)(const ir::KernelInit&),
                                  std::function<ir::Refusal(const ir::NodeView&)> refuse) {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.refuse = std::move(refuse);
  k.prepare = prepare;
  return {k};
}

}  // namespace

std::vector<ir::Kernel> top_k_cpu_kernels() {
  std::vector<ir::Kernel> kernels = reference(prepare_top_k<true>, refuse_ranks);
  kernels[0].name = "ranks";
  kernels[0].is_reference = false;
  kernels.push_back(reference(prepare_top_k<false>, refuse_top_k)[0]);
  return kernels;
}
std::vector<ir::Kernel> unique_cpu_kernels() { return reference(prepare_unique, needs_all_values); }
std::vector<ir::Kernel> non_max_suppression_cpu_kernels() {
  return reference(prepare_non_max_suppression, needs_all_values);
}

}  // namespace trireme::ops
