// Launchers of LAMB, LARS and Adafactor. Norms and sums pass through the workspace in f64.
#include "backend/cuda/optim/trust.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "backend/cuda/optim/factored_kernels.h"
#include "backend/cuda/optim/trust_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kNumbersBytes = 64;
static_assert(sizeof(TrustNumbers) <= kNumbersBytes);

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t chunks_of_block(int64_t elements, int64_t blocks) {
  return ceil_div(elements / std::max<int64_t>(1, blocks), TrustTable::kChunk);
}

/// Addresses of the parts of the workspace.
struct TrustWork {
  TrustNumbers* numbers;
  double *sums, *squares;  // [2, tasks], [2, blocks]
  float* rate;             // [parameters]
  TrustWork(void* memory, int64_t tasks, int64_t blocks) {
    auto* bytes = static_cast<std::byte*>(memory);
    numbers = reinterpret_cast<TrustNumbers*>(bytes);
    sums = reinterpret_cast<double*>(bytes + kNumbersBytes);
    squares = sums + 2 * tasks;
    rate = reinterpret_cast<float*>(squares + 2 * blocks);
  }
};

/// Numbers of tasks and blocks of all parameters together.
struct TrustCounts {
  int64_t tasks = 0, blocks = 0;
  void add(int64_t elements, int64_t blocks_of_it) {
    tasks += blocks_of_it * chunks_of_block(elements, blocks_of_it);
    blocks += blocks_of_it;
  }
};
TrustCounts counts_of(const TrustCall& call) {
  TrustCounts counts;
  for (size_t i = 0; i < call.blocks.size(); ++i) counts.add(call.update.tensors[i].n, call.blocks[i]);
  return counts;
}

/// Splits the parameters into tables of one launch each; calls f(table, index of its first parameter).
template <class F>
void for_trust_tables(const TrustCall& call, F f) {
  const std::span<const UpdateTensor> tensors = call.update.tensors;
  int64_t block = 0, sum = 0;
  for (size_t first = 0; first < tensors.size(); first += TrustTable::kMost) {
    TrustTable table{};
    const size_t last = std::min(tensors.size(), first + TrustTable::kMost);
    for (size_t i = first; i < last; ++i) {
      const UpdateTensor& t = tensors[i];
      const int64_t blocks = call.blocks[i], chunks = chunks_of_block(t.n, blocks);
      table.group[table.count] = {.at = {t.param,
                                         t.grad,
                                         {t.state[0], t.state[1]},
                                         t.param_out,
                                         {t.state_out[0], t.state_out[1]},
                                         t.n,
                                         t.copy},
                                  .blocks = blocks,
                                  .block_elements = t.n / std::max<int64_t>(1, blocks),
                                  .chunks = chunks,
                                  .first_block = block,
                                  .first_sum = sum};
      table.first_task[table.count + 1] = table.first_task[table.count] + blocks * chunks;
      block += blocks;
      sum += blocks * chunks;
      ++table.count;
    }
    f(table, first);
  }
}

void prepare(const TrustCall& call, const UpdateOperands& o, PrepareTrust kernel) {
  kernel.lr = {o.lr, o.lr_is_wide};
  kernel.grad_scale = {o.grad_scale, o.grad_scale_is_wide};
  kernel.step = o.step;
  kernel.skip = o.skip;
  kernel.out = static_cast<TrustNumbers*>(call.update.workspace);
  launch(call.update.stream, "prepare_trust", {1, kWarp}, kernel);
}

Launch task_launch(tensor::Stream& stream, const TrustTable& table) {
  return {blocks_for(cuda_stream(stream), table.first_task[table.count]), kThreads, kReduceScratchBytes};
}

/// Writes the states that the rule updates in this pass, and both sums of every block to `out`.
template <class Rule>
void measure(const TrustCall& call, const TrustCounts& counts, const Rule& rule, double* out) {
  const TrustWork work(call.update.workspace, counts.tasks, counts.blocks);
  for_trust_tables(call, [&](const TrustTable& table, size_t) {
    if (table.first_task[table.count] > 0) {
      launch(call.update.stream, "measure_trust", task_launch(call.update.stream, table),
             MeasureTrust<Rule>{table, work.numbers, rule, work.sums, counts.tasks});
    }
    if (out == nullptr) return;
    int64_t most = 0;
    for (int i = 0; i < table.count; ++i) most = std::max(most, table.group[i].blocks);
    const int64_t blocks = blocks_for(cuda_stream(call.update.stream), ceil_div(2 * most, 8));
    launch(call.update.stream, "join_trust", {blocks, kThreads},
           JoinTrust{table, work.sums, counts.tasks, out, counts.blocks});
  });
}

