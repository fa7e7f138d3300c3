// Reference kernels of attention, attention_bsnd and rotary_embedding on CPU.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/attention/attention_kernels.h"
#include "ops/attention/attention_plan.h"
#include "ops/attention/decode_rows.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

constexpr double kExcluded = -std::numeric_limits<double>::infinity();

/// Addresses of one launch; optional ones may be null.
struct AttentionArgs {
  const void *q, *k, *v, *mask, *past_key, *past_value;
  const int64_t* lengths;
  const void* sinks;
  void *y, *present_key, *present_value, *scores, *lse;
};

/// The value that the mask operand adds to the score of (batch, head, query, key).
double mask_value(const AttentionPlan& p, DType type, const void* mask, std::array<int64_t, 4> place) {
  const auto [b, h, i, j] = place;
  if (!p.mask.given) return 0;
  if (j >= p.mask.keys) return kExcluded;
  const int64_t at = b * p.mask.batch + h * p.mask.head + i * p.mask.query + j;
  const double v =
      tensor::visit_dtype(type, [&](auto t) { return double(static_cast<const decltype(t)*>(mask)[at]); });
  if (p.mask.keeps) return v != 0 ? 0 : kExcluded;
  return v;
}

/// Whether causality, the window and the key count let query i see key j.
bool sees(const AttentionPlan& p, const int64_t* lengths, int64_t b, int64_t i, int64_t j) {
  constexpr int64_t kMost = int64_t{1} << 40;  // bounds whatever the operand holds
  const int64_t length = lengths == nullptr ? kMost : std::clamp<int64_t>(lengths[b], 0, kMost);
  const bool by_length = lengths != nullptr && p.past == 0;
  const int64_t position = i + (by_length ? length - p.queries : p.causal_offset);
  if (p.causal && j > position) return false;
  if (p.left >= 0 && position - j > p.left) return false;
  if (p.right >= 0 && j - position > p.right) return false;
  return j < length;
}

/// Channels of key or value `j`, from the cache or from the new projection.
template <class T>
const T* cached_row(const AttentionPlan& p, const void* past, const void* fresh, const HeadStrides& at,
                    std::array<int64_t, 4> place) {
  const auto [b, h, j, channels] = place;
  if (j < p.past) return static_cast<const T*>(past) + ((b * p.kv_heads + h) * p.past + j) * channels;
  return static_cast<const T*>(fresh) + b * at.batch + (j - p.past) * at.seq + h * at.head;
}

/// Writes the scores of one query to `row` [keys] and, if asked for, to the fourth result; returns false if
/// the query sees no key.
template <class T>
bool score_row(const AttentionPlan& p, DType mask_type, const AttentionArgs& a, std::array<int64_t, 3> at,
               double* row) {
  const auto [b, h, i] = at;
  const T* q = static_cast<const T*>(a.q) + b * p.q.batch + i * p.q.seq + h * p.q.head;
  T* shown = a.scores == nullptr ? nullptr
                                 : static_cast<T*>(a.scores) + ((b * p.heads + h) * p.queries + i) * p.keys();
  bool any = false;
  for (int64_t j = 0; j < p.keys(); ++j) {
    const T* k = cached_row<T>(p, a.past_key, a.k, p.k, {b, h / (p.heads / p.kv_heads), j, p.head_dim});
    double sum = 0;
    for (int64_t c = 0; c < p.head_dim; ++c) sum += double(q[c]) * double(k[c]);
    double score = sum * p.scale;
    if (shown != nullptr && p.qk_mode == 0) shown[j] = T(score);
    if (p.softcap > 0) score = p.softcap * std::tanh(score / p.softcap);
    if (shown != nullptr && p.qk_mode == 1) shown[j] = T(score);
    const double bias =
        sees(p, a.lengths, b, i, j) ? mask_value(p, mask_type, a.mask, {b, h, i, j}) : kExcluded;
    row[j] = score + bias;
    if (shown != nullptr && p.qk_mode == 2) shown[j] = T(row[j]);
    any = any || bias != kExcluded;
  }
  return any;
}

