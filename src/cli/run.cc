// trireme run: runs a model on test data, NumPy files or random inputs; checks, times and writes results.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <set>

#include "base/machine/cpu_info.h"
#include "base/machine/memory.h"
#include "base/report/svg_plot.h"
#include "cli/device_options.h"
#include "cli/model_input.h"
#include "cli/rates.h"
#include "cli/verb.h"
#include "comm/mesh.h"
#include "comm/world.h"
#include "engine/ranks/inference_ranks.h"
#include "engine/ranks/sharded_session.h"
#include "model/npy.h"
#include "model/onnx/import.h"
#include "model/onnx/tensor_proto.h"
#include "ops/table.h"
#include "passes/partition/shard_rules.h"
#include "tensor/compare.h"
#include "base/files/file.h"
#include "runtime/trace_file.h"
#include "train/task.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

struct RunOptions {
  std::string model;
  std::string test_data;
  double tolerance = 1e-4;
  std::vector<std::string> input, shape, dim;
  std::string output;
  int repeat = 0;
  int warmup = 3;
  int threads = 0;
  int64_t batch = 1;
  bool json = false;
  bool profile = false;
  std::string perfetto;
  bool loop = false;
  passes::Precision precision = passes::Precision::f32;
  std::string kernel;
  std::vector<std::string> off;
  int64_t seed = 0;
  std::vector<int64_t> cpus;
  engine::InferenceRanks ranks;
  DeviceOptions on;
  passes::WeightOptions weights;

  passes::Strategy strategy() const {
    passes::Strategy s = ranks.read();
    s.precision.compute = precision;
    s.weights = weights;
    return s;
  }
  void fields(base::OptionList& f) {
    f.add("model", &model, "ONNX file, directory of a model, or zoo:resnet50").positional().required();
    f.add("test_data", &test_data,
          "directory with test_data_set_*, or one such set: compare with its outputs");
    f.add("tolerance", &tolerance, "largest relative error that passes").at_least(0);
    f.add("input", &input,
          "name=x.npy, or x.npz, whose arrays have the names of inputs; inputs that are not given have their "
          "default or are random, with the sizes of symbolic dimensions that given ones have");
    f.add(
        "output", &output,
        "directory that gets every output as NAME.npy; types that NumPy lacks (bf16, 4-bit integers) as f32");
    f.add("shape", &shape, "name:1,3,224,224: the shape of a random input");
    f.add("dim", &dim, "seq=128: the size of a symbolic dimension of random inputs");
    f.add("batch", &batch, "first dimension of random inputs where it is symbolic").at_least(1);
    f.add("repeat", &repeat, "time this many runs").at_least(0);
    f.add("warmup", &warmup, "runs before timing").at_least(0);
    f.add("threads", &threads, "threads of the session; 0: all cores").at_least(0);
    f.add("cpus", &cpus, "pin thread i to the i-th of these cores");
    on.fields(f);
    weights.fields(f);
    ranks.fields(f);
    f.add_choice("precision", &precision, {"f32", "bf16", "f16", "fp8"},
                 "operands of products; weights are rounded once, sums and results stay f32");
    f.add("kernel", &kernel, "prefer kernels of this name, for example reference");
    f.add("off", &off, "names of passes to leave out");
    f.add("profile", &profile, "print the time of every step");
    f.add("perfetto", &perfetto,
          "with --profile: file for the last profiled run, a track for each stream, to open in Perfetto");
    f.add("loop", &loop, "after one run, time runs for each number of milliseconds read from standard input");
    f.add("seed", &seed, "seed of random inputs");
    f.add("json", &json, "print one JSON object");
  }
};

using Given = std::map<std::string, tensor::Tensor>;  // by the names of inputs

/// One set of test data, whose files are read when it is run.
struct TestSet {
  fs::path path;
  std::vector<std::string> inputs;  // the names that input_0.pb, input_1.pb, … are for
};

fs::path file_of(const fs::path& set, const char* kind, size_t i) {
  return set / (kind + ("_" + std::to_string(i)) + ".pb");
}