template <class Rule>
void update(const TrustCall& call, const Rule& rule) {
  const TrustCounts counts = counts_of(call);
  const TrustWork work(call.update.workspace, counts.tasks, counts.blocks);
  if (Rule::kEarly || call.squares == nullptr)
    measure(call, counts, rule, call.squares == nullptr ? work.squares : nullptr);
  for_trust_tables(call, [&](const TrustTable& table, size_t first) {
    if (table.first_task[table.count] == 0) return;
    launch(call.update.stream, "trust_rates", {1, TrustTable::kMost},
           TrustRates<Rule>{table, work.numbers, rule, call.squares == nullptr ? work.squares : call.squares,
                            counts.blocks, call.parts, work.rate + first});
    launch(call.update.stream, "apply_trust", task_launch(call.update.stream, table),
           ApplyTrust<Rule>{table, work.numbers, rule, work.rate + first});
  });
}

LambTrust rule_of(const LambForm& f) {
  return {.beta1 = static_cast<float>(f.beta1),
          .take1 = static_cast<float>(f.take1),
          .beta2 = static_cast<float>(f.beta2),
          .take2 = static_cast<float>(1 - f.beta2),
          .epsilon = static_cast<float>(f.epsilon),
          .weight_decay = static_cast<float>(f.weight_decay),
          .adapt = f.adapt};
}
LarsTrust rule_of(const LarsForm& f) {
  return {.momentum = static_cast<float>(f.momentum),
          .weight_decay = static_cast<float>(f.weight_decay),
          .eta = f.eta,
          .wide_decay = f.weight_decay,
          .epsilon = f.epsilon,
          .adapt = f.adapt};
}
PrepareTrust prepare_of(const LambForm& f) {
  return {.lr_scale = f.lr_scale, .beta1 = f.beta1, .beta2 = f.beta2};
}
PrepareTrust prepare_of(const LarsForm& f) { return {.lr_scale = f.lr_scale}; }
PrepareTrust prepare_of(const FactoredForm& f) {
  return {.lr_scale = f.lr_scale, .beta2_decay = f.beta2_decay, .weight_decay = f.weight_decay};
}
double least_epsilon(const FactoredForm& f) {
  return f.epsilon1 > 0 ? f.epsilon1 : static_cast<double>(std::numeric_limits<float>::epsilon());
}

}  // namespace

int64_t trust_workspace_bytes(const TrustCut& cut) {
  TrustCounts counts;
  for (size_t i = 0; i < cut.elements.size(); ++i) counts.add(cut.elements[i], cut.blocks[i]);
  const int64_t doubles = 2 * (counts.tasks + counts.blocks);
  return kNumbersBytes + doubles * static_cast<int64_t>(sizeof(double)) +
         static_cast<int64_t>(cut.elements.size() * sizeof(float));
}

void lamb_update(const TrustCall& call, const UpdateOperands& operands, const LambForm& form) {
  prepare(call, operands, prepare_of(form));
  update(call, rule_of(form));
}

void lars_update(const TrustCall& call, const UpdateOperands& operands, const LarsForm& form) {
  prepare(call, operands, prepare_of(form));
  update(call, rule_of(form));
}

void factored_vector_update(const TrustCall& call, const UpdateOperands& operands, const FactoredForm& form) {
  prepare(call, operands, prepare_of(form));
  const double least = least_epsilon(form);
  update(call, FactoredVector{static_cast<float>(least * least), {form.epsilon2, form.clip_threshold}});
}

void lamb_squares(const TrustCall& call, const UpdateOperands& operands, const LambForm& form, double* out) {
  prepare(call, operands, prepare_of(form));
  measure(call, counts_of(call), rule_of(form), out);
}

void lars_squares(const TrustCall& call, const UpdateOperands& operands, const LarsForm& form, double* out) {
  prepare(call, operands, prepare_of(form));
  measure(call, counts_of(call), rule_of(form), out);
}

