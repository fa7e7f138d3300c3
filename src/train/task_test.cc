// Tests the path from a configuration to a trained model on disk: the trained weights are what is read back.
#include "train/task.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/files/file.h"
#include "engine/session/session.h"
#include "engine/train/state_parts.h"
#include "model/builder.h"
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

void run_to_end(Fixture& f) {
  Trainer trainer(f.config, prepare_task(f.config, f.sections).task, {f.log, f.clock});
  trainer.run([] { return false; });
}

/// Changes section `model` in the checkpoint of a finished run, as its author could; its checksum is valid.
void set_model(const std::string& run, const std::function<base::Json(const base::Json&)>& change) {
  const std::string path = find_checkpoint(run) + "/index.json";
  const base::JsonDumpOptions exact{.nan_and_infinity = true};
  const base::Json before = base::parse_json(base::read_file(path), {.nan_and_infinity = true});
  base::Json config = before.at("meta").at("config"), meta = before.at("meta"), index = base::Json::object();
  config.set("model", change(config.at("model")));
  meta.set("config", config);
  for (const char* key : {"format", "version", "step"}) index.set(key, before.at(key));
  index.set("meta", meta);
  index.set("tensors", before.at("tensors"));
  std::string digits(8, '0');
  std::snprintf(digits.data(), 9, "%08x", base::crc32c(index.dump(exact)));
  index.set("index_crc32c", digits);
  base::write_file_atomic(path, index.dump(exact));
}

void name_source(const std::string& run, const std::string& source) {
  set_model(run, [&](const base::Json&) { return base::Json::object({{"source", source}}); });
}

std::string refusal_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const base::Error& e) {
    return e.message();
  }
  return "no error";
}

TEST(Task, FrozenWeightsOfAnotherRunAreInTheCheckpoint) {
  Fixture first("pretrained"), f("frozen");
  run_to_end(first);
  f.sections.assign("model.weights=" + first.directory);
  f.sections.assign("model.freeze=[wte,h.0.]");
  f.sections.assign("run.seed=5");  // of which a rebuilt model would have other initial weights
  const ir::Graph start = prepare_task(f.config, f.sections).model.graph;
  run_to_end(f);
  const Tensor ids = Tensor::from<int64_t>({1, 8}, {1, 5, 3, 2, 8, 0, 4, 7});
  const auto checkpoint = std::make_shared<const CheckpointReader>(find_checkpoint(f.directory));
  const std::vector<double> want = logits_of(with_weights(start, weights_of(checkpoint, false)), ids);
  EXPECT_EQ(logits_of(model_of_checkpoint(f.directory, {}).graph, ids), want);
  fs::rename(first.directory, first.directory + "_moved");
  EXPECT_EQ(logits_of(model_of_checkpoint(f.directory, {}).graph, ids), want);
  fs::rename(first.directory + "_moved", first.directory);
}

TEST(Task, AResumedRunHasTheFrozenWeightsThatItBeganWith) {
  Fixture first("before"), other("instead");
  run_to_end(first);
  other.sections.assign("run.seed=11");
  run_to_end(other);
  const std::string directory = Fixture("resumed").directory;
  const auto resume = [&](const Fixture& from, bool is_new) {
    Fixture f("resumed_text");
    f.sections.assign("run.directory=" + directory);
    f.sections.assign("model.weights=" + from.directory);
    f.sections.assign("model.freeze=[wte]");
    Trainer trainer(f.config, prepare_task(f.config, f.sections).task, {f.log, f.clock});
    EXPECT_EQ(trainer.resume_auto(), !is_new);
    trainer.run([] { return false; });
  };
  resume(first, true);
  EXPECT_EQ(refusal_of([&] { resume(first, false); }), "no error");
  EXPECT_NE(refusal_of([&] { resume(other, false); }).find("model.weights gives other weights"),
            std::string::npos);
}

