// Defines how a model is served: reads config.pbtxt, completes it from the graph, and prints it as JSON.
#include "serve/config/model_config.h"

#include <algorithm>
#include <cctype>

#include "serve/config/field_readers.h"
#include "serve/config/run_config.h"

namespace trireme::serve {
namespace {

using Fields = std::vector<TextField>;

tensor::Dims read_reshape(const Fields& fields, const std::string& path) {
  tensor::Dims shape;
  for (const TextField& f : fields) {
    if (f.name != "shape") refuse_field(path + ".reshape", f);
    shape.push_back(f.as_int());
    base::require(shape.back() >= 1 || shape.back() == -1, "line ", f.line,
                  ": a reshape's extents are -1 or at least 1");
  }
  return shape;
}

/// Open extents must correspond in order, and the extents between them must have as many elements in both
/// shapes: a reshape is then possible whatever the client sends.
void check_reshape(const TensorConfig& t, const std::string& path) {
  const auto parts = [](const tensor::Dims& dims) {
    std::vector<int64_t> products{1};
    for (int64_t d : dims) {
      if (d == -1) {
        products.push_back(1);
      } else {
        products.back() *= d;
      }
    }
    return products;
  };
  base::require(parts(t.dims) == parts(*t.reshape), path, " '", t.name, "': reshape ",
                tensor::to_string(*t.reshape), " does not hold what dims ", tensor::to_string(t.dims), " do");
}

TensorConfig read_tensor(const Fields& fields, const std::string& path) {
  TensorConfig out;
  bool has_type = false;
  for (const TextField& f : fields) {
    if (f.name == "name") {
      out.name = f.as_string();
    } else if (f.name == "data_type") {
      out.type = read_data_type(f);
      has_type = true;
    } else if (f.name == "dims") {
      out.dims.push_back(f.as_int());
      base::require(out.dims.back() >= 1 || out.dims.back() == -1, "line ", f.line,
                    ": dims must be -1 or at least 1");
    } else if (f.name == "format" && path == "input") {
      constexpr std::string_view kFormats[] = {"FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW"};
      const size_t format = read_choice(f, kFormats);
      out.format = format == 0 ? "" : kFormats[format];
    } else if (f.name == "reshape") {
      out.reshape = read_reshape(f.as_message(), path);
    } else if (f.name == "optional" && path == "input") {
      out.is_optional = f.as_bool();
    } else if (f.name == "label_filename" && path == "output") {
      out.label_filename = f.as_string();
    } else {
      refuse_field(path, f);
    }
  }
  base::require(!out.name.empty() && has_type, path, " '", out.name, "' needs a name and a data_type");
  base::require(out.format.empty() || out.dims.size() == 3, path, " '", out.name, "': ", out.format,
                " needs three dims");
  if (out.reshape) check_reshape(out, path);
  return out;
}

void read_versions(const Fields& fields, VersionPolicy& policy) {
  for (const TextField& f : fields) {
    if (f.name == "latest") {
      policy.kind = VersionPolicy::Kind::latest;
      for (const TextField& g : f.as_message()) {
        if (g.name != "num_versions") refuse_field("version_policy.latest", g);
        policy.latest = read_natural(g);
      }
    } else if (f.name == "all") {
      policy.kind = VersionPolicy::Kind::all;
    } else if (f.name == "specific") {
      policy.kind = VersionPolicy::Kind::specific;
      for (const TextField& g : f.as_message()) {
        if (g.name != "versions") refuse_field("version_policy.specific", g);
        policy.versions.push_back(read_natural(g));
      }
    } else {
      refuse_field("version_policy", f);
    }
  }
}

void read_queue(const Fields& fields, QueuePolicy& queue, const std::string& path) {
  for (const TextField& f : fields) {
    if (f.name == "default_timeout_microseconds") {
      queue.default_timeout_us = read_microseconds(f);
    } else if (f.name == "allow_timeout_override") {
      queue.allow_timeout_override = f.as_bool();
    } else if (f.name == "max_queue_size") {
      queue.max_queue_size = read_natural(f);
    } else if (f.name == "timeout_action") {
      constexpr std::string_view kActions[] = {"REJECT", "DELAY"};
      queue.runs_late = read_choice(f, kActions) == 1;
    } else {
      refuse_field(path, f);
    }
  }
}

/// Reads one entry of priority_queue_policy.
void read_level_queue(const Fields& fields, ModelConfig& config) {
  int64_t level = 0;
  QueuePolicy queue;
  for (const TextField& f : fields) {
    if (f.name == "key") {
      level = read_natural(f);
    } else if (f.name == "value") {
      read_queue(f.as_message(), queue, "dynamic_batching.priority_queue_policy.value");
    } else {
      refuse_field("dynamic_batching.priority_queue_policy", f);
    }
  }
  config.level_queues[static_cast<uint64_t>(level)] = queue;
}

void read_batching(const Fields& fields, ModelConfig& config) {
  config.has_dynamic_batching = true;
  for (const TextField& f : fields) {
    if (f.name == "preferred_batch_size") {
      config.preferred_batch_size.push_back(f.as_int());
    } else if (f.name == "max_queue_delay_microseconds") {
      config.max_queue_delay_us = read_microseconds(f);
    } else if (f.name == "preserve_ordering") {
      config.preserves_order = f.as_bool();
    } else if (f.name == "priority_levels") {
      config.priority_levels = static_cast<uint64_t>(read_natural(f));
      base::require(config.priority_levels <= 1'000'000, "line ", f.line, ": priority_levels ",
                    config.priority_levels, " is beyond 1000000");
    } else if (f.name == "default_priority_level") {
      config.default_priority_level = static_cast<uint64_t>(read_natural(f));
    } else if (f.name == "default_queue_policy") {
      read_queue(f.as_message(), config.queue, "dynamic_batching.default_queue_policy");
    } else if (f.name == "priority_queue_policy") {
      read_level_queue(f.as_message(), config);
    } else {
      refuse_field("dynamic_batching", f);
    }
  }
}

/// Some fields describe what happens anyway: host memory is used in place, and the passes always run.
void read_optimization(const Fields& fields) {
  for (const TextField& f : fields) {
    const bool is_memory = f.name == "input_pinned_memory" || f.name == "output_pinned_memory";
    if (is_memory || f.name == "graph") {
      for (const TextField& g : f.as_message()) {
        if (!is_memory || g.name != "enable") refuse_field("optimization." + f.name, g);
      }
    } else {
      refuse_field("optimization", f);
    }
  }
}

void read_parameter(const Fields& fields, ModelConfig& config) {
  std::string key, value;
  for (const TextField& f : fields) {
    if (f.name == "key") {
      key = f.as_string();
    } else if (f.name == "value") {
      for (const TextField& g : f.as_message()) {
        if (g.name != "string_value") refuse_field("parameters.value", g);
        value = g.as_string();
      }
    } else {
      refuse_field("parameters", f);
    }
  }
  config.parameters.emplace_back(std::move(key), std::move(value));
}

/// Reads one entry of metric_tags.
void read_tag(const Fields& fields, ModelConfig& config) {
  std::string key, value;
  for (const TextField& f : fields) {
    if (f.name != "key" && f.name != "value") refuse_field("metric_tags", f);
    (f.name == "key" ? key : value) = f.as_string();
  }
  // Those that series have besides the tags: a scraper rejects an exposition in which a series has one twice.
  constexpr std::string_view kTaken[] = {"model", "version", "reason", "le", "instance", "quantile"};
  bool is_label = !key.empty() && std::find(std::begin(kTaken), std::end(kTaken), key) == std::end(kTaken);
  for (char c : key) is_label = is_label && (std::isalnum(static_cast<unsigned char>(c)) || c == '_');
  base::require(is_label && !std::isdigit(static_cast<unsigned char>(key[0])), "metric_tags: '", key,
                "' is no label of a metric");
  std::erase_if(config.metric_tags, [&](const auto& tag) { return tag.first == key; });  // the last counts
  config.metric_tags.emplace_back(std::move(key), std::move(value));
}

/// Refuses fields that an ensemble cannot have, because its members do the work.
void check_ensemble_fields(const ModelConfig& config) {
  const auto refuse = [](bool is_there, const char* field, const char* instead) {
    if (is_there) base::fail_unsupported("field '", field, "' is not honoured of an ensemble: ", instead);
  };
  refuse(!config.groups.empty(), "instance_group", "its models have instances");
  refuse(!config.warmups.empty(), "model_warmup", "its models are warmed up");
  for (const TensorConfig& t : config.inputs) {
    refuse(t.reshape.has_value(), "input.reshape", "let the step's model reshape");
    refuse(t.is_optional, "input.optional", "the first steps need all of its inputs");
  }
  for (const TensorConfig& t : config.outputs)
    refuse(t.reshape.has_value(), "output.reshape", "let the step's model reshape");
  for (const auto& [key, value] : config.parameters) {
    if (RunConfig::knows(key))
      base::fail_unsupported("parameter '", key, "' is not honoured of an ensemble: say it of its models");
  }
}

void check_batching(const ModelConfig& config) {
  if (config.ensemble) check_ensemble_fields(config);
  const int64_t most = config.max_batch_size.value_or(0);
  const int choices = config.has_dynamic_batching + config.sequence.has_value() + config.ensemble.has_value();
  base::require(!config.caches || (!config.sequence && !config.ensemble),
                "response_cache needs requests that do not depend on others: no sequences, no ensembles");
  base::require(!config.is_decoupled || (!config.sequence && !config.ensemble),
                "a decoupled model has no sequence_batching and no ensemble_scheduling");
  base::require(choices <= 1,
                "a model has one of dynamic_batching, sequence_batching and ensemble_scheduling");
  base::require((config.platform == "ensemble") == config.ensemble.has_value() || config.platform.empty(),
                "platform ensemble and ensemble_scheduling go together");
  base::require(!config.has_dynamic_batching || most > 0 || !config.max_batch_size,
                "dynamic_batching needs max_batch_size > 0");
  for (int64_t size : config.preferred_batch_size) {
    base::require(size >= 1 && (size <= most || !config.max_batch_size), "preferred_batch_size ", size,
                  " is not within 1 and max_batch_size ", most);
  }
  for (int64_t size : config.sequence ? config.sequence->preferred : std::vector<int64_t>()) {
    base::require(size >= 1 && (size <= std::max<int64_t>(1, most) || !config.max_batch_size),
                  "sequence_batching: preferred_batch_size ", size, " is not within 1 and max_batch_size ",
                  most);
  }
  base::require(config.priority_levels == 0 || (config.default_priority_level >= 1 &&
                                                config.default_priority_level <= config.priority_levels),
                "default_priority_level ", config.default_priority_level,
                " is not within 1 and priority_levels ", config.priority_levels);
  for (const auto& [level, queue] : config.level_queues) {
    base::require(level >= 1 && level <= config.priority_levels, "priority_queue_policy of level ", level,
                  ", which is not within 1 and priority_levels ", config.priority_levels);
  }
}

const TensorConfig* named(const std::vector<TensorConfig>& list, const std::string& name) {
  const auto at = std::find_if(list.begin(), list.end(), [&](const auto& t) { return t.name == name; });
  return at == list.end() ? nullptr : &*at;
}

/// The graph's description of a value, batch dimension included, with -1 for open extents. If the graph does
/// not know the rank, the config is used, else what the model's file declares.
TensorConfig tensor_of(const std::string& name, const tensor::TensorType& type,
                       const std::vector<TensorConfig>& configured, bool is_batched,
                       const DeclaredShapes& declared = {}) {
  TensorConfig t{.name = name, .type = type.dtype};
  const tensor::Shape* shape = &type.shape;
  if (!shape->has_rank()) {
    if (const TensorConfig* own = named(configured, name)) {
      if (is_batched) t.dims.push_back(-1);
      t.dims.insert(t.dims.end(), own->model_dims().begin(), own->model_dims().end());
      return t;
    }
    const auto at = std::find_if(declared.begin(), declared.end(),
                                 [&](const auto& output) { return output.first == name; });
    if (at == declared.end())
      base::fail_unsupported("'", name, "' has no declared rank; name it in config.pbtxt");
    shape = &at->second;
  }
  for (const tensor::Dim& d : shape->dims()) t.dims.push_back(d.is_static() ? d.value() : -1);
  return t;
}

/// Merges the configured tensors with those of the graph, in the order of the graph.
void merge(std::vector<TensorConfig>& configured, std::vector<TensorConfig> own, bool is_batched,
           const char* kind) {
  base::require(configured.empty() || kind == std::string("output") || configured.size() == own.size(),
                "the config names ", configured.size(), " inputs, the model has ", own.size());
  for (const TensorConfig& t : configured) {
    base::require(named(configured, t.name) == &t, kind, " '", t.name, "' is there twice");
  }
  std::vector<TensorConfig> merged;
  for (TensorConfig& t : own) {
    const auto at =
        std::find_if(configured.begin(), configured.end(), [&](const auto& c) { return c.name == t.name; });
    if (is_batched) {
      base::require(!t.dims.empty() && t.dims[0] == -1, kind, " '", t.name,
                    "' has no open first dimension, so the model cannot batch; set max_batch_size to 0");
      t.dims.erase(t.dims.begin());
    }
    if (at != configured.end()) {
      base::require(at->type == t.type, kind, " '", t.name, "': data_type ", config_type_name(at->type),
                    ", the model has ", config_type_name(t.type));
      const tensor::Dims& wanted = at->model_dims();
      bool fits = wanted.size() == t.dims.size();
      for (size_t d = 0; fits && d < t.dims.size(); ++d) {
        fits = wanted[d] == -1 || t.dims[d] == -1 || wanted[d] == t.dims[d];
      }
      base::require(fits, kind, " '", t.name, "': ", at->reshape ? "reshape " : "dims ",
                    tensor::to_string(wanted), ", the model has ", tensor::to_string(t.dims));
      t = std::move(*at);
      configured.erase(at);
    }
    merged.push_back(std::move(t));
  }
  base::require(configured.empty(), "the model has no ", kind, " '",
                configured.empty() ? "" : configured[0].name, "'");
  configured = std::move(merged);
}

base::Json tensor_config_json(const TensorConfig& t, bool is_input) {
  base::Json json = base::Json::object({{"name", t.name}, {"data_type", config_type_name(t.type)}});
  if (is_input) json.set("format", t.format.empty() ? "FORMAT_NONE" : t.format);
  base::Json dims = base::Json::array();
  for (int64_t d : t.dims) dims.push_back(d);
  json.set("dims", std::move(dims));
  if (t.reshape) {
    base::Json shape = base::Json::array();
    for (int64_t d : *t.reshape) shape.push_back(d);
    json.set("reshape", base::Json::object({{"shape", std::move(shape)}}));
  }
  if (is_input) json.set("optional", t.is_optional);
  if (!is_input) json.set("label_filename", t.label_filename);
  json.set("is_shape_tensor", false);
  return json;
}

base::Json versions_json(const VersionPolicy& policy) {
  using base::Json;
  if (policy.kind == VersionPolicy::Kind::all) return Json::object({{"all", Json::object()}});
  if (policy.kind == VersionPolicy::Kind::latest) {
    return Json::object({{"latest", Json::object({{"num_versions", policy.latest}})}});
  }
  Json list = Json::array();
  for (int64_t v : policy.versions) list.push_back(v);
  return Json::object({{"specific", Json::object({{"versions", std::move(list)}})}});
}

base::Json queue_json(const QueuePolicy& queue) {
  return base::Json::object({{"timeout_action", queue.runs_late ? "DELAY" : "REJECT"},
                             {"default_timeout_microseconds", queue.default_timeout_us},
                             {"allow_timeout_override", queue.allow_timeout_override.value_or(true)},
                             {"max_queue_size", queue.max_queue_size}});
}

base::Json batching_json(const ModelConfig& config) {
  using base::Json;
  Json levels = Json::object();
  for (const auto& [level, queue] : config.level_queues) levels.set(std::to_string(level), queue_json(queue));
  Json preferred = Json::array();
  for (int64_t size : config.preferred_batch_size) preferred.push_back(size);
  return Json::object({{"preferred_batch_size", std::move(preferred)},
                       {"max_queue_delay_microseconds", config.max_queue_delay_us.value_or(0)},
                       {"preserve_ordering", config.preserves_order},
                       {"priority_levels", config.priority_levels},
                       {"default_priority_level", config.default_priority_level},
                       {"default_queue_policy", queue_json(config.queue)},
                       {"priority_queue_policy", std::move(levels)}});
}

base::Json groups_json(const ModelConfig& config) {
  std::vector<InstanceGroup> groups = config.groups;
  if (groups.empty()) groups.push_back({.count = std::max(1, config.instances), .claim = {.priority = 0}});
  base::Json list = base::Json::array();
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].name.empty()) groups[i].name = config.name + (i == 0 ? "" : "_" + std::to_string(i));
    list.push_back(instance_group_json(groups[i]));
  }
  return list;
}

}  // namespace