/// Which inputs the files of a set are for: those of the tensors' own names if all are names of inputs; else
/// by their places among the inputs that need a value or, if there are more files, among all.
std::vector<std::string> names_of_files(const fs::path& set,
                                        const std::vector<model::onnx::FileInput>& inputs) {
  std::vector<std::string> own, needed, all;
  for (size_t i = 0; fs::exists(file_of(set, "input", i)); ++i)
    own.push_back(model::onnx::read_tensor_name(file_of(set, "input", i).string()));
  for (const model::onnx::FileInput& input : inputs) {
    all.push_back(input.name);
    if (!input.has_default) needed.push_back(input.name);
  }
  const auto is_input = [&](const std::string& name) {
    return std::count(own.begin(), own.end(), name) == 1 && std::count(all.begin(), all.end(), name) == 1;
  };
  if (own.size() <= all.size() && std::all_of(own.begin(), own.end(), is_input)) return own;
  std::vector<std::string>& by_place = own.size() <= needed.size() ? needed : all;
  base::require(own.size() <= by_place.size(), "'", set.string(), "' has ", own.size(), " inputs, the model ",
                all.size());
  by_place.resize(own.size());
  return by_place;
}

std::vector<TestSet> test_sets(const std::string& root, const std::vector<model::onnx::FileInput>& inputs) {
  if (root.empty()) return {};
  base::require(fs::is_directory(root), "no directory '", root, "'");
  const auto is_set = [](const fs::path& path) {
    return path.filename().string().rfind("test_data_set_", 0) == 0;
  };
  std::vector<fs::path> paths;
  if (is_set(root)) {
    paths.push_back(root);
  } else {
    for (const auto& entry : fs::directory_iterator(root)) {
      if (is_set(entry.path())) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  base::require(!paths.empty(), "no test_data_set_* in '", root, "'");
  std::vector<TestSet> sets;
  for (const fs::path& path : paths) sets.push_back({path, names_of_files(path, inputs)});
  return sets;
}

/// The tensors of name=x.npy and x.npz, by the names of inputs.
Given read_inputs(const std::vector<std::string>& given) {
  Given all;
  const auto add = [&](const std::string& name, tensor::Tensor t) {
    base::require(all.emplace(name, std::move(t)).second, "input '", name, "' is given twice");
  };
  for (const std::string& text : given) {
    if (text.ends_with(".npz") && text.find('=') == std::string::npos) {
      for (auto& [name, array] : model::read_npz(text)) add(name, std::move(array));
    } else {
      const auto [name, path] = split_assignment(text);
      add(name, model::read_npy(path));
    }
  }
  return all;
}

/// A model and what its runs are given.
struct Subject {
  model::Model model;
  std::vector<TestSet> sets;
  Given given;     // by --input
  Given defaults;  // of inputs that are given in some runs and not in others
};

/// The file of an ONNX model, or "" for another model.
std::string onnx_file(const std::string& name) {
  if (name.starts_with("zoo:") || train::has_checkpoint(name)) return "";
  const fs::path file = fs::is_directory(name) ? fs::path(name) / "model.onnx" : fs::path(name);
  return file.extension() == ".onnx" && fs::exists(file) ? file.string() : "";
}

/// Opens the model. Inputs with defaults that test data or --input have become inputs of its graph.
Subject open_subject(const RunOptions& options) {
  Subject s{
      .model = open_model(options.model), .sets = {}, .given = read_inputs(options.input), .defaults = {}};
  const std::string file = onnx_file(options.model);
  std::vector<model::onnx::FileInput> inputs;
  if (!file.empty()) inputs = model::onnx::file_inputs(file);
  for (ir::ValueId id : s.model.graph.inputs()) {
    if (file.empty()) inputs.push_back({s.model.graph.value(id).name});
  }
  s.sets = test_sets(options.test_data, inputs);
  std::vector<std::string> fed;
  for (const model::onnx::FileInput& input : inputs) {
    bool is_fed = s.given.contains(input.name);
    for (const TestSet& set : s.sets)
      is_fed = is_fed || std::find(set.inputs.begin(), set.inputs.end(), input.name) != set.inputs.end();
    if (input.has_default && is_fed) fed.push_back(input.name);
  }
  if (fed.empty()) return s;
  for (const ir::Value& v : s.model.graph.values()) {
    if (v.data.defined() && std::find(fed.begin(), fed.end(), v.name) != fed.end())
      s.defaults.emplace(v.name, v.data);
  }
  s.model = model::onnx::load_onnx(file, {}, fed);
  return s;
}

/// The tensors of a set in the order of the graph's inputs.
std::vector<tensor::Tensor> inputs_of_set(const TestSet& set, const ir::Graph& graph, const Given& defaults) {
  Given given = defaults;
  for (size_t i = 0; i < set.inputs.size(); ++i)
    given[set.inputs[i]] = model::onnx::read_tensor_file(file_of(set.path, "input", i).string());
  std::vector<tensor::Tensor> inputs;
  for (ir::ValueId id : graph.inputs()) {
    const auto at = given.find(graph.value(id).name);
    base::require(at != given.end(), "'", set.path.string(), "' has ", set.inputs.size(),
                  " inputs, and none is '", graph.value(id).name, "'");
    inputs.push_back(at->second);
  }
  return inputs;
}

std::vector<tensor::Tensor> outputs_of_set(const TestSet& set, size_t count) {
  std::vector<tensor::Tensor> outputs;
  for (size_t i = 0; i < count && fs::exists(file_of(set.path, "output", i)); ++i)
    outputs.push_back(model::onnx::read_tensor_file(file_of(set.path, "output", i).string()));
  base::require(outputs.size() == count, "'", set.path.string(), "' has the first ", outputs.size(), " of ",
                count, " outputs: output_", outputs.size(), ".pb is missing");
  base::require(!fs::exists(file_of(set.path, "output", count)), "'", set.path.string(),
                "' has more than the ", count, " outputs of the model");
  return outputs;
}

/// How far an output is from what a set expects.
struct Comparison {
  std::string set, output;
  double relative, absolute;
  std::string mismatch;  // why an error is no number, or ""
  bool passes;
};

base::Json to_json(const Comparison& c) {
  const auto number = [](double error) { return std::isfinite(error) ? base::Json(error) : base::Json(); };
  base::Json row = base::Json::object({{"set", c.set}, {"output", c.output}});
  row.set("relative_error", number(c.relative));
  row.set("absolute_error", number(c.absolute));
  if (!c.mismatch.empty()) row.set("reason", c.mismatch);
  row.set("pass", c.passes);
  return row;
}

void print(const Comparison& c) {
  const char* verdict = c.passes ? "ok" : "FAILED";
  if (c.mismatch.empty())
    std::printf("%s  %-24s largest relative error %.3g (absolute %.3g)  %s\n", c.set.c_str(),
                c.output.c_str(), c.relative, c.absolute, verdict);
  else
    std::printf("%s  %-24s %s  %s\n", c.set.c_str(), c.output.c_str(), c.mismatch.c_str(), verdict);
}

/// Compares the results of every set; returns the number of outputs that exceed the tolerance.
int check_test_data(engine::Session& session, const Subject& subject, const RunOptions& options,
                    base::Json& report) {
  const ir::Graph& graph = session.graph();
  int failures = 0;
  base::Json rows = base::Json::array();
  for (const TestSet& set : subject.sets) {
    const std::vector<tensor::Tensor> expected = outputs_of_set(set, graph.outputs().size());
    const std::vector<tensor::Tensor> actual = session.run(inputs_of_set(set, graph, subject.defaults));
    for (size_t i = 0; i < expected.size(); ++i) {
      const double error = tensor::relative_error(actual[i], expected[i]);
      const Comparison c{set.path.filename().string(),
                         graph.output_names()[i],
                         error,
                         tensor::absolute_error(actual[i], expected[i]),
                         tensor::mismatch(actual[i], expected[i]),
                         error <= options.tolerance};
      failures += c.passes ? 0 : 1;
      rows.push_back(to_json(c));
      if (!options.json) print(c);
    }
  }
  report.set("test_data", std::move(rows));
  return failures;
}

/// The sizes of symbolic dimensions, "seq=128": those of --dim, then those that given inputs have. Throws
/// invalid_argument for a --dim that no input has.
std::vector<std::string> sizes_of_dims(const ir::Graph& graph, const RunOptions& options,
                                       const std::vector<tensor::Tensor>& given) {
  std::set<std::string> symbols, sized;
  std::vector<std::string> sizes = options.dim;
  for (ir::ValueId id : graph.inputs()) {
    const tensor::Shape& shape = graph.type(id).shape;
    for (size_t d = 0; shape.has_rank() && d < shape.rank(); ++d) {
      if (!shape[d].is_static() && !shape[d].is_unknown()) symbols.insert(shape[d].name());
    }
  }
  std::string all;
  for (const std::string& symbol : symbols) all += (all.empty() ? "; there is " : ", ") + symbol;
  for (const std::string& text : options.dim) {
    const std::string name = split_assignment(text).first;
    base::require(symbols.contains(name), "no input has a dimension '", name, "'", all);
    sized.insert(name);
  }
  for (size_t i = 0; i < given.size(); ++i) {
    const tensor::Shape& shape = graph.type(graph.inputs()[i]).shape;
    if (!given[i].defined() || !shape.has_rank() || shape.rank() != given[i].dims().size()) continue;
    for (size_t d = 0; d < shape.rank(); ++d) {
      const tensor::Dim& dim = shape[d];
      if (dim.is_static() || dim.is_unknown() || dim.name().find('=') != std::string::npos) continue;
      if (sized.insert(dim.name()).second)
        sizes.push_back(dim.name() + "=" + std::to_string(given[i].dims()[d]));
    }
  }
  return sizes;
}

std::vector<tensor::Tensor> make_inputs(const ir::Graph& graph, const Subject& subject,
                                        const RunOptions& options) {
  Given given = subject.given;
  std::vector<std::string> shapes = options.shape;
  std::vector<tensor::Tensor> inputs(graph.inputs().size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string& name = graph.value(graph.inputs()[i]).name;
    if (const auto at = given.find(name); at != given.end()) {
      inputs[i] = std::move(at->second);
      given.erase(at);
    } else if (const auto standard = subject.defaults.find(name); standard != subject.defaults.end()) {
      inputs[i] = standard->second;
    } else {
      continue;
    }
    std::string dims;
    for (int64_t d : inputs[i].dims()) dims += (dims.empty() ? "" : ",") + std::to_string(d);
    shapes.push_back(name + ":" + dims);
  }
  base::require(given.empty(), "the model has no input '", given.empty() ? "" : given.begin()->first, "'");
  const std::vector<tensor::Dims> all =
      input_shapes(graph, options.batch, shapes, sizes_of_dims(graph, options, inputs));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) continue;
    const ir::ValueId id = graph.inputs()[i];
    inputs[i] = random_tensor(graph.type(id).dtype, all[i], static_cast<uint64_t>(options.seed) + i,
                              rows_read_by(graph, id));
  }
  return inputs;
}

