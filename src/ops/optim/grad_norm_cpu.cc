// Kernels of block_squares, norm_of_squares, all_finite and clip_coefficient on CPU.
#include <algorithm>
#include <cmath>

#include "ops/optim/update_pieces_cpu.h"

namespace trireme::ops {
namespace {

using SharedPieces = std::shared_ptr<const PiecePlan>;

/// Pieces of all operands, which are the tensors to sum.
SharedPieces pieces_of(const ir::NodeView& node) {
  std::vector<int64_t> elements;
  for (size_t i = 0; i < node.in.size(); ++i) elements.push_back(tensor::element_count(node.in_dims(i)));
  return std::make_shared<const PiecePlan>(elements);
}

/// The blocks of one operand, [outer, blocks, inner], each cut into chunks that depend on outer and inner
/// only, so that a rank with fewer blocks adds the same numbers in the same order.
struct BlockedTensor {
  int64_t outer = 1, blocks = 1, inner = 1, chunks = 1;
  size_t first = 0;  // index of its sums [blocks][chunks]; its blocks begin at `result`
  size_t result = 0;
  bool by_rows() const { return outer > 1; }
};

/// One call's work: chunk `chunk` of block `block`, or of all blocks if they are interleaved in rows.
struct BlockTask {
  size_t tensor;
  int64_t block, chunk, elements;
};

struct BlockPlan {
  std::vector<BlockedTensor> tensors;
  std::vector<BlockTask> work;
  std::vector<size_t> tasks{0};  // work items [tasks[t], tasks[t + 1]) form task t
  size_t sums = 0;

  explicit BlockPlan(const ir::NodeView& node) {
    const auto dims = node.attrs.get_ints("dims"), blocks = node.attrs.get_ints("blocks");
    size_t result = 0;
    for (size_t i = 0; i < node.in.size(); ++i) {
      add(node.in_dims(i), static_cast<size_t>(dims[i]), blocks[i]);
      tensors.back().result = result;
      result += static_cast<size_t>(blocks[i]);
    }
    divide();
  }

 private:
  static constexpr int64_t kChunk = 16384;  // elements that one call of sum_squares or one run of rows adds

  void add(const tensor::Dims& extents, size_t dim, int64_t blocks) {
    BlockedTensor t;
    for (size_t d = 0; d < extents.size(); ++d) (d < dim ? t.outer : t.inner) *= extents[d];
    t.blocks = blocks;
    t.inner /= blocks;
    t.chunks = std::max<int64_t>(1, (t.outer * t.inner + kChunk - 1) / kChunk);
    if (t.by_rows()) t.chunks = std::min(t.chunks, t.outer);
    t.first = sums;
    sums += static_cast<size_t>(t.blocks * t.chunks);
    for (int64_t b = 0; b < (t.by_rows() ? 1 : t.blocks); ++b) {
      for (int64_t c = 0; c < t.chunks; ++c) {
        const int64_t elements = t.outer * t.inner / t.chunks * (t.by_rows() ? t.blocks : 1);
        work.push_back({tensors.size(), b, c, elements});
      }
    }
    tensors.push_back(t);
  }

  /// Small work items share a task.
  void divide() {
    int64_t held = 0;
    for (size_t i = 0; i < work.size(); ++i) {
      held += work[i].elements;
      if (held < kChunk / 2 && i + 1 < work.size()) continue;
      tasks.push_back(i + 1);
      held = 0;
    }
  }
};

template <class T>
void sum_block(const BlockedTensor& t, const BlockTask& w, const T* x, double* sums) {
  if (!t.by_rows()) {
    const int64_t begin = t.inner * w.chunk / t.chunks, end = t.inner * (w.chunk + 1) / t.chunks;
    sums[w.block * t.chunks + w.chunk] = cpu::sum_squares(x + w.block * t.inner + begin, end - begin);
    return;
  }
  const int64_t begin = t.outer * w.chunk / t.chunks, end = t.outer * (w.chunk + 1) / t.chunks;
  for (int64_t b = 0; b < t.blocks; ++b) sums[b * t.chunks + w.chunk] = 0;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t b = 0; b < t.blocks; ++b)
      sums[b * t.chunks + w.chunk] += cpu::sum_squares(x + (row * t.blocks + b) * t.inner, t.inner);
  }
}

ir::BoundKernel prepare_block_squares(const ir::KernelInit& init) {
  const auto plan = std::make_shared<const BlockPlan>(init.node);
  return visit_float(init.node.in[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto run = [plan](const ir::RunArgs& args) {
      double* sums = static_cast<double*>(args.workspace);
      cpu::pool_of(args.stream).run(static_cast<int64_t>(plan->tasks.size()) - 1, [&](int64_t task) {
        const auto at = static_cast<size_t>(task);
        for (size_t i = plan->tasks[at]; i < plan->tasks[at + 1]; ++i) {
          const BlockTask& w = plan->work[i];
          const BlockedTensor& t = plan->tensors[w.tensor];
          sum_block(t, w, in_ptr<T>(args, w.tensor), sums + t.first);
        }
      });
      double* out = out_ptr<double>(args, 0);
      for (const BlockedTensor& t : plan->tensors) {
        for (int64_t b = 0; b < t.blocks; ++b)
          out[t.result + static_cast<size_t>(b)] =
              pairwise_sum(sums + t.first + b * t.chunks, static_cast<size_t>(t.chunks));
      }
    };
    return ir::BoundKernel{run, static_cast<int64_t>(sizeof(double) * plan->sums)};
  });
}

/// Where the blocks of a tensor are: `count` on each of `parts` ranks, whose vectors have length `stride`.
struct GatheredBlocks {
  size_t operand, first, count, parts, stride;
};

