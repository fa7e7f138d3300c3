// Loading of a served model: its files, configuration, scheduler and warm-up.
#include <algorithm>

#include "base/cpu_info.h"
#include "base/file.h"
#include "engine/batch_proof.h"
#include "serve/seeing/price.h"
#include "serve/config/run_config.h"
#include "serve/models/model_file.h"
#include "serve/models/batched_model.h"

namespace trireme::serve {
namespace {

using tensor::Tensor;

/// `buckets` up to `most`, which is one of them, so that no batch is padded past it.
std::vector<int64_t> buckets_up_to(std::vector<int64_t> buckets, int64_t most) {
  std::sort(buckets.begin(), buckets.end());
  std::erase_if(buckets, [most](int64_t b) { return b >= most; });
  buckets.push_back(most);
  return buckets;
}

std::vector<std::string> read_labels(const std::string& root, const std::string& file) {
  std::vector<std::string> labels;
  if (file.empty()) return labels;
  const std::string text = base::read_file(base::safe_join(root, file), size_t{64} << 20);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    labels.push_back(text.substr(at, end - at));
    if (!labels.back().empty() && labels.back().back() == '\r') labels.back().pop_back();
    at = end + 1;
  }
  return labels;
}

/// Gives string inputs and outputs the type of the numbers that stand for them, or TYPE_STRING again.
void set_string_types(ModelConfig& config, const StringPorts& ports, bool as_numbers) {
  const auto set = [&ports, as_numbers](TensorConfig& t, tensor::DType number) {
    base::require(!as_numbers || !t.type, "'", t.name, "': data_type ", config_type_name(t.type),
                  ", the model has TYPE_STRING");
    t.type = as_numbers ? WireType(number) : std::nullopt;
    const tensor::Dims* picture = ports.picture_dims(t.name);
    if (picture == nullptr) return;
    base::require(!as_numbers || t.dims == tensor::Dims{1}, "'", t.name,
                  "': image_input takes files, dims [ 1 ]");
    t.dims = as_numbers ? *picture : tensor::Dims{1};
  };
  for (TensorConfig& t : config.inputs) {
    if (ports.takes(t.name)) set(t, ports.input_type(t.name));
  }
  for (TensorConfig& t : config.outputs) {
    if (ports.gives(t.name)) set(t, ports.output_type(t.name));
  }
}

/// Where each row of the outputs is an answer, clients do not see the rows' dimension; the graph has it.
void set_answer_dims(std::vector<TensorConfig>& outputs, bool streams_rows, bool as_graph) {
  if (!streams_rows) return;
  for (TensorConfig& t : outputs) {
    base::require(as_graph || !t.dims.empty(), "stream_rows: output '", t.name, "' has no rows");
    if (as_graph) {
      t.dims.insert(t.dims.begin(), -1);
    } else {
      t.dims.erase(t.dims.begin());
    }
  }
}

/// Requests may come with extents that why_not_batched did not try.
bool has_open_inner_extent(const ir::Graph& graph) {
  return std::any_of(graph.inputs().begin(), graph.inputs().end(), [&](ir::ValueId id) {
    const tensor::Shape& shape = graph.type(id).shape;
    for (size_t d = 1; shape.has_rank() && d < shape.rank(); ++d) {
      if (!shape[d].is_static()) return true;
    }
    return !shape.has_rank();
  });
}

}  // namespace

ServedModel::ServedModel(const ModelSource& source, const ModelHost& host, const ModelMetrics* earlier)
    : source_(source), env_(host.env), tenants_(host.tenants), config_(source.config) {
  server_timeout_ns_ = host.options.request_timeout.ns;
  streams_rows_ = RunConfig::of(config_.parameters).streams_rows;
  is_deadline_aware_ =
      RunConfig::of(config_.parameters).is_deadline_aware.value_or(host.options.deadline_aware);
  static std::atomic<uint64_t> loads{0};
  load_number_ = ++loads;
  if (config_.caches && host.options.cache_size.bytes > 0) cache_ = &host.cache;
  config_.ensemble ? load_ensemble(host, earlier) : load(host, earlier);
}

