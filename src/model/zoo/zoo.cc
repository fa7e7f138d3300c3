// The table of networks, and the options of each.
#include "model/zoo/zoo.h"

#include <functional>

#include "base/text/options.h"
#include "base/text/yaml.h"
#include "model/zoo/bert.h"
#include "model/zoo/cnn.h"
#include "model/zoo/gpt2.h"
#include "model/zoo/llama.h"
#include "model/zoo/mlp.h"
#include "model/zoo/perception.h"
#include "model/zoo/resnet.h"
#include "model/zoo/vit.h"

namespace trireme::model::zoo {
namespace {

/// A caller's request to a network: to build it, or only to read its options.
struct Request {
  std::span<const std::string> assignments;
  Model* model = nullptr;         // receives the network
  ParamSource* params = nullptr;  // its weights; null: as the options say
  base::Json* options = nullptr;  // receives the options
  std::string* markdown = nullptr;
};

struct Row {
  Entry entry;
  std::function<void(const Request&)> serve;
};

enum class Weights { drawn, repeated };

/// The options of a network, preceded by those that say where its weights come from.
template <class Config>
struct Seeded {
  Config config;
  int64_t seed = 1;
  Weights weights = Weights::drawn;

  void fields(base::OptionList& f) {
    f.add("seed", &seed, "the weights depend on it").at_least(0);
    f.add_choice("weights", &weights, {"drawn", "repeated"},
                 "repeated: large weights repeat one block, for measuring networks without their memory");
    config.fields(f);
  }
};

base::Json parse_assignments(std::span<const std::string> assignments) {
  base::Json object = base::Json::object();
  for (const std::string& text : assignments) {
    const size_t at = text.find('=');
    base::require(at != std::string::npos && at > 0, "expected option=value, got '", text, "'");
    object.set(text.substr(0, at), base::parse_yaml_value(std::string_view(text).substr(at + 1)));
  }
  return object;
}

template <class Config>
Row row(std::string name, std::string meaning, Model (*make)(const Config&, ParamSource&),
        Config defaults = {}) {
  const auto serve = [make, defaults](const Request& request) {
    Seeded<Config> options{defaults};
    base::OptionList list(options);
    list.parse_json(parse_assignments(request.assignments));
    if (request.options != nullptr) *request.options = list.to_json();
    if (request.markdown != nullptr) *request.markdown = list.markdown();
    if (request.model == nullptr) return;
    const auto seed = static_cast<uint64_t>(options.seed);
    std::unique_ptr<ParamSource> params = std::make_unique<RandomParams>(seed);
    if (options.weights == Weights::repeated) params = std::make_unique<RepeatedParams>(seed);
    *request.model = make(options.config, request.params != nullptr ? *request.params : *params);
  };
  return {{std::move(name), std::move(meaning)}, serve};
}

Row resnet_row(int64_t depth) {
  ResnetConfig config;
  config.depth = depth;
  return row(base::concat("resnet", depth), base::concat("ResNet-", depth, " for photographs"), resnet,
             config);
}

Row small_resnet_row(int64_t depth) {
  SmallResnetConfig config;
  config.depth = depth;
  return row(base::concat("resnet", depth),
             base::concat("residual network of ", depth, " layers for small images"), small_resnet, config);
}

const std::vector<Row>& rows() {
  static const std::vector<Row> list{
      row("mlp", "linear layers with an activation between them", mlp),
      row("cnn", "two convolutions, a pool and two linear layers for small images", cnn),
      small_resnet_row(8),
      small_resnet_row(14),
      small_resnet_row(20),
      small_resnet_row(32),
      row("small_resnet", "residual network of 6 n + 2 layers for small images", small_resnet),
      resnet_row(18),
      resnet_row(34),
      resnet_row(50),
      resnet_row(101),
      resnet_row(152),
      row("resnet", "ResNet for photographs", resnet),
      row("gpt2", "GPT-2: causal transformer, learned positions; the defaults are its small form", gpt2),
      row("nanogpt", "GPT-2 with the size and settings of nanoGPT's character model", gpt2,
          Gpt2Config::nano()),
      row("llama", "Llama: RMS norms, rotary positions, grouped-query attention, gated layers", llama),
      row("bert", "BERT encoder with a head; the defaults are the base form", bert),
      row("vit", "vision transformer; the defaults are the base form", vit),
      row("vit_tiny", "vision transformer for 28x28 and 32x32 images", vit, VitConfig::tiny()),
      row("perception", "camera and lidar or radar fused by attention: a class and a box for each cell",
          perception),
  };
  return list;
}

const Row& find(std::string_view name) {
  const Row* best = nullptr;
  size_t best_distance = 0;
  for (const Row& r : rows()) {
    if (r.entry.name == name) return r;
    const size_t distance = base::edit_distance(name, r.entry.name);
    if (best != nullptr && distance >= best_distance) continue;
    best = &r;
    best_distance = distance;
  }
  base::fail_invalid("no network '", name, "' to build; the nearest is '", best->entry.name, "'");
}

void serve(std::string_view name, const Request& request) {
  const Row& r = find(name);
  try {
    r.serve(request);
  } catch (const base::Error& e) {
    throw e.with(base::concat("zoo:", name));
  }
}

}  // namespace

std::vector<Entry> entries() {
  std::vector<Entry> out;
  for (const Row& r : rows()) out.push_back(r.entry);
  return out;
}

Model build(std::string_view name, std::span<const std::string> assignments, ParamSource* params) {
  Model model;
  serve(name, {.assignments = assignments, .model = &model, .params = params});
  return model;
}

base::Json options_of(std::string_view name, std::span<const std::string> assignments) {
  base::Json options;
  serve(name, {.assignments = assignments, .options = &options});
  return options;
}

std::string markdown() {
  std::string out;
  for (const Row& r : rows()) {
    std::string table;
    r.serve({.assignments = {}, .markdown = &table});
    out += base::concat("## ", r.entry.name, "\n\n", r.entry.meaning, ".\n\n", table, "\n");
  }
  return out;
}

}  // namespace trireme::model::zoo