/// "123.4", or "-" if the rate exceeds what this machine can do: Winograd convolution multiplies less than
/// direct convolution, which is what the schema counts.
std::string gflop_text(double flop, double us, const base::Ceiling& ceiling) {
  const std::optional<double> per_s = base::Rate(flop, us * 1e-6, ceiling).per_s();
  return per_s ? base::format_number(*per_s * 1e-9, 1) : "-";
}

/// The GB/s count the bytes of operands and results, which may lie in a cache.
void print_profile(const compile::Program& program, const std::vector<double>& step_us,
                   const base::Ceiling& ceiling) {
  double total = 0;
  for (double us : step_us) total += us;
  for (size_t s = 0; s < step_us.size(); ++s) {
    const compile::Step& step = program.steps[s];
    std::string shape;
    if (!step.out.empty() && step.out[0] != compile::kNoSlot)
      shape = tensor::to_string(program.slot(step.out[0]).dims);
    std::printf("%5zu %9.1f us %5.1f %%  %8s GFLOP/s %7.1f GB/s  %-22s %-16s %s  %s\n", s, step_us[s],
                100 * step_us[s] / total, gflop_text(step.cost.flop, step_us[s], ceiling).c_str(),
                step.cost.bytes / step_us[s] / 1e3,
                step.op == nullptr ? "copy" : step.op->schema.name.c_str(), step.kernel.c_str(),
                shape.c_str(), step.from.c_str());
  }
  std::printf("      %9.1f us in steps\n", total);
}

