// Kernels of products over experts on CPU: rows are sorted by expert, those of one expert are multiplied by
// its matrix together, and matrices of experts that no row chose are not read.
#include "backend/cpu/blocks/block_groups.h"
#include "backend/cpu/dense/gemm_groups.h"
#include "backend/cpu/dense/weight_rows.h"
#include "backend/cpu/device/cpu_stream.h"
#include "ops/blocks/packed_blocks_cpu.h"
#include "ops/dense/epilogue_cpu.h"
#include "ops/experts/experts.h"
#include "ops/kernel_forms.h"
#include "ops/weight_only/weight_codes_cpu.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;

/// Offsets of the parts of the workspace.
struct Room {
  int64_t place, source, groups, counts, x, y, rest;

  explicit Room(const ExpertExtents& e) {
    const int64_t rows = e.rows(), used = std::min(rows, e.experts);
    place = 0;
    source = place + align_up(rows * 8);
    groups = source + align_up(rows * 8);
    counts = groups + align_up(used * static_cast<int64_t>(sizeof(cpu::RowGroup)));
    x = counts + align_up(e.experts * 8);
    y = x + align_up(rows * e.k * 4);
    rest = y + align_up(rows * e.n * 4);
  }
};

/// The operands and results of a product whose rows are sorted by expert.
struct SortedRows {
  std::span<const cpu::RowGroup> groups;
  const float* x;
  float* y;
  void* rest;  ///< the rest of the workspace
};

/// Returns false, and reports it, if a choice is not a valid expert.
bool is_sound(std::span<const int64_t> chosen, const ExpertsHere& here, const ir::RunArgs& args) {
  for (const int64_t e : chosen) {
    if (e >= 0 && e < here.all) continue;
    if (args.status != nullptr) args.status->fail("there is no such expert", e);
    return false;
  }
  return true;
}

std::span<const int64_t> choices_of(const ExpertExtents& e, const ir::RunArgs& args) {
  return {in_ptr<int64_t>(args, kExChosen), static_cast<size_t>(e.rows())};
}

/// Sorts the rows, calls `product` for all groups at once, and puts the results in their places.
template <class Product>
void run_sorted(const ExpertExtents& e, const ExpertPlaces& at, const ir::RunArgs& args,
                const Product& product) {
  const std::span<const int64_t> chosen = choices_of(e, args);
  if (!is_sound(chosen, e.here, args)) return;
  const Room room(e);
  auto* memory = static_cast<std::byte*>(args.workspace);
  const cpu::RowOrder order{reinterpret_cast<int64_t*>(memory + room.place),
                            reinterpret_cast<int64_t*>(memory + room.source),
                            reinterpret_cast<cpu::RowGroup*>(memory + room.groups),
                            reinterpret_cast<int64_t*>(memory + room.counts)};
  auto* x = reinterpret_cast<float*>(memory + room.x);
  auto* y = reinterpret_cast<float*>(memory + room.y);
  base::ThreadPool& pool = cpu::pool_of(args.stream);
  const std::span<const cpu::RowGroup> groups = cpu::group_rows(chosen, e.experts, order, e.here.first);
  cpu::copy_rows({.from = in_ptr<float>(args, kExX),
                  .to = x,
                  .source = order.source,
                  .rows = cpu::rows_of(groups),
                  .width = e.k,
                  .share = e.sums ? 1 : e.choices},
                 pool);
  if (!groups.empty()) product(SortedRows{groups, x, y, memory + room.rest}, pool);
  if (e.sums) {
    cpu::sum_rows(
        {y, in_ptr<float>(args, at.shares), order.place, out_ptr<float>(args, 0), e.tokens, e.choices, e.n},
        pool);
  } else {
    cpu::copy_rows({y, out_ptr<float>(args, 0), order.place, e.rows(), e.n}, pool);
  }
}

/// Rows of several parts are for the whole graph, which no rank runs.
ir::Refusal refuse_parts(const ir::NodeView& n) {
  const int64_t parts = n.attrs.get_int("parts", 1);
  if (parts == 1) return std::nullopt;
  return base::concat("experts in ", parts, " parts");
}

