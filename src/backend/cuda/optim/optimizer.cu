// Launchers of multi-tensor updates. Each launch carries a table of addresses; many tensors take several
// launches.
#include "backend/cuda/optim/optimizer.h"

#include <algorithm>

#include "backend/cuda/optim/gradient_norm_kernels.h"
#include "backend/cuda/optim/optimizer_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256;

int64_t chunks_of(int64_t n) { return (n + UpdateTable::kChunk - 1) / UpdateTable::kChunk; }

/// Splits the tensors into tables of one launch each; calls f(table, number of chunks in earlier tables).
template <class F>
void for_tables(std::span<const UpdateTensor> tensors, F f) {
  int64_t before = 0;
  for (size_t first = 0; first < tensors.size(); first += UpdateTable::kMost) {
    const auto run = tensors.subspan(first, std::min<size_t>(UpdateTable::kMost, tensors.size() - first));
    UpdateTable table{};
    for (const UpdateTensor& t : run) {
      table.group[table.count] = {
          t.param, t.grad, {t.state[0], t.state[1]}, t.param_out, {t.state_out[0], t.state_out[1]},
          t.n,     t.copy};
      table.first_chunk[table.count + 1] = table.first_chunk[table.count] + chunks_of(t.n);
      ++table.count;
    }
    const int64_t chunks = table.first_chunk[table.count];
    if (chunks > 0) f(table, before);
    before += chunks;
  }
}

Launch chunk_launch(tensor::Stream& stream, const UpdateTable& table) {
  return {blocks_for(cuda_stream(stream), table.first_chunk[table.count]), kThreads, kReduceScratchBytes};
}

template <class Rule>
void update_many(const UpdateCall& call, const char* name, const Rule& rule) {
  const auto* numbers = static_cast<const UpdateNumbers*>(call.workspace);
  for_tables(call.tensors, [&](const UpdateTable& table, int64_t) {
    launch(call.stream, name, chunk_launch(call.stream, table), UpdateMany<Rule>{table, numbers, rule});
  });
}

void prepare(const UpdateCall& call, const UpdateOperands& o, const PrepareUpdate& fixed) {
  static_assert(sizeof(UpdateNumbers) <= kUpdateWorkspaceBytes);
  PrepareUpdate kernel = fixed;
  kernel.lr = {o.lr, o.lr_is_wide};
  kernel.grad_scale = {o.grad_scale, o.grad_scale_is_wide};
  kernel.step = o.step;
  kernel.skip = o.skip;
  kernel.out = static_cast<UpdateNumbers*>(call.workspace);
  launch(call.stream, "prepare_update", {1, kWarp}, kernel);
}

}  // namespace

void sgd_update(const UpdateCall& call, const UpdateOperands& operands, const SgdForm& form) {
  prepare(call, operands, {.lr_scale = form.lr_scale});
  update_many(call, "sgd_update",
              SgdRule{static_cast<float>(form.l2), static_cast<float>(form.momentum),
                      static_cast<float>(form.keep), form.nesterov});
}

void adam_update(const UpdateCall& call, const UpdateOperands& operands, const AdamForm& form) {
  prepare(call, operands,
          {.lr_scale = form.lr_scale,
           .beta1 = form.beta1,
           .beta2 = form.beta2,
           .weight_decay = form.decoupled ? form.weight_decay : 0});
  update_many(call, "adam_update",
              AdamRule{.l2 = static_cast<float>(form.decoupled ? 0 : form.weight_decay),
                       .beta1 = static_cast<float>(form.beta1),
                       .take1 = static_cast<float>(1 - form.beta1),
                       .beta2 = static_cast<float>(form.beta2),
                       .take2 = static_cast<float>(1 - form.beta2),
                       .epsilon = static_cast<float>(form.epsilon),
                       .decays = form.decoupled});
}

void average_update(const UpdateCall& call, const int64_t* step, const uint8_t* skip, double keep) {
  launch(call.stream, "prepare_average", {1, kWarp},
         PrepareAverage{step, skip, keep, static_cast<UpdateNumbers*>(call.workspace)});
  update_many(call, "average_update", AverageRule{});
}

