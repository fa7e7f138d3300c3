// conv_nhwc over three spatial axes on CPU: convolutions of whole slices, summed over the taps in depth.
// Weights are packed in advance or, if they change, in each run.
#include "backend/cpu/conv/conv_pack.h"
#include "backend/cpu/conv/depthwise_nhwc.h"
#include "backend/cpu/conv/grouped_nhwc.h"
#include "backend/cpu/conv/winograd_nhwc.h"
#include "backend/cpu/conv_forms/conv_choice.h"
#include "ops/conv/conv_kernels_cpu.h"
#include "backend/cpu/device/cpu_stream.h"
#include "ops/conv/conv_shape_cpu.h"
#include "ops/dense/epilogue_cpu.h"
#include "ops/kernel_forms.h"
#include "ops/pack_memory.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

/// Bytes of results that stay in the L2 cache during one pass over the taps.
constexpr int64_t kBlockBytes = 512 << 10;
/// At most so many results are computed together, because the workspace is computed for every possible
/// number.
constexpr int64_t kMostTogether = 64;

enum class Engine : uint8_t { depthwise, winograd, grouped, implicit };

/// A convolution of [n, d, h, w, c]; `slice` is the convolution of one slice [h, w, c].
struct DepthConv {
  WindowAxis depth;
  cpu::ConvShape slice;
  int64_t batch = 1;
  Engine engine = Engine::implicit;
  cpu::WinogradTile tile = cpu::WinogradTile::four;

  int64_t taps() const { return depth.kernel; }
  int64_t in_floats() const { return slice.h * slice.w * slice.c; }
  int64_t out_floats() const { return slice.out_h() * slice.out_w() * slice.oc; }
  /// Number of results that are computed together; only at stride 1 do neighbours read neighbouring slices.
  int64_t block() const {
    if (depth.stride != 1) return 1;
    const int64_t fit = std::max<int64_t>(1, kBlockBytes / std::max<int64_t>(1, out_floats() * 4));
    return std::min({fit, kMostTogether, std::max<int64_t>(1, depth.out)});
  }
  /// The results for which tap k lies inside the input.
  TapRange range(int64_t k) const { return tap_range(depth, k); }
};

Engine engine_of(const cpu::ConvShape& s) {
  if (s.groups == s.c && s.oc == s.c) return Engine::depthwise;
  const bool wide = s.out_h() >= 4 && s.out_w() >= 4 && s.out_h() * s.out_w() >= 49;
  if (!refuse_not_three_by_three(s) && cpu::winograd_fits(s) && wide) return Engine::winograd;
  return cpu::grouped_pays(s) ? Engine::grouped : Engine::implicit;
}

DepthConv describe(const ir::NodeView& n) {
  const Dims x = n.in_dims(0), w = n.in_dims(1);
  const Window window = make_window(n.attrs, {w[2], w[3], w[4]}, {x[1], x[2], x[3]});
  DepthConv conv{.depth = window[0], .batch = x[0]};
  conv.slice = conv_shape(window, {1, x[2], x[3], x[4]}, w[0], n.attrs.get_int("group", 1));
  conv.engine = engine_of(conv.slice);
  conv.tile = cpu::winograd_tile(conv.slice);
  return conv;
}

ir::Refusal refuse(const ir::NodeView& n) {
  if (n.in[0].shape.rank() != 5) return "has no three spatial axes";
  if (n.in[0].dtype != tensor::DType::f32) return base::concat("operand is ", tensor::name_of(n.in[0].dtype));
  if (const ir::Refusal reason = refuse_empty(n)) return reason;
  if (conv_reads_nchw(n.attrs)) return "reads nchw";
  if (folded_conv(n)) return "two axes compute it";
  if (activation_of(n.attrs).before_residual && n.present(3)) return "activates before the residual";
  const DepthConv conv = describe(n);
  const cpu::ConvShape& s = conv.slice;
  if (const ir::Refusal reason = refuse_conv_operands(n, s)) return reason;
  const Dims y = n.out_dims(0);
  if (y[1] != conv.depth.out) return "padding rounds up";
  if (const ir::Refusal reason = refuse_conv_shape(s, {y[0], y[2], y[3], y[4]})) return reason;
  std::vector<char> reads(static_cast<size_t>(conv.depth.out), 0);
  for (int64_t k = 0; k < conv.taps(); ++k) {
    const TapRange r = conv.range(k);
    if (r.first < r.last) std::fill(reads.begin() + r.first, reads.begin() + r.last, 1);
  }
  if (std::find(reads.begin(), reads.end(), 0) != reads.end()) return "a result reads padding alone";
  return std::nullopt;
}