void ServedModel::load(const ModelHost& host, const ModelMetrics* earlier) {
  const ServeOptions& options = host.options;
  model::Model model = open_model(source_.path, options.others);
  if (model.format == "huggingface") make_text_front(model, options);
  kept_outputs_ = places_of_outputs(model.graph, config_);
  keep_outputs(model.graph, kept_outputs_);
  strings_ = StringPorts(model);
  const PixelValues pixels = RunConfig::of(config_.parameters).image_input;
  if (pixels != PixelValues::off) strings_.add_picture(model.graph, pixels, config_.is_batched());
  complete(model.graph, options);
  make_metrics(host, earlier);
  set_padding(model.graph);
  if (config_.sequence)
    layout_ = std::make_shared<const SequenceLayout>(config_, model.graph, strings_, source_.root);
  auto prepared = std::make_shared<const engine::PreparedModel>(
      std::move(model.graph), passes::PassOptions{},
      RunConfig::of(config_.parameters).weights.value_or(options.weights));
  model.release_pages();
  for (const ir::Value& v : prepared->graph().values())
    weight_bytes_ += v.data.defined() ? static_cast<int64_t>(v.data.bytes()) : 0;
  sched::SchedulerOptions own = scheduler_options(host);
  show_cost(host, own.session.threads);
  try {
    scheduler_ =
        std::make_unique<sched::Scheduler>(std::move(prepared), std::move(own), env_.clock,
                                           [this](const sched::Timing& t) { metrics_->count_batch(t); });
  } catch (const base::Error& e) {
    const std::vector<std::string> devices = config_.devices();
    const bool wants_gpus = std::any_of(devices.begin(), devices.end(),
                                        [](const std::string& d) { return d.starts_with("cuda"); });
    if (!wants_gpus) throw;
    throw e.with("instance_group.kind KIND_GPU");
  }
  const std::string on_host = scheduler_->host_operators();
  if (!on_host.empty())
    env_.log.warning("serve", "host_fallback", {{"model", name()}, {"operators", on_host}});
  if (config_.sequence) make_sequences(options);
  if (pixels == PixelValues::off) return;
  constexpr int kMostThreads = 4;  // each may hold a decoded picture of ImageLimits::max_pixels
  const int threads = config_.sequence ? 1 : std::clamp(base::read_cpu_info().threads(), 1, kMostThreads);
  preparing_ = std::make_unique<PreparingThreads>(threads, static_cast<size_t>(options.max_queue));
}

void ServedModel::load_ensemble(const ModelHost& host, const ModelMetrics* earlier) {
  config_.name = name();
  config_.platform = "ensemble";
  config_.max_batch_size = config_.max_batch_size.value_or(0);
  ensemble_ = std::make_unique<Ensemble>(config_, host.find);
  make_metrics(host, earlier);
}

MetricLabels ServedModel::metric_labels() const {
  MetricLabels labels{{"model", name()}, {"version", version()}};
  for (const auto& tag : config_.metric_tags) labels.push_back(tag);
  return labels;
}

void ServedModel::show_cost(const ModelHost& host, int threads) {
  const ServeOptions& o = host.options;
  const Prices prices = Prices::read(o.price_per_hour, o.prices, base::read_cpu_info().threads());
  if (prices.is_known())
    metrics_->show_cost(host.metrics, metric_labels(), prices.per_busy_second(o.device, threads));
}

/// Labels and counts, once the configuration is complete.
void ServedModel::make_metrics(const ModelHost& host, const ModelMetrics* earlier) {
  for (const TensorConfig& t : config_.outputs) {
    try {
      labels_.push_back(read_labels(source_.root, t.label_filename));
    } catch (const base::Error& e) {
      throw e.with("output '" + t.name + "': label_filename");
    }
  }
  metadata({});  // throws for a type that the protocol cannot name
  const MetricLabels labels = metric_labels();
  metrics_ = std::make_shared<ModelMetrics>(
      host.metrics, labels, std::max<int64_t>(1, config_.max_batch_size.value_or(0)), earlier);
  if (config_.is_decoupled) metrics_->show_first_responses(host.metrics, labels);
  if (!config_.ensemble) metrics_->add_instances(host.metrics, labels, config_.instances);
  if (host.options.metric_summaries) metrics_->show_summaries(host.metrics, labels, env_.clock);
}