std::vector<tensor::Dims> shapes_of(const std::vector<tensor::Tensor>& inputs) {
  std::vector<tensor::Dims> shapes;
  for (const tensor::Tensor& t : inputs) shapes.push_back(t.dims());
  return shapes;
}

void profile(engine::Session& session, const std::vector<tensor::Tensor>& inputs, int repeat,
             const std::string& perfetto, const base::Ceiling& ceiling) {
  const compile::Program& program = session.prepare(shapes_of(inputs));
  std::vector<std::vector<double>> us(program.steps.size());
  runtime::Trace trace;
  for (int i = 0; i < repeat; ++i) {
    session.run(inputs, &trace);
    for (size_t s = 0; s < us.size(); ++s) us[s].push_back(static_cast<double>(trace.step_ns[s]) / 1e3);
  }
  std::vector<double> step_us;  // medians, because another process may disturb single runs
  for (std::vector<double>& times : us) {
    const auto middle = times.begin() + static_cast<int64_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    step_us.push_back(*middle);
  }
  if (session.sharded() != nullptr) std::printf("steps of the first of several ranks\n");
  print_profile(program, step_us, ceiling);
  if (!perfetto.empty()) base::write_file_atomic(perfetto, runtime::to_perfetto(program, trace));
}

/// Repeats the model on the same inputs, into the same outputs if their shapes are known.
class Repeater {
 public:
  Repeater(engine::Session& session, const std::vector<tensor::Tensor>& inputs,
           std::vector<tensor::Tensor>& outputs)
      : session_(session), inputs_(inputs), outputs_(outputs), shapes_(shapes_of(inputs)) {
    fixed_ = session.is_static(shapes_);
  }

