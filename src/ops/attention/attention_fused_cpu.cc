// f32 attention by the CPU's fused block-wise kernel, in which scores never reach main memory.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/attention/attention_encoder.h"
#include "backend/cpu/attention/attention_grad.h"
#include "backend/cpu/device/cpu_stream.h"
#include "ops/attention/attention_kernels.h"
#include "ops/attention/attention_plan.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::DType;

ir::Refusal refuse_fused(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  for (size_t i = 0; i < std::min<size_t>(3, node.in.size()); ++i) {
    if (node.present(i) && tensor::is_float(node.in[i].dtype)) {
      if (auto why = refuse_dtype(node, i, {DType::f32})) return why;
    }
  }
  const size_t channels = node.in[0].shape.rank() - 1;
  if (node.in[0].shape.rank() == 4 &&
      std::max(node.in_dims(0)[channels], node.in_dims(2)[channels]) > cpu::kAttentionMaxDim) {
    return base::concat("a head has more than ", cpu::kAttentionMaxDim, " channels");
  }
  return std::nullopt;
}

ir::Refusal refuse_fused_plan(const AttentionPlan& p, const ir::NodeView& node) {
  if (std::max(p.head_dim, p.value_dim) > cpu::kAttentionMaxDim) {
    return base::concat("a head has more than ", cpu::kAttentionMaxDim, " channels");
  }
  if (p.right >= 0) return "the window is bounded on the right";
  if (p.has_lengths) return "keys have lengths per batch entry";
  if (p.mask.given && p.mask.keys != p.keys()) return "the mask is shorter than the keys";
  if (!p.gives_lse && node.out.size() > 3) return "the scores are asked for";
  if (p.past > 0) return "keys come from a cache";
  return std::nullopt;
}

/// Masks of f32 are read in place; others are converted to 0 or -inf in the workspace.
struct MaskPlan {
  DType type = DType::f32;
  int64_t elements = 0;
  bool converts = false;
};

template <class M>
void convert_mask(const void* mask, float* to, int64_t n) {
  const M* from = static_cast<const M*>(mask);
  const float excluded = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] != M(0) ? 0.0f : excluded;
}

MaskPlan plan_mask(const AttentionPlan& p, const ir::NodeView& node) {
  if (!p.mask.given) return {};
  return {node.in[p.mask_operand].dtype, tensor::element_count(node.in_dims(p.mask_operand)), p.mask.keeps};
}

ir::Refusal refuse_mask(const AttentionPlan& p, const ir::NodeView& node) {
  if (!p.mask.given || p.mask.keeps) return std::nullopt;
  return refuse_dtype(node, p.mask_operand, {DType::f32});
}

cpu::Attention call_of(const AttentionPlan& p) {
  auto view = [](const HeadStrides& s) { return cpu::AttentionView{nullptr, s.batch, s.seq, s.head}; };
  cpu::Attention call{.q = view(p.q),
                      .k = view(p.k),
                      .v = view(p.v),
                      .out = nullptr,
                      .batch = p.batch,
                      .queries = p.queries,
                      .keys = p.keys(),
                      .heads = p.heads,
                      .kv_heads = p.kv_heads,
                      .head_dim = p.head_dim,
                      .value_dim = p.value_dim,
                      .scale = static_cast<float>(p.scale)};
  if (p.mask.given) call.mask = {nullptr, p.mask.batch, p.mask.head, p.mask.query};
  call.causal = p.causal;
  call.causal_offset = p.causal_offset;
  call.left = p.left;
  call.softcap = static_cast<float>(p.softcap);
  return call;
}