void ServedModel::make_sequences(const ServeOptions& options) {
  const int64_t full =
      std::max<int64_t>(1, config_.max_batch_size.value_or(0)) * std::max(1, config_.instances);
  SequenceBatcher::Options own;
  own.slots =
      static_cast<size_t>(config_.sequence->max_candidates > 0 ? config_.sequence->max_candidates : full);
  own.max_waiting = static_cast<size_t>(options.max_queue);
  own.idle_ns = config_.sequence->idle_us * base::kNsPerUs;
  own.model = name();
  own.instances = config_.sequence->is_oldest ? 0 : static_cast<size_t>(config_.instances);
  own.has_rows = config_.is_batched();
  sequences_ = std::make_unique<SequenceBatcher>(
      layout_, own, env_, [this](sched::Request request) { scheduler_->submit(std::move(request)); });
}

/// An encoder directory: texts in, one embedding a row out; the hidden states stay inside.
void ServedModel::make_text_front(model::Model& model, const ServeOptions& options) {
  if (!keep_embedding(model)) return;
  text_ = std::make_unique<TextEncoder>(model.directory,
                                        model.config.get_or<int64_t>("max_position_embeddings", 512));
  vocab_ = model.config.at("vocab_size").as_int();
  length_buckets_ = buckets_up_to(options.length_buckets, text_->max_tokens());
}

void ServedModel::complete(const ir::Graph& graph, const ServeOptions& options) {
  const TensorConfig text = take_text_input();
  // Nobody said that the first dimension is a batch: then it must be shown, or clients' rows could mix.
  const bool is_told = config_.max_batch_size.has_value() || config_.sequence ||
                       config_.has_dynamic_batching || text_ != nullptr;
  const std::string why_alone = is_told ? "" : engine::why_not_batched(graph);
  if (!why_alone.empty()) {
    config_.max_batch_size = 0;
    env_.log.info(
        "serve", "batching_off",
        {{"model", name()},
         {"reason", "rows are not shown to be independent: " + why_alone + "; set max_batch_size"}});
  }
  padding_.is_shown = !is_told && has_open_inner_extent(graph);
  base::require(config_.is_decoupled || !streams_rows_,
                "stream_rows needs model_transaction_policy { decoupled: true }");
  base::require(!config_.is_decoupled || !text_, "an encoder has one answer: it cannot be decoupled");
  set_string_types(config_, strings_, true);  // the graph's own types, while the two are compared
  set_answer_dims(config_.outputs, streams_rows_, true);
  complete_config(config_, graph, options.max_batch);
  set_answer_dims(config_.outputs, streams_rows_, false);
  set_string_types(config_, strings_, false);
  config_.name = name();
  if (config_.instances == 0) config_.instances = options.instances;
  name_device(config_.groups, config_.instances, options.device);
  if (!text_) return;
  base::require(config_.is_batched(), "an encoder is served with max_batch_size > 0");
  base::check(config_.inputs.size() == 2 && config_.inputs[0].name == "input_ids",
              "an encoder takes ids and mask");
  for (TensorConfig& t : config_.inputs) t.is_optional = true;
  config_.inputs.insert(config_.inputs.begin(), text);
}