  /// Runs once and returns the microseconds.
  double once() {
    const auto start = std::chrono::steady_clock::now();
    if (fixed_) {
      session_.run_into(inputs_, outputs_);
    } else {
      outputs_ = session_.run(inputs_);
    }
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }
  const compile::Program& program() { return session_.prepare(shapes_); }
  /// FLOPs of one run. The program may cover only a slice of the batch, or one rank's part of the model.
  double flop() {
    if (has_ranks()) return whole_flop(session_.graph(), shapes_);
    return program().cost().flop * static_cast<double>(session_.slices(shapes_));
  }
  bool has_ranks() { return session_.sharded() != nullptr; }
  int threads() const { return session_.threads(); }
  bool has_narrow_products() {
    const auto& slots = program().slots;
    return std::any_of(slots.begin(), slots.end(), [](const compile::Slot& s) {
      return s.dtype != tensor::DType::boolean && tensor::bits_of(s.dtype) <= 8;
    });
  }

 private:
  engine::Session& session_;
  const std::vector<tensor::Tensor>& inputs_;
  std::vector<tensor::Tensor>& outputs_;
  std::vector<tensor::Dims> shapes_;
  bool fixed_ = false;
};

/// For each line "milliseconds" on standard input, writes one JSON line of times; so `./dev bench models` can
/// alternate between contenders without paying for process starts.
void loop_runs(Repeater& repeater, int64_t empty_bytes, double write_ms) {
  const compile::Program& program = repeater.program();
  base::Json ready = base::Json::object();
  ready.set("gflop", repeater.flop() / 1e9);
  if (!repeater.has_ranks()) ready.set("weight_bytes", program.memory.constant_bytes);
  ready.set("empty_bytes", empty_bytes);
  ready.set("write_ms", write_ms);  // of --output, which comes after the first result
  std::cout << ready.dump() << std::endl;
  for (double budget_ms = 0; std::cin >> budget_ms;) {
    std::vector<double> us;
    double total = 0;
    do {
      us.push_back(repeater.once());
      total += us.back();
    } while (total < budget_ms * 1e3);
    std::sort(us.begin(), us.end());
    base::Json line = base::Json::object();
    line.set("runs", static_cast<int64_t>(us.size()));
    line.set("median_us", us[us.size() / 2]);
    line.set("min_us", us.front());
    std::cout << line.dump() << std::endl;
  }
}

