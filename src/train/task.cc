// Opens models and data sets as configured, and writes trained models.
#include "train/task.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files/inside_path.h"
#include "lower/known_branches.h"
#include "lower/training_form.h"
#include "model/hf/directory.h"
#include "model/load/load.h"
#include "model/onnx/export.h"
#include "model/zoo/zoo.h"
#include "passes/precision/stored_products.h"
#include "passes/train/inference_form.h"
#include "passes/train/wide_floats.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/weights.h"

namespace trireme::train {
namespace {

constexpr std::string_view kZoo = "zoo:";

bool has_image(const data::Dataset& dataset) {
  const data::Field* image = dataset.info().find("image");
  return image != nullptr && image->dtype == tensor::DType::u8;
}

std::string describe(const char* what, const data::Dataset& dataset) {
  std::string text = base::concat(what, ": ", dataset.size(), " samples of ", dataset.info().format, ":");
  for (const data::Field& f : dataset.info().fields) text += " " + f.name;
  if (!dataset.info().class_names.empty())
    text += base::concat(", ", dataset.info().class_names.size(), " classes");
  if (dataset.info().vocabulary_size > 0)
    text += base::concat(", vocabulary ", dataset.info().vocabulary_size);
  return text + "\n";
}

/// "'a', 'b' and 3 more".
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i)
    text += base::concat(i == 0 ? "'" : ", '", names[i], "'");
  return names.size() <= kMost ? text : base::concat(text, " and ", names.size() - kMost, " more");
}

/// A line on the batch norms that keep their running statistics; empty if none does.
std::string fixed_norms(const ir::Graph& graph) {
  size_t all = 0, fixed = 0;
  for (const ir::Node& node : graph.nodes()) {
    if (node.op == nullptr || node.op_name() != "batch_norm") continue;
    ++all;
    fixed += passes::is_fixed_norm(node) ? 1 : 0;
  }
  if (fixed == 0) return {};
  return base::concat("batch norms: ", fixed, " of ", all, " keep their running statistics and take these\n");
}

/// A file's graph in the form of which evaluation and training steps are made. `text`: as for
/// open_trained_model().
void make_trainable(model::Model& model, const ModelOptions& options, std::string& text) {
  ir::Graph& graph = model.graph;
  passes::widen_stored_floats(graph, true);
  lower::open_known_branches(graph);
  passes::widen_half_floats(graph);
  const bool states_norms = passes::states_trained_norms(graph);
  passes::to_inference(graph);  // files for training state modes that evaluation and serving leave
  if (!states_norms) lower::fix_frozen_norms(graph, options.freeze);
  for (const ir::Node& node : graph.nodes()) {
    if (node.op_name() == "dequantize_weights" || node.op_name() == "dequantize_blocks")
      base::fail_unsupported("training of weights in few bits: '", options.source, "' has '",
                             graph.value(node.in[0]).name, "' so");
  }
  lower::require_trainable_types(graph, options.freeze);
  if (model.format != "onnx") return;
  const std::vector<std::string> constants = lower::constant_weights(graph, options.freeze);
  if (constants.empty()) return;
  text += base::concat("constants: ", listed(constants),
                       ": products read these tensors of Constant nodes, which are not trained; make them ",
                       "initializers of the file to train them\n");
}

/// Labels and token ids mean the same in both data sets, as far as both say what they mean.
void require_same_names(const char* what, const std::vector<std::string>& trained,
                        const std::vector<std::string>& validated) {
  if (trained.empty() || validated.empty() || trained == validated) return;
  const auto [a, b] = std::mismatch(trained.begin(), trained.end(), validated.begin(), validated.end());
  const auto told = [](auto at, const std::vector<std::string>& names) {
    return at == names.end() ? std::string("none") : "'" + *at + "'";
  };
  base::fail_invalid("validation has other ", what, " than data: number ", a - trained.begin(), " is ",
                     told(b, validated), " instead of ", told(a, trained),
                     "; give both the same, or take a part of the data (data.hold_out)");
}

}  // namespace

ir::Graph loss_graph(const model::Model& model, model::LossOptions options) {
  ir::Graph graph = model.graph;
  options.keeps_outputs |= options.kind == model::LossKind::cosine;  // evaluation ranks the similarities
  model::add_loss(graph, options);
  return graph;
}