namespace {

ModelConfig config_of(const Fields& fields) {
  check_once(fields);
  ModelConfig config;
  for (const TextField& f : fields) {
    if (f.name == "name") {
      config.name = f.as_string();
    } else if (f.name == "platform") {
      config.platform = f.as_string();
    } else if (f.name == "backend") {
      config.backend = f.as_string();
    } else if (f.name == "max_batch_size") {
      config.max_batch_size = read_natural(f);
      base::require(*config.max_batch_size <= 65536, "line ", f.line, ": max_batch_size ",
                    *config.max_batch_size, " is beyond 65536");
    } else if (f.name == "input") {
      config.inputs.push_back(read_tensor(f.as_message(), "input"));
    } else if (f.name == "output") {
      config.outputs.push_back(read_tensor(f.as_message(), "output"));
    } else if (f.name == "version_policy") {
      read_versions(f.as_message(), config.versions);
    } else if (f.name == "dynamic_batching") {
      read_batching(f.as_message(), config);
    } else if (f.name == "sequence_batching") {
      config.sequence = read_sequence_config(f.as_message());
    } else if (f.name == "model_warmup") {
      config.warmups.push_back(read_warmup_config(f.as_message()));
    } else if (f.name == "metric_tags") {
      read_tag(f.as_message(), config);
    } else if (f.name == "response_cache") {
      for (const TextField& g : f.as_message()) {
        if (g.name != "enable") refuse_field("response_cache", g);
        config.caches = g.as_bool();
      }
    } else if (f.name == "model_transaction_policy") {
      for (const TextField& g : f.as_message()) {
        if (g.name != "decoupled") refuse_field("model_transaction_policy", g);
        config.is_decoupled = g.as_bool();
      }
    } else if (f.name == "ensemble_scheduling") {
      config.ensemble = read_ensemble_config(f.as_message());
    } else if (f.name == "instance_group") {
      config.groups.push_back(read_instance_group(f.as_message()));
      config.instances += static_cast<int>(config.groups.back().devices().size());
    } else if (f.name == "default_model_filename") {
      config.default_model_filename = f.as_string();
    } else if (f.name == "optimization") {
      read_optimization(f.as_message());
    } else if (f.name == "parameters") {
      read_parameter(f.as_message(), config);
    } else {
      refuse_field("", f);
    }
  }
  check_batching(config);
  return config;
}

}  // namespace