/// Of an encoder, the text as the config has it, taken out of the config, whose other inputs are the graph's:
/// one text a row, which may have a dimension of its own. Refuses optional inputs of other models.
TensorConfig ServedModel::take_text_input() {
  TensorConfig text{.name = "text", .type = std::nullopt, .is_optional = true};
  for (const TensorConfig& t : config_.inputs) {
    if (!text_ && t.is_optional) {
      base::fail_unsupported("input '", t.name, "': field 'input.optional' is not honoured: the models ",
                             "served here need all of their inputs");
    }
    if (!text_ || t.name != text.name) continue;
    base::require(!t.type && !t.reshape && (t.dims.empty() || t.dims == tensor::Dims{1}),
                  "input 'text' of an encoder is TYPE_STRING with dims [ ] or [ 1 ], the config has ",
                  config_type_name(t.type), " ", tensor::to_string(t.dims));
    text.dims = t.dims;
  }
  if (text_) std::erase_if(config_.inputs, [&](const TensorConfig& t) { return t.name == text.name; });
  return text;
}

/// The parameters pad_buckets, pad_value and pad_inputs: which extents of inputs are filled up, and which of
/// outputs have the same name in the graph and so are cut.
void ServedModel::set_padding(const ir::Graph& graph) {
  const RunConfig run = RunConfig::of(config_.parameters);
  if (run.pad_buckets.empty()) return;
  base::require(config_.is_batched() && !text_ && !config_.sequence && !config_.is_decoupled,
                "parameter pad_buckets needs max_batch_size > 0 and requests that do not depend on others");
  padding_.length_buckets = run.pad_buckets;
  std::map<std::string, sched::PaddedSide> by_symbol;
  std::map<std::string, double> left = run.pad_inputs;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const ir::Value& value = graph.value(graph.inputs()[i]);
    if (!run.pad_inputs.empty() && left.erase(value.name) == 0) continue;
    const auto config = std::find_if(config_.inputs.begin(), config_.inputs.end(),
                                     [&](const TensorConfig& t) { return t.name == value.name; });
    base::require(config == config_.inputs.end() || !config->reshape, "input '", value.name,
                  "' is reshaped, so it cannot be padded");
    const auto& dims = value.type.shape.dims();
    size_t open = 0;
    for (size_t d = 1; d < dims.size(); ++d) {
      if (dims[d].is_static()) continue;
      ++open;
      const double fill = run.pad_inputs.empty() ? run.pad_value : run.pad_inputs.at(value.name);
      padding_.padded_sides.push_back({.tensor = i, .dim = d, .value = fill});
      by_symbol.emplace(dims[d].name(), sched::PaddedSide{.input = i, .input_dim = d});
    }
    base::require(open == 1 || (open == 0 && run.pad_inputs.empty()), "input '", value.name, "' has ", open,
                  " open extents: pad_buckets fills up one");
  }
  base::require(left.empty(), "parameter pad_inputs: the model has no input '",
                left.empty() ? "" : left.begin()->first, "'");
  base::require(!padding_.padded_sides.empty(), "parameter pad_buckets: no input has an open extent");
  for (size_t o = 0; o < graph.outputs().size(); ++o) {
    const auto& dims = graph.type(graph.outputs()[o]).shape.dims();
    for (size_t d = 1; d < dims.size(); ++d) {
      if (dims[d].is_static()) continue;
      const auto at = by_symbol.find(dims[d].name());
      base::require(at != by_symbol.end() && dims[d].name() != "?", "output '", graph.output_names()[o],
                    "' has an open extent that no padded input has: what of it is padding is not known");
      sched::PaddedSide side = at->second;
      side.tensor = o;
      side.dim = d;
      padding_.cropped_outputs.push_back(side);
    }
  }
  std::vector<std::optional<size_t>> lengths(graph.inputs().size());
  for (const sched::PaddedSide& side : padding_.padded_sides) lengths[side.tensor] = side.dim;
  const std::string why = engine::why_positions_meet(graph, lengths);
  if (why.empty()) return;
  env_.log.info(
      "serve", "padding_needs_mask",
      {{"model", name()}, {"reason", "what is filled up reaches other positions, unless masked: " + why}});
}

