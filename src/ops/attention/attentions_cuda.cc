// Kernels of attention, its gradients and rotary embedding on NVIDIA GPUs.
#include "backend/cuda/attention/attention.h"
#include "ops/attention/attention_plan.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

cuda::AttentionStrides strides_of(const HeadStrides& s) { return {s.batch, s.seq, s.head}; }

cuda::AttentionShape shape_of(const AttentionPlan& p, const ir::NodeView& node) {
  cuda::AttentionShape s{.type = node.in[0].dtype,
                         .batch = p.batch,
                         .heads = p.heads,
                         .kv_heads = p.kv_heads,
                         .queries = p.queries,
                         .keys = p.keys(),
                         .head_dim = p.head_dim,
                         .value_dim = p.value_dim,
                         .q = strides_of(p.q),
                         .k = strides_of(p.k),
                         .v = strides_of(p.v),
                         .y = strides_of(p.y),
                         .scale = static_cast<float>(p.scale),
                         .softcap = static_cast<float>(p.softcap),
                         .causal = p.causal,
                         .offset = p.causal_offset,
                         .left = p.left,
                         .right = p.right,
                         .has_lengths = p.has_lengths,
                         .ends_at_length = p.has_lengths && p.past == 0};
  if (p.mask.given) {
    s.mask = {true,         p.mask.keeps, node.in[p.mask_operand].dtype, p.mask.batch, p.mask.head,
              p.mask.query, p.mask.keys};
  }
  return s;
}

ir::Refusal refuse_plan_on_gpu(const AttentionPlan& p, const ir::NodeView& node) {
  if (auto why = refuse_dtype(node, 0, {DType::f32, DType::f16, DType::bf16})) return why;
  if (std::max(p.head_dim, p.value_dim) > cuda::kMostHeadDim)
    return base::concat("a head has more than ", cuda::kMostHeadDim, " channels");
  if (p.mask.given) {
    return refuse_dtype(
        node, p.mask_operand,
        {DType::f32, DType::f16, DType::bf16, DType::boolean, DType::i8, DType::u8, DType::i32, DType::i64});
  }
  return std::nullopt;
}

/// Address of element `offset` of an operand.
const void* at_element(const void* base, int64_t offset, DType type) {
  return static_cast<const std::byte*>(base) + tensor::bytes_of(type, offset);
}
void* at_element(void* base, int64_t offset, DType type) {
  return static_cast<std::byte*>(base) + tensor::bytes_of(type, offset);
}

/// Kernel of the channels-last forms with separate or packed operands.
ir::BoundKernel bind_plain(const ir::KernelInit& init, const AttentionPlan& p) {
  const cuda::AttentionShape shape = shape_of(p, init.node);
  const bool gives_lse = init.node.out.size() > 1;
  const auto library = cuda::make_attention({init.device, &init.packs}, shape, gives_lse, false);
  auto run = [=](const ir::RunArgs& args) {
    auto projection = [&](size_t i) { return at_element(args.in[p.operand[i]], p.offset[i], shape.type); };
    const cuda::AttentionPointers at{.q = projection(0),
                                     .k = projection(1),
                                     .v = projection(2),
                                     .mask = shape.mask.given ? args.in[p.mask_operand] : nullptr,
                                     .y = args.out[0],
                                     .lse = gives_lse ? out_ptr<float>(args, 1) : nullptr};
    // The library always writes its statistics, so it cannot run a launch that passes no address for them.
    if (library != nullptr && (!gives_lse || at.lse != nullptr))
      return library->run(args.stream, at, args.workspace);
    cuda::attend(args.stream, shape, at);
  };
  return {run, library == nullptr ? 0 : library->workspace_bytes()};
}

using PlanOf = AttentionPlan (*)(const ir::NodeView&, size_t);

ir::Kernel plain_kernel(PlanOf plan_of, size_t mask_operand) {
  return {.name = "tiles",
          .refuse = [=](const ir::NodeView& node) -> ir::Refusal {
            if (mask_operand > 2) {
              if (auto why = refuse_mixed(node, {1, 2})) return why;
            }
            const AttentionPlan p = plan_of(node, mask_operand);
            if (p.sink_operand > 0) return "attention with sinks";
            return refuse_plan_on_gpu(p, node);
          },
          .prepare =
              [=](const ir::KernelInit& init) { return bind_plain(init, plan_of(init.node, mask_operand)); }};
}