ModelConfig parse_model_config(std::string_view text) { return config_of(parse_pbtxt(text)); }

ModelConfig parse_model_config_json(std::string_view text) {
  const base::Json json = base::parse_json(text, {.size_bytes = kMostConfigBytes});
  base::require(json.is_object(), "a model's config is a JSON object");
  try {
    return config_of(fields_of_json(json));
  } catch (const base::Error& e) {  // JSON has no line numbers
    constexpr std::string_view kNoLine = "line 0: ";
    if (!e.message().starts_with(kNoLine)) throw;
    throw base::Error(e.code(), e.message().substr(kNoLine.size()));
  }
}

namespace {

/// Infers max_batch_size if the config has none. If its dims cover all dimensions of the model, there is no
/// batch (as with protobuf's default of 0); otherwise every first dimension must be open.
void infer_batching(ModelConfig& config, const std::vector<TensorConfig>& inputs,
                    const std::vector<TensorConfig>& outputs, int64_t max_rows) {
  bool says_all = false;
  const TensorConfig* fixed = nullptr;
  const auto look = [&](const std::vector<TensorConfig>& own, const std::vector<TensorConfig>& configured) {
    for (const TensorConfig& t : own) {
      const TensorConfig* said = named(configured, t.name);
      says_all = says_all || (said != nullptr && said->model_dims().size() == t.dims.size());
      if ((t.dims.empty() || t.dims[0] != -1) && fixed == nullptr) fixed = &t;
    }
  };
  look(inputs, config.inputs);
  look(outputs, config.outputs);
  base::require(!config.has_dynamic_batching || (fixed == nullptr && !says_all),
                "dynamic_batching needs max_batch_size > 0, ",
                fixed == nullptr ? "and the config's dims leave no place for a batch in front"
                                 : "and '" + fixed->name + "' of the model has no open first dimension");
  const bool batches = !inputs.empty() && fixed == nullptr && !says_all;
  config.max_batch_size = batches ? max_rows : 0;
  config.has_dynamic_batching = config.has_dynamic_batching || (batches && !config.sequence);
  check_batching(config);
}

}  // namespace

