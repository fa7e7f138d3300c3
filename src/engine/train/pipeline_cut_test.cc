// Networks cut into pipeline parts, with the step of each part split into programs: the same bits as the
// whole graph.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/rng.h"
#include "engine/train/test_training.h"
#include "model/loss.h"
#include "model/zoo/zoo.h"
#include "ops/table.h"
#include "passes/lists/lists.h"
#include "passes/pipeline/pipeline.h"
#include "runtime/executor.h"
#include "runtime/open_device.h"

namespace trireme::engine {
namespace {

using ir::ValueId;
using tensor::DType;
using tensor::Tensor;
using Named = std::map<std::string, Tensor>;

/// Compiles and runs a graph on named inputs and states; states are changed in place.
Named run_named(ir::Graph graph, const Named& inputs, Named& states) {
  passes::run_passes(passes::step_passes(), graph);
  base::ThreadPool pool(2);
  base::SharedCache packs;
  const auto device = runtime::open_device("cpu");
  const auto stream = device->open_stream(pool);
  const auto program = std::make_shared<compile::Program>(compile::compile(graph, {.threads = 2}, packs));
  std::vector<void*> addresses;
  for (compile::SlotId id : program->states) {
    Tensor& t = states.try_emplace(program->slot(id).name, Tensor()).first->second;
    if (!t.defined()) t = Tensor::zeros(program->slot(id).dtype, program->slot(id).dims);
    addresses.push_back(t.mutable_raw());
  }
  runtime::Executor executor(program, addresses);
  const auto arena = device->allocate(program->memory.arena_bytes);
  executor.bind_arena(arena.get());
  std::vector<const void*> in;
  for (const std::string& name : program->input_names) in.push_back(inputs.at(name).raw());
  Named out;
  std::vector<void*> results;
  for (size_t i = 0; i < program->outputs.size(); ++i) {
    const compile::Slot& slot = program->slot(program->outputs[i]);
    Tensor& t = out[program->output_names[i]];
    EXPECT_FALSE(t.defined()) << program->output_names[i];
    t = Tensor::zeros(slot.dtype, slot.dims);
    results.push_back(t.mutable_raw());
  }
  executor.run(in, results, *stream);
  return out;
}

struct CutCase {
  std::string name;
  std::vector<std::string> options;
  std::map<std::string, tensor::Dims> inputs;  ///< of the model, and "labels"
  int64_t classes;
};

const std::vector<CutCase>& cases() {
  static const std::vector<CutCase> list{
      {"gpt2",
       {"vocabulary=31", "positions=16", "width=32", "layers=4", "heads=4", "dropout=0.1"},
       {{"input_ids", {2, 12}}, {"labels", {2, 12}}},
       31},
      {"llama",
       {"vocabulary=31", "positions=16", "width=32", "layers=4", "heads=4", "kv_heads=2", "inner=48"},
       {{"input_ids", {2, 12}}, {"labels", {2, 12}}},
       31},
      {"bert",
       {"vocabulary=31", "positions=16", "width=32", "layers=4", "heads=4"},
       {{"input_ids", {2, 12}}, {"attention_mask", {2, 12}}, {"labels", {2, 12}}},
       31},
      {"vit",
       {"size=32", "patch=8", "width=32", "layers=4", "heads=4", "classes=7"},
       {{"image", {2, 3, 32, 32}}, {"labels", {2}}},
       7},
      {"resnet", {"depth=50", "size=32", "classes=7"}, {{"image", {2, 3, 32, 32}}, {"labels", {2}}}, 7},
  };
  return list;
}

/// A loss graph in training form with static shapes and a fused forward pass, its states and inputs.
struct Trainable {
  ir::Graph graph;
  Named states, inputs;
  std::vector<std::string> trained;

  explicit Trainable(const CutCase& c) {
    graph = model::zoo::build(c.name, c.options).graph;
    model::add_loss(graph);
    graph.sort();
    std::vector<ValueId> statistics;
    for (const ir::Node& node : graph.nodes()) {
      if (node.op_name() == "batch_norm") statistics.insert(statistics.end(), {node.in[3], node.in[4]});
    }
    for (size_t i = 0; i < graph.values().size(); ++i) {
      const auto id = ValueId(static_cast<uint32_t>(i));
      const ir::Value& v = graph.value(id);
      if (v.kind != ir::ValueKind::param || v.data.elements() <= 1) continue;
      states[v.name] = v.data.clone();
      const bool is_statistic = std::find(statistics.begin(), statistics.end(), id) != statistics.end();
      if (!is_statistic) trained.push_back(v.name);
      graph.make_state(id);
    }
    passes::to_training(graph);
    graph.sort();
    feed(c);
    std::vector<tensor::Dims> shapes;
    for (ValueId id : graph.inputs()) shapes.push_back(inputs.at(graph.value(id).name).dims());
    graph = passes::bind_shapes(graph, shapes);
    passes::run_passes(passes::forward_passes(), graph);
    inputs[passes::kLossWeightInput] = Tensor::scalar(0.03125f);
  }