/// Devices, threads and processors of the instances, and what limits or keeps them.
void ServedModel::share_machine(sched::SchedulerOptions& out, const RunConfig& run,
                                const ModelHost& host) const {
  const ServeOptions& options = host.options;
  const base::CpuInfo cpu = base::read_cpu_info();
  out.limiter = host.limiter;
  out.halt_polling = host.halt_polling;
  out.claims = config_.claims();
  out.devices = config_.devices();
  const int threads = run.threads > 0 ? run.threads : options.threads;
  out.session.threads = threads > 0 ? threads : std::max(1, cpu.threads() / out.instances);
  out.session.device = options.device;
  out.session.precision = run.precision;
  out.session.strategy = options.ranks.read();
  out.session.service = options.service;
  out.session.model_key = base::concat(source_.path, "\n", load_number_, kept_outputs_);
  out.pin = options.pin;
  out.cpus = cpu.allowed;
}

sched::SchedulerOptions ServedModel::scheduler_options(const ModelHost& host) {
  const ServeOptions& options = host.options;
  const RunConfig run = RunConfig::of(config_.parameters);
  sched::SchedulerOptions out;
  const bool is_batched = config_.is_batched();
  const bool merges = is_batched && (config_.has_dynamic_batching || config_.sequence);
  out.limits.max_rows = is_batched ? *config_.max_batch_size : 1;
  // A model that batches without dynamic batching runs each request as it comes.
  if (merges) {
    out.limits.window_ns = config_.max_queue_delay_us ? *config_.max_queue_delay_us * base::kNsPerUs
                                                      : run.window_ns.value_or(options.batch_window.ns);
    out.limits.preferred = config_.preferred_batch_size;
    out.is_window_adaptive = !config_.max_queue_delay_us;  // a delay that was asked for is kept to the letter
    out.limits.others_end_window = config_.max_queue_delay_us && padding_.length_buckets.empty() && !text_;
    if (config_.sequence) {
      out.limits.window_ns = config_.sequence->queue_delay_us.value_or(0) * base::kNsPerUs;
      out.limits.preferred = config_.sequence->preferred;
      out.is_window_adaptive = false;
    }
  }
  // What is asked for in so many words is kept; else a model whose work is less than a hand-over between
  // threads (two wake-ups: 20 to 40 us) runs where its request is read.
  const bool asks_to_wait = config_.max_queue_delay_us || !config_.preferred_batch_size.empty();
  const int64_t p99_ns = run.p99_ns.value_or(options.slo_p99.ns);
  base::require(
      !run.p99_ns || *run.p99_ns == 0 || (merges && !config_.sequence && !asks_to_wait),
      "parameter slo_p99 finds the window and the sizes of batches: it needs dynamic_batching without "
      "preferred_batch_size and max_queue_delay_microseconds");
  if (merges && !config_.sequence && !asks_to_wait) out.p99_ns = p99_ns;
  out.runs_whole = run.runs_whole.value_or(options.whole_batches);
  out.hang_ns = options.instance_timeout.ns;
  if (!asks_to_wait && !config_.sequence) out.inline_ns = 30 * base::kNsPerUs;
  out.padding.is_batched = is_batched;
  out.padding.is_shown = padding_.is_shown;
  if (is_batched) {
    out.padding.row_buckets =
        buckets_up_to(run.buckets.empty() ? options.buckets : run.buckets, out.limits.max_rows);
  }
  if (!padding_.length_buckets.empty()) {
    padding_.row_buckets = out.padding.row_buckets;
    out.padding = padding_;
  }
  if (text_) {
    out.padding.length_buckets = length_buckets_;
    out.padding.padded_inputs = {0, 1};
  }
  out.max_queue = static_cast<size_t>(config_.queue.max_queue_size > 0 ? config_.queue.max_queue_size
                                                                       : options.max_queue);
  for (const auto& [level, queue] : config_.level_queues) {
    if (queue.max_queue_size > 0)
      out.level_queue[static_cast<uint32_t>(level)] = static_cast<size_t>(queue.max_queue_size);
  }
  out.hold_until = static_cast<size_t>(options.delay_scheduler);
  out.instances = config_.instances;
  out.is_fair = tenants_.is_on();
  out.places_rows = config_.sequence && !config_.sequence->is_oldest;
  if (layout_ && is_batched) out.padding.idle_row = idle_row();
  out.preserves_order = config_.preserves_order;
  share_machine(out, run, host);
  out.warm_up = warm_up(options, out.padding.row_buckets);
  add_warmups(out.warm_up);
  if (out.p99_ns > 0) {
    for (sched::WarmUp& w : out.warm_up) w.is_run = true;  // every size is measured before the first request
  }
  watch_scheduler(out, host);
  out.session.max_programs = 64 + out.warm_up.size() * std::max<size_t>(1, out.padding.row_buckets.size());
  if (is_batched && !merges) out.limits.max_rows = 1;
  return out;
}

