// Networks of the zoo, split over local ranks by rules: same losses and gradients as on one rank.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>

#include "base/rng.h"
#include "comm/local.h"
#include "comm/mesh.h"
#include "model/loss.h"
#include "model/zoo/zoo.h"
#include "ops/table.h"
#include "passes/lists/lists.h"
#include "passes/partition/collective_types.h"
#include "passes/name_match.h"
#include "passes/partition/partition.h"
#include "passes/precision/precision.h"
#include "passes/partition/shard_rules.h"
#include "passes/strategy.h"
#include "passes/train/train.h"
#include "runtime/executor.h"
#include "runtime/open_device.h"
#include "tests/work_growth.h"

namespace trireme::engine {
namespace {

using ir::ValueId;
using passes::Partitioning;
using passes::ShardRule;
using tensor::DType;
using tensor::MeshShape;
using tensor::Placement;
using tensor::Shard;
using tensor::Tensor;

using Contents = std::map<std::string, Tensor>;

struct RuledNetwork {
  std::string name;
  std::vector<std::string> options;
  std::vector<ShardRule> rules;
  int64_t batch = 2, sequence = 8;
};

/// Forward and backward pass of a micro-batch in global shapes; gradients are outputs named after weights.
struct Step {
  ir::Graph loss;  ///< the model with its loss, symbolic
  ir::Graph graph;
  Contents feeds;  ///< inputs and states
};

Tensor random_tokens(tensor::Dims dims, int64_t below, uint64_t stream) {
  Tensor t = Tensor::empty(DType::i64, std::move(dims));
  base::Rng rng(3, stream);
  for (int64_t& v : t.mutable_data<int64_t>())
    v = static_cast<int64_t>(rng.uniform() * static_cast<double>(below));
  return t;
}

Tensor noise(tensor::Dims dims, double deviation, uint64_t stream) {
  Tensor t = Tensor::empty(DType::f32, std::move(dims));
  base::Rng rng(5, stream);
  for (float& v : t.mutable_data<float>()) v = static_cast<float>(deviation * rng.normal());
  return t;
}

Tensor feed_for(const ir::Value& input, int64_t vocabulary, const RuledNetwork& network) {
  tensor::Dims dims;
  for (const tensor::Dim& d : input.type.shape.dims()) {
    dims.push_back(d.is_static() ? d.value() : dims.empty() ? network.batch : network.sequence);
  }
  if (input.name == passes::kRngInput) return Tensor::from<int64_t>({3}, std::vector<int64_t>{1, 2, 0});
  if (input.name == passes::kLossWeightInput) return Tensor::scalar<float>(0.125f);
  if (input.name == "attention_mask") {
    Tensor mask = random_tokens(dims, 1, 1);
    for (int64_t& v : mask.mutable_data<int64_t>()) v = 1;
    mask.mutable_data<int64_t>().back() = 0;
    return mask;
  }
  if (input.type.dtype == DType::i64) {
    const int64_t below = input.name == "labels" ? std::min<int64_t>(vocabulary, 2) : vocabulary;
    return random_tokens(dims, below, input.name.size());
  }
  return noise(dims, 1, 9);
}

/// Weights become states; the step is made as engine::TrainSession does, up to the partition pass.
Step step_of(const RuledNetwork& network, int64_t vocabulary,
             passes::Precision precision = passes::Precision::f32) {
  Step step;
  model::Model m = model::zoo::build(network.name, network.options);
  model::add_loss(m.graph);
  ir::Graph& g = m.graph;
  g.sort();
  g.set_outputs({g.outputs()[0], g.outputs()[1]}, {g.output_names()[0], g.output_names()[1]});
  for (size_t i = 0; i < g.outputs().size(); ++i) EXPECT_NE(g.output_names()[i], "logits");
  g.sort();
  uint64_t stream = 0;
  for (size_t i = 0; i < g.values().size(); ++i) {
    const auto id = ValueId(static_cast<uint32_t>(i));
    const ir::Value& v = g.value(id);
    if (v.kind != ir::ValueKind::param || v.data.dtype() != DType::f32 || v.data.elements() <= 1) continue;
    // Larger than initial weights, so that every path has a visible effect.
    step.feeds[v.name] = noise(v.data.dims(), v.data.rank() > 1 ? 0.2 : 1, ++stream);
    g.make_state(id);
  }
  step.loss = g;
  passes::to_training(g);
  g.sort();
  std::vector<tensor::Dims> shapes;
  for (ValueId id : g.inputs()) {
    const ir::Value& v = g.value(id);
    step.feeds[v.name] = feed_for(v, vocabulary, network);
    shapes.push_back(step.feeds[v.name].dims());
  }
  step.graph = passes::bind_shapes(g, shapes);
  passes::run_passes(passes::forward_passes(), step.graph);
  if (precision != passes::Precision::f32) passes::lower_precision(step.graph, {.compute = precision});
  step.graph.sort();
  std::vector<ValueId> weights;
  for (size_t i = 0; i < step.graph.values().size(); ++i) {
    if (step.graph.values()[i].kind == ir::ValueKind::state)
      weights.push_back(ValueId(static_cast<uint32_t>(i)));
  }
  for (const auto& d : passes::differentiate(step.graph, step.graph.outputs()[0], weights))
    step.graph.add_output(d.gradient, step.graph.value(d.param).name + ".grad");
  step.graph.sort();
  for (ValueId id : step.graph.inputs()) {
    const ir::Value& v = step.graph.value(id);
    if (!step.feeds.contains(v.name)) step.feeds[v.name] = feed_for(v, vocabulary, network);
  }
  return step;
}

/// The part of a tensor given by local_boxes.
Tensor part(const Tensor& whole, const Shard& shard, const Partitioning& how) {
  const auto boxes = tensor::local_boxes(whole.dims(), shard, how.mesh, how.coordinates);
  const tensor::Dims dims = tensor::local_dims(whole.dims(), shard, how.mesh, how.coordinates);
  Tensor out = Tensor::empty(whole.dtype(), dims);
  const std::vector<double> from = whole.to_doubles();
  // Boxes are next to each other along the only dimension that has sections.
  size_t axis = 0;
  for (size_t d = 0; d < dims.size(); ++d) axis = boxes.size() > 1 && boxes[0].size[d] != dims[d] ? d : axis;
  tensor::Dims at(dims.size(), 0);
  for (int64_t i = 0; i < out.elements(); ++i) {
    int64_t rest = i;
    for (size_t d = dims.size(); d-- > 0;) at[d] = rest % dims[d], rest /= dims[d];
    size_t box = 0;
    if (boxes.size() > 1)
      box = static_cast<size_t>(at[axis] / boxes[0].size[axis]), at[axis] %= boxes[0].size[axis];
    int64_t source = 0;
    for (size_t d = 0; d < dims.size(); ++d) source = source * whole.dims()[d] + boxes[box].offset[d] + at[d];
    if (whole.dtype() == DType::f32)
      out.mutable_data<float>()[static_cast<size_t>(i)] =
          static_cast<float>(from[static_cast<size_t>(source)]);
    else
      out.mutable_data<int64_t>()[static_cast<size_t>(i)] =
          static_cast<int64_t>(from[static_cast<size_t>(source)]);
  }
  return out;
}

/// The outputs, by name, of a program compiled from the graph.
Contents run(ir::Graph graph, const Contents& feeds, comm::Mesh* mesh) {
  passes::run_passes(passes::step_passes(), graph);
  graph.sort();
  base::ThreadPool pool(1);
  const auto device = runtime::open_device("cpu");
  const auto stream = device->open_stream(pool);
  base::SharedCache packs;
  const auto program = std::make_shared<compile::Program>(
      compile::compile(graph, {.on = device->kind(), .threads = pool.size()}, packs));
  std::vector<void*> states;
  std::vector<Tensor> contents;
  for (compile::SlotId id : program->states) {
    contents.push_back(feeds.at(program->slot(id).name).clone());
    states.push_back(contents.back().mutable_raw());
  }
  runtime::Executor executor(program, states, mesh);
  const auto arena = device->allocate(program->memory.arena_bytes);
  executor.bind_arena(arena.get());
  std::vector<const void*> in;
  for (const std::string& name : program->input_names) in.push_back(feeds.at(name).raw());
  std::vector<void*> out;
  Contents results;
  for (size_t i = 0; i < program->outputs.size(); ++i) {
    const compile::Slot& slot = program->slot(program->outputs[i]);
    Tensor& t = results[program->output_names[i]] = Tensor::zeros(slot.dtype, slot.dims);
    out.push_back(t.mutable_raw());
  }
  executor.run(in, out, *stream);
  return results;
}

Partitioning partitioning_of(const Step& step, const std::vector<ShardRule>& rules, const MeshShape& mesh) {
  Partitioning how{.mesh = mesh, .coordinates = {}};
  for (const ir::Value& v : step.graph.values()) {
    if (v.kind != ir::ValueKind::state) continue;
    for (const ShardRule& rule : rules) {
      if (!mesh.has(rule.axis) || !passes::name_matches(rule.pattern, v.name)) continue;
      how.placed[v.name].set(mesh.index_of(rule.axis), Placement::split(rule.dim, rule.sections));
    }
    how.outputs[v.name + ".grad"] = how.placed[v.name];
  }
  return how;
}

double distance_from_wanted(const Tensor& a, const Tensor& b) {
  if (a.dims() != b.dims()) return 1e30;
  const std::vector<double> x = a.to_doubles(), y = b.to_doubles();
  double worst = 0, size = 1e-6;
  for (size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, std::abs(x[i] - y[i]));
    size = std::max(size, std::abs(y[i]));
  }
  return worst / size;
}

size_t count(const ir::Graph& graph, std::string_view op) {
  size_t n = 0;
  for (const ir::Node& node : graph.nodes()) n += node.op_name() == op ? 1 : 0;
  return n;
}

/// Compares every rank's loss and gradients with those of one rank. Returns rank 0's graph.
ir::Graph expect_same_step(const Step& step, Partitioning how, double tolerance = 2e-4) {
  const Contents want = run(step.graph, step.feeds, nullptr);
  std::vector<ir::Graph> graphs;
  for (int r = 0; r < how.mesh.size(); ++r) {
    how.coordinates = how.mesh.coordinates(r);
    graphs.push_back(passes::partition(step.graph, how));
    ir::verify(graphs.back());
    const auto inferred = passes::infer_shards(graphs.back());
    for (size_t i = 0; i < inferred.size(); ++i)
      EXPECT_EQ(inferred[i], graphs.back().values()[i].shard) << graphs.back().values()[i].name;
    passes::fix_collective_order(graphs.back());
  }
  std::mutex reports;
  comm::LocalWorld world(how.mesh.size());
  world.run([&](comm::Communicator& all) {
    comm::Mesh mesh(all, how.mesh);
    Partitioning mine = how;
    mine.coordinates = mesh.coordinates();
    const auto shard_of = [](const auto& map, const std::string& name) {
      const auto at = map.find(name);
      return at == map.end() ? Shard() : at->second;
    };
    Contents parts;
    for (const auto& [name, t] : step.feeds) parts[name] = part(t, shard_of(how.placed, name), mine);
    const Contents got = run(graphs[static_cast<size_t>(how.mesh.rank(mine.coordinates))], parts, &mesh);
    const std::lock_guard<std::mutex> lock(reports);
    for (const auto& [name, t] : want)
      EXPECT_LE(distance_from_wanted(got.at(name), part(t, shard_of(how.outputs, name), mine)), tolerance)
          << name;
  });
  return graphs[0];
}

MeshShape tp(int ranks) { return MeshShape({{"tp", ranks}}); }

const std::vector<ShardRule> kGpt2Rules{{"*c_attn.weight", "tp", 1, 3},   {"*c_attn.bias", "tp", 0, 3},
                                        {"*attn.c_proj.weight", "tp", 0}, {"*c_fc.weight", "tp", 1},
                                        {"*c_fc.bias", "tp", 0},          {"*mlp.c_proj.weight", "tp", 0}};

TEST(PartitionModels, Gpt2HasTwoReductionsALayerEachWay) {
  const RuledNetwork gpt2{"gpt2",
                          {"vocabulary=40", "positions=16", "width=32", "layers=2", "heads=4", "dropout=0.1"},
                          kGpt2Rules};
  const Step step = step_of(gpt2, 40);
  for (int ranks : {2, 4}) {
    const ir::Graph g = expect_same_step(step, partitioning_of(step, gpt2.rules, tp(ranks)));
    EXPECT_EQ(count(g, "all_reduce"), 8u) << ir::print(g);
    EXPECT_EQ(count(g, "all_gather"), 0u) << ir::print(g);
  }
}

const std::vector<ShardRule> kLlamaRules{{"*q_proj.weight", "tp", 0},    {"*k_proj.weight", "tp", 0},
                                         {"*v_proj.weight", "tp", 0},    {"*o_proj.weight", "tp", 1},
                                         {"*gate_proj.weight", "tp", 0}, {"*up_proj.weight", "tp", 0},
                                         {"*down_proj.weight", "tp", 1}};

TEST(PartitionModels, LlamaWithFewerKeyHeads) {
  const RuledNetwork llama{
      "llama", {"vocabulary=40", "width=32", "layers=2", "heads=8", "kv_heads=4", "inner=24"}, kLlamaRules};
  const Step step = step_of(llama, 40);
  for (int ranks : {2, 4}) {
    const ir::Graph g = expect_same_step(step, partitioning_of(step, llama.rules, tp(ranks)));
    EXPECT_EQ(count(g, "all_reduce"), 8u) << ir::print(g);
    EXPECT_EQ(count(g, "all_gather"), 0u) << ir::print(g);
  }
}

TEST(PartitionModels, LlamaKeyHeadsOnOneAxisQueryHeadsOnTwo) {
  RuledNetwork llama{
      "llama", {"vocabulary=40", "width=32", "layers=2", "heads=8", "kv_heads=2", "inner=24"}, kLlamaRules};
  for (const char* both : {"*q_proj.weight", "*gate_proj.weight", "*up_proj.weight"})
    llama.rules.push_back({both, "tpr", 0});
  for (const char* both : {"*o_proj.weight", "*down_proj.weight"}) llama.rules.push_back({both, "tpr", 1});
  const Step step = step_of(llama, 40);
  const ir::Graph g =
      expect_same_step(step, partitioning_of(step, llama.rules, MeshShape({{"tpr", 2}, {"tp", 2}})));
  EXPECT_EQ(count(g, "all_gather"), 0u) << ir::print(g);
}

const std::vector<ShardRule> kBertRules{{"*qkv.weight", "tp", 0, 3},
                                        {"*qkv.bias", "tp", 0, 3},
                                        {"*attention.output.dense.weight", "tp", 1},
                                        {"*intermediate.dense.weight", "tp", 0},
                                        {"*intermediate.dense.bias", "tp", 0}};

TEST(PartitionModels, Bert) {
  RuledNetwork bert{"bert",
                    {"vocabulary=40", "positions=16", "width=32", "layers=2", "heads=4", "dropout=0.1"},
                    kBertRules};
  // The same suffix also occurs after the attention's output.
  bert.rules.insert(bert.rules.begin(), {"*layer.*.output.dense.weight", "tp", 1});
  for (const std::string head : {"masked_lm", "classification"}) {
    bert.options.push_back("head=" + head);
    const Step step = step_of(bert, 40);
    for (int ranks : {2, 4}) {
      const ir::Graph g = expect_same_step(step, partitioning_of(step, bert.rules, tp(ranks)));
      EXPECT_EQ(count(g, "all_reduce"), 8u) << ir::print(g);
      EXPECT_EQ(count(g, "all_gather"), 0u) << ir::print(g);
    }
  }
}

TEST(PartitionModels, Vit) {
  RuledNetwork vit{
      "vit",
      {"channels=1", "size=8", "patch=4", "width=32", "layers=2", "heads=4", "classes=10", "dropout=0.1"},
      kBertRules};
  vit.rules.insert(vit.rules.begin(), {"*layer.*.output.dense.weight", "tp", 1});
  const Step step = step_of(vit, 10);
  for (int ranks : {2, 4}) {
    const ir::Graph g = expect_same_step(step, partitioning_of(step, vit.rules, tp(ranks)));
    EXPECT_EQ(count(g, "all_reduce"), 8u) << ir::print(g);
    EXPECT_EQ(count(g, "all_gather"), 0u) << ir::print(g);
  }
}

TEST(PartitionModels, VocabularySplitUnevenly) {
  for (int vocabulary : {40, 41}) {
    RuledNetwork gpt2{
        "gpt2",
        {"positions=16", "width=32", "layers=1", "heads=4", base::concat("vocabulary=", vocabulary)},
        kGpt2Rules};
    gpt2.rules.push_back({"*wte.weight", "tp", 0});
    const Step step = step_of(gpt2, vocabulary);
    for (int ranks : {2, 4}) {
      const ir::Graph g = expect_same_step(step, partitioning_of(step, gpt2.rules, tp(ranks)));
      EXPECT_EQ(count(g, "all_gather"), 0u) << ir::print(g);
    }
  }
}

TEST(PartitionModels, SequenceParallel) {
  for (const bool splits_vocabulary : {false, true}) {
    RuledNetwork gpt2{"gpt2",
                      {"vocabulary=40", "positions=16", "width=32", "layers=2", "heads=4", "dropout=0.1"},
                      kGpt2Rules};
    if (splits_vocabulary) gpt2.rules.push_back({"*wte.weight", "tp", 0});
    const Step step = step_of(gpt2, 40);
    for (int ranks : {2, 4}) {
      Partitioning how = partitioning_of(step, gpt2.rules, tp(ranks));
      how.sequence_axis = "tp";
      const ir::Graph g = expect_same_step(step, how);
      // Two for each layer in each direction. With a split vocabulary also the embedding's sum and the head's
      // gradient; otherwise the stream is whole before the first branch, and head and loss are split by
      // tokens.
      EXPECT_EQ(count(g, "reduce_scatter"), splits_vocabulary ? 10u : 8u) << ir::print(g);
      // The parameters of norms and the biases that are added once, together; and for the loss the reductions
      // over split classes, or its sum and count over tokens.
      EXPECT_EQ(count(g, "all_reduce"), 3u) << ir::print(g);
    }
  }
}

/// The split that Trireme chooses by itself.
Partitioning chosen(const Step& step, passes::Strategy strategy) {
  strategy = passes::choose_kv_ranks(step.loss, strategy);
  Partitioning how{
      .mesh = strategy.mesh(), .coordinates = {}, .placed = passes::place_params(step.loss, strategy)};
  if (strategy.sequence) how.sequence_axis = "tp";
  for (const auto& [name, shard] : how.placed) how.outputs[name + ".grad"] = shard;
  return how;
}

TEST(PartitionModels, ByTheRulesOfEachFamily) {
  const std::vector<RuledNetwork> networks{
      {"gpt2", {"vocabulary=41", "positions=16", "width=32", "layers=2", "heads=4", "dropout=0.1"}, {}},
      {"nanogpt", {"vocabulary=40", "positions=16", "width=32", "layers=2", "heads=4"}, {}},
      {"llama", {"vocabulary=40", "width=32", "layers=2", "heads=8", "kv_heads=2", "inner=24"}, {}},
      {"bert", {"vocabulary=40", "positions=16", "width=32", "layers=2", "heads=4"}, {}},
      {"bert",
       {"vocabulary=40", "positions=16", "width=32", "layers=2", "heads=4", "head=classification"},
       {}},
      {"vit", {"channels=1", "size=8", "patch=4", "width=32", "layers=2", "heads=4", "classes=10"}, {}},
      {"mlp", {}, {}},
      {"cnn", {}, {}},
      {"small_resnet", {}, {}}};
  for (const RuledNetwork& network : networks) {
    const Step step = step_of(network, 40);
    for (int ranks : {2, 4}) {
      for (bool sequence : {false, true}) {
        SCOPED_TRACE(
            base::concat(network.name, " on ", ranks, " ranks", sequence ? ", sequence parallel" : ""));
        const Partitioning how = chosen(step, {.tp = ranks, .sequence = sequence});
        // Ten classes cannot be divided among four ranks.
        EXPECT_EQ(how.placed.empty(), network.name == "small_resnet" && ranks == 4);
        expect_same_step(step, how);
      }
    }
  }
}

TEST(PartitionModels, ConvolutionsByChannels) {
  const RuledNetwork network{"small_resnet", {}, {}};
  const Step step = step_of(network, 10);
  for (const int dim : {0, 1}) {
    for (int ranks : {2, 4}) {
      Partitioning how{.mesh = tp(ranks), .coordinates = {}};
      for (const ir::Value& v : step.graph.values()) {
        if (v.kind != ir::ValueKind::state || v.type.shape.rank() != 4) continue;
        if (v.type.shape[static_cast<size_t>(dim)].value() % ranks != 0) continue;
        how.placed[v.name].set(0, Placement::split(dim));
        how.outputs[v.name + ".grad"] = how.placed[v.name];
      }
      EXPECT_GE(how.placed.size(), 4u);
      expect_same_step(step, how);
    }
  }
}

TEST(PartitionModels, SixteenBits) {
  const RuledNetwork gpt2{
      "gpt2", {"vocabulary=41", "positions=16", "width=32", "layers=2", "heads=4"}, kGpt2Rules};
  const Step step = step_of(gpt2, 40, passes::Precision::bf16);
  for (bool sequence : {false, true}) {
    const ir::Graph g = expect_same_step(step, chosen(step, {.tp = 2, .sequence = sequence}), 6e-2);
    // Values are reduced in the type in which they are computed: 16 bits.
    size_t halves = 0;
    for (const ir::Node& node : g.nodes()) {
      if (node.op->schema.is_collective) halves += g.type(node.in[0]).dtype == DType::bf16 ? 1 : 0;
    }
    EXPECT_GE(halves, 8u) << ir::print(g);
  }
}

/// Costs depend on extents; the choice must not, from one token to more tokens than channels.
TEST(PartitionModels, TheSameCollectivesForEverySize) {
  for (const int64_t width : {16, 64, 256}) {
    for (const auto& [batch, sequence] : {std::pair<int64_t, int64_t>{1, 1}, {1, 7}, {4, 64}, {32, 128}}) {
      RuledNetwork gpt2{
          "gpt2",
          {"vocabulary=300", "positions=128", "layers=2", "heads=4", base::concat("width=", width)},
          kGpt2Rules,
          batch,
          sequence};
      RuledNetwork llama{"llama",
                         {"vocabulary=300", "layers=2", "heads=4", base::concat("width=", width),
                          base::concat("inner=", 3 * width)},
                         kLlamaRules,
                         batch,
                         sequence};
      for (const RuledNetwork& network : {gpt2, llama}) {
        const Step step = step_of(network, 300);
        for (int ranks : {2, 4}) {
          Partitioning how = partitioning_of(step, network.rules, tp(ranks));
          how.coordinates = {1};
          const ir::Graph g = passes::partition(step.graph, how);
          EXPECT_EQ(count(g, "all_reduce"), 8u) << ir::print(g);
          EXPECT_EQ(count(g, "all_gather") + count(g, "all_to_all") + count(g, "reduce_scatter"), 0u);
        }
      }
    }
  }
}

TEST(PartitionModels, TheSameCollectivesForEverySizeOfSequenceParallel) {
  std::map<std::string, std::string> seen;  // by everything that does not depend on the size
  for (const int64_t width : {16, 64, 256}) {
    for (const auto& [batch, sequence] : {std::pair<int64_t, int64_t>{2, 8}, {4, 64}, {32, 128}}) {
      RuledNetwork gpt2{
          "gpt2",
          {"vocabulary=2000", "positions=256", "layers=2", "heads=4", base::concat("width=", width)},
          {},
          batch,
          sequence};
      RuledNetwork llama{"llama",
                         {"vocabulary=2000", "layers=2", "heads=4", "kv_heads=2",
                          base::concat("width=", width), base::concat("inner=", 3 * width)},
                         {},
                         batch,
                         sequence};
      for (const RuledNetwork& network : {gpt2, llama}) {
        for (const passes::Precision precision : {passes::Precision::f32, passes::Precision::bf16}) {
          const Step step = step_of(network, 2000, precision);
          for (int ranks : {2, 4}) {
            Partitioning how = chosen(step, {.tp = ranks, .sequence = true});
            how.coordinates = how.mesh.coordinates(1);
            const ir::Graph g = passes::partition(step.graph, how);
            const std::string key = base::concat(network.name, ranks, precision == passes::Precision::f32);
            std::string counts;
            for (const char* op : {"all_reduce", "reduce_scatter", "all_to_all"})
              counts += base::concat(op, " ", count(g, op), " ");
            // The gradient of learned positions is gathered, or summed together with other small gradients.
            EXPECT_GE(count(g, "all_gather"), 15u) << key;
            EXPECT_LE(count(g, "all_gather"), 16u) << key;
            const std::string& first = seen.emplace(key, counts).first->second;
            EXPECT_EQ(counts, first) << key << " width " << width << " batch " << batch << " sequence "
                                     << sequence;
          }
        }
      }
    }
  }
}

TEST(PartitionModels, ThousandsOfNodesTakeTheTimeOfTheirNumber) {
  std::map<int64_t, std::pair<Step, Partitioning>> of_layers;
  for (const int64_t layers : {12, 96}) {
    const RuledNetwork gpt2{
        "gpt2",
        {"vocabulary=40", "positions=16", "width=32", "layers=" + std::to_string(layers), "heads=4"},
        kGpt2Rules};
    Step step = step_of(gpt2, 40);
    Partitioning how = partitioning_of(step, gpt2.rules, tp(2));
    how.coordinates = {1};
    of_layers.emplace(layers, std::pair(std::move(step), std::move(how)));
  }
  EXPECT_GE(of_layers.at(96).first.graph.nodes().size(), 2000u);
  const auto split = [&](int64_t layers) {
    const auto& [step, how] = of_layers.at(layers);
    EXPECT_EQ(count(passes::partition(step.graph, how), "all_reduce"), static_cast<size_t>(4 * layers));
  };
  EXPECT_LT(tests::growth_over_eight(12, split), tests::kMostLinearGrowth);
}

}  // namespace
}  // namespace trireme::engine