  /// Random numbers for every input, with padding at the end of the second row.
  void feed(const CutCase& c) {
    base::Rng rng(5);
    for (ValueId id : graph.inputs()) {
      const ir::Value& v = graph.value(id);
      if (v.name == passes::kRngInput) {
        inputs[v.name] = Tensor::from<int64_t>({3}, {1, 2, 0});
        continue;
      }
      Tensor t = Tensor::empty(v.type.dtype, c.inputs.at(v.name));
      if (v.type.dtype == DType::f32) {
        for (float& x : t.mutable_data<float>()) x = static_cast<float>(rng.normal());
      } else {
        for (int64_t& x : t.mutable_data<int64_t>())
          x = v.name == "attention_mask"
                  ? 1
                  : static_cast<int64_t>(rng.uniform() * static_cast<double>(c.classes));
        if (v.name == "attention_mask") t.mutable_data<int64_t>().back() = 0;
      }
      inputs[v.name] = t;
    }
  }

  std::vector<ValueId> wanted(const ir::Graph& g) const {
    std::vector<ValueId> out;
    for (size_t i = 0; i < g.values().size(); ++i) {
      const auto id = ValueId(static_cast<uint32_t>(i));
      if (std::find(trained.begin(), trained.end(), g.value(id).name) != trained.end() &&
          g.value(id).kind == ir::ValueKind::state)
        out.push_back(id);
    }
    return out;
  }
};

/// Adds every gradient to the state "<param>.grad" by `tree_accumulate`.
void add_sums(ir::Graph& graph, const std::vector<passes::ParamGradient>& gradients) {
  for (const passes::ParamGradient& g : gradients) {
    const ValueId sum = graph.add_state(graph.value(g.param).name + ".grad", graph.type(g.param));
    const ValueId first = graph.add_constant(Tensor::scalar(int64_t{0}));
    graph.add1(ops::table().need("tree_accumulate"), {first, g.gradient, sum});
  }
}

ValueId loss_of(const ir::Graph& graph) {
  const auto& names = graph.output_names();
  const auto at = std::find(names.begin(), names.end(), "loss_sum");
  return at == names.end() ? ir::kNoValue : graph.outputs()[static_cast<size_t>(at - names.begin())];
}

/// The loss and counts of the step as one graph, and the states after it.
std::pair<Named, Named> whole(const Trainable& t) {
  ir::Graph graph = t.graph;
  std::vector<ValueId> outputs;
  std::vector<std::string> names;
  add_sums(graph, passes::differentiate(graph, loss_of(graph), t.wanted(graph)));
  graph.sort();
  Named states;
  for (const auto& [name, content] : t.states) states[name] = content.clone();
  Named results = run_named(graph, t.inputs, states);
  return {results, states};
}

/// The same by parts: all forward passes, then all backward passes (with weight gradients in between).
std::pair<Named, Named> by_parts(const Trainable& t, const passes::PipelineCut& cut, bool splits_weights) {
  const size_t parts = cut.parts();
  std::vector<passes::PipelinePrograms> programs;
  // Gradients per part: those of a tied weight are added at the end, starting with the last part's.
  std::vector<Named> states(parts);
  std::vector<Named> known(parts, t.inputs);
  for (size_t k = 0; k < parts; ++k) {
    passes::PipelinePart part = passes::cut_part(t.graph, cut, k);
    ir::verify(part.graph);
    const ValueId loss = k + 1 == parts ? loss_of(part.graph) : ir::kNoValue;
    add_sums(part.graph, passes::differentiate_part(part, loss, t.wanted(part.graph)));
    part.graph.sort();
    programs.push_back(passes::split_part(part, splits_weights));
    for (const ir::Graph* g : {&programs[k].forward, &programs[k].backward, &programs[k].weights})
      ir::verify(*g);
    EXPECT_EQ(programs[k].weights.nodes().empty(), !splits_weights);
    for (const ir::Value& v : part.graph.values()) {
      if (v.kind == ir::ValueKind::state && t.states.contains(v.name))
        states[k][v.name] = t.states.at(v.name).clone();
    }
  }
  for (size_t k = 0; k < parts; ++k) {
    for (auto& [name, value] : run_named(programs[k].forward, known[k], states[k])) {
      known[name.starts_with("cut") ? k + 1 : k][name] = value;
    }
  }
  for (size_t k = parts; k-- > 0;) {
    for (auto& [name, value] : run_named(programs[k].backward, known[k], states[k])) {
      known[name.starts_with("cut") ? k - 1 : k][name] = value;
    }
    if (splits_weights) run_named(programs[k].weights, known[k], states[k]);
  }
  Named all = states[parts - 1];
  for (size_t k = parts - 1; k-- > 0;) {
    for (auto& [name, value] : states[k]) {
      if (name.ends_with(".grad") && all.contains(name)) {
        auto sum = all[name].mutable_data<float>();
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += value.data<float>()[i];
      } else {
        all[name] = value;
      }
    }
  }
  return {known[parts - 1], all};
}

TEST(PipelineCut, PartsHaveTheBitsOfTheWholeGraph) {
  for (const CutCase& c : cases()) {
    const Trainable t(c);
    const auto [want, want_states] = whole(t);
    for (size_t parts : {size_t{2}, size_t{4}}) {
      const passes::PipelineCut cut = passes::plan_pipeline_cut(t.graph, parts);
      for (bool splits : {false, true}) {
        SCOPED_TRACE(base::concat(c.name, " in ", parts, splits ? " parts, weights split off" : " parts"));
        const auto [got, got_states] = by_parts(t, cut, splits);
        for (const auto& [name, value] : want) EXPECT_TRUE(got.at(name).same_as(value)) << name;
        ASSERT_EQ(want_states.size(), got_states.size());
        // The two gradients of a tied weight are added in another order than in one graph.
        const bool is_tied = c.name == "gpt2" || c.name == "llama" || c.name == "bert";
        size_t different = 0;
        for (const auto& [name, value] : want_states) {
          if (got_states.at(name).same_as(value)) continue;
          ++different;
          EXPECT_TRUE(is_tied && name.find("embed") + name.find("wte") != 2 * std::string::npos)
              << name << " " << relative_distance(value, got_states.at(name));
          EXPECT_LT(relative_distance(value, got_states.at(name)), 1e-6) << name;
        }
        EXPECT_LE(different, size_t{is_tied});
      }
    }
  }
}

TEST(PipelineCut, PartsAreBalancedAndOneValueCrosses) {
  for (const CutCase& c : cases()) {
    const Trainable t(c);
    for (size_t parts : {size_t{2}, size_t{4}}) {
      SCOPED_TRACE(base::concat(c.name, " in ", parts));
      const passes::PipelineCut cut = passes::plan_pipeline_cut(t.graph, parts);
      ASSERT_EQ(cut.share.size(), parts);
      // Four layers in four parts with a head: no part does twice its share of the work.
      EXPECT_LT(*std::max_element(cut.share.begin(), cut.share.end()), 2.0 / static_cast<double>(parts));
      for (size_t k = 0; k + 1 < parts; ++k) {
        EXPECT_EQ(passes::cut_part(t.graph, cut, k).out.size(), 1u) << k;
      }
    }
  }
}

TEST(PipelineCut, SaysWhatToExpect) {
  const Trainable t(cases()[0]);
  const passes::PipelineCut cut = passes::plan_pipeline_cut(t.graph, 2, {"h.2"});
  const std::string text = passes::to_text(
      cut,
      passes::make_pipeline_order(passes::PipelineSchedule::one_f_one_b, {.stages = 2, .micro_batches = 8}));
  EXPECT_NE(text.find("2 stages, 8 micro-batches: waiting "), std::string::npos) << text;
  EXPECT_NE(text.find("part 0 on stage 0"), std::string::npos) << text;
  // [2, 12, 32] f32 values cross the cut.
  EXPECT_NE(text.find("passes on 3072 bytes, micro-batches in flight 2"), std::string::npos) << text;
  EXPECT_NE(text.find("from transformer.h.2.ln_1.weight"), std::string::npos) << text;
}

TEST(PipelineCut, ByNamesOfLayers) {
  const Trainable t(cases()[0]);
  const passes::PipelineCut cut = passes::plan_pipeline_cut(t.graph, 3, {"h.1", "h.3"});
  const std::vector<std::vector<std::string>> weights = passes::weights_of_parts(t.graph, cut);
  ASSERT_EQ(weights.size(), 3u);
  const auto layers = [&](size_t k) {
    constexpr std::string_view kHead = "transformer.";
    std::set<std::string> out;
    for (const std::string& name : weights[k]) {
      const size_t from = kHead.size() + (name.compare(kHead.size(), 2, "h.") == 0 ? 2 : 0);
      out.insert(name.substr(0, name.find('.', from)));
    }
    return out;
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(layers(0), (Names{"transformer.h.0", "transformer.wpe", "transformer.wte"}));
  EXPECT_EQ(layers(1), (Names{"transformer.h.1", "transformer.h.2"}));
  EXPECT_EQ(layers(2), (Names{"transformer.h.3", "transformer.ln_f", "transformer.wte"}));
  const auto refuse = [&](size_t parts, const std::vector<std::string>& names, const std::string& what) {
    try {
      passes::plan_pipeline_cut(t.graph, parts, names);
      FAIL() << "no error for " << names[0];
    } catch (const base::Error& e) {
      EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
    }
  };
  refuse(3, {"h.3", "h.1"}, "h.1");
  refuse(2, {"h.7"}, "no layer of the model is called 'h.7'");
  refuse(2, {"transformer.wte"}, "without weights");
  refuse(3, {"h.1"}, "1 cuts make 2 parts");
  EXPECT_THROW(passes::plan_pipeline_cut(t.graph, 100), base::Error);
}

}  // namespace
}  // namespace trireme::engine