model::Model open_trained_model(const ModelOptions& options, int64_t seed, std::string& text,
                                model::ParamSource* params) {
  model::Model model;
  if (options.source.starts_with(kZoo)) {
    std::vector<std::string> config = options.config;
    const bool has_seed = std::any_of(config.begin(), config.end(),
                                      [](const std::string& c) { return c.starts_with("seed="); });
    if (!has_seed) config.push_back(base::concat("seed=", seed));
    model = model::zoo::build(std::string_view(options.source).substr(kZoo.size()), config, params);
    lower::fix_frozen_norms(model.graph, options.freeze);
  } else {
    base::require(options.config.empty(), "model.config is for zoo models; '", options.source, "' is a file");
    model = model::load_model(options.source, {.is_without_content = params != nullptr});
    make_trainable(model, options, text);
  }
  text += base::concat("model: ", options.source, "\n", fixed_norms(model.graph));
  if (!options.weights.empty()) {
    std::string found;
    model.graph = start_from(std::move(model.graph), options.weights, found);
    text += "weights: " + found + "\n";
  }
  return model;
}

namespace {

/// The name of a run is that of the model's directory in a repository.
void require_plain_name(const std::string& name) {
  base::require(!name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos,
                "run.name '", name, "': the trained model's directory has this name, so it takes no '/' and ",
                "no dots alone; run.directory says where the run is written");
}

/// Each part of model.freeze is part of a name.
void require_frozen_names(const ir::Graph& graph, const std::vector<std::string>& freeze) {
  for (const std::string& part : freeze) {
    const auto has_it = [&](const ir::Value& v) {
      return v.data.defined() && v.name.find(part) != std::string::npos;
    };
    base::require(std::any_of(graph.values().begin(), graph.values().end(), has_it), "model.freeze: '", part,
                  "' is in no name of a parameter or constant of the model");
  }
}

}  // namespace

PreparedTask prepare_task(const TrainConfig& config, const ConfigSections& sections) {
  require_plain_name(config.run.name);
  PreparedTask prepared;
  prepared.model = open_trained_model(config.model, config.run.seed, prepared.text);
  require_frozen_names(prepared.model.graph, config.model.freeze);
  TrainTask& task = prepared.task;
  task.loss = loss_graph(prepared.model, config.loss);
  const auto open = [&](const data::DatasetSpec& spec) {
    data::DatasetPtr opened = data::open_dataset(spec);
    if (config.texts.columns.empty()) return opened;
    const bool is_class = config.loss.kind == model::LossKind::cross_entropy;
    return tokenized(std::move(opened), config.texts, prepared.model.directory, is_class);
  };
  task.data = open(config.data);
  prepared.text += describe("data", *task.data);
  if (has_image(*task.data)) task.transform = data::image_transform(config.augment);
  const data::DatasetSpec held = validation_spec(config, sections);
  if (!held.path.empty()) {
    task.validation = open(held);
    prepared.text += describe("validation", *task.validation);
    const data::DatasetInfo &trained = task.data->info(), &validated = task.validation->info();
    require_same_names("classes", trained.class_names, validated.class_names);
    require_same_names("tokens", trained.vocabulary, validated.vocabulary);
    if (has_image(*task.validation)) {
      task.validation_transform = data::image_transform(without_chance(config.augment));
    }
  }
  task.config = sections.to_json();
  return prepared;
}

namespace {

/// The path of the model named by a checkpoint, if it lies in one of the places. A relative path is resolved
/// against each place and, as when it was written, against the current directory.
std::string source_inside(const std::string& named, const std::vector<std::string>& places) {
  std::vector<std::string> candidates{named};
  if (std::filesystem::path(named).is_relative()) {
    for (const std::string& place : places) candidates.push_back(place + "/" + named);
  }
  for (const std::string& candidate : candidates) {
    for (const std::string& place : places) {
      if (const auto found = base::path_inside(place, candidate)) return *found;
    }
  }
  std::string all;
  for (const std::string& place : places) all += base::concat(all.empty() ? "'" : "', '", place);
  base::fail_invalid("the checkpoint was trained from a model that is not in ", all, "': model.source '",
                     named, "'; copy that model there, or give a directory that holds both");
}

/// For building a checkpoint's network without its weights: refuses one that the file does not hold. Frozen
/// parameters may be missing, because they are drawn again from the seed.
class HeldParams : public model::AbsentParams {
 public:
  HeldParams(const CheckpointReader& checkpoint, const std::vector<std::string>& freeze)
      : checkpoint_(checkpoint), freeze_(freeze) {}