ir::Refusal refuse_constant(const ir::NodeView& n) {
  if (n.value(1) == nullptr) return "weights are not constant";
  return refuse(n);
}

ir::Refusal refuse_live(const ir::NodeView& n) {
  if (n.value(1) != nullptr) return "weights are constant: packed once, ahead";
  if (const ir::Refusal reason = refuse(n)) return reason;
  const DepthConv conv = describe(n);
  if (conv.engine == Engine::implicit && !cpu::pack_view_takes(cpu::forward_view(conv.slice, nullptr)))
    return base::concat("kernel of ", conv.slice.kh * conv.slice.kw, " taps in each slice");
  return std::nullopt;
}

/// The packed weights of every tap in depth, in the form of the engine.
struct DepthWeights {
  std::vector<const float*> depthwise;
  std::vector<cpu::PackedWinograd> winograd;
  std::vector<cpu::PackedGrouped> grouped;
  std::vector<cpu::PackedConv> implicit;
};

/// Packed weights that own their memory.
struct KeptWeights {
  PackMemory memory;
  DepthWeights taps;
};

size_t tap_bytes(const DepthConv& conv) {
  const cpu::ConvShape& s = conv.slice;
  size_t bytes = 0;
  switch (conv.engine) {
    case Engine::depthwise: bytes = static_cast<size_t>(s.c * s.kh * s.kw) * sizeof(float); break;
    case Engine::winograd:
      bytes = std::max(cpu::packed_winograd_bytes(s, conv.tile),
                       cpu::winograd_view_bytes(cpu::forward_view(s, nullptr), conv.tile));
      break;
    case Engine::grouped: bytes = cpu::packed_grouped_bytes(s); break;
    case Engine::implicit:
      bytes = std::max(cpu::packed_conv_bytes(s), cpu::packed_view_bytes(cpu::forward_view(s, nullptr)));
      break;
  }
  return (bytes + 63) & ~size_t{63};
}

int64_t tap_floats(const DepthConv& conv) {
  return conv.slice.oc * (conv.slice.c / conv.slice.groups) * conv.slice.kh * conv.slice.kw;
}

/// Copies tap k in depth of weights w [oc, c / group, kd, kh, kw] to [oc, c / group, kh, kw].
void take_tap(const DepthConv& conv, const float* w, int64_t k, float* tap) {
  const int64_t points = int64_t{conv.slice.kh} * conv.slice.kw, pairs = tap_floats(conv) / points;
  for (int64_t i = 0; i < pairs; ++i)
    std::copy_n(w + (i * conv.taps() + k) * points, points, tap + i * points);
}

std::shared_ptr<const KeptWeights> pack(const DepthConv& conv, const tensor::Tensor& w,
                                        base::SharedCache& packs) {
  const auto slab = pack_slab(packs);
  // As over two axes, groups, stride and dilation determine which taps are packed together.
  const std::string format =
      base::concat("conv_depth_f32 ", static_cast<int>(conv.engine), " ", static_cast<int>(conv.tile), " g",
                   conv.slice.groups, " s", conv.slice.stride_w, " d", conv.slice.dilation_w);
  return pack_once<KeptWeights>(packs, w, format, [&] {
    const cpu::ConvShape& s = conv.slice;
    const size_t each = tap_bytes(conv);
    auto made = std::make_shared<KeptWeights>(
        KeptWeights{PackMemory(slab, each * static_cast<size_t>(conv.taps())), {}});
    DepthWeights& taps = made->taps;
    std::vector<float> tap(static_cast<size_t>(tap_floats(conv)));
    for (int64_t k = 0; k < conv.taps(); ++k) {
      take_tap(conv, w.data<float>().data(), k, tap.data());
      char* to = made->memory.data.get() + static_cast<size_t>(k) * each;
      if (conv.engine == Engine::depthwise) {
        cpu::pack_depthwise(s, tap.data(), reinterpret_cast<float*>(to));
        taps.depthwise.push_back(reinterpret_cast<const float*>(to));
      } else if (conv.engine == Engine::winograd) {
        taps.winograd.push_back(cpu::pack_winograd(s, tap.data(), conv.tile, to));
      } else if (conv.engine == Engine::grouped) {
        taps.grouped.push_back(cpu::pack_grouped(s, tap.data(), to));
      } else {
        taps.implicit.push_back(cpu::pack_conv(s, tap.data(), to));
      }
    }
    return made;
  });
}