std::vector<GatheredBlocks> gathered_blocks(const ir::NodeView& node) {
  const auto parts = node.attrs.get_ints("parts"), counts = node.attrs.get_ints("counts");
  const auto operands = node.attrs.get_ints("operands");
  std::vector<GatheredBlocks> list;
  std::vector<size_t> held(node.in.size());
  for (size_t t = 0; t < counts.size(); ++t) {
    const auto operand = static_cast<size_t>(operands[t]), count = static_cast<size_t>(counts[t]);
    list.push_back({operand, held[operand], count, static_cast<size_t>(parts[operand]), 0});
    held[operand] += count;
  }
  for (GatheredBlocks& b : list) b.stride = held[b.operand];
  return list;
}

ir::BoundKernel prepare_norm(const ir::KernelInit& init) {
  const std::vector<GatheredBlocks> tensors = gathered_blocks(init.node);
  size_t most = 0;
  for (const GatheredBlocks& b : tensors) most = std::max(most, b.count * b.parts);
  const bool root = init.node.attrs.get_int("root", 1) != 0;
  const auto run = [=](const ir::RunArgs& args) {
    double* by_tensor = static_cast<double*>(args.workspace);
    double* blocks = by_tensor + tensors.size();
    for (size_t t = 0; t < tensors.size(); ++t) {
      const GatheredBlocks& b = tensors[t];
      const double* from = in_ptr<double>(args, b.operand) + b.first;
      for (size_t r = 0; r < b.parts; ++r) std::copy_n(from + r * b.stride, b.count, blocks + r * b.count);
      by_tensor[t] = pairwise_sum(blocks, b.count * b.parts);
    }
    const double total = pairwise_sum(by_tensor, tensors.size());
    if (root) *out_ptr<float>(args, 0) = static_cast<float>(std::sqrt(total));
    if (!root) *out_ptr<double>(args, 0) = total;
  };
  return {run, static_cast<int64_t>(sizeof(double) * (tensors.size() + most))};
}

/// False if any element is infinite or NaN.
template <class T>
bool piece_is_finite(const T* x, int64_t n) {
  // The squares of f32 values cannot overflow f64, those of f64 values can.
  if constexpr (sizeof(T) == 4) return std::isfinite(cpu::sum_squares(x, n));
  return std::all_of(x, x + n, [](T v) { return std::isfinite(v); });
}

ir::BoundKernel prepare_all_finite(const ir::KernelInit& init) {
  const SharedPieces plan = pieces_of(init.node);
  return visit_float(init.node.in[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    return ir::BoundKernel{[plan](const ir::RunArgs& args) {
                             double* bad = static_cast<double*>(args.workspace);
                             plan->run(cpu::pool_of(args.stream), [&](size_t i, const Piece& p) {
                               bad[i] =
                                   piece_is_finite(in_ptr<T>(args, p.tensor) + p.begin, p.size()) ? 0 : 1;
                             });
                             *out_ptr<bool>(args, 0) = std::all_of(bad, bad + plan->pieces().size(),
                                                                   [](double b) { return b == 0; });
                           },
                           static_cast<int64_t>(sizeof(double) * plan->pieces().size())};
  });
}

/// Whether the value is not above its limit; a NaN exceeds every limit.
bool within(const ir::RunArgs& args, size_t limit, double value) {
  return args.in[limit] == nullptr || value <= static_cast<double>(*in_ptr<float>(args, limit));
}

/// Operands: norm, grad_scale?, norm_limit?, loss?, loss_limit?. Results: factor, skip, unscaled norm.
ir::BoundKernel prepare_clip(const ir::KernelInit& init) {
  const double max_norm = init.node.attrs.get_float("max_norm", 0);
  const double eps = init.node.attrs.get_float("epsilon", 1e-6);
  const bool skip_nonfinite = init.node.attrs.get_int("skip_nonfinite", 1) != 0;
  const size_t operands = init.node.in.size(), results = init.node.out.size();
  return {[=](const ir::RunArgs& all) {
    const void* in[5] = {};
    std::copy_n(all.in, operands, in);
    const ir::RunArgs args{in, all.out, all.workspace, all.stream, all.status};
    const double scale = scalar_of(in[1], tensor::DType::f32, 1);
    const double norm = static_cast<double>(*in_ptr<float>(args, 0)) * scale;
    const double coefficient = max_norm > 0 ? std::min(1.0, max_norm / (norm + eps)) : 1.0;
    *out_ptr<float>(args, 0) = static_cast<float>(coefficient * scale);
    const double loss = scalar_of(in[3], tensor::DType::f32, 0);
    const bool is_finite = std::isfinite(norm) && std::isfinite(loss);
    const bool too_big = !within(args, 2, norm) || !within(args, 4, loss);
    if (results > 1 && all.out[1] != nullptr) {
      // Values that are not finite are decided by skip_nonfinite, not by the limits.
      *out_ptr<bool>(args, 1) = is_finite ? too_big : skip_nonfinite;
    }
    if (results > 2 && all.out[2] != nullptr) *out_ptr<float>(args, 2) = static_cast<float>(norm);
  }};
}

std::vector<ir::Kernel> one(const char* name, PrepareFn prepare) {
  return {{.name = name, .refuse = {}, .prepare = std::move(prepare)}};
}

}  // namespace

std::vector<ir::Kernel> block_squares_cpu_kernels() { return one("vector", prepare_block_squares); }
std::vector<ir::Kernel> norm_of_squares_cpu_kernels() { return one("scalar", prepare_norm); }
std::vector<ir::Kernel> all_finite_cpu_kernels() { return one("vector", prepare_all_finite); }
std::vector<ir::Kernel> clip_coefficient_cpu_kernels() { return one("scalar", prepare_clip); }

}  // namespace trireme::ops