/// Inputs of a row that no sequence has: READY is false. Empty where an extent is open.
std::vector<Tensor> ServedModel::idle_row() const {
  std::vector<Tensor> row;
  for (const TensorConfig& t : config_.inputs) {
    tensor::Dims dims = t.model_dims();
    if (!t.type || std::find(dims.begin(), dims.end(), -1) != dims.end()) return {};
    dims.insert(dims.begin(), 1);
    row.push_back(Tensor::zeros(*t.type, dims));
  }
  return layout_->assemble(std::move(row), {.is_ready = false}, layout_->initial_states());
}

/// What the scheduler finds out by itself, as metrics and in the log.
void ServedModel::watch_scheduler(sched::SchedulerOptions& out, const ModelHost& host) {
  const MetricLabels labels{{"model", name()}, {"version", version()}};
  const auto gauge = [&](const char* name_of, const char* help) {
    return &host.metrics.gauge(name_of, help, labels);
  };
  if (out.hang_ns > 0) {
    hung_ = std::make_shared<Hung>();
    hung_->gauge = gauge("trireme_instances_hung", "Instances whose batch does not end");
    out.on_hang = [this](int instance, bool hangs) {
      hung_->gauge->add(hangs ? 1 : -1);
      hung_->instances += hangs ? 1 : -1;
      env_.log.warning("serve", hangs ? "instance_hangs" : "instance_recovered",
                       {{"model", name()}, {"version", version()}, {"instance", instance}});
    };
  }
  if (out.p99_ns == 0) return;
  gauge("trireme_batching_goal_seconds", "Goal of the 99th percentile that batching is tuned for")
      ->set(static_cast<double>(out.p99_ns) * 1e-9);
  auto* window = gauge("trireme_batching_window_seconds", "Longest wait for a fuller batch, as tuned");
  auto* rows = gauge("trireme_batching_max_rows", "Rows of a batch at most, as tuned");
  auto* instances = gauge("trireme_batching_instances", "Instances at work, as tuned");
  auto* p99 = gauge("trireme_batching_predicted_p99_seconds", "99th percentile that the tuning expects");
  rows->set(static_cast<double>(out.limits.max_rows));
  instances->set(out.instances);
  window->set(0);
  const auto last = std::make_shared<sched::BatchSetting>();
  out.on_tuned = [this, window, rows, instances, p99, last](const sched::BatchTuner::Choice& choice) {
    const sched::BatchSetting& s = choice.setting;
    window->set(static_cast<double>(s.window_ns) * 1e-9);
    rows->set(static_cast<double>(s.max_rows));
    instances->set(s.instances);
    p99->set(choice.outlook.p99_ns * 1e-9);
    if (std::exchange(*last, s) == s) return;
    env_.log.info("serve", "batching_tuned",
                  {{"model", name()},
                   {"version", version()},
                   {"window_ms", static_cast<double>(s.window_ns) * 1e-6},
                   {"max_rows", s.max_rows},
                   {"instances", s.instances},
                   {"p99_ms", choice.outlook.p99_ns * 1e-6},
                   {"meets_goal", choice.meets_goal ? "yes" : "no"}});
  };
}

