// Implements what all kinds of models have in common.
#include "serve/models/served_model.h"

#include <algorithm>
#include <utility>

namespace trireme::serve {

ServedModel::ServedModel(ModelSource source, ModelConfig config, const ModelHost& host,
                         const ModelMetrics* earlier, int instances)
    : source_(std::move(source)), env_(host.env), tenants_(host.tenants), config_(std::move(config)) {
  metadata({});  // throws for a type that the protocol has no name for
  const MetricLabels labels = metric_labels();
  metrics_ = std::make_shared<ModelMetrics>(
      host.metrics, labels, std::max<int64_t>(1, config_.max_batch_size.value_or(0)), earlier);
  if (config_.is_decoupled) metrics_->show_first_responses(host.metrics, labels);
  if (instances > 0) metrics_->add_instances(host.metrics, labels, instances);
  if (host.options.metric_summaries) metrics_->show_summaries(host.metrics, labels, env_.clock);
  if (host.keep_metrics) host.keep_metrics(metrics_);
}

MetricLabels ServedModel::metric_labels() const {
  MetricLabels labels{{"model", name()}, {"version", version()}};
  for (const auto& tag : config_.metric_tags) labels.push_back(tag);
  return labels;
}

base::Json ServedModel::metadata(const std::vector<std::string>& versions) const {
  base::Json list = base::Json::array();
  for (const std::string& v : versions) list.push_back(v);
  return base::Json::object({{"name", name()},
                             {"versions", std::move(list)},
                             {"platform", config_.platform},
                             {"inputs", tensors_json(offered_inputs(), config_.is_batched())},
                             {"outputs", tensors_json(config_.outputs, config_.is_batched())}});
}

base::Json ServedModel::stats() const {
  base::Json json = base::Json::object({{"name", name()}, {"version", version()}});
  metrics_->append_stats(json);
  const MemoryUse used = memory();
  json.set("memory_usage",
           base::Json::array({base::Json::object(
               {{"type", "CPU"}, {"id", 0}, {"byte_size", used.weight_bytes + used.scratch_bytes}})}));
  return json;
}

}  // namespace trireme::serve