/// Packs changing weights into `memory`: all taps, followed by one tap in ONNX order.
DepthWeights pack_live(const DepthConv& conv, const float* w, char* memory, base::ThreadPool& pool) {
  const cpu::ConvShape& s = conv.slice;
  const size_t each = tap_bytes(conv);
  float* tap = reinterpret_cast<float*>(memory + each * static_cast<size_t>(conv.taps()));
  DepthWeights taps;
  for (int64_t k = 0; k < conv.taps(); ++k, memory += each) {
    take_tap(conv, w, k, tap);
    const cpu::WeightView view = cpu::forward_view(s, tap);
    if (conv.engine == Engine::depthwise) {
      cpu::pack_depthwise(s, tap, reinterpret_cast<float*>(memory));
      taps.depthwise.push_back(reinterpret_cast<const float*>(memory));
    } else if (conv.engine == Engine::winograd) {
      taps.winograd.push_back(cpu::transform_view(view, conv.tile, memory, pool));
    } else if (conv.engine == Engine::grouped) {
      taps.grouped.push_back(cpu::pack_grouped(s, tap, memory));
    } else {
      taps.implicit.push_back(cpu::pack_view(view, memory, pool));
    }
  }
  return taps;
}

/// Convolves `count` neighbouring slices of x with tap k into y.
struct SliceRun {
  const float* x;
  float* y;
  int64_t count, k;
  cpu::Epilogue epilogue;
};

void run_slices(const DepthConv& conv, const DepthWeights& weights, const SliceRun& r, void* workspace,
                base::ThreadPool& pool) {
  cpu::ConvShape s = conv.slice;
  s.n = r.count;
  const auto k = static_cast<size_t>(r.k);
  switch (conv.engine) {
    case Engine::depthwise:
      return cpu::depthwise_nhwc(
          {.shape = s, .x = r.x, .weights = weights.depthwise[k], .y = r.y, .epilogue = r.epilogue}, pool);
    case Engine::winograd:
      return cpu::winograd_nhwc(
          {.shape = s, .x = r.x, .weights = weights.winograd[k], .y = r.y, .epilogue = r.epilogue}, workspace,
          pool);
    case Engine::grouped:
      return cpu::grouped_nhwc(
          {.shape = s, .x = r.x, .weights = weights.grouped[k], .y = r.y, .epilogue = r.epilogue}, workspace,
          pool);
    case Engine::implicit: break;
  }
  cpu::conv2d_nhwc({.shape = s, .x = r.x, .weights = weights.implicit[k], .y = r.y, .epilogue = r.epilogue},
                   workspace, pool);
}

size_t workspace_bytes(const DepthConv& conv, int threads) {
  cpu::ConvShape s = conv.slice;
  size_t most = 0;
  for (int64_t count = 1; count <= conv.block(); ++count) {
    s.n = count;
    if (conv.engine == Engine::winograd)
      most = std::max(most, cpu::winograd_workspace_bytes(s, conv.tile, threads));
    if (conv.engine == Engine::grouped) most = std::max(most, cpu::grouped_workspace_bytes(s, threads));
    if (conv.engine == Engine::implicit)
      most = std::max(most, cpu::conv2d_workspace_bytes(s, cpu::ImageLayout::nhwc, threads));
  }
  return most;
}

/// Operands of one run; `epilogue` holds bias, residual and activation of the whole operator.
struct DepthRun {
  const DepthWeights& weights;
  const float* x;
  float* y;
  cpu::Epilogue epilogue;
  float* other;  // partial sums of block() results
  void* workspace;
  base::ThreadPool& pool;
};

/// Computes results [first, last) of image n, which all use taps [begin, end). Bias and residual are added
/// with the first tap, later taps add to the sums so far, the activation follows the last.
void run_block(const DepthConv& conv, const DepthRun& run, int64_t n, TapRange results, TapRange taps) {
  const int64_t at = (n * conv.depth.out + results.first) * conv.out_floats();
  const float* sums = run.epilogue.residual == nullptr ? nullptr : run.epilogue.residual + at;
  for (int64_t k = taps.first; k < taps.last; ++k) {
    // Sums alternate between two buffers, because kernels may compute an edge twice and must not read what
    // they wrote.
    float* to = (taps.last - 1 - k) % 2 == 0 ? run.y + at : run.other;
    SliceRun slices{.y = to, .count = results.last - results.first, .k = k, .epilogue = {}};
    const int64_t in = results.first * conv.depth.stride - conv.depth.pad_begin + k * conv.depth.dilation;
    slices.x = run.x + (n * conv.depth.in + in) * conv.in_floats();
    if (k + 1 == taps.last) slices.epilogue = run.epilogue;
    slices.epilogue.bias = k == taps.first ? run.epilogue.bias : nullptr;
    slices.epilogue.residual = sums;
    sums = to;
    run_slices(conv, run.weights, slices, run.workspace, run.pool);
  }
}

