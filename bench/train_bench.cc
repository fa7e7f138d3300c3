// Runs whole training steps of one network, for bench/train.py and tools/gpu_check: `bench_train NETWORK
// THREADS [DEVICE [f32|bf16|f16|fp8]]`. NETWORK is one of the list below, or a folder that
// bench/train_networks.py wrote. Prints in one JSON line what a step costs and the first losses, then answers
// each line "milliseconds" of standard input with a JSON line of step times. The line "profile" prints where
// the last step's time went; the line "steps COUNT" prints the lower quartile of the times of each of the
// program's steps over COUNT runs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "base/text/json.h"
#include "base/files/file.h"
#include "base/rng.h"
#include "engine/train/train_session.h"
#include "model/load/load.h"
#include "model/loss.h"
#include "model/npy.h"
#include "model/zoo/zoo.h"

namespace trireme {
namespace {

using tensor::DType;
using tensor::Tensor;

constexpr int kFirstSteps = 3;  // run before measuring; their losses are printed

/// One row of the benchmark: the network, its options and the shape of a step's input.
struct Row {
  std::string name, source;
  std::vector<std::string> options;
  tensor::Dims dims;
  int64_t classes;
  bool is_image;
};

std::vector<std::string> gpt_1_3b() {
  return {"dropout=0", "width=2048", "layers=24", "heads=16", "positions=2048", "vocabulary=50304"};
}

const std::vector<Row>& rows() {
  static const std::vector<Row> list{
      {"mnist_cnn", "cnn", {"dropout=0"}, {64, 1, 28, 28}, 10, true},
      {"resnet18", "resnet18", {}, {32, 3, 224, 224}, 1000, true},
      {"resnet50", "resnet50", {}, {16, 3, 224, 224}, 1000, true},
      {"gpt2", "gpt2", {"dropout=0"}, {4, 256}, 50257, false},
      {"bert", "bert", {"dropout=0"}, {8, 128}, 30522, false},
      // Networks large enough for a GPU: ResNet-50, and GPT with 124 million and 1.3 billion parameters; the
      // last two rows are tiny networks for trying out the benchmark.
      {"resnet50_256", "resnet50", {}, {256, 3, 224, 224}, 1000, true},
      {"gpt2_1024", "gpt2", {"dropout=0"}, {16, 1024}, 50257, false},
      {"gpt_1.3b", "gpt2", gpt_1_3b(), {4, 2048}, 50304, false},
      // Twice the sequences: work that a step does once for all of them, mainly the update, takes half the
      // share.
      {"gpt_1.3b_8", "gpt2", gpt_1_3b(), {8, 2048}, 50304, false},
      {"resnet_tiny",
       "resnet14",
       {"width=8", "channels=3", "size=16", "classes=10"},
       {4, 3, 16, 16},
       10,
       true},
      {"gpt_tiny",
       "gpt2",
       {"dropout=0", "width=32", "layers=1", "heads=2", "positions=8", "vocabulary=64"},
       {2, 8},
       64,
       false},
  };
  return list;
}

const Row& need_row(const std::string& name) {
  for (const Row& row : rows()) {
    if (row.name == name) return row;
  }
  base::fail_invalid("no network '", name, "'");
}

Tensor random_image(const tensor::Dims& dims) {
  Tensor t = Tensor::empty(DType::f32, dims);
  base::Rng rng(3);
  for (float& v : t.mutable_data<float>()) v = static_cast<float>(rng.normal());
  return t;
}

Tensor random_ids(const tensor::Dims& dims, int64_t bound) {
  Tensor t = Tensor::empty(DType::i64, dims);
  base::Rng rng(4);
  for (int64_t& v : t.mutable_data<int64_t>())
    v = static_cast<int64_t>(rng.below(static_cast<uint64_t>(bound)));
  return t;
}

/// What is trained: the loss, the inputs of a step in the order of the loss graph's inputs, and the update.
struct Task {
  ir::Graph loss;
  engine::Feeds feeds;
  engine::TrainOptions options;
  float lr = 1e-4f;
  int64_t targets = 0;  ///< in a step
};

struct Where {
  int threads = 0;
  std::string device = "cpu", precision = "f32";
};

engine::TrainOptions options_on(const Where& where) {
  engine::TrainOptions options;
  options.threads = where.threads;
  options.device = where.device;
  if (where.precision == "bf16") options.strategy.precision.compute = passes::Precision::bf16;
  if (where.precision == "fp8") options.strategy.precision.compute = passes::Precision::fp8;
  if (where.precision == "f16") options.strategy.precision.compute = passes::Precision::f16;
  return options;
}

engine::Feeds feeds_of(const Row& row, const ir::Graph& graph) {
  engine::Feeds feeds;
  for (ir::ValueId id : graph.inputs()) {
    const ir::Value& v = graph.value(id);
    if (v.name == "labels") {
      feeds.push_back(random_ids(row.is_image ? tensor::Dims{row.dims[0]} : row.dims, row.classes));
    } else if (v.type.dtype == DType::f32) {
      feeds.push_back(random_image(row.dims));
    } else if (v.name == "input_ids") {
      feeds.push_back(random_ids(row.dims, row.classes));
    } else {  // attention_mask is all ones, token_type_ids all zeros
      Tensor t = Tensor::zeros(DType::i64, row.dims);
      if (v.name == "attention_mask") std::ranges::fill(t.mutable_data<int64_t>(), 1);
      feeds.push_back(t);
    }
  }
  return feeds;
}

Task task_of(const Row& row, const Where& where) {
  Task task{.loss = {}, .feeds = {}, .options = options_on(where)};
  task.loss = model::zoo::build(row.source, row.options).graph;
  model::add_loss(task.loss, {});
  task.feeds = feeds_of(row, task.loss);
  task.options.optimizer.kind = row.is_image ? passes::OptimizerKind::sgd : passes::OptimizerKind::adamw;
  task.targets = row.is_image ? row.dims[0] : row.dims[0] * row.dims[1];
  return task;
}

/// Reads an ONNX file with inputs, labels and update settings, as bench/train_networks.py writes them.
Task task_in(const std::string& folder, const Where& where) {
  Task task{.loss = {}, .feeds = {}, .options = options_on(where)};
  const base::Json facts = base::parse_json(base::read_file(folder + "/task.json"));
  const bool is_sgd = facts.at("optimizer").as_string() == "sgd";
  task.options.optimizer.kind = is_sgd ? passes::OptimizerKind::sgd : passes::OptimizerKind::adamw;
  task.options.optimizer.decay_vectors = true;  // as in PyTorch
  if (is_sgd) task.options.optimizer.momentum = facts.at("momentum").as_double();
  task.lr = static_cast<float>(facts.at("lr").as_double());
  for (const base::Json& name : facts.at("frozen").as_array())
    task.options.freeze.push_back(name.as_string());
  task.loss = model::load_model(folder + "/model.onnx").graph;
  model::LossOptions first_output;
  first_output.output = task.loss.output_names().at(0);
  model::add_loss(task.loss, first_output);
  for (ir::ValueId id : task.loss.inputs()) {
    const std::string& name = task.loss.value(id).name;
    task.feeds.push_back(model::read_npy(folder + (name == "labels" ? "/" : "/feeds/") + name + ".npy"));
    if (name == "labels") task.targets = tensor::element_count(task.feeds.back().dims());
  }
  return task;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Prints time, share and achieved GFLOP/s and GB/s by op and kernel, the largest first.
void print_profile(const compile::Program& program, const runtime::Trace& trace) {
  struct Line {
    double ns = 0, flop = 0, bytes = 0;
    int steps = 0;
  };
  std::map<std::string, Line> lines;
  double total = 0;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const compile::Step& s = program.steps[i];
    Line& line = lines[(s.op == nullptr ? "copy" : s.op->schema.name) + " / " + s.kernel];
    line.ns += static_cast<double>(trace.step_ns[i]);
    line.flop += s.cost.flop;
    line.bytes += s.cost.bytes;
    ++line.steps;
    total += static_cast<double>(trace.step_ns[i]);
  }
  std::vector<std::pair<std::string, Line>> sorted(lines.begin(), lines.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
  for (const auto& [name, line] : sorted) {
    std::printf("%6.2f %% %10.3f ms %5d x %8.1f GFLOP/s %7.1f GB/s  %s\n", 100 * line.ns / total,
                line.ns / 1e6, line.steps, line.flop / line.ns, line.bytes / line.ns, name.c_str());
  }
  std::fflush(stdout);
}

std::string shape_of(const compile::Program& program, compile::SlotId id) {
  if (id == compile::kNoSlot) return "-";
  std::string text = "[";
  for (int64_t extent : program.slot(id).dims) text += (text.size() > 1 ? "," : "") + std::to_string(extent);
  return text + "]";
}

/// The value that a quarter of the values are below: a shared machine disturbs most runs at some point.
double lower_quartile(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 4];
}

/// Prints a line for each step of the program: microseconds, FLOPs, bytes, kernel and shapes.
void print_steps(const compile::Program& program, const std::vector<std::vector<double>>& us) {
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const compile::Step& s = program.steps[i];
    std::printf("%3zu %9.1f us %9.3f MFLOP %8.3f MB  %s / %s ", i, lower_quartile(us[i]), s.cost.flop / 1e6,
                s.cost.bytes / 1e6, s.op == nullptr ? "copy" : s.op->schema.name.c_str(), s.kernel.c_str());
    for (compile::SlotId id : s.in) std::printf(" %s", shape_of(program, id).c_str());
    std::printf(" ->");
    for (compile::SlotId id : s.out) std::printf(" %s", shape_of(program, id).c_str());
    std::printf("\n");
  }
  std::fflush(stdout);
}

/// The ops, with their kernels, that take more than a fiftieth of a step: [{op, kernel, share}].
base::Json large_steps(const compile::Program& program, const runtime::Trace& trace) {
  std::map<std::pair<std::string, std::string>, double> ns;
  double total = 0;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const compile::Step& s = program.steps[i];
    ns[{s.op == nullptr ? "copy" : s.op->schema.name, s.kernel}] += static_cast<double>(trace.step_ns[i]);
    total += static_cast<double>(trace.step_ns[i]);
  }
  base::Json list = base::Json::array();
  for (const auto& [key, time] : ns) {
    if (time < total / 50) continue;
    list.push_back(base::Json::object({{"op", key.first}, {"kernel", key.second}, {"share", time / total}}));
  }
  return list;
}