constexpr const char* kNotConstant = "weights are not constant, so they cannot be packed once";

ir::Refusal refuse_rows(const ir::NodeView& n) {
  if (auto why = refuse_empty(n)) return why;
  if (auto why = refuse_parts(n)) return why;
  return refuse_dtype(n, kExX, {DType::f32});
}

ir::Refusal refuse_packed_floats(const ir::NodeView& n) {
  if (auto why = refuse_rows(n)) return why;
  if (n.value(kExWeights) == nullptr) return kNotConstant;
  return std::nullopt;
}

ir::BoundKernel prepare_packed_floats(const ir::KernelInit& init) {
  const ExpertExtents e = expert_extents(init.node);
  const Tensor& weights = *init.node.value(kExWeights);
  const size_t operands = init.node.in.size(), lane = cpu::gemm_groups_lane_bytes(e.rows(), e.k, e.n);
  ir::BoundKernel bound{{}, Room(e).rest + static_cast<int64_t>(lane) * init.threads, 1u << kExWeights};
  std::vector<std::shared_ptr<const PackedWeight>> packed;
  std::vector<cpu::PackedMatrix> matrices;
  for (int64_t i = 0; i < e.experts; ++i) {
    packed.push_back(pack_matrix(init, weights.rows(i, i + 1).reshaped({e.n, e.k}), true));
    if (packed.back() == nullptr) return bound;  // the weights have no content yet
    matrices.push_back(packed.back()->matrix);
  }
  bound.run = [e, packed, matrices, operands, lane](const ir::RunArgs& args) {
    run_sorted(e, kExpertPlaces, args, [&](const SortedRows& rows, base::ThreadPool& pool) {
      cpu::gemm_groups({.groups = rows.groups,
                        .matrices = matrices,
                        .x = rows.x,
                        .bias = opt_ptr<float>(args, kExpertPlaces.bias, operands),
                        .y = rows.y,
                        .lane_bytes = lane},
                       rows.rest, pool);
    });
  };
  return bound;
}

/// Computes each product, and the sum over choices, in f64. A choice counts in the part that has its expert;
/// in the others its rows are zero.
template <class T>
void reference_token(const ExpertExtents& e, const ir::RunArgs& args, size_t operands, int64_t token) {
  const T *w = in_ptr<T>(args, kExWeights), *bias = opt_ptr<T>(args, kExpertPlaces.bias, operands);
  const T* shares = opt_ptr<T>(args, kExpertPlaces.shares, operands);
  for (int64_t i = 0; i < e.n; ++i) {
    double total = 0;
    for (int64_t c = 0; c < e.choices; ++c) {
      const int64_t row = token * e.choices + c;
      for (int64_t p = 0; p < e.here.parts && !e.sums; ++p)
        out_ptr<T>(args, 0)[(p * e.rows() + row) * e.n + i] = T{};
      const int64_t expert = in_ptr<int64_t>(args, kExChosen)[row] - e.here.first;
      if (expert < 0 || expert >= e.experts) continue;
      const int64_t in_part = expert / (e.experts / e.here.parts) * e.rows() + row;
      const T* x = in_ptr<T>(args, kExX) + (e.sums ? in_part : token) * e.k;
      double sum = bias == nullptr ? 0 : static_cast<double>(bias[expert * e.n + i]);
      for (int64_t k = 0; k < e.k; ++k)
        sum += static_cast<double>(x[k]) * static_cast<double>(w[(expert * e.n + i) * e.k + k]);
      if (e.sums) {
        total += static_cast<double>(shares[row]) * sum;
      } else {
        out_ptr<T>(args, 0)[in_part * e.n + i] = static_cast<T>(sum);
      }
    }
    if (e.sums) out_ptr<T>(args, 0)[token * e.n + i] = static_cast<T>(total);
  }
}