/// The taps of result d that lie inside the input.
TapRange taps_of(const DepthConv& conv, int64_t d) {
  TapRange taps{conv.taps(), 0};
  for (int64_t k = 0; k < conv.taps(); ++k) {
    const TapRange r = conv.range(k);
    if (d < r.first || d >= r.last) continue;
    taps.first = std::min(taps.first, k);
    taps.last = k + 1;
  }
  return taps;
}

/// The part of a plan that does not depend on where the weights are.
struct DepthPlan {
  DepthConv conv;
  std::vector<TapRange> taps;  // for every result
  int64_t other_bytes = 0, engine_bytes = 0;

  int64_t workspace() const { return other_bytes + engine_bytes; }
};

DepthPlan plan_of(const ir::KernelInit& init) {
  DepthPlan plan{.conv = describe(init.node), .taps = {}};
  for (int64_t d = 0; d < plan.conv.depth.out; ++d) plan.taps.push_back(taps_of(plan.conv, d));
  plan.other_bytes = (plan.conv.block() * plan.conv.out_floats() * 4 + 63) & ~int64_t{63};
  plan.engine_bytes = (static_cast<int64_t>(workspace_bytes(plan.conv, init.threads)) + 63) & ~int64_t{63};
  return plan;
}

void run_images(const DepthPlan& plan, const DepthRun& run) {
  const DepthConv& conv = plan.conv;
  for (int64_t image = 0; image < conv.batch; ++image) {
    for (int64_t d = 0; d < conv.depth.out;) {
      const TapRange same = plan.taps[static_cast<size_t>(d)];
      int64_t last = d + 1;
      while (last < conv.depth.out && last - d < conv.block()) {
        const TapRange next = plan.taps[static_cast<size_t>(last)];
        if (next.first != same.first || next.last != same.last) break;
        ++last;
      }
      run_block(conv, run, image, {d, last}, same);
      d = last;
    }
  }
}

DepthRun depth_run(const DepthPlan& plan, const DepthWeights& weights, const ir::RunArgs& args,
                   cpu::Epilogue epilogue, size_t operands) {
  float* other = static_cast<float*>(args.workspace);
  bind_epilogue(epilogue, args, operands);
  return {weights, in_ptr<float>(args, 0),       out_ptr<float>(args, 0),  epilogue,
          other,   other + plan.other_bytes / 4, cpu::pool_of(args.stream)};
}

ir::BoundKernel prepare(const ir::KernelInit& init) {
  const DepthPlan plan = plan_of(init);
  const auto weights = pack(plan.conv, *init.node.value(1), init.packs);
  ir::BoundKernel bound{.workspace_bytes = plan.workspace(), .unread_inputs = 1u << 1};
  if (weights == nullptr) return bound;
  bound.run = [=, epilogue = epilogue_of(activation_of(init.node.attrs)),
               operands = init.node.in.size()](const ir::RunArgs& args) {
    run_images(plan, depth_run(plan, weights->taps, args, epilogue, operands));
  };
  return bound;
}

ir::BoundKernel prepare_live(const ir::KernelInit& init) {
  const DepthPlan plan = plan_of(init);
  ir::BoundKernel bound;
  bound.workspace_bytes = plan.workspace() + static_cast<int64_t>(tap_bytes(plan.conv)) * plan.conv.taps() +
                          tap_floats(plan.conv) * 4;
  bound.run = [=, epilogue = epilogue_of(activation_of(init.node.attrs)),
               operands = init.node.in.size()](const ir::RunArgs& args) {
    const DepthWeights weights =
        pack_live(plan.conv, in_ptr<float>(args, 1), static_cast<char*>(args.workspace) + plan.workspace(),
                  cpu::pool_of(args.stream));
    run_images(plan, depth_run(plan, weights, args, epilogue, operands));
  };
  return bound;
}

}  // namespace

std::vector<ir::Kernel> conv_depth_kernels() {
  std::vector<ir::Kernel> kernels =
      faster({{.name = "depth_taps_live", .refuse = refuse_live, .prepare = prepare_live}}, {});
  kernels.insert(kernels.begin(), {.name = "depth_taps", .refuse = refuse_constant, .prepare = prepare});
  return kernels;
}

}  // namespace trireme::ops