/// The ceiling of products at the run's precision on all threads of all ranks. None is measured for 8-bit
/// operands, whose products are faster, or for ranks of a job, which may be on several machines.
base::Ceiling run_ceiling(Repeater& repeater, const RunOptions& options) {
  const passes::Strategy ranks = options.ranks.read();
  if (repeater.has_narrow_products() || options.weights.stores()) return {};
  if (ranks.world() > 1 && comm::chosen_kind({}) == comm::RankKind::mpi) return {};
  const int given = options.threads > 0 ? options.threads : base::read_cpu_info().threads();
  const int threads = ranks.world() > 1 ? given : repeater.threads();  // the ranks divide the given threads
  return product_ceiling({options.on.device, threads, ranks.world()}, options.precision);
}

void time_runs(engine::Session& session, Repeater& repeater, const RunOptions& options,
               const base::Ceiling& ceiling, base::Json& report) {
  for (int i = 0; i < options.warmup; ++i) repeater.once();
  std::vector<double> us;
  for (int i = 0; i < options.repeat; ++i) us.push_back(repeater.once());
  std::sort(us.begin(), us.end());
  const auto quantile = [&](double q) {
    return us[static_cast<size_t>(q * static_cast<double>(us.size() - 1))];
  };
  const double flop = repeater.flop();
  report.set("runs", static_cast<int64_t>(us.size()));
  report.set("min_us", us.front());
  report.set("p50_us", quantile(0.5));
  report.set("p99_us", quantile(0.99));
  report.set("gflop", flop / 1e9);
  const base::Rate rate(flop, us.front() * 1e-6, ceiling);
  rate.write(report, "gflop_per_s", 1e9);
  report.set("threads", session.threads());
  report.set("arena_bytes", session.arena_bytes());
  report.set("peak_rss_bytes", base::peak_resident_bytes());
  if (!options.json) {
    std::printf(
        "%zu runs, %d threads: min %.1f us, p50 %.1f us, p99 %.1f us, at the best %s; peak RSS %.1f MiB\n",
        us.size(), session.threads(), us.front(), quantile(0.5), quantile(0.99),
        rate.text(1e9, "GFLOP").c_str(), static_cast<double>(base::peak_resident_bytes()) / (1 << 20));
  }
}

/// What NumPy has a type for: bf16 and types below 16 bits that it lacks become f32, which holds their
/// values.
tensor::Tensor numpy_form(const tensor::Tensor& t, base::ThreadPool& pool) {
  const int bits = tensor::bits_of(t.dtype());
  const bool is_known =
      bits >= 8 && t.dtype() != tensor::DType::bf16 && !(bits == 8 && tensor::is_float(t.dtype()));
  if (is_known) return t;
  constexpr int64_t kF32 = 1;  // ONNX's number of the type
  return ops::evaluate(ops::table().need("cast"), {{"to", kF32}}, {t}, 1, pool)[0];
}

void write_outputs(engine::Session& session, const std::vector<tensor::Tensor>& outputs,
                   const std::string& directory) {
  const ir::Graph& graph = session.graph();
  fs::create_directories(directory);
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::string name = graph.output_names()[i];
    std::replace(name.begin(), name.end(), '/', '_');
    model::write_npy((fs::path(directory) / (name + ".npy")).string(),
                     numpy_form(outputs[i], session.pool()));
  }
}