  tensor::Tensor get(const std::string& name, const tensor::Dims& dims, const model::Init& init) override {
    constexpr int64_t kMostDrawn = int64_t{1} << 28;  // elements that a file may ask for and not hold
    const StoredTensor* held = checkpoint_.find(name);
    const bool is_frozen = std::any_of(freeze_.begin(), freeze_.end(), [&](const std::string& part) {
      return name.find(part) != std::string::npos;
    });
    base::require(held != nullptr || is_frozen, "checkpoint '", checkpoint_.directory(),
                  "' lacks the parameter '", name, "' of its network");
    base::require(held == nullptr || held->dims == dims, "checkpoint '", checkpoint_.directory(),
                  "' holds the parameter '", name, "' in other extents than its network has");
    if (held == nullptr) drawn_ += std::min(tensor::element_count(dims), kMostDrawn);
    base::require(drawn_ < kMostDrawn, "checkpoint '", checkpoint_.directory(),
                  "' asks for more frozen parameters than may be drawn again: its network is too large");
    return AbsentParams::get(name, dims, init);
  }

 private:
  const CheckpointReader& checkpoint_;
  const std::vector<std::string>& freeze_;
  int64_t drawn_ = 0;
};

/// Checkpoints of older programs lack the frozen parameters, whose content came from model.weights.
void require_frozen(const ir::Graph& graph, const CheckpointReader& checkpoint, const ModelOptions& given) {
  if (given.weights.empty()) return;
  for (const ir::Value& v : graph.values()) {
    const auto is_part = [&](const std::string& part) { return v.name.find(part) != std::string::npos; };
    const bool is_array = v.kind == ir::ValueKind::param && v.type.dtype == tensor::DType::f32 &&
                          v.type.shape.rank() > 0 && v.type.shape.elements().value_or(0) > 0;
    if (!is_array || std::none_of(given.freeze.begin(), given.freeze.end(), is_part)) continue;
    base::require(checkpoint.find(v.name) != nullptr, "checkpoint '", checkpoint.directory(),
                  "' lacks the frozen parameter '", v.name, "', which came from model.weights '",
                  given.weights, "': go on with the run, which then writes it, or take its model/");
  }
}

}  // namespace

model::Model model_of_checkpoint(const std::string& path, const CheckpointModel& options) {
  const std::string directory = find_checkpoint(path);
  const auto checkpoint = std::make_shared<const CheckpointReader>(directory);
  const base::Json& config = checkpoint->meta().at("config");
  ModelOptions source;
  base::OptionList(source).parse_json(config.at("model"));
  const ModelOptions given = source;
  source.weights.clear();  // a path of the author's; the checkpoint holds what came from there
  if (!source.source.starts_with(kZoo)) {
    std::vector<std::string> places{path};
    places.insert(places.end(), options.places.begin(), options.places.end());
    source.source = source_inside(source.source, places);
  }
  std::string text;
  const int64_t seed = config.at("run").at("seed").as_int();
  if (source.source.starts_with(kZoo)) {
    HeldParams held(*checkpoint, source.freeze);
    open_trained_model(source, seed, text, &held);
  }
  model::Model model = open_trained_model(source, seed, text);
  require_frozen(model.graph, *checkpoint, given);
  size_t found = 0;
  model.graph = with_weights(std::move(model.graph), weights_of(checkpoint, options.average), &found);
  base::require(found > 0, "checkpoint '", directory, "' holds no parameter of '", source.source, "'");
  return model;
}

std::string save_model(const model::Model& model, const std::string& directory, const std::string& name,
                       ExportFormat format) {
  const std::string folder = directory + "/model/" + name;
  const bool is_huggingface = format == ExportFormat::huggingface ||
                              (format == ExportFormat::by_source && model.format == "huggingface");
  if (is_huggingface) {
    std::filesystem::create_directories(folder);
    model::hf::save_directory(model, folder);
    return folder;
  }
  std::filesystem::create_directories(folder + "/1");
  model::onnx::save_onnx(model.graph, folder + "/1/model.onnx");
  return folder + "/1/model.onnx";
}

}  // namespace trireme::train