/// Replaces scores by probabilities, all 0 if no key is seen; returns the log of the sum of exponentials,
/// including that of `sink`.
double softmax_row(double* row, int64_t n, bool any, double sink) {
  double top = sink, sum = 0;
  for (int64_t j = 0; j < n; ++j) top = std::max(top, row[j]);
  if (!any || top == kExcluded) {
    std::fill_n(row, n, 0.0);
    return sink;
  }
  if (sink != kExcluded) sum = std::exp(sink - top);
  for (int64_t j = 0; j < n; ++j) sum += row[j] = std::exp(row[j] - top);
  for (int64_t j = 0; j < n; ++j) row[j] /= sum;
  return top + std::log(sum);
}

template <class T>
void attend(const AttentionPlan& p, DType mask_type, const AttentionArgs& a, std::array<int64_t, 3> at,
            double* row) {
  const auto [b, h, i] = at;
  const double sink = a.sinks == nullptr ? kExcluded : double(static_cast<const T*>(a.sinks)[h]);
  const double lse = softmax_row(row, p.keys(), score_row<T>(p, mask_type, a, at, row), sink);
  if (a.lse != nullptr) static_cast<T*>(a.lse)[(b * p.heads + h) * p.queries + i] = T(lse);
  if (a.scores != nullptr && p.qk_mode == 3) {
    T* shown = static_cast<T*>(a.scores) + ((b * p.heads + h) * p.queries + i) * p.keys();
    for (int64_t j = 0; j < p.keys(); ++j) shown[j] = T(row[j]);
  }
  T* y = static_cast<T*>(a.y) + b * p.y.batch + i * p.y.seq + h * p.y.head;
  for (int64_t c = 0; c < p.value_dim; ++c) {
    double sum = 0;
    for (int64_t j = 0; j < p.keys(); ++j) {
      const T* v = cached_row<T>(p, a.past_value, a.v, p.v, {b, h / (p.heads / p.kv_heads), j, p.value_dim});
      if (row[j] != 0) sum += row[j] * double(v[c]);
    }
    y[c] = T(sum);
  }
}

/// The two parts of keys or values: the cache and the new projection.
struct CachedOperand {
  const void *past, *fresh;
  HeadStrides at;
};

/// present [batch, kv_heads, keys, channels] is the cache followed by the new projection.
template <class T>
void copy_present(const AttentionPlan& p, const CachedOperand& from, int64_t channels, void* present) {
  if (present == nullptr) return;
  T* to = static_cast<T*>(present);
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.kv_heads; ++h) {
      for (int64_t j = 0; j < p.keys(); ++j, to += channels) {
        std::copy_n(cached_row<T>(p, from.past, from.fresh, from.at, {b, h, j, channels}), channels, to);
      }
    }
  }
}

template <class T>
AttentionArgs args_of(const AttentionPlan& p, const ir::RunArgs& args, size_t in_count, size_t out_count) {
  auto in = [&](size_t i) { return i < in_count ? args.in[i] : nullptr; };
  auto out = [&](size_t i) { return i < out_count ? args.out[i] : nullptr; };
  auto projection = [&](size_t i) { return static_cast<const T*>(args.in[p.operand[i]]) + p.offset[i]; };
  AttentionArgs a{.q = projection(0), .k = projection(1), .v = projection(2), .mask = in(p.mask_operand)};
  a.y = out(0);
  if (p.sink_operand > 0) a.sinks = in(p.sink_operand);
  if (p.gives_lse) {
    a.lse = out(1);
    return a;
  }
  a.past_key = in(4);
  a.past_value = in(5);
  a.lengths = static_cast<const int64_t*>(in(6));
  a.present_key = out(1);
  a.present_value = out(2);
  a.scores = out(3);
  return a;
}

/// Each task computes one head of one batch entry; its row of scores is in the workspace.
ir::BoundKernel bind_reference(const AttentionPlan& p, const ir::NodeView& node) {
  const size_t in_count = node.in.size(), out_count = node.out.size();
  const DType mask_type = node.present(p.mask_operand) ? node.in[p.mask_operand].dtype : DType::f32;
  return visit_float(node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    auto run = [=](const ir::RunArgs& args) {
      const AttentionArgs a = args_of<T>(p, args, in_count, out_count);
      cpu::pool_of(args.stream).run(p.batch * p.heads, [&](int64_t task) {
        double* row = static_cast<double*>(args.workspace) + task * p.keys();
        for (int64_t i = 0; i < p.queries; ++i)
          attend<T>(p, mask_type, a, {task / p.heads, task % p.heads, i}, row);
      });
      copy_present<T>(p, {a.past_key, a.k, p.k}, p.head_dim, a.present_key);
      copy_present<T>(p, {a.past_value, a.v, p.v}, p.value_dim, a.present_value);
    };
    return ir::BoundKernel{run, p.batch * p.heads * p.keys() * 8};
  });
}