/// The requests of model_warmup, on top of what --warm-up prepares.
void ServedModel::add_warmups(std::vector<sched::WarmUp>& list) const {
  base::require(config_.warmups.empty() || !text_, "model_warmup of an encoder: use --warm-up run");
  for (const WarmupConfig& w : config_.warmups) {
    base::require(!config_.is_batched() || (w.batch_size >= 1 && w.batch_size <= *config_.max_batch_size),
                  "model_warmup '", w.name, "': batch_size ", w.batch_size,
                  " is not within 1 and max_batch_size");
    std::vector<Tensor> example;
    for (const TensorConfig& t : config_.inputs) {
      const auto at =
          std::find_if(w.inputs.begin(), w.inputs.end(), [&](const auto& i) { return i.name == t.name; });
      base::require(at != w.inputs.end(), "model_warmup '", w.name, "' has no input '", t.name, "'");
      bool fits = at->type == t.type && at->dims.size() == t.dims.size();
      for (size_t d = 0; fits && d < t.dims.size(); ++d) fits = t.dims[d] == -1 || t.dims[d] == at->dims[d];
      base::require(fits, "model_warmup '", w.name, "': input '", t.name, "' is ", config_type_name(at->type),
                    " ", tensor::to_string(at->dims), ", the model takes ", config_type_name(t.type), " ",
                    tensor::to_string(t.dims));
      try {
        const WireTensor given = warmup_tensor(*at, config_.is_batched(), source_.root);
        StringTable table;
        example.push_back(given.type ? given.values : strings_.enter(given, table));
      } catch (const base::Error& e) {
        throw e.with("model_warmup '" + w.name + "': input '" + t.name + "'");
      }
      if (t.reshape) example.back() = example.back().reshaped(model_shape(t, example.back().dims()));
    }
    base::require(w.inputs.size() == config_.inputs.size(), "model_warmup '", w.name,
                  "' names an input that the model does not have");
    if (layout_) example = layout_->assemble(std::move(example), {}, layout_->initial_states());
    const int64_t rows = config_.is_batched() ? w.batch_size : 1;
    for (int64_t i = 0; i < w.count; ++i)
      list.push_back({.example = example, .rows = {rows}, .is_run = true});
  }
}

std::vector<sched::WarmUp> ServedModel::warm_up(const ServeOptions& options,
                                                const std::vector<int64_t>& rows) const {
  std::vector<sched::WarmUp> list;
  if (options.warm_up == WarmUpLevel::none) return list;
  const bool run_all = options.warm_up == WarmUpLevel::run;
  const auto add = [&](std::vector<Tensor> example) {
    if (list.empty() && !run_all) list.push_back({.example = example, .rows = {1}, .is_run = true});
    list.push_back({.example = std::move(example),
                    .rows = rows.empty() ? std::vector<int64_t>{1} : rows,
                    .is_run = run_all});
  };
  if (text_) {
    for (int64_t length : length_buckets_) {
      Tensor mask = Tensor::empty(tensor::DType::i64, {1, length});
      std::fill_n(mask.mutable_data<int64_t>().begin(), length, int64_t{1});
      add({Tensor::zeros(tensor::DType::i64, {1, length}), mask});
    }
    return list;
  }
  std::vector<Tensor> example;
  for (const TensorConfig& t : config_.inputs) {
    const tensor::Dims* picture = strings_.picture_dims(t.name);
    tensor::Dims dims = picture != nullptr ? *picture : t.model_dims();
    // An open extent is the client's to choose; nothing to prepare for.
    if (std::find(dims.begin(), dims.end(), -1) != dims.end()) return list;
    if (config_.is_batched()) dims.insert(dims.begin(), 1);
    example.push_back(Tensor::zeros(t.type ? *t.type : strings_.input_type(t.name), dims));
  }
  if (layout_) example = layout_->assemble(std::move(example), {}, layout_->initial_states());
  add(std::move(example));
  return list;
}

}  // namespace trireme::serve