using GradPlanOf = AttentionGradPlan (*)(const ir::NodeView&);

ir::BoundKernel bind_grad(const ir::KernelInit& init, const AttentionGradPlan& g) {
  const AttentionPlan p = g.forward;
  const cuda::AttentionShape shape = shape_of(p, init.node);
  const auto library = cuda::make_attention({init.device, &init.packs}, shape, true, true);
  auto run = [=](const ir::RunArgs& args) {
    auto projection = [&](size_t i) { return at_element(args.in[p.operand[i]], p.offset[i], shape.type); };
    auto result = [&](size_t i) { return at_element(args.out[g.result[i]], p.offset[i], shape.type); };
    const cuda::AttentionGradPointers at{.q = projection(0),
                                         .k = projection(1),
                                         .v = projection(2),
                                         .mask = shape.mask.given ? args.in[p.mask_operand] : nullptr,
                                         .y = args.in[g.y],
                                         .dy = args.in[g.dy],
                                         .lse = in_ptr<float>(args, g.lse),
                                         .dq = result(0),
                                         .dk = result(1),
                                         .dv = result(2)};
    if (library != nullptr) return library->run_grad(args.stream, at, args.workspace);
    cuda::attend_grad(args.stream, shape, at, args.workspace);
  };
  return {run, library == nullptr ? cuda::attention_grad_workspace_bytes(shape) : library->workspace_bytes()};
}

ir::Kernel grad_kernel(GradPlanOf plan_of) {
  return {.name = "tiles",
          .refuse = [=](const ir::NodeView& node) -> ir::Refusal {
            const AttentionGradPlan g = plan_of(node);
            if (auto why = refuse_mixed(node, {g.y, g.dy})) return why;
            if (auto why = refuse_dtype(node, g.lse, {DType::f32})) return why;
            if (g.forward.softcap > 0) return "scores are capped";
            return refuse_plan_on_gpu(g.forward, node);
          },
          .prepare = [=](const ir::KernelInit& init) { return bind_grad(init, plan_of(init.node)); }};
}

/// ONNX attention. The cached keys and the new ones are first joined, in the result if it is asked for.
struct CachedNode {
  AttentionPlan plan;
  cuda::AttentionShape shape;
  bool has_mask, has_cache, has_present;
  size_t results;
  int64_t key_bytes = 0, value_bytes = 0;  // of joined keys and values in the workspace

  explicit CachedNode(const ir::NodeView& node)
      : plan(plan_attention(node)),
        shape(shape_of(plan, node)),
        has_mask(node.present(3)),
        has_cache(node.present(4)),
        results(node.out.size()) {
    if (!has_cache) return;
    const int64_t rows = plan.batch * plan.kv_heads * plan.keys();
    key_bytes = align_up(tensor::bytes_of(shape.type, rows * plan.head_dim));
    value_bytes = align_up(tensor::bytes_of(shape.type, rows * plan.value_dim));
    const int64_t keys = plan.keys();
    shape.k = {plan.kv_heads * keys * plan.head_dim, plan.head_dim, keys * plan.head_dim};
    shape.v = {plan.kv_heads * keys * plan.value_dim, plan.value_dim, keys * plan.value_dim};
  }

  void* present(const ir::RunArgs& args, size_t i) const {
    return i < results && args.out[i] != nullptr ? args.out[i] : nullptr;
  }

  /// Joins all keys (i = 1) or values (i = 2) if necessary and returns their address.
  const void* gather(const ir::RunArgs& args, size_t i) const {
    void* to = present(args, i);
    if (!has_cache && to == nullptr) return args.in[i];
    if (to == nullptr) to = static_cast<std::byte*>(args.workspace) + (i == 1 ? 0 : key_bytes);
    const HeadStrides& at = i == 1 ? plan.k : plan.v;
    cuda::append_present(args.stream, shape.type,
                         {.past = has_cache ? args.in[3 + i] : nullptr,
                          .fresh = args.in[i],
                          .present = to,
                          .batch = plan.batch,
                          .heads = plan.kv_heads,
                          .past_tokens = plan.past,
                          .fresh_tokens = plan.fresh,
                          .dim = i == 1 ? plan.head_dim : plan.value_dim,
                          .at = strides_of(at)});
    return has_cache ? to : args.in[i];
  }
};

