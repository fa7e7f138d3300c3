// Tests the path from a configuration to a trained model on disk: the trained weights are what is read back.
#include "train/task.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/files/file.h"
#include "engine/session/session.h"
#include "model/load/load.h"
#include "train/checkpoint/weights.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using tensor::Tensor;

struct Fixture {
  std::string directory;
  TrainConfig config;
  ConfigSections sections;
  base::Log log{base::LogLevel::off};
  base::SystemClock clock;

  explicit Fixture(const std::string& name)
      : directory(base::concat(testing::TempDir(), "/task_", ::getpid(), "_", name)) {
    fs::remove_all(directory);
    fs::create_directories(directory);
    std::ofstream text(directory + "/text.txt");
    for (int i = 0; i < 400; ++i) text << "the oars move " << i % 7 << " times\n";
    text.close();
    config.bind(sections);
    sections.read_yaml(
        "run: {name: lm, steps: 6, seed: 4}\n"
        "model: {source: 'zoo:gpt2', config: {layers: 2, heads: 2, width: 16, positions: 8, vocabulary: "
        "24}}\n"
        "data: {format: characters, context: 8, stride: 3, hold_out: 0.1}\n"
        "batch: {global: 8, micro: 4}\n"
        "optimizer: {ema_keep: 0.5}\n"
        "log: {progress: 0s}\n",
        "lm.yaml");
    sections.assign("data.path=" + directory + "/text.txt");
    sections.assign("run.directory=" + directory);
  }
};

