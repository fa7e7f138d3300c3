// Reference kernels of attention_bsnd_grad and attention_qkv_grad on CPU.
#include <array>
#include <cmath>
#include <limits>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/attention/attention_kernels.h"
#include "ops/attention/attention_plan.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::DType;

/// Addresses of one launch, as pointers to T.
template <class T>
struct GradArgs {
  std::array<const T*, 3> in;  // q, k, v
  const T *y, *lse, *dy;
  const void* mask;
  std::array<T*, 3> out;  // dq, dk, dv
};

/// The value added to the score of (batch, head, query, key): the mask, or -inf where causality or the window
/// hides the key.
double bias_of(const AttentionPlan& p, DType type, const void* mask, std::array<int64_t, 4> place) {
  const auto [b, h, i, j] = place;
  constexpr double kExcluded = -std::numeric_limits<double>::infinity();
  if ((p.causal && j > i) || (p.left >= 0 && i - j > p.left)) return kExcluded;
  if (!p.mask.given) return 0;
  if (j >= p.mask.keys) return kExcluded;
  const int64_t at = b * p.mask.batch + h * p.mask.head + i * p.mask.query + j;
  const double v =
      tensor::visit_dtype(type, [&](auto t) { return double(static_cast<const decltype(t)*>(mask)[at]); });
  if (p.mask.keeps) return v != 0 ? 0 : kExcluded;
  return v;
}

template <class T>
double dot(const T* a, const T* b, int64_t n) {
  double sum = 0;
  for (int64_t c = 0; c < n; ++c) sum += double(a[c]) * double(b[c]);
  return sum;
}

/// Sums of one key head: dk [keys, head_dim], dv [keys, value_dim], and dq [head_dim] of the current query.
struct Sums {
  double *dk, *dv, *dq;
};

template <class T>
void grad_query(const AttentionPlan& p, DType mask_type, const GradArgs<T>& a, std::array<int64_t, 3> at,
                const Sums& sums) {
  const auto [b, h, i] = at;
  const int64_t g = h / (p.heads / p.kv_heads);
  const T* q = a.in[0] + b * p.q.batch + i * p.q.seq + h * p.q.head;
  const int64_t y_at = b * p.y.batch + i * p.y.seq + h * p.y.head;
  const double lse = double(a.lse[(b * p.heads + h) * p.queries + i]);
  const double delta = dot(a.dy + y_at, a.y + y_at, p.value_dim);
  std::fill_n(sums.dq, p.head_dim, 0.0);
  for (int64_t j = 0; j < p.fresh; ++j) {
    const double bias = bias_of(p, mask_type, a.mask, {b, h, i, j});
    if (std::isinf(bias) || std::isinf(lse)) continue;
    const T* k = a.in[1] + b * p.k.batch + j * p.k.seq + g * p.k.head;
    const T* v = a.in[2] + b * p.v.batch + j * p.v.seq + g * p.v.head;
    double score = dot(q, k, p.head_dim) * p.scale, slope = 1;
    if (p.softcap > 0) {
      const double t = std::tanh(score / p.softcap);
      score = p.softcap * t;
      slope = 1 - t * t;
    }
    const double probability = std::exp(score + bias - lse);
    const double ds = probability * (dot(a.dy + y_at, v, p.value_dim) - delta) * slope * p.scale;
    for (int64_t c = 0; c < p.head_dim; ++c) {
      sums.dq[c] += ds * double(k[c]);
      sums.dk[j * p.head_dim + c] += ds * double(q[c]);
    }
    for (int64_t c = 0; c < p.value_dim; ++c)
      sums.dv[j * p.value_dim + c] += probability * double(a.dy[y_at + c]);
  }
  T* dq = a.out[0] + b * p.q.batch + i * p.q.seq + h * p.q.head;
  for (int64_t c = 0; c < p.head_dim; ++c) dq[c] = T(sums.dq[c]);
}

