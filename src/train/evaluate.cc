// Evaluates with an ordinary session, so that the results are those of the model as it will be served.
#include "train/evaluate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "engine/session/session.h"

namespace trireme::train {
namespace {

/// `fixed`: rows of every batch; 0: as the options say, for as many samples as there are.
data::LoaderOptions evaluation_loader(const EvaluatorOptions& o, int64_t samples,
                                      std::vector<std::string> fields, int64_t fixed = 0) {
  data::LoaderOptions loader;
  loader.fields = std::move(fields);
  loader.batch = fixed > 0 ? fixed : std::min(o.batch, samples);
  loader.rank = o.ranks.rank();
  loader.world = o.ranks.size();
  loader.shuffle = false;
  loader.last = data::LastBatch::pad;
  loader.epochs = 1;
  loader.workers = o.workers;
  loader.ignore_index = o.ignore_index;
  return loader;
}

/// All fields that batches of these samples could have.
std::vector<data::Field> fields_of(const data::DatasetPtr& dataset, data::LoaderOptions options,
                                   const data::Transform& transform, base::Clock& clock) {
  return data::Loader(dataset, std::move(options), transform, clock).fields();
}

/// The rank of every value, from 0; equal values get the mean of their ranks.
std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t i, size_t j) { return values[i] < values[j]; });
  std::vector<double> ranks(values.size());
  for (size_t i = 0; i < order.size();) {
    size_t end = i + 1;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    for (size_t j = i; j < end; ++j) ranks[order[j]] = static_cast<double>(i + end - 1) / 2;
    i = end;
  }
  return ranks;
}

const tensor::Tensor* named_output(const ir::Graph& graph, const std::vector<tensor::Tensor>& outputs,
                                   const std::string& name) {
  const auto& names = graph.output_names();
  const auto at = std::find(names.begin(), names.end(), name);
  return at == names.end() ? nullptr : &outputs[static_cast<size_t>(at - names.begin())];
}

void append(std::vector<double>& all, const tensor::Tensor& t) {
  const std::vector<double> values = t.to_doubles();
  all.insert(all.end(), values.begin(), values.end());
}

}  // namespace

