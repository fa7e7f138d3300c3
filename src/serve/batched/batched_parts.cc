// Loads a batched model: from its files and configuration to the parts that its instances share.
#include "serve/batched/batched_parts.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "lower/batch_proof.h"
#include "model/hf/pair_scores.h"
#include "serve/config/run_config.h"
#include "serve/models/answer_form.h"
#include "serve/models/model_file.h"

namespace trireme::serve {
namespace {

/// Sets string inputs and outputs to the type of the numbers that replace them, or back to TYPE_STRING.
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

/// If each row of the outputs is an answer, clients do not see the rows' dimension, but the graph has it.
void set_answer_dims(std::vector<TensorConfig>& outputs, bool streams_rows, bool as_graph) {
  if (!streams_rows) return;
  for (TensorConfig& t : outputs) {
    base::require(as_graph || !t.dims.empty(), "stream_rows: output '", t.name, "' has no rows");
    if (t.reshape)
      base::fail_unsupported("output '", t.name, "': reshape is not honoured of a model with stream_rows");
    if (as_graph) {
      t.dims.insert(t.dims.begin(), -1);
    } else {
      t.dims.erase(t.dims.begin());
    }
  }
}

/// Whether requests may have extents that why_not_batched did not try.
bool has_open_inner_extent(const ir::Graph& graph) {
  return std::any_of(graph.inputs().begin(), graph.inputs().end(), [&](ir::ValueId id) {
    const tensor::Shape& shape = graph.type(id).shape;
    for (size_t d = 1; shape.has_rank() && d < shape.rank(); ++d) {
      if (!shape[d].is_static()) return true;
    }
    return !shape.has_rank();
  });
}

/// Creates the parts in the order in which each needs the ones before it.
class Loader {
 public:
  Loader(const ModelSource& source, const ModelHost& host) : source_(source), host_(host) {
    static std::atomic<uint64_t> loads{0};
    out_.config = source.config;
    out_.load_number = ++loads;
  }
  BatchedParts load();

 private:
  void open_texts(model::Model& model);
  std::string why_no_pairs(const ir::Graph& graph) const;
  void complete(const model::Model& model);
  void refuse_optional_inputs() const;
  void set_padding(const ir::Graph& graph);

