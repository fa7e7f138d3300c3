// trireme inspect: prints the graph before and after any pass, the program, its memory, and why kernels were
// not taken.
#include <cstdio>
#include <iostream>

#include "cli/device_options.h"
#include "cli/inspect_rank.h"
#include "cli/model_input.h"
#include "cli/verb.h"
#include "model/weight_summary.h"
#include "passes/fuse/transformer.h"
#include "lower/batch_proof.h"

namespace trireme::cli {
namespace {

struct InspectOptions {
  std::string model;
  std::string after;
  bool passes = false, program = false, why = false, memory = false;
  std::vector<std::string> shape, dim, off;
  int64_t batch = 1;
  int threads = 0;
  DeviceOptions on;
  passes::WeightOptions weights;
  RankInspection rank;

  void fields(base::OptionList& f) {
    f.add("model", &model,
          "ONNX file, directory of a model, or zoo:resnet50; or the YAML file of a training, whose data need "
          "not be there: the programs of a step")
        .positional()
        .required();
    f.add("after", &after, "print the graph as it stands after this pass");
    f.add("passes", &passes, "list the passes with their changes and times");
    f.add("program", &program, "print the steps with their kernels, FLOPs and bytes");
    f.add(
        "why", &why,
        "print which kernels refused each node, which patterns missed by what, and why rows of a batch meet");
    f.add("memory", &memory, "print the memory plan: planned peak beside the sum of all values");
    f.add("shape", &shape, "name:1,3,224,224: the shape of an input");
    f.add("dim", &dim, "seq=128: the size of a symbolic dimension");
    f.add("batch", &batch, "first dimension of inputs where it is symbolic").at_least(1);
    f.add("threads", &threads, "threads of the session; 0: all cores").at_least(0);
    f.add("off", &off, "names of passes to leave out");
    on.fields(f);
    weights.fields(f);
    rank.fields(f);
  }
};

/// Prints pass records and, at `after`, the graph.
passes::PassOptions watching(const InspectOptions& options, bool& printed) {
  passes::PassOptions watch{.off = options.off, .verify = true};
  watch.after = [&options, &printed](const passes::PassRecord& r, const ir::Graph& graph) {
    if (options.passes) {
      std::printf("%-24s %5zu changes %6zu nodes %9.3f ms\n", r.name.c_str(), r.changes, r.nodes_after, r.ms);
    }
    if (options.why && r.name == "attention") {
      for (const std::string& line : passes::attention_misses(graph)) std::cout << line << '\n';
    }
    if (r.name == options.after) {
      std::cout << ir::print(graph);
      printed = true;
    }
  };
  return watch;
}

}  // namespace

int inspect_main(std::span<const std::string> words, base::Env&) {
  InspectOptions options;
  if (!parse(options, words, "inspect")) return 0;
  if (options.model.ends_with(".yaml") || options.model.ends_with(".yml") || !options.rank.ranks.empty()) {
    options.rank.sizes = {options.batch, options.shape, options.dim};
    options.rank.prints = {options.program, options.memory, options.why};
    options.rank.threads = options.threads;
    options.rank.weights = options.weights;
    options.rank.off = options.off;
    return inspect_rank(options.model, options.rank, options.on);
  }
  const bool lists = options.passes || options.program || options.why || options.memory;
  // Printing a graph shows the content of constants, and storing weights reports the loss of precision;
  // programs need types only.
  const bool reads = !lists || !options.after.empty() || options.weights.stores();
  model::Model model = open_model(options.model, reads ? Content::all : Content::none);
  model.graph.sort();
  if (options.after.empty() && !lists && !options.weights.stores()) {
    std::cout << ir::print(model.graph) << model::describe_stored_weights(model.graph);
    return 0;
  }
  bool printed = false;
  engine::SessionOptions session_options{.threads = options.threads, .passes = watching(options, printed)};
  options.on.apply(session_options);
  session_options.plan_only = true;  // inspecting needs no device and no packed weights
  const passes::Strategy strategy{.weights = options.weights};
  engine::widen_floats_for(model.graph, strategy, options.on.device);
  const auto prepared =
      std::make_shared<engine::PreparedModel>(std::move(model.graph), session_options.passes, strategy);
  if (options.weights.stores()) std::cout << prepared->weights().text();
  engine::Session session(prepared, session_options);
  const std::vector<tensor::Dims> shapes =
      input_shapes(session.graph(), options.batch, options.shape, options.dim);
  const compile::Program& program = session.prepare(shapes);
  if (options.program) std::cout << compile::print_steps(program);
  if (options.why) {
    std::cout << compile::print_refusals(program);
    const std::string mixed = lower::why_not_batched(session.graph());
    std::cout << (mixed.empty() ? "rows of a batch are independent\n" : "no batches: " + mixed + "\n");
  }
  if (options.memory) std::cout << compile::print_memory(program);
  if (!session.is_static(shapes)) {
    std::cout << "shapes depend on data: this is the first segment; the rest is compiled when its sizes are "
                 "known\n";
  }
  base::require(options.after.empty() || printed, "no pass '", options.after, "' ran");
  return 0;
}

std::string inspect_markdown() { return options_markdown<InspectOptions>(); }

}  // namespace trireme::cli