namespace {

/// Numbers of doubles in Adafactor's workspace: partial column sums, means of row factors, squares of rows.
struct FactoredSizes {
  int64_t partials = 0, means = 0, rows = 0;
  explicit FactoredSizes(std::span<const FactoredTensor> tensors) {
    for (const FactoredTensor& t : tensors) {
      partials += factored_partials(t.matrices, t.rows, t.cols);
      means += t.matrices;
      rows += t.matrices * t.rows;
    }
  }
};

/// Addresses of these parts, and of the step of each parameter, which is stored after them.
struct FactoredWork {
  TrustNumbers* numbers;
  double *partial, *mean, *param, *update, *step;
  FactoredWork(const FactoredSizes& sizes, void* memory) {
    numbers = static_cast<TrustNumbers*>(memory);
    partial = reinterpret_cast<double*>(static_cast<std::byte*>(memory) + kNumbersBytes);
    mean = partial + sizes.partials;
    param = mean + sizes.means;
    update = param + sizes.rows;
    step = update + sizes.rows;
  }
};

/// Copies the states of a parameter without elements unchanged.
void keep_states(tensor::Stream& stream, const FactoredTensor& t) {
  const int64_t counts[] = {t.matrices * t.rows, t.matrices * t.cols};
  for (int s = 0; s < 2; ++s) {
    if (counts[s] > 0 && t.at.state_out[s] != t.at.state[s])
      stream.copy(t.at.state_out[s], t.at.state[s], counts[s] * static_cast<int64_t>(sizeof(float)));
  }
}

/// The launches for one table of parameters, in order: each needs all results of those before it.
void launch_factored(tensor::Stream& stream, const FactoredTable& table, const FactoredRule& rule,
                     double* step) {
  const auto grid = [&](int64_t work) { return blocks_for(cuda_stream(stream), work); };
  const int64_t row_tasks = table.first_task[table.count], columns = table.first_column[table.count];
  launch(stream, "factor_rows", {grid(row_tasks), kThreads}, FactorRows{table, rule});
  launch(stream, "factor_columns", {grid(ceil_div(columns, kThreads)), kThreads}, FactorColumns{table, rule});
  int64_t joined = 0, matrices = 0;
  for (int i = 0; i < table.count; ++i) {
    const FactoredGroup& g = table.group[i];
    if (g.parts > 1) joined = std::max(joined, g.matrices * g.cols);
    matrices = std::max(matrices, g.matrices);
  }
  if (joined > 0)
    launch(stream, "join_columns", {grid(ceil_div(joined, kThreads)), kThreads}, JoinColumns{table, rule});
  launch(stream, "mean_of_rows", {grid(ceil_div(matrices, 8)), kThreads}, MeanOfRows{table});
  launch(stream, "measure_factored", {grid(row_tasks), kThreads}, MeasureFactored{table, rule});
  launch(stream, "factored_steps", {table.count, kThreads, kReduceScratchBytes},
         FactoredSteps{table, rule, step});
  launch(stream, "apply_factored", {grid(row_tasks), kThreads}, ApplyFactored{table, rule, step});
}

}  // namespace

int64_t factored_workspace_bytes(std::span<const FactoredTensor> tensors) {
  const FactoredSizes sizes(tensors);
  const int64_t doubles =
      sizes.partials + sizes.means + 2 * sizes.rows + static_cast<int64_t>(tensors.size());
  return kNumbersBytes + doubles * static_cast<int64_t>(sizeof(double));
}

void factored_update(tensor::Stream& stream, std::span<const FactoredTensor> tensors,
                     const UpdateOperands& operands, const FactoredForm& form, void* workspace) {
  FactoredWork work(FactoredSizes(tensors), workspace);
  prepare({.update = {stream, {}, workspace}, .blocks = {}}, operands, prepare_of(form));
  const double least = least_epsilon(form);
  const FactoredRule rule{
      work.numbers, least, static_cast<float>(least * least), {form.epsilon2, form.clip_threshold}};
  for (size_t at = 0; at < tensors.size();) {
    FactoredTable table{};
    for (; at < tensors.size() && table.count < FactoredTable::kMost; ++at) {
      const FactoredTensor& t = tensors[at];
      if (t.matrices * t.rows * t.cols == 0) {
        keep_states(stream, t);
        continue;
      }
      table.add({t.at.param, t.at.grad, t.at.state[0], t.at.state[1], t.at.param_out, t.at.state_out[0],
                 t.at.state_out[1], t.matrices, t.rows, t.cols, t.at.copy},
                work.partial, work.mean, work.param, work.update);
      work.partial += factored_partials(t.matrices, t.rows, t.cols);
      work.mean += t.matrices;
      work.param += t.matrices * t.rows;
      work.update += t.matrices * t.rows;
    }
    if (table.count > 0) launch_factored(stream, table, rule, work.step);
    work.step += table.count;
  }
}

}  // namespace trireme::cuda