double rank_correlation(const std::vector<double>& a, const std::vector<double>& b) {
  base::require(a.size() == b.size(), "a rank correlation of ", a.size(), " and ", b.size(), " values");
  const std::vector<double> x = ranks_of(a), y = ranks_of(b);
  const double mean = (static_cast<double>(x.size()) - 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx == 0 || yy == 0 ? 0 : xy / std::sqrt(xx * yy);
}

double scalar_output(const ir::Graph& graph, const std::vector<tensor::Tensor>& outputs,
                     const std::string& name) {
  const tensor::Tensor* output = named_output(graph, outputs, name);
  return output == nullptr ? -1 : output->to_doubles().at(0);
}

Evaluator::Evaluator(const ir::Graph& graph, data::DatasetPtr dataset, data::Transform transform,
                     EvaluatorOptions options, base::Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      feeder_(graph, fields_of(dataset, evaluation_loader(options_, dataset->size(), {}), transform, clock),
              options_.feed, options_.target_inputs),
      loader_(dataset,
              evaluation_loader(options_, dataset->size(), feeder_.fields(), feeder_.fixed_samples()),
              std::move(transform), clock) {
  take_fixed_batches(dataset->size());
}

/// Where the graph states how many rows it takes, all batches have so many.
void Evaluator::take_fixed_batches(int64_t samples) {
  const int64_t fixed = feeder_.fixed_samples();
  if (fixed == 0) return;
  options_.batch = fixed;
  if (feeder_.has_integer_targets()) return;
  const int64_t most = options_.max_batches == 0 ? samples : options_.max_batches * fixed;
  const int64_t left = std::min(samples, most) % fixed;
  const std::string fewer =
      samples < fixed ? "" : base::concat(", or set eval.batches to at most ", samples / fixed);
  base::require(left == 0, "the model takes ", fixed, " samples at once, and the last batch of the ", samples,
                " validation samples has ", left,
                ": a loss of floats cannot be filled up; export the model with an open first dimension",
                fewer);
}

Evaluator::Sums Evaluator::run_batches(const ir::Graph& loss_graph, const Lend& lend) {
  const auto model = std::make_shared<const engine::PreparedModel>(loss_graph);
  if (lend) lend(*model);
  engine::Session session(model, {.device = options_.device, .threads = options_.threads});
  loader_.seek({0, 0});
  Sums sums;
  for (int64_t b = options_.ranks.rank(); options_.max_batches == 0 || b < options_.max_batches;
       b += options_.ranks.size()) {
    const std::optional<data::Batch> batch = loader_.next();
    if (!batch) break;
    if (batch->valid_rows == 0) break;  // data ended within the batches that ranks take together
    const std::vector<tensor::Tensor> feeds =
        feeder_.fixed_samples() > 0 ? feeder_.feeds(*batch) : feeder_.feeds(*batch, batch->valid_rows);
    const auto outputs = session.run(feeds);
    for (const char* name : {"loss_sum", "count", "correct"}) {
      sums.batches.push_back(scalar_output(session.graph(), outputs, name));
    }
    if (const tensor::Tensor* similarity = named_output(session.graph(), outputs, "similarity")) {
      append(sums.predicted, *similarity);
      append(sums.wanted, feeds.back());  // the loss adds its labels last
    }
  }
  return sums;
}

/// All ranks throw where one does: what follows needs every rank.
Evaluator::Sums Evaluator::run_on_all_ranks(const ir::Graph& loss_graph, const Lend& lend) {
  Sums sums;
  std::optional<base::Error> own;
  try {
    sums = run_batches(loss_graph, lend);
  } catch (const base::Error& e) {
    own = e;
  }
  const std::string problem = options_.ranks.first_problem(own ? own->message() : std::string());
  if (own) throw base::Error(*own);
  base::require(problem.empty(), problem);
  return sums;
}

/// Merges the values of all ranks into the order of the batches, of which rank r processed r, r + ranks, …;
/// every batch except the last has `per_batch` values.
std::vector<double> Evaluator::in_order(const std::vector<double>& mine, size_t per_batch) const {
  const auto size = static_cast<double>(mine.size());
  const std::vector<double> sizes = options_.ranks.gather(std::span(&size, 1));
  const auto longest = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::vector<double> padded = mine, out;
  padded.resize(longest);
  const std::vector<double> all = options_.ranks.gather(padded);
  for (size_t from = 0; from < longest; from += per_batch) {
    for (size_t r = 0; r < sizes.size(); ++r) {
      const size_t end = std::min(from + per_batch, static_cast<size_t>(sizes[r]));
      for (size_t i = from; i < end; ++i) out.push_back(all[r * longest + i]);
    }
  }
  return out;
}

EvalRecord Evaluator::run(const ir::Graph& loss_graph, int64_t step, const Lend& lend) {
  const int64_t start = clock_.now_ns();
  const Sums mine = run_on_all_ranks(loss_graph, lend);
  std::array<double, 3> sums{};  // loss, count, correct
  const std::vector<double> batches = in_order(mine.batches, sums.size());
  for (size_t i = 0; i < batches.size(); ++i) sums[i % sums.size()] += batches[i];
  const auto [loss, count, correct] = sums;
  EvalRecord record{.step = step, .targets = static_cast<int64_t>(count)};
  record.loss = count > 0 ? loss / count : 0;  // by definition (C24), the mean over no targets is 0
  record.accuracy = correct < 0 ? -1 : count > 0 ? correct / count : 0;
  const auto rows = static_cast<size_t>(options_.batch);
  const std::vector<double> wanted = in_order(mine.wanted, rows);
  if (!wanted.empty()) record.rank_correlation = rank_correlation(in_order(mine.predicted, rows), wanted);
  record.seconds = static_cast<double>(clock_.now_ns() - start) * 1e-9;
  return record;
}

}  // namespace trireme::train