ir::Refusal refuse_reference(const ir::NodeView& node) {
  if (auto why = refuse_mixed(node, {1, 2})) return why;
  return refuse_non_float(node);
}

struct RotaryPlan {
  int64_t batch, seq, heads, head_dim, rotated;
  HeadStrides at;
  bool interleaved, by_position;
  int64_t positions;  // rows of the tables if they are indexed
};

RotaryPlan plan_rotary(const ir::NodeView& node) {
  const Dims x = node.in_dims(0);
  const int64_t heads = x.size() == 4 ? x[1] : node.attrs.get_int("num_heads", 1);
  RotaryPlan p{.batch = x[0], .seq = x.size() == 4 ? x[2] : x[1], .heads = heads};
  p.head_dim = x.size() == 4 ? x[3] : x[2] / heads;
  p.at = x.size() == 4 ? HeadStrides{x[1] * x[2] * x[3], x[3], x[2] * x[3]}
                       : HeadStrides{x[1] * x[2], x[2], p.head_dim};
  p.rotated = node.attrs.get_int("rotary_embedding_dim", 0);
  if (p.rotated == 0) p.rotated = p.head_dim;
  p.interleaved = node.attrs.get_int("interleaved", 0) != 0;
  p.by_position = node.present(3);
  const Dims cache = node.in_dims(1);
  base::require(node.in_dims(2) == cache && !cache.empty() && p.rotated % 2 == 0 && p.rotated <= p.head_dim &&
                    cache.back() == p.rotated / 2,
                "rotary caches of shape ", tensor::to_string(cache), " for ", p.rotated,
                " rotating channels");
  p.positions = cache[0];
  base::require(p.by_position ? cache.size() == 2 : cache == Dims{p.batch, p.seq, p.rotated / 2},
                "rotary caches of shape ", tensor::to_string(cache));
  return p;
}

ir::BoundKernel prepare_rotary(const ir::KernelInit& init) {
  const RotaryPlan p = plan_rotary(init.node);
  const Rotation turn{p.head_dim, p.rotated, p.interleaved};
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[p, turn](const ir::RunArgs& args) {
      cpu::pool_of(args.stream).for_range(p.batch * p.seq, 16, [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) {
          const int64_t row = p.by_position ? angle_row(in_ptr<int64_t>(args, 3)[token], p.positions) : token;
          const T *c = in_ptr<T>(args, 1) + row * p.rotated / 2,
                  *s = in_ptr<T>(args, 2) + row * p.rotated / 2;
          for (int64_t h = 0; h < p.heads; ++h) {
            const int64_t at = token / p.seq * p.at.batch + token % p.seq * p.at.seq + h * p.at.head;
            rotate_head<T>(turn, in_ptr<T>(args, 0) + at, c, s, out_ptr<T>(args, 0) + at);
          }
        }
      });
    }};
  });
}

}  // namespace

std::vector<ir::Kernel> attention_cpu_kernels() {
  const ir::Kernel plain{.name = "reference",
                         .is_reference = true,
                         .refuse = refuse_reference,
                         .prepare = [](const ir::KernelInit& init) {
                           return bind_reference(plan_attention(init.node), init.node);
                         }};
  return faster({fused_attention_kernel()}, {plain, via_f32(plain)});
}

std::vector<ir::Kernel> attention_bsnd_cpu_kernels() {
  const ir::Kernel plain{.name = "reference",
                         .is_reference = true,
                         .refuse = refuse_reference,
                         .prepare = [](const ir::KernelInit& init) {
                           return bind_reference(plan_attention_bsnd(init.node), init.node);
                         }};
  return faster({fused_attention_bsnd_kernel()}, {plain, via_f32(plain)});
}

std::vector<ir::Kernel> attention_qkv_cpu_kernels() {
  const ir::Kernel plain{.name = "reference",
                         .is_reference = true,
                         .refuse = refuse_non_float,
                         .prepare = [](const ir::KernelInit& init) {
                           return bind_reference(plan_attention_qkv(init.node), init.node);
                         }};
  return faster({fused_attention_qkv_kernel()}, {plain, via_f32(plain)});
}

std::vector<ir::Kernel> rotary_embedding_cpu_kernels() { return float_reference(prepare_rotary); }

}  // namespace trireme::ops