TEST(Task, AFrozenParameterThatACheckpointLacksIsNamed) {
  Fixture f("lacking");
  f.sections.assign("model.freeze=[wte]");
  run_to_end(f);
  EXPECT_EQ(refusal_of([&] { model_of_checkpoint(f.directory, {}); }), "no error");  // rebuilt from the seed
  set_model(f.directory, [&](const base::Json& model) {
    base::Json changed = model;
    changed.set("weights", "pretrained.safetensors");
    return changed;
  });
  EXPECT_NE(refusal_of([&] { model_of_checkpoint(f.directory, {}); }).find("'pretrained.safetensors'"),
            std::string::npos);
}

TEST(Task, ACheckpointAsksForNoNetworkThatItDoesNotHold) {
  Fixture f("larger");
  run_to_end(f);
  const auto problem_of = [&](const std::string& option) {
    set_model(f.directory, [&](const base::Json& model) {
      base::Json changed = model, config = model.at("config");
      config.push_back(option);  // the last one counts
      changed.set("config", config);
      return changed;
    });
    return refusal_of([&] { model_of_checkpoint(f.directory, {}); });
  };
  EXPECT_NE(problem_of("layers=2147483648").find("at most 4096"), std::string::npos);
  EXPECT_NE(problem_of("layers=4096").find("lacks the parameter"), std::string::npos);
  EXPECT_NE(problem_of("layers=2").find("no error"), std::string::npos);
  EXPECT_NE(problem_of("width=1048576").find("other extents"), std::string::npos);
}

TEST(Task, AModelExportedForTrainingIsEvaluatedAndServedAsForInference) {
  const std::string directory = Fixture("exported").directory;
  model::Model model;
  ir::Graph& graph = model.graph;
  const auto channels = [&](const char* name, float value) {
    return graph.add_param(name, Tensor::from<float>({2}, {value, value}));
  };
  const ir::ValueId x = graph.add_input("x", {tensor::DType::f32, {tensor::Dim::symbol("batch"), 2}});
  model::Builder build(graph);
  const auto norm =
      build.ops("batch_norm",
                {x, channels("scale", 2), channels("bias", 1), channels("mean", 3), channels("variance", 4)},
                {{"epsilon", 0.0}, {"training_mode", int64_t{1}}}, 3);
  const ir::ValueId ratio = graph.add_constant(Tensor::scalar(0.5f)),
                    mode = graph.add_constant(Tensor::scalar(true));
  graph.add_output(build.op("dropout", {norm[0], ratio, mode}), "y");
  graph.sort();
  const std::string path = save_model(model, directory, "net", ExportFormat::onnx);
  std::string text;
  ModelOptions options;
  options.source = path;
  const model::Model opened = open_trained_model(options, 1, text);
  for (const ir::Node& node : opened.graph.nodes()) {
    EXPECT_EQ(node.attrs.get_int("training_mode", 0), 0);
    EXPECT_FALSE(node.op_name() == "dropout" && node.has_operand(2));
  }
  const auto result = [&](const ir::Graph& of) {
    engine::Session session(std::make_shared<const engine::PreparedModel>(of), {.threads = 1});
    return session.run({Tensor::from<float>({2, 2}, {3, 5, 7, 1})})[0].to_doubles();
  };
  const std::vector<double> want{1, 3, 5, -1};  // 2 (x - 3) / 2 + 1
  EXPECT_LT(largest_difference(result(opened.graph), want), 1e-6);
  const std::string again = save_model(opened, directory, "served", ExportFormat::onnx);
  EXPECT_LT(largest_difference(result(model::load_model(again).graph), want), 1e-6);
}