void complete_config(ModelConfig& config, const ir::Graph& graph, int64_t max_rows,
                     const DeclaredShapes& declared) {
  std::vector<TensorConfig> inputs, outputs;
  // Clients do not see tensors that the sequence batcher creates and keeps, unless the config names them.
  for (ir::ValueId id : graph.inputs()) {
    const std::string& name = graph.value(id).name;
    if (!config.sequence || !config.sequence->makes_input(name))
      inputs.push_back(tensor_of(name, graph.type(id), config.inputs, config.is_batched()));
  }
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const std::string& name = graph.output_names()[i];
    const bool is_named = named(config.outputs, name) != nullptr;
    if (config.sequence && config.sequence->keeps_output(name) && !is_named) continue;
    const tensor::TensorType& type = graph.type(graph.outputs()[i]);
    outputs.push_back(tensor_of(name, type, config.outputs, config.is_batched(), declared));
  }
  if (!config.max_batch_size) infer_batching(config, inputs, outputs, max_rows);
  base::require(!config.is_batched() || !inputs.empty() || config.sequence,
                "a model without inputs has no rows to batch: set max_batch_size to 0");
  merge(config.inputs, std::move(inputs), config.is_batched(), "input");
  merge(config.outputs, std::move(outputs), config.is_batched(), "output");
  if (config.platform.empty()) config.platform = "trireme";
  if (config.backend.empty()) config.backend = "trireme";
}