/// Does all that was asked of one session; returns the exit code.
int run_session(engine::Session& session, const Subject& subject, const RunOptions& options,
                int64_t empty_bytes, base::Log& log) {
  base::Json report = base::Json::object();
  report.set("model", subject.model.name);
  int failures = 0;
  if (!options.test_data.empty()) failures = check_test_data(session, subject, options, report);
  if (options.test_data.empty() || options.repeat > 0 || !options.output.empty()) {
    const std::vector<tensor::Tensor> inputs = make_inputs(session.graph(), subject, options);
    std::vector<tensor::Tensor> outputs = session.run(inputs);
    warn_of_host_steps(session.prepare(shapes_of(inputs)), log);
    Repeater repeater(session, inputs, outputs);
    base::Ceiling ceiling;
    if (options.repeat > 0 || options.profile) ceiling = run_ceiling(repeater, options);
    if (options.repeat > 0) time_runs(session, repeater, options, ceiling, report);
    base::require(options.perfetto.empty() || options.profile, "--perfetto goes with --profile");
    if (options.profile) profile(session, inputs, std::max(1, options.repeat), options.perfetto, ceiling);
    const auto start = std::chrono::steady_clock::now();
    if (!options.output.empty()) write_outputs(session, outputs, options.output);
    const std::chrono::duration<double, std::milli> writing = std::chrono::steady_clock::now() - start;
    if (options.loop) loop_runs(repeater, empty_bytes, writing.count());
    for (size_t i = 0; i < outputs.size() && !options.json && !options.loop && options.repeat == 0; ++i) {
      std::cout << session.graph().output_names()[i] << ": " << outputs[i].type().to_string() << "\n";
    }
  }
  if (options.json) std::cout << report.dump() << "\n";
  return failures == 0 ? 0 : 1;
}

/// Throws invalid_argument for a name that no kernel has.
void check_kernel_name(const std::string& name) {
  std::set<std::string> names;
  for (const ir::OpDef& op : ops::table().all()) {
    for (const ir::Kernel& kernel : op.kernels) names.insert(kernel.name);
  }
  if (name.empty() || names.contains(name)) return;
  const auto nearest = std::min_element(names.begin(), names.end(), [&](const auto& a, const auto& b) {
    return base::edit_distance(a, name) < base::edit_distance(b, name);
  });
  base::fail_invalid("no kernel is called '", name, "'; the nearest is '", *nearest, "'");
}

/// Runs one process of a launched job: the first rank runs the model, the others follow it.
int run_in_job(const std::shared_ptr<const engine::PreparedModel>& model,
               engine::SessionOptions session_options, const std::function<int(engine::Session&)>& run) {
  session_options.strategy = passes::choose_kv_ranks(model->graph(), session_options.strategy);
  int code = 0;
  comm::run_ranks({.kind = comm::RankKind::mpi, .ranks = session_options.strategy.world()},
                  [&](comm::Communicator& world) {
                    comm::Mesh mesh(world, session_options.strategy.mesh());
                    session_options.mesh = &mesh;
                    if (world.rank() != 0) return engine::follow(model, session_options);
                    engine::Session session(model, session_options);
                    code = run(session);
                  });
  return code;
}

}  // namespace

int run_main(std::span<const std::string> words, base::Env& env) {
  RunOptions options;
  if (!parse(options, words, "run")) return 0;
  check_kernel_name(options.kernel);
  const int64_t empty_bytes = base::resident_bytes();
  Subject subject = open_subject(options);
  model::Model& model = subject.model;
  engine::SessionOptions session_options{
      .threads = options.threads, .only_kernel = options.kernel, .strategy = options.strategy()};
  options.on.apply(session_options);
  for (int64_t cpu : options.cpus) session_options.cpus.push_back(static_cast<int>(cpu));
  session_options.passes.off = options.off;
  engine::widen_floats_for(model.graph, session_options.strategy, options.on.device);
  const auto prepared = std::make_shared<const engine::PreparedModel>(
      std::move(model.graph), session_options.passes, session_options.strategy);
  if (const size_t stored = prepared->weights().stored(); stored > 0)
    env.log.info("run", "weights_stored",
                 {{"matrices", static_cast<int64_t>(stored)},
                  {"of", static_cast<int64_t>(prepared->weights().rows.size())}});
  model.release_pages();
  const auto run = [&](engine::Session& session) {
    return run_session(session, subject, options, empty_bytes, env.log);
  };
  if (session_options.strategy.world() > 1 && comm::chosen_kind({}) == comm::RankKind::mpi)
    return run_in_job(prepared, session_options, run);
  engine::Session session(prepared, session_options);
  return run(session);
}

std::string run_markdown() { return options_markdown<RunOptions>(); }

}  // namespace trireme::cli