int run(const std::string& name, const Where& where) {
  Task task = std::filesystem::is_directory(name) ? task_in(name, where) : task_of(need_row(name), where);
  engine::TrainSession session(task.loss, task.options);
  task.loss = {};
  engine::StepInputs inputs;
  inputs.lr = task.lr;
  inputs.loss_weight = 1.0f / static_cast<float>(task.targets);
  const auto step = [&] {
    const engine::StepResult result = session.step(task.feeds, inputs);
    ++inputs.step;
    return result;
  };
  base::Json losses = base::Json::array();
  for (int i = 0; i < kFirstSteps; ++i) {
    const engine::StepResult result = step();
    losses.push_back(result.loss_sum / result.count);
  }
  std::vector<tensor::Dims> shapes;
  for (const Tensor& t : task.feeds) shapes.push_back(t.dims());
  const compile::Program& program = *session.programs(shapes, 1)[0];
  base::Json ready =
      base::Json::object({{"gflop", program.cost().flop / 1e9},
                          {"losses", losses},
                          {"steps", large_steps(program, session.trace(shapes, 1))},
                          {"planned_bytes", program.memory.arena_bytes + program.memory.state_bytes}});
  std::cout << ready.dump() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "profile") {
      print_profile(program, session.trace(shapes, 1));
      continue;
    }
    if (line.starts_with("steps ")) {
      std::vector<std::vector<double>> us(program.steps.size());
      std::vector<double> between;  // the time of a whole run outside the program's steps
      for (int64_t left = std::stoll(line.substr(6)); left > 0; --left) {
        const auto begin = std::chrono::steady_clock::now();
        step();
        const auto end = std::chrono::steady_clock::now();
        between.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
        for (size_t i = 0; i < us.size(); ++i) {
          us[i].push_back(static_cast<double>(session.trace(shapes, 1).step_ns[i]) / 1e3);
          between.back() -= us[i].back();
        }
      }
      print_steps(program, us);
      std::printf("    %9.1f us between the steps\n", lower_quartile(between));
      std::fflush(stdout);
      continue;
    }
    const double budget_us = std::stod(line) * 1e3;
    std::vector<double> us;
    double total = 0;
    while (us.empty() || total < budget_us) {
      const auto begin = std::chrono::steady_clock::now();
      step();
      us.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
      total += us.back();
    }
    const double least = *std::min_element(us.begin(), us.end());
    base::Json answer = base::Json::object(
        {{"runs", static_cast<int64_t>(us.size())}, {"median_us", median(us)}, {"min_us", least}});
    std::cout << answer.dump() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  try {
    trireme::base::require(argc >= 3 && argc <= 5, "usage: bench_train NETWORK THREADS [DEVICE [PRECISION]]");
    trireme::Where where{.threads = std::stoi(argv[2])};
    if (argc > 3) where.device = argv[3];
    if (argc > 4) where.precision = argv[4];
    return trireme::run(argv[1], where);
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