ir::BoundKernel prepare_reference(const ir::KernelInit& init) {
  const ExpertExtents e = expert_extents(init.node);
  const size_t operands = init.node.in.size();
  return visit_float(init.node.in[kExX].dtype, [&](auto zero) {
    return ir::BoundKernel{[e, operands](const ir::RunArgs& args) {
      if (!is_sound(choices_of(e, args), e.here, args)) return;
      cpu::pool_of(args.stream).run(e.tokens, [&](int64_t token) {
        reference_token<decltype(zero)>(e, args, operands, token);
      });
    }};
  });
}

ir::BoundKernel prepare_stored(const ir::KernelInit& init) {
  const ExpertExtents e = expert_extents(init.node);
  const WeightForm form =
      weight_form(init.node.attrs, init.node.in[kExWeights].dtype, init.node.present(kExZero));
  const size_t operands = init.node.in.size();
  const auto run = [e, form, operands](const ir::RunArgs& args) {
    run_sorted(e, kExpertStoredPlaces, args, [&](const SortedRows& rows, base::ThreadPool& pool) {
      cpu::weight_row_groups({.weights = {.w = in_ptr<uint8_t>(args, kExWeights),
                                          .scale = opt_ptr<float>(args, kExScale, operands),
                                          .zero = opt_ptr<int8_t>(args, kExZero, operands),
                                          .codes = weight_codes(form),
                                          .n = e.n,
                                          .k = e.k,
                                          .group = weight_stride(form, e.k)},
                              .groups = rows.groups,
                              .x = rows.x,
                              .bias = opt_ptr<float>(args, kExpertStoredPlaces.bias, operands),
                              .y = rows.y},
                             pool);
    });
  };
  return {run, Room(e).rest};
}

ir::Refusal refuse_blocks(const ir::NodeView& n) {
  if (auto why = refuse_rows(n)) return why;
  return refuse_packed(n, kExWeights);
}

ir::BoundKernel prepare_blocks(const ir::KernelInit& init) {
  const ExpertExtents e = expert_extents(init.node);
  const BlockMatrix matrix = block_matrix(init.node, kExWeights);
  const cpu::PackedBlocks form{nullptr, cpu::block_format_index(*matrix.format), matrix.n, matrix.k};
  const int64_t used = std::min(e.rows(), e.experts);
  ir::BoundKernel bound{
      {}, Room(e).rest + cpu::block_groups_workspace(form, used, e.rows()), 1u << kExWeights};
  const auto packed = packed_matrix(init, kExWeights);
  if (packed == nullptr) return bound;  // the weights have no content yet
  const size_t operands = init.node.in.size();
  const bool rounds = block_rows(init.node.attrs) != BlockRows::f32;
  bound.run = [e, packed, operands, rounds](const ir::RunArgs& args) {
    run_sorted(e, kExpertPlaces, args, [&](const SortedRows& rows, base::ThreadPool& pool) {
      cpu::block_groups({.groups = rows.groups,
                         .weights = packed->blocks,
                         .n = e.n,
                         .x = rows.x,
                         .bias = opt_ptr<float>(args, kExpertPlaces.bias, operands),
                         .y = rows.y,
                         .rounds = rounds},
                        rows.rest, pool);
    });
  };
  return bound;
}

}  // namespace

std::vector<ir::Kernel> expert_linear_cpu_kernels() {
  const ir::Kernel packed{
      .name = "packed_rows", .refuse = refuse_packed_floats, .prepare = prepare_packed_floats};
  return faster({packed}, float_reference(prepare_reference));
}

std::vector<ir::Kernel> weight_only_experts_cpu_kernels() {
  const ir::Kernel rows{.name = "streamed", .refuse = refuse_rows, .prepare = prepare_stored};
  return {rows, via_stored_f32(rows, kExWeights)};
}

std::vector<ir::Kernel> block_experts_cpu_kernels() {
  const ir::Kernel packed{.name = "packed", .refuse = refuse_blocks, .prepare = prepare_blocks};
  return {packed, via_f32(packed)};
}

}  // namespace trireme::ops