  const ModelSource& source_;
  const ModelHost& host_;
  BatchedParts out_;
  bool is_batched_by_kind_ = false;  ///< rows of encoders are texts, whatever the graph shows
};

/// Why the configuration does not allow pairs of texts as inputs; empty if it does.
std::string Loader::why_no_pairs(const ir::Graph& graph) const {
  const ModelConfig& c = out_.config;
  if (c.max_batch_size == 0) return "max_batch_size is 0";
  if (c.sequence || c.is_decoupled) return "the config has sequence_batching or is decoupled";
  if (!RunConfig::of(c.parameters).pad_buckets.empty()) return "the config has pad_buckets";
  const bool is_told = c.max_batch_size.has_value() || c.has_dynamic_batching || is_batched_by_kind_;
  const std::string why = is_told ? "" : lower::why_not_batched(graph);
  return why.empty() ? "" : "rows are not shown to be independent: " + why + "; set max_batch_size";
}

/// Accepts texts as inputs: an encoder directory gives one embedding per row and hides the hidden states, and
/// a cross-encoder the score of a pair per row. Models that cannot take texts are served as tensors.
void Loader::open_texts(model::Model& model) {
  const std::vector<int64_t>& buckets = host_.options.length_buckets;
  is_batched_by_kind_ = model.format == "huggingface";
  if (is_batched_by_kind_ && keep_embedding(model)) {
    out_.text = std::make_unique<TextFront>(model, buckets, data::TextKind::text);
    return;
  }
  if (!model::hf::add_pair_score(model)) return;
  std::string why = why_no_pairs(model.graph);
  try {
    if (why.empty()) out_.text = std::make_unique<TextFront>(model, buckets, data::TextKind::pair);
  } catch (const base::Error& e) {
    why = e.what();
  }
  if (!out_.text)
    host_.env.log.info("serve", "pairs_of_texts_off", {{"model", source_.name}, {"reason", why}});
}

BatchedParts Loader::load() {
  const ServeOptions& options = host_.options;
  const RunConfig run = RunConfig::of(source_.config.parameters);
  model::Model model = open_model(source_.path, options.others);
  open_texts(model);
  out_.kept_outputs = places_of_outputs(model.graph, out_.config);
  keep_outputs(model.graph, out_.kept_outputs);
  out_.strings = StringPorts(model);
  if (run.image_input != data::PixelValues::off)
    out_.strings.add_picture(model.graph, run.image_input, out_.config.is_batched());
  complete(model);
  out_.labels = read_output_labels(out_.config, source_.root);
  set_padding(model.graph);
  if (out_.config.sequence) {
    out_.layout =
        std::make_shared<const SequenceLayout>(out_.config, model.graph, out_.strings, source_.root);
  }
  const passes::Strategy strategy = strategy_of(run, options);
  engine::widen_floats_for(model.graph, strategy, options.device);
  out_.prepared =
      std::make_shared<const engine::PreparedModel>(std::move(model.graph), passes::PassOptions{}, strategy);
  model.release_pages();
  for (const ir::Value& v : out_.prepared->graph().values())
    out_.weight_bytes += v.data.defined() ? static_cast<int64_t>(v.data.bytes()) : 0;
  return std::move(out_);
}

void Loader::complete(const model::Model& model) {
  const ir::Graph& graph = model.graph;
  const ServeOptions& options = host_.options;
  const bool streams_rows = RunConfig::of(out_.config.parameters).streams_rows;
  refuse_optional_inputs();
  std::vector<TensorConfig> texts;
  if (out_.text) texts = out_.text->take_inputs(out_.config);
  // If nothing states that the first dimension is a batch, this is proven, or clients' rows could mix.
  const bool is_told = out_.config.max_batch_size.has_value() || out_.config.sequence ||
                       out_.config.has_dynamic_batching || (out_.text && is_batched_by_kind_);
  const std::string why_alone = is_told ? "" : lower::why_not_batched(graph);
  if (!why_alone.empty()) {
    out_.config.max_batch_size = 0;
    host_.env.log.info(
        "serve", "batching_off",
        {{"model", source_.name},
         {"reason", "rows are not shown to be independent: " + why_alone + "; set max_batch_size"}});
  }
  out_.padding.is_shown = !is_told && has_open_inner_extent(graph);
  base::require(out_.config.is_decoupled || !streams_rows,
                "stream_rows needs model_transaction_policy { decoupled: true }");
  base::require(!out_.config.is_decoupled || !out_.text, "an encoder has one answer: it cannot be decoupled");
  set_string_types(out_.config, out_.strings, true);  // as the graph has them, for the comparison
  set_answer_dims(out_.config.outputs, streams_rows, true);
  complete_config(out_.config, graph, options.max_batch, model.declared_outputs);
  set_answer_dims(out_.config.outputs, streams_rows, false);
  set_string_types(out_.config, out_.strings, false);
  out_.config.name = source_.name;
  if (out_.config.instances == 0) out_.config.instances = options.instances;
  name_device(out_.config.groups, out_.config.instances, options.device);
  if (!out_.text) return;
  base::require(out_.config.is_batched(), "an encoder is served with max_batch_size > 0");
  for (TensorConfig& t : out_.config.inputs) t.is_optional = true;
  out_.config.inputs.insert(out_.config.inputs.begin(), texts.begin(), texts.end());
}

/// The inputs of a text model are alternatives; other models need all of their inputs.
void Loader::refuse_optional_inputs() const {
  for (const TensorConfig& t : out_.config.inputs) {
    if (out_.text || !t.is_optional) continue;
    base::fail_unsupported("input '", t.name, "': field 'input.optional' is not honoured: the models ",
                           "served here need all of their inputs");
  }
}

/// Applies the parameters pad_buckets, pad_value and pad_inputs: which extents of inputs are padded, and
/// which extents of outputs have the same name in the graph and are therefore cropped.
void Loader::set_padding(const ir::Graph& graph) {
  const RunConfig run = RunConfig::of(out_.config.parameters);
  if (run.pad_buckets.empty()) return;
  base::require(out_.config.is_batched() && !out_.text && !out_.config.sequence && !out_.config.is_decoupled,
                "parameter pad_buckets needs max_batch_size > 0 and requests that do not depend on others");
  out_.padding.length_buckets = run.pad_buckets;
  std::map<std::string, sched::PaddedSide> by_symbol;
  std::map<std::string, double> left = run.pad_inputs;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const ir::Value& value = graph.value(graph.inputs()[i]);
    if (!run.pad_inputs.empty() && left.erase(value.name) == 0) continue;
    const auto config = std::find_if(out_.config.inputs.begin(), out_.config.inputs.end(),
                                     [&](const TensorConfig& t) { return t.name == value.name; });
    base::require(config == out_.config.inputs.end() || !config->reshape, "input '", value.name,
                  "' is reshaped, so it cannot be padded");
    const auto& dims = value.type.shape.dims();
    size_t open = 0;
    for (size_t d = 1; d < dims.size(); ++d) {
      if (dims[d].is_static()) continue;
      ++open;
      const double fill = run.pad_inputs.empty() ? run.pad_value : run.pad_inputs.at(value.name);
      out_.padding.padded_sides.push_back({.tensor = i, .dim = d, .value = fill});
      by_symbol.emplace(dims[d].name(), sched::PaddedSide{.input = i, .input_dim = d});
    }
    base::require(open == 1 || (open == 0 && run.pad_inputs.empty()), "input '", value.name, "' has ", open,
                  " open extents: pad_buckets fills up one");
  }
  base::require(left.empty(), "parameter pad_inputs: the model has no input '",
                left.empty() ? "" : left.begin()->first, "'");
  base::require(!out_.padding.padded_sides.empty(), "parameter pad_buckets: no input has an open extent");
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
      out_.padding.cropped_outputs.push_back(side);
    }
  }
  std::vector<std::optional<size_t>> lengths(graph.inputs().size());
  for (const sched::PaddedSide& side : out_.padding.padded_sides) lengths[side.tensor] = side.dim;
  const std::string why = lower::why_positions_meet(graph, lengths);
  if (why.empty()) return;
  host_.env.log.info("serve", "padding_needs_mask",
                     {{"model", source_.name},
                      {"reason", "what is filled up reaches other positions, unless masked: " + why}});
}

}  // namespace

BatchedParts load_batched_parts(const ModelSource& source, const ModelHost& host) {
  return Loader(source, host).load();
}

}  // namespace trireme::serve
