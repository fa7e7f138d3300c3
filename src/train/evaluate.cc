// Evaluation by an ordinary session: what is measured is what will be served.
#include "train/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/session.h"

namespace trireme::train {
namespace {

data::LoaderOptions loader_options(const EvaluatorOptions& o, int64_t samples) {
  data::LoaderOptions loader;
  loader.batch = std::min(o.batch, samples);
  loader.shuffle = false;
  loader.last = data::LastBatch::pad;
  loader.epochs = 1;
  loader.workers = o.workers;
  loader.ignore_index = o.ignore_index;
  return loader;
}

/// Rank of every value, from 0; equal values share the mean of theirs.
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
      loader_(dataset, loader_options(options_, dataset->size()), std::move(transform), clock),
      feeder_(graph, loader_.fields(), options_.feed, options_.target_inputs) {}

EvalRecord Evaluator::run(const ir::Graph& loss_graph, int64_t step) {
  const int64_t start = clock_.now_ns();
  engine::Session session(std::make_shared<const engine::PreparedModel>(loss_graph),
                          {.threads = options_.threads});
  loader_.seek({0, 0});
  double loss = 0, count = 0, correct = 0;
  std::vector<double> predicted, wanted;
  for (int64_t b = 0; options_.max_batches == 0 || b < options_.max_batches; ++b) {
    const std::optional<data::Batch> batch = loader_.next();
    if (!batch) break;
    const std::vector<tensor::Tensor> feeds = feeder_.feeds(*batch, batch->valid_rows);
    const auto outputs = session.run(feeds);
    loss += scalar_output(session.graph(), outputs, "loss_sum");
    count += scalar_output(session.graph(), outputs, "count");
    correct += scalar_output(session.graph(), outputs, "correct");
    if (const tensor::Tensor* similarity = named_output(session.graph(), outputs, "similarity")) {
      append(predicted, *similarity);
      append(wanted, feeds.back());  // the loss adds its labels last
    }
  }
  EvalRecord record{.step = step, .targets = static_cast<int64_t>(count)};
  record.loss = count > 0 ? loss / count : 0;  // the mean over no target is 0 (C24)
  record.accuracy = correct < 0 ? -1 : count > 0 ? correct / count : 0;
  if (!wanted.empty()) record.rank_correlation = rank_correlation(predicted, wanted);
  record.seconds = static_cast<double>(clock_.now_ns() - start) * 1e-9;
  return record;
}

}  // namespace trireme::train