/// x through a constant table and a weight, both f16, as a file that keeps f32 inputs has them.
std::string half_file(const std::string& directory) {
  model::Model model;
  const auto half = [](float value) {
    return engine::converted(Tensor::from<float>({2, 2}, {value, 0, 0, value}), tensor::DType::f16);
  };
  ir::Graph& graph = model.graph;
  model::Builder build(graph);
  const ir::ValueId x = graph.add_input("x", {tensor::DType::f32, {tensor::Dim::symbol("batch"), 2}});
  const ir::ValueId cast = build.op("cast", {x}, {{"to", int64_t{10}}});
  const ir::ValueId moved = build.op("matmul", {cast, graph.add_constant(half(2), "table")});
  const ir::ValueId y = build.op("matmul", {moved, graph.add_param("head.weight", half(0.5))});
  graph.add_output(build.op("cast", {y}, {{"to", int64_t{1}}}), "y");
  graph.sort();
  return save_model(model, directory, "half", ExportFormat::onnx);
}

TEST(Task, FilesInHalfPrecisionAreTrainedInF32AndTheirConstantsAreNamed) {
  ModelOptions options;
  options.source = half_file(Fixture("half").directory);
  std::string text;
  const model::Model model = open_trained_model(options, 1, text);
  EXPECT_NE(text.find("constants: 'table'"), std::string::npos) << text;
  for (const ir::Value& v : model.graph.values()) EXPECT_EQ(v.type.dtype, tensor::DType::f32) << v.name;
  options.freeze = {"table"};
  std::string known;
  open_trained_model(options, 1, known);
  EXPECT_EQ(known.find("constants:"), std::string::npos) << known;
}

TEST(Task, StartWeightsInHalfPrecisionAreWidened) {
  ir::Graph graph;
  graph.add_param("w", Tensor::zeros(tensor::DType::f32, {2}));
  for (const tensor::DType type : {tensor::DType::f16, tensor::DType::bf16, tensor::DType::f64}) {
    const Tensor given = engine::converted(Tensor::from<float>({2}, {0.5, -3}), type);
    const auto taken = [&] { return with_weights(graph, [&](const std::string&) { return &given; }); };
    if (type == tensor::DType::f64) {
      EXPECT_NE(refusal_of(taken).find("the weights hold f64[2]"), std::string::npos);
      continue;
    }
    const ir::Graph started = taken();
    EXPECT_EQ(started.values()[0].data.dtype(), tensor::DType::f32);
    EXPECT_EQ(started.values()[0].data.to_doubles(), (std::vector<double>{0.5, -3}));
  }
}

TEST(Task, NamesThatFreezeNothingOrLeaveTheRepositoryAreRefused) {
  Fixture f("names");
  f.sections.assign("model.freeze=[wte,wtee]");
  EXPECT_NE(refusal_of([&] { prepare_task(f.config, f.sections); }).find("'wtee'"), std::string::npos);
  f.sections.assign("model.freeze=[wte]");
  EXPECT_EQ(refusal_of([&] { prepare_task(f.config, f.sections); }), "no error");
  for (const char* name : {"a/b", "../lm", "..", "."}) {
    f.config.run.name = name;
    EXPECT_NE(refusal_of([&] { prepare_task(f.config, f.sections); }).find("run.name"), std::string::npos)
        << name;
  }
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

TEST(Task, ValidationOfOtherTokensOrClassesIsRefused) {
  Fixture f("other_tokens");
  const std::string other = f.directory + "/other.txt";
  base::write_file_atomic(other, std::string(200, 'z') + base::read_file(f.directory + "/text.txt"));
  f.sections.assign("validation.path=" + other);
  f.sections.assign("validation.hold_out=0");
  const std::string problem = refusal_of([&] { prepare_task(f.config, f.sections); });
  EXPECT_NE(problem.find("validation has other tokens than data"), std::string::npos) << problem;
  Fixture same("same_tokens");
  same.sections.assign("validation.path=" + same.directory + "/text.txt");
  same.sections.assign("validation.hold_out=0");
  EXPECT_EQ(refusal_of([&] { prepare_task(same.config, same.sections); }), "no error");
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