std::vector<double> logits_of(const ir::Graph& graph, const Tensor& ids) {
  engine::Session session(std::make_shared<const engine::PreparedModel>(graph), {.threads = 1});
  return session.run({ids})[0].to_doubles();
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

TEST(Task, TrainedModelIsWhatReadersFind) {
  Fixture f("lm");
  PreparedTask prepared = prepare_task(f.config, f.sections);
  ASSERT_NE(prepared.task.validation, nullptr);
  const ir::Graph initial = prepared.model.graph;
  Trainer trainer(f.config, std::move(prepared.task), {f.log, f.clock});
  trainer.run([] { return false; });

  const Tensor ids = Tensor::from<int64_t>({1, 8}, {1, 5, 3, 2, 8, 0, 4, 7});
  model::Model served = prepared.model;
  const auto checkpoint = std::make_shared<const CheckpointReader>(find_checkpoint(f.directory));
  served.graph = with_weights(served.graph, weights_of(checkpoint, false));
  const std::vector<double> trained = logits_of(served.graph, ids);
  EXPECT_GT(largest_difference(trained, logits_of(initial, ids)), 1e-4);

  // The checkpoint alone suffices to rebuild the model; the averaged weights differ.
  EXPECT_EQ(logits_of(model_of_checkpoint(f.directory, {}).graph, ids), trained);
  EXPECT_GT(
      largest_difference(trained, logits_of(model_of_checkpoint(f.directory, {.average = true}).graph, ids)),
      1e-6);

  // Both formats on disk contain the same network.
  for (const ExportFormat format : {ExportFormat::by_source, ExportFormat::huggingface}) {
    const std::string path = save_model(served, f.directory, "lm", format);
    const model::Model read = model::load_model(path);
    EXPECT_LT(largest_difference(trained, logits_of(read.graph, ids)), 1e-5) << path;
    fs::remove_all(f.directory + "/model");
  }

  // A second run can start from the weights of the first.
  std::string text;
  const ir::Graph continued = start_from(initial, f.directory, text);
  EXPECT_EQ(logits_of(continued, ids), trained);
  EXPECT_NE(text.find(" parameters from "), std::string::npos);
}

/// Makes the checkpoint of a finished run name another model, as its author could; its checksum is valid.
void name_source(const std::string& run, const std::string& source) {
  const std::string path = find_checkpoint(run) + "/index.json";
  const base::JsonDumpOptions exact{.nan_and_infinity = true};
  const base::Json before = base::parse_json(base::read_file(path), {.nan_and_infinity = true});
  base::Json config = before.at("meta").at("config"), meta = before.at("meta"), index = base::Json::object();
  config.set("model", base::Json::object({{"source", source}}));
  meta.set("config", config);
  for (const char* key : {"format", "version", "step"}) index.set(key, before.at(key));
  index.set("meta", meta);
  index.set("tensors", before.at("tensors"));
  std::string digits(8, '0');
  std::snprintf(digits.data(), 9, "%08x", base::crc32c(index.dump(exact)));
  index.set("index_crc32c", digits);
  base::write_file_atomic(path, index.dump(exact));
}

// The reader of a checkpoint determines where its model may be, not the writer.
TEST(Task, ACheckpointOpensModelsInItsPlacesOnly) {
  Fixture f("places");
  PreparedTask prepared = prepare_task(f.config, f.sections);
  const model::Model model = prepared.model;
  Trainer trainer(f.config, std::move(prepared.task), {f.log, f.clock});
  trainer.run([] { return false; });
  const std::string outside = f.directory + "_outside";
  fs::remove_all(outside);
  const std::string there = save_model(model, outside, "lm", ExportFormat::by_source);
  const std::string inside = save_model(model, f.directory, "lm", ExportFormat::by_source);
  fs::create_directory_symlink(outside, f.directory + "/link");
  const auto error_of = [&](const std::string& source, const std::vector<std::string>& places) {
    name_source(f.directory, source);
    try {
      model_of_checkpoint(f.directory, {.places = places});
    } catch (const base::Error& e) {
      return e.message();
    }
    return std::string("opened");
  };
  EXPECT_EQ(error_of(inside, {}), "opened");
  EXPECT_EQ(error_of("model/lm/1/model.onnx", {}), "opened");
  EXPECT_EQ(error_of(there, {outside}), "opened");
  EXPECT_EQ(error_of("model/lm/1/model.onnx", {outside}), "opened");
  const std::string up = "../" + fs::path(outside).filename().string() + "/model/lm/1/model.onnx";
  for (const std::string& source :
       {there, up, std::string("link/model/lm/1/model.onnx"), f.directory + "/link",
        std::string("/etc/hostname"), std::string("/"), std::string("nowhere")}) {
    EXPECT_NE(error_of(source, {}).find("model.source"), std::string::npos) << source;
  }
}

TEST(Task, ValidationIsWhatTheSectionsSay) {
  Fixture f("validation");
  EXPECT_EQ(validation_spec(f.config, f.sections).split, "validation");  // the part that was held out
  f.sections.assign("validation.stride=8");
  f.sections.assign("validation.split=validation");
  const data::DatasetSpec spec = validation_spec(f.config, f.sections);
  EXPECT_EQ(spec.stride, 8);
  EXPECT_EQ(spec.path, f.config.data.path);
  EXPECT_EQ(spec.context, 8);
  Fixture none("none");
  none.sections.assign("data.hold_out=0");
  EXPECT_TRUE(validation_spec(none.config, none.sections).path.empty());
}

TEST(Task, MistakesAreNamed) {
  Fixture f("mistakes");
  const auto error_of = [&](const std::string& assignment) {
    Fixture g("mistakes");
    g.sections.assign(assignment);
    try {
      PreparedTask prepared = prepare_task(g.config, g.sections);
      Trainer trainer(g.config, std::move(prepared.task), {g.log, g.clock});
    } catch (const base::Error& e) {
      return e.message();
    }
    return std::string("no error");
  };
  EXPECT_NE(error_of("model.source=zoo:gpt3").find("gpt"), std::string::npos);
  EXPECT_NE(error_of("model.config=[layer=2]").find("layers"), std::string::npos);
  EXPECT_NE(error_of("batch.micro=3").find("micro 3"), std::string::npos);
  EXPECT_NE(error_of("run.epochs=1").find("exactly one"), std::string::npos);
  EXPECT_NE(error_of("memory.recompute=some").find("budget:SIZE"), std::string::npos);
  EXPECT_NE(error_of("model.weights=" + f.directory).find("no checkpoint"), std::string::npos);
  EXPECT_NE(error_of("schedule.warmup=1000").find("warm-up"), std::string::npos);
}

}  // namespace
}  // namespace trireme::train