/// Sets the addresses of q, k, v and the mask, which is converted in the workspace where necessary.
void set_operands(cpu::Attention& call, const AttentionPlan& p, const MaskPlan& mask,
                  const ir::RunArgs& args) {
  call.q.data = in_ptr<float>(args, p.operand[0]) + p.offset[0];
  call.k.data = in_ptr<float>(args, p.operand[1]) + p.offset[1];
  call.v.data = in_ptr<float>(args, p.operand[2]) + p.offset[2];
  if (mask.elements > 0) call.mask.data = in_ptr<float>(args, p.mask_operand);
  if (mask.converts) {
    float* converted = static_cast<float*>(args.workspace);
    const void* from = args.in[p.mask_operand];
    tensor::visit_dtype(mask.type,
                        [&](auto t) { convert_mask<decltype(t)>(from, converted, mask.elements); });
    call.mask.data = converted;
  }
}

/// y [batch, heads, seq, channels] from the kernel's [batch, seq, heads, channels].
void to_head_major(const AttentionPlan& p, const float* from, float* to, base::ThreadPool& pool) {
  pool.run(p.batch * p.heads, [&](int64_t task) {
    const int64_t b = task / p.heads, h = task % p.heads, d = p.value_dim;
    for (int64_t i = 0; i < p.queries; ++i) {
      std::copy_n(from + ((b * p.queries + i) * p.heads + h) * d, d, to + (task * p.queries + i) * d);
    }
  });
}

/// Adds the sinks to results without them, y [batch, seq, heads, channels] and its log-sum-exp: y shrinks by
/// the share of the softmax that goes to the sink.
void take_sinks(const AttentionPlan& p, const float* sinks, float* y, float* lse, base::ThreadPool& pool) {
  pool.for_range(p.batch * p.queries, std::max<int64_t>(1, 4096 / (p.heads * p.value_dim)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     for (int64_t h = 0; h < p.heads; ++h) {
                       float& sum = lse[(i / p.queries * p.heads + h) * p.queries + i % p.queries];
                       const float over = sum - sinks[h];
                       const float share = 1 / (1 + std::exp(-over));
                       float* row = y + (i * p.heads + h) * p.value_dim;
                       for (int64_t c = 0; c < p.value_dim; ++c) row[c] *= share;
                       sum = over > 0 ? sum + std::log1p(std::exp(-over))
                                      : sinks[h] + std::log1p(std::exp(over));
                     }
                   }
                 });
}

/// Copies the new keys or values to [batch, kv_heads, seq, channels].
void copy_fresh(const AttentionPlan& p, const float* from, const HeadStrides& at, int64_t d, float* to) {
  if (to == nullptr) return;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t h = 0; h < p.kv_heads; ++h) {
      for (int64_t j = 0; j < p.fresh; ++j, to += d)
        std::copy_n(from + b * at.batch + j * at.seq + h * at.head, d, to);
    }
  }
}

ir::BoundKernel bind_fused(const AttentionPlan& p, const ir::NodeView& node) {
  const cpu::Attention call = call_of(p);
  const MaskPlan mask = plan_mask(p, node);
  const size_t out_count = node.out.size();
  const int64_t mask_bytes = mask.converts ? align_up(mask.elements * 4) : 0;
  const bool head_major = p.y.head != p.value_dim && p.heads > 1;
  const int64_t y_bytes = head_major ? p.batch * p.heads * p.queries * p.value_dim * 4 : 0;
  const bool has_sinks = p.sink_operand > 0;
  const int64_t lse_bytes = has_sinks && out_count < 2 ? p.batch * p.heads * p.queries * 4 : 0;
  auto run = [=](const ir::RunArgs& args) {
    float* y = out_ptr<float>(args, 0);
    float* staged = reinterpret_cast<float*>(static_cast<std::byte*>(args.workspace) + mask_bytes);
    cpu::Attention launch = call;
    set_operands(launch, p, mask, args);
    launch.out = head_major ? staged : y;
    if (p.gives_lse && out_count > 1) launch.log_sum_exp = out_ptr<float>(args, 1);
    if (lse_bytes > 0) launch.log_sum_exp = staged + y_bytes / 4;
    cpu::attention(launch, cpu::pool_of(args.stream));
    if (has_sinks)
      take_sinks(p, in_ptr<float>(args, p.sink_operand), launch.out, launch.log_sum_exp,
                 cpu::pool_of(args.stream));
    if (head_major) to_head_major(p, staged, y, cpu::pool_of(args.stream));
    if (p.gives_lse) return;
    if (out_count > 1) copy_fresh(p, in_ptr<float>(args, 1), p.k, p.head_dim, out_ptr<float>(args, 1));
    if (out_count > 2) copy_fresh(p, in_ptr<float>(args, 2), p.v, p.value_dim, out_ptr<float>(args, 2));
  };
  return {run, mask_bytes + y_bytes + lse_bytes};
}