ir::Refusal refuse_cached(const ir::NodeView& node) {
  if (auto why = refuse_mixed(node, {1, 2})) return why;
  if (node.out_count > 3) return "the scores are asked for";
  return refuse_plan_on_gpu(plan_attention(node), node);
}

ir::Kernel cached_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const auto node = std::make_shared<const CachedNode>(init.node);
    auto run = [node](const ir::RunArgs& args) {
      const void* keys = node->gather(args, 1);
      const void* values = node->gather(args, 2);
      cuda::attend(args.stream, node->shape,
                   {.q = args.in[0],
                    .k = keys,
                    .v = values,
                    .mask = node->has_mask ? args.in[3] : nullptr,
                    .lengths = node->shape.has_lengths ? in_ptr<int64_t>(args, 6) : nullptr,
                    .y = args.out[0]});
    };
    return ir::BoundKernel{run, node->key_bytes + node->value_bytes};
  };
  return {.name = "tiles", .refuse = refuse_cached, .prepare = prepare};
}

ir::Kernel rotary_kernel() {
  auto refuse = [](const ir::NodeView& node) -> ir::Refusal {
    if (auto why = refuse_dtype(node, 1, {node.in[0].dtype, DType::f32})) return why;
    if (auto why = refuse_dtype(node, 2, {node.in[1].dtype})) return why;
    return refuse_dtype(node, 0, {DType::f32, DType::f16, DType::bf16});
  };
  auto prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& node = init.node;
    const Dims x = node.in_dims(0), cache = node.in_dims(1);
    const bool by_head = x.size() == 4;
    cuda::RotaryArgs fixed{.batch = x[0],
                           .seq = by_head ? x[2] : x[1],
                           .heads = by_head ? x[1] : node.attrs.get_int("num_heads", 1),
                           .rows = cache[0],
                           .interleaved = node.attrs.get_int("interleaved", 0) != 0,
                           .angles_f32 = node.in[1].dtype == DType::f32};
    fixed.dim = by_head ? x[3] : x[2] / fixed.heads;
    fixed.at = by_head ? cuda::AttentionStrides{x[1] * x[2] * x[3], x[3], x[2] * x[3]}
                       : cuda::AttentionStrides{x[1] * x[2], x[2], fixed.dim};
    fixed.rotated = node.attrs.get_int("rotary_embedding_dim", 0);
    if (fixed.rotated == 0) fixed.rotated = fixed.dim;
    base::require(fixed.rotated % 2 == 0 && fixed.rotated <= fixed.dim && cache.back() == fixed.rotated / 2,
                  "rotary caches of shape ", tensor::to_string(cache), " for ", fixed.rotated,
                  " rotating channels");
    return ir::BoundKernel{
        [fixed, by_position = node.present(3), type = node.in[0].dtype](const ir::RunArgs& args) {
          cuda::RotaryArgs a = fixed;
          a.x = args.in[0];
          a.cosine = args.in[1];
          a.sine = args.in[2];
          a.positions = by_position ? in_ptr<int64_t>(args, 3) : nullptr;
          a.y = args.out[0];
          cuda::rotate_pairs(args.stream, type, a);
        }};
  };
  return {.name = "flat", .refuse = refuse, .prepare = prepare};
}

}  // namespace

std::vector<CudaKernels> attentions_cuda_kernels() {
  return {{"attention", {cached_kernel()}},
          {"attention_bsnd", {plain_kernel(plan_attention_bsnd, 3)}},
          {"attention_qkv", {plain_kernel(plan_attention_qkv, 1)}},
          {"attention_bsnd_grad", {grad_kernel(plan_attention_bsnd_grad)}},
          {"attention_qkv_grad", {grad_kernel(plan_attention_qkv_grad)}},
          {"rotary_embedding", {rotary_kernel()}}};
}

}  // namespace trireme::ops
