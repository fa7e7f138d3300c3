// Evaluation by an ordinary session: what is measured is what will be served.
#include "train/evaluate.h"

#include <algorithm>

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

}  // namespace

double scalar_output(const ir::Graph& graph, const std::vector<tensor::Tensor>& outputs,
                     const std::string& name) {
  const auto& names = graph.output_names();
  const auto at = std::find(names.begin(), names.end(), name);
  return at == names.end() ? -1 : outputs[static_cast<size_t>(at - names.begin())].to_doubles().at(0);
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
  for (int64_t b = 0; options_.max_batches == 0 || b < options_.max_batches; ++b) {
    const std::optional<data::Batch> batch = loader_.next();
    if (!batch) break;
    std::vector<tensor::Tensor> feeds = feeder_.feeds(*batch);
    for (tensor::Tensor& t : feeds) t = t.rows(0, batch->valid_rows);
    const auto outputs = session.run(feeds);
    loss += scalar_output(session.graph(), outputs, "loss_sum");
    count += scalar_output(session.graph(), outputs, "count");
    correct += scalar_output(session.graph(), outputs, "correct");
  }
  EvalRecord record{.step = step, .targets = static_cast<int64_t>(count)};
  record.loss = count > 0 ? loss / count : 0;  // the mean over no target is 0 (C24)
  record.accuracy = correct < 0 ? -1 : count > 0 ? correct / count : 0;
  record.seconds = static_cast<double>(clock_.now_ns() - start) * 1e-9;
  return record;
}

}  // namespace trireme::train