template <class T>
void grad_key_head(const AttentionPlan& p, DType mask_type, const GradArgs<T>& a, int64_t task,
                   double* memory) {
  const int64_t b = task / p.kv_heads, g = task % p.kv_heads, group = p.heads / p.kv_heads;
  const Sums sums{memory, memory + p.fresh * p.head_dim, memory + p.fresh * (p.head_dim + p.value_dim)};
  std::fill(sums.dk, sums.dq, 0.0);
  for (int64_t h = g * group; h < (g + 1) * group; ++h) {
    for (int64_t i = 0; i < p.queries; ++i) grad_query(p, mask_type, a, {b, h, i}, sums);
  }
  for (int64_t j = 0; j < p.fresh; ++j) {
    T* dk = a.out[1] + b * p.k.batch + j * p.k.seq + g * p.k.head;
    T* dv = a.out[2] + b * p.v.batch + j * p.v.seq + g * p.v.head;
    for (int64_t c = 0; c < p.head_dim; ++c) dk[c] = T(sums.dk[j * p.head_dim + c]);
    for (int64_t c = 0; c < p.value_dim; ++c) dv[c] = T(sums.dv[j * p.value_dim + c]);
  }
}

/// Each task computes one key head of one batch entry; its sums are in the workspace.
ir::BoundKernel bind_reference_grad(const AttentionGradPlan& plan, const ir::NodeView& node) {
  const AttentionPlan p = plan.forward;
  const bool masked = node.present(p.mask_operand);
  const DType mask_type = masked ? node.in[p.mask_operand].dtype : DType::f32;
  const int64_t doubles = p.fresh * (p.head_dim + p.value_dim) + p.head_dim;
  return visit_float(node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    auto run = [=](const ir::RunArgs& args) {
      GradArgs<T> a{.in = {}, .y = in_ptr<T>(args, plan.y), .lse = in_ptr<T>(args, plan.lse)};
      a.dy = in_ptr<T>(args, plan.dy);
      a.mask = masked ? args.in[p.mask_operand] : nullptr;
      for (size_t i = 0; i < 3; ++i) {
        a.in[i] = in_ptr<T>(args, p.operand[i]) + p.offset[i];
        a.out[i] = out_ptr<T>(args, plan.result[i]) + p.offset[i];
      }
      cpu::pool_of(args.stream).run(p.batch * p.kv_heads, [&](int64_t task) {
        grad_key_head<T>(p, mask_type, a, task, static_cast<double*>(args.workspace) + task * doubles);
      });
    };
    return ir::BoundKernel{run, p.batch * p.kv_heads * doubles * 8};
  });
}

}  // namespace

std::vector<ir::Kernel> attention_bsnd_grad_cpu_kernels() {
  const ir::Kernel plain{.name = "reference",
                         .is_reference = true,
                         .refuse = refuse_non_float,
                         .prepare = [](const ir::KernelInit& init) {
                           return bind_reference_grad(plan_attention_bsnd_grad(init.node), init.node);
                         }};
  return faster({fused_attention_bsnd_grad_kernel()}, {plain, via_f32(plain)});
}

std::vector<ir::Kernel> attention_qkv_grad_cpu_kernels() {
  const ir::Kernel plain{.name = "reference",
                         .is_reference = true,
                         .refuse = refuse_non_float,
                         .prepare = [](const ir::KernelInit& init) {
                           return bind_reference_grad(plan_attention_qkv_grad(init.node), init.node);
                         }};
  return faster({fused_attention_qkv_grad_kernel()}, {plain, via_f32(plain)});
}

std::vector<ir::Kernel> attention_bsnd_mask_grad_cpu_kernels() {
  return faster({fused_attention_bsnd_grad_kernel()}, {});
}
std::vector<ir::Kernel> attention_qkv_mask_grad_cpu_kernels() {
  return faster({fused_attention_qkv_grad_kernel()}, {});
}

}  // namespace trireme::ops