base::Json tensors_json(const std::vector<TensorConfig>& tensors, bool is_batched) {
  base::Json list = base::Json::array();
  for (const TensorConfig& t : tensors) {
    base::Json shape = base::Json::array();
    if (is_batched) shape.push_back(-1);
    for (int64_t d : t.dims) shape.push_back(d);
    list.push_back(
        base::Json::object({{"name", t.name}, {"datatype", wire_name(t.type)}, {"shape", std::move(shape)}}));
  }
  return list;
}

std::vector<sched::RateClaim> ModelConfig::claims() const {
  std::vector<sched::RateClaim> list;
  for (const InstanceGroup& group : groups) list.insert(list.end(), group.devices().size(), group.claim);
  list.resize(static_cast<size_t>(std::max(1, instances)));
  return list;
}

std::vector<std::string> ModelConfig::devices() const {
  std::vector<std::string> list;
  for (const InstanceGroup& group : groups) {
    const std::vector<std::string> of_group = group.devices();
    list.insert(list.end(), of_group.begin(), of_group.end());
  }
  return list;
}

base::Json config_json(const ModelConfig& config) {
  using base::Json;
  Json inputs = Json::array(), outputs = Json::array(), parameters = Json::object();
  for (const TensorConfig& t : config.inputs) inputs.push_back(tensor_config_json(t, true));
  for (const TensorConfig& t : config.outputs) outputs.push_back(tensor_config_json(t, false));
  for (const auto& [key, value] : config.parameters)
    parameters.set(key, Json::object({{"string_value", value}}));
  Json json = Json::object({{"name", config.name},
                            {"platform", config.platform},
                            {"backend", config.backend},
                            {"version_policy", versions_json(config.versions)},
                            {"max_batch_size", config.max_batch_size.value_or(0)},
                            {"input", std::move(inputs)},
                            {"output", std::move(outputs)}});
  if (config.has_dynamic_batching) json.set("dynamic_batching", batching_json(config));
  Json warmups = Json::array(), tags = Json::object();
  for (const WarmupConfig& w : config.warmups) warmups.push_back(warmup_config_json(w));
  for (const auto& [key, value] : config.metric_tags) tags.set(key, value);
  json.set("model_warmup", std::move(warmups));
  json.set("metric_tags", std::move(tags));
  json.set("model_transaction_policy", Json::object({{"decoupled", config.is_decoupled}}));
  json.set("response_cache", Json::object({{"enable", config.caches}}));
  if (config.ensemble) json.set("ensemble_scheduling", ensemble_config_json(*config.ensemble));
  if (config.sequence) json.set("sequence_batching", sequence_config_json(*config.sequence));
  if (!config.ensemble) json.set("instance_group", groups_json(config));
  if (!config.default_model_filename.empty())
    json.set("default_model_filename", config.default_model_filename);
  json.set("parameters", std::move(parameters));
  return json;
}

}  // namespace trireme::serve