void tree_accumulate(tensor::Stream& stream, const TreeAccumulateArgs& a) {
  if (a.n == 0) return;
  TreeAccumulate kernel{.count = a.count,
                        .value = a.value,
                        .held = {},
                        .out = {},
                        .levels = static_cast<int>(a.held.size()),
                        .n = a.n,
                        .fault = a.fault,
                        .step = a.step};
  for (size_t i = 0; i < a.held.size(); ++i) {
    kernel.held[i] = static_cast<const float*>(a.held[i]);
    kernel.out[i] = static_cast<float*>(a.out[i]);
  }
  launch(stream, "tree_accumulate", flat_launch(stream, (a.n + 3) / 4), kernel);
}

int64_t all_finite_workspace_bytes(std::span<const int64_t> elements) {
  int64_t chunks = 0;
  for (int64_t n : elements) chunks += chunks_of(n);
  return chunks;
}

void all_finite(const UpdateCall& call, uint8_t* out) {
  auto* flags = static_cast<uint8_t*>(call.workspace);
  int64_t chunks = 0;
  for_tables(call.tensors, [&](const UpdateTable& table, int64_t before) {
    launch(call.stream, "find_non_finite", chunk_launch(call.stream, table),
           FindNonFinite{table, flags + before});
    chunks = before + table.first_chunk[table.count];
  });
  launch(call.stream, "no_flag", {1, kThreads, kReduceScratchBytes}, NoFlag{flags, out, chunks});
}

namespace {

int64_t square_chunks(const BlockedSquares& t) {
  return std::max<int64_t>(1, (t.outer * t.inner + SquaresTable::kChunk - 1) / SquaresTable::kChunk);
}

}  // namespace

int64_t block_squares_workspace_bytes(std::span<const BlockedSquares> tensors) {
  int64_t sums = 0;
  for (const BlockedSquares& t : tensors) sums += t.blocks * square_chunks(t);
  return sums * static_cast<int64_t>(sizeof(double));
}

void block_squares(tensor::Stream& stream, std::span<const BlockedSquares> tensors, double* out,
                   void* workspace) {
  auto* sums = static_cast<double*>(workspace);
  int64_t first_sum = 0;
  for (size_t first = 0; first < tensors.size(); first += SquaresTable::kMost) {
    SquaresTable table{};
    int64_t most_blocks = 0;
    for (const BlockedSquares& t :
         tensors.subspan(first, std::min<size_t>(SquaresTable::kMost, tensors.size() - first))) {
      const int64_t chunks = square_chunks(t);
      table.group[table.count] = {t.x, t.outer, t.blocks, t.inner, chunks, first_sum, t.result};
      table.first_task[table.count + 1] = table.first_task[table.count] + t.blocks * chunks;
      first_sum += t.blocks * chunks;
      most_blocks = std::max(most_blocks, t.blocks);
      ++table.count;
    }
    const int64_t tasks = table.first_task[table.count];
    const auto blocks = [&](int64_t work) { return blocks_for(cuda_stream(stream), work); };
    launch(stream, "block_squares", {blocks(tasks), kThreads, kReduceScratchBytes},
           BlockSquares{table, sums});
    launch(stream, "join_squares", {blocks((most_blocks + 7) / 8), kThreads}, JoinSquares{table, sums, out});
  }
}

void norm_of_squares(tensor::Stream& stream, std::span<const SquaresOfRanks> tensors, float* root,
                     double* sum, void* workspace) {
  auto* sums = static_cast<double*>(workspace);
  for (size_t first = 0; first < tensors.size(); first += GatheredTable::kMost) {
    GatheredTable table{};
    for (const SquaresOfRanks& t :
         tensors.subspan(first, std::min<size_t>(GatheredTable::kMost, tensors.size() - first)))
      table.group[table.count++] = {t.at, t.first, t.count, t.parts, t.stride};
    launch(stream, "sum_gathered", {1, GatheredTable::kMost}, SumGathered{table, sums + first});
  }
  launch(stream, "join_gathered", {1, kThreads, kReduceScratchBytes},
         JoinGathered{sums, static_cast<int64_t>(tensors.size()), root, sum});
}

void clip_coefficient(tensor::Stream& stream, const ClipArgs& a) {
  launch(stream, "clip_coefficient", {1, kWarp},
         ClipCoefficient{a.norm, a.grad_scale, a.norm_limit, a.loss, a.loss_limit, a.coefficient, a.skip,
                         a.scaled, a.max_norm, a.epsilon, a.skip_nonfinite});
}

}  // namespace trireme::cuda