ir::BoundKernel bind_fused_grad(const AttentionGradPlan& g, const ir::KernelInit& init) {
  const AttentionPlan& p = g.forward;
  const cpu::Attention call = call_of(p);
  const MaskPlan mask = plan_mask(p, init.node);
  const int64_t mask_bytes = mask.converts ? align_up(mask.elements * 4) : 0;
  // If the mask is trained, the gradient of the scores follows the gradients of the operands.
  const size_t scores = g.result[2] + 1;
  const bool gives_scores = init.node.out.size() > scores;
  auto run = [=](const ir::RunArgs& args) {
    const auto result = [&](size_t i, const HeadStrides& at) {
      return cpu::AttentionResult{out_ptr<float>(args, g.result[i]) + p.offset[i], at.batch, at.seq, at.head};
    };
    cpu::AttentionGrad launch{call,
                              in_ptr<float>(args, g.y),
                              in_ptr<float>(args, g.lse),
                              in_ptr<float>(args, g.dy),
                              result(0, p.q),
                              result(1, p.k),
                              result(2, p.v),
                              gives_scores ? out_ptr<float>(args, scores) : nullptr};
    set_operands(launch.forward, p, mask, args);
    cpu::attention_grad(launch, static_cast<std::byte*>(args.workspace) + mask_bytes,
                        cpu::pool_of(args.stream));
  };
  const auto bytes = static_cast<int64_t>(cpu::attention_grad_workspace_bytes(call, init.threads));
  return {run, mask_bytes + bytes};
}

/// A fused forward kernel; `plan` makes the plan of a node.
template <class Plan>
ir::Kernel fused(Plan plan) {
  auto refuse = [plan](const ir::NodeView& node) -> ir::Refusal {
    if (auto why = refuse_fused(node)) return why;
    const AttentionPlan p = plan(node);
    if (auto why = refuse_fused_plan(p, node)) return why;
    return refuse_mask(p, node);
  };
  return {.name = "fused", .refuse = refuse, .prepare = [plan](const ir::KernelInit& init) {
            return bind_fused(plan(init.node), init.node);
          }};
}

template <class Plan>
ir::Kernel fused_grad(Plan plan) {
  auto refuse = [plan](const ir::NodeView& node) -> ir::Refusal {
    if (auto why = refuse_fused(node)) return why;
    const AttentionGradPlan g = plan(node);
    for (size_t i : {g.y, g.lse, g.dy}) {
      if (auto why = refuse_dtype(node, i, {DType::f32})) return why;
    }
    if (auto why = refuse_fused_plan(g.forward, node)) return why;
    return refuse_mask(g.forward, node);
  };
  return {.name = "fused", .refuse = refuse, .prepare = [plan](const ir::KernelInit& init) {
            return bind_fused_grad(plan(init.node), init);
          }};
}

}  // namespace

ir::Kernel fused_attention_kernel() { return fused(plan_attention); }

ir::Kernel fused_attention_bsnd_kernel() {
  return fused([](const ir::NodeView& node) { return plan_attention_bsnd(node); });
}

ir::Kernel fused_attention_qkv_kernel() {
  return fused([](const ir::NodeView& node) { return plan_attention_qkv(node); });
}

ir::Kernel fused_attention_bsnd_grad_kernel() { return fused_grad(plan_attention_bsnd_grad); }
ir::Kernel fused_attention_qkv_grad_kernel() { return fused_grad(plan_attention_qkv_grad); }

}  // namespace trireme::ops
