// Sections, their meanings, and what the engine is told.
#include "train/config/train_config.h"

#include "base/error.h"
#include "model/zoo/zoo.h"

namespace trireme::train {

void LoaderSection::fields(base::OptionList& f) {
  f.add("shuffle", &shuffle, "a new order every epoch, by run.seed");
  f.add_choice("last", &last, {"drop", "pad"},
               "samples that do not fill a step at an epoch's end: left out, or filled up with rows that do "
               "not count");
  f.add("workers", &workers, "threads of each rank that read and change samples; 0: the training thread")
      .at_least(0)
      .at_most(256);
  f.add("prefetch", &prefetch, "finished micro-batches that may wait").at_least(1);
  f.add("feed", &feed, "which field feeds which input, a mapping {input: field}, where names differ");
}

FeedRules LoaderSection::rules() const {
  FeedRules rules;
  for (const std::string& text : feed) {
    const size_t at = text.find('=');
    base::require(at != std::string::npos && at > 0, "loader.feed: expected input=field, found '", text, "'");
    rules.emplace_back(text.substr(0, at), text.substr(at + 1));
  }
  return rules;
}

void MemoryOptions::fields(base::OptionList& f) {
  f.add("recompute", &recompute,
        "activations computed again in the backward pass: none, selective, full, or budget:2GiB (as few as "
        "fit)");
}

void TrainConfig::bind(ConfigSections& s) {
  s.add("run", run, "How long, where, and from which seed.");
  s.add("model", model, "What is trained.");
  s.add("loss", loss, "What is minimised.");
  s.add("data", data, "What it is trained on.");
  s.add_optional(
      "validation", validation,
      "What it is measured on: keys given here stand over those of `data`. Without any key, the held-out "
      "part "
      "(`data.hold_out`), or nothing.");
  s.add("texts", texts, "Tables of sentences: what becomes tokens, by the tokenizer of the model.");
  s.add("augment", augment, "What happens to images while they are loaded.");
  s.add("loader", loader, "How samples become batches.");
  s.add("batch", batch, "Samples a step: global = micro x accumulate x dp.");
  s.add("parallel", parallel,
        "How the model and the batch are spread over ranks; a strategy file holds these keys.");
  s.add("optimizer", optimizer, "How gradients change the weights.");
  s.add("schedule", schedule, "How the learning rate moves.");
  s.add("precision", precision, "What products compute in; weights, moments and statistics stay f32.");
  s.add("loss_scale", loss_scale, "The loss scale of f16; unused otherwise.");
  s.add("spikes", spikes, "What happens when the loss or the gradient norm jumps.");
  s.add("memory", memory, "Trading time for memory.");
  s.add("eval", eval, "When validation happens.");
  s.add("checkpoint", checkpoint, "When and how the run is saved.");
  s.add("log", log, "What the run tells.");
  s.add("save", save, "What is made of the trained model at the end.");
}

engine::TrainOptions TrainConfig::session_options() const {
  engine::TrainOptions o;
  o.optimizer = optimizer;
  o.precision = precision;
  o.scaled_loss = is_scaled();
  o.freeze = model.freeze;
  o.threads = run.threads;
  o.device = run.device;
  o.host_fallback = run.host_fallback;
  o.graphs = run.graphs;
  o.memory_bytes = run.memory.bytes;
  o.guarded = spikes.policy != SpikePolicy::off;
  const std::string budget = "budget:";
  if (memory.recompute.starts_with(budget)) {
    o.activation_bytes = base::parse_byte_size(memory.recompute.substr(budget.size())).bytes;
  } else if (memory.recompute == "selective") {
    o.recompute = passes::RecomputeMode::selective;
  } else if (memory.recompute == "full") {
    o.recompute = passes::RecomputeMode::full;
  } else {
    base::require(memory.recompute == "none",
                  "memory.recompute: expected none, selective, full or budget:SIZE, found '",
                  memory.recompute, "'");
  }
  return o;
}

data::DatasetSpec validation_spec(const TrainConfig& config, const ConfigSections& sections) {
  data::DatasetSpec given = config.validation, spec = config.data;
  base::OptionList from(given), to(spec);
  const base::Json values = from.to_json();
  bool any = false;
  for (const base::JsonMember& member : values.as_object()) {
    if (!sections.given("validation", member.key)) continue;
    base::Json one = base::Json::object();
    one.set(member.key, member.value);
    to.parse_json(one);
    any = true;
  }
  if (any) return spec;
  if (spec.hold_out > 0) {
    spec.split = "validation";
  } else {
    spec.path.clear();
  }
  return spec;
}

data::AugmentOptions without_chance(data::AugmentOptions o) {
  if (o.random_resized_crop > 0) {
    // The usual pair: what trains on random crops of side s is measured on the middle of images of 8/7 s.
    if (o.resize == 0) o.resize = (o.crop * 8 + 6) / 7;
    o.random_resized_crop = 0;
  }
  o.random_crop = false;
  o.padding = 0;
  o.flip = false;
  return o;
}

std::string config_markdown() {
  TrainConfig config;
  ConfigSections sections;
  config.bind(sections);
  return "# Configuration of a training run\n\nGenerated by `trireme train --markdown`; do not edit. A run "
         "is one "
         "YAML file of these sections; `--set section.key=value` changes single keys. docs/training.md says "
         "how "
         "they work together.\n" +
         sections.markdown() +
         "\n## Networks of the zoo\n\n`model.source: zoo:NAME`; `model.config` takes:\n\n" +
         model::zoo::markdown();
}

}  // namespace trireme::train
