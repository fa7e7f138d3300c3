// The type check of rank graphs: typical errors of combined parallelism (training contracts C1-C4, C9) as
// graphs, each of which is refused with the step that is missing or superfluous, next to the correct graph,
// which passes.
#include <gtest/gtest.h>

#include "ops/table.h"
#include "passes/partition/collective_types.h"
#include "passes/partition/partition.h"
#include "passes/train/train.h"

namespace trireme::passes {
namespace {

using ir::Graph;
using tensor::Placement;

Graph graph_of(const std::string& text) { return ir::parse(text, ops::table()); }

/// The error message of the check; "" if it passes.
std::string refusal(const Graph& graph) {
  try {
    infer_shards(graph);
    return "";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
    return e.message();
  }
}
std::string refusal(const std::string& text) { return refusal(graph_of(text)); }

/// Placements of the outputs on the first axis.
std::vector<Placement> outputs_of(const std::string& text) {
  const Graph graph = graph_of(text);
  const std::vector<tensor::Shard> shards = infer_shards(graph);
  std::vector<Placement> out;
  for (const ir::ValueId id : graph.outputs()) out.push_back(shards[ir::index(id)].on(0));
  return out;
}

#define EXPECT_REFUSED(graph, words)                                             \
  do {                                                                           \
    const std::string said = refusal(graph);                                     \
    EXPECT_NE(said.find(words), std::string::npos) << "said: \"" << said << '"'; \
  } while (false)
#define EXPECT_RIGHT(graph) EXPECT_EQ(refusal(graph), "")

std::string lines(const std::string& mesh, const std::string& body) {
  return "graph \"g\"\n  mesh " + mesh + "\n" + body;
}

TEST(InferShards, ColumnThenRowParallelIsAPartialSum) {
  const std::string mlp = R"(  %x = input "x" : f32[4,8]
  %a = input "a" : f32[8,3]@tp:S(1)
  %b = input "b" : f32[3,8]@tp:S(0)
  %h = matmul(%x, %a) : f32[4,3]
  %g = gelu(%h) : f32[4,3]
  %y = matmul(%g, %b) : f32[4,8]
)";
  EXPECT_EQ(outputs_of(lines("tp=2", mlp + "  return %h \"h\", %y \"y\"\n")),
            (std::vector{Placement::split(1), Placement::partial_sum()}));
  EXPECT_EQ(outputs_of(lines("tp=2", mlp + "  %z = all_reduce(%y) {axes=\"tp\", parts=[2]} : f32[4,8]\n"
                                           "  return %z \"z\"\n")),
            std::vector{Placement{}});
}

TEST(InferShards, ViewsOfOneRowStayPartsOfTheBatch) {
  const std::string views = R"(  %x = input "x" : f32[1,16,32]@dp:S(0)
  %heads = const : i64[4]{1, 16, 4, 8}
  %last = const : i64[4]{1, 16, 32, 1}
  %y = reshape(%x, %heads) : f32[1,16,4,8]
  %z = reshape(%x, %last) : f32[1,16,32,1]
  return %y "y", %z "z"
)";
  EXPECT_EQ(outputs_of(lines("dp=2", views)), (std::vector{Placement::split(0), Placement::split(0)}));
}

TEST(InferShards, RefusesAReductionOfWhatIsWhole) {
  EXPECT_REFUSED(lines("tp=2", R"(  %x = input "x" : f32[4,8]
  %y = all_reduce(%x) {axes="tp", parts=[2]} : f32[4,8]  # layer3
  return %y "y"
)"),
                 "superfluous");
  EXPECT_REFUSED(lines("tp=2", R"(  %x = input "x" : f32[4,8]@tp:P
  %y = all_reduce(%x) {axes="tp", parts=[2]} : f32[4,8]
  %z = all_reduce(%y) {axes="tp", parts=[2]} : f32[4,8]
  return %z "z"
)"),
                 "would count it 2 times");
}

TEST(InferShards, RefusesAPartialSumWhereTheOpIsNotLinear) {
  const std::string product = R"(  %x = input "x" : f32[4,8]@tp:S(1)
  %w = input "w" : f32[8,3]@tp:S(0)
  %h = matmul(%x, %w) : f32[4,3]
)";
  EXPECT_REFUSED(lines("tp=2", product + "  %y = gelu(%h) : f32[4,3]\n  return %y \"y\"\n"), "is missing");
  EXPECT_REFUSED(lines("tp=2", product + "  %y = mul(%h, %h) : f32[4,3]\n  return %y \"y\"\n"),
                 "partial sum");
  EXPECT_RIGHT(lines("tp=2", product + "  %y = add(%h, %h) : f32[4,3]\n  return %y \"y\"\n"));
}

TEST(InferShards, RefusesARowParallelBiasBeforeTheReduction) {
  const std::string product = R"(  %x = input "x" : f32[4,8]@tp:S(1)
  %w = input "w" : f32[8,3]@tp:S(0)
  %b = input "b" : f32[3]
  %h = matmul(%x, %w) : f32[4,3]
)";
  EXPECT_REFUSED(lines("tp=4", product + "  %y = add(%h, %b) : f32[4,3]\n"
                                         "  %z = all_reduce(%y) {axes=\"tp\", parts=[4]} : f32[4,3]\n"
                                         "  return %z \"z\"\n"),
                 "would count once for every rank");
  EXPECT_RIGHT(lines("tp=4", product + "  %y = all_reduce(%h) {axes=\"tp\", parts=[4]} : f32[4,3]\n"
                                       "  %z = add(%y, %b) : f32[4,3]\n  return %z \"z\"\n"));
}

/// The weight gradient of a product whose rows are split along `axis`, and its update.
std::string update_of(const std::string& mesh, const std::string& reduction) {
  return lines(mesh, R"(  %x = input "x" : f32[8,4]@dp:S(1)
  %dy = input "dy" : f32[4,3]@dp:S(0)
  %lr = input "lr" : f32[]
  %t = input "step" : i64[]
  %w = state "w" : f32[8,3]
  %m = state "m" : f32[8,3]
  %v = state "v" : f32[8,3]
  %g = matmul(%x, %dy) : f32[8,3]
)" + reduction + R"(  %p, %q, %r = adam_update(%lr, %t, _, _, %w, %s, %m, %v) : f32[8,3], f32[8,3], f32[8,3]
  return %lr "lr"
)");
}

TEST(InferShards, RefusesAPartialGradientInTheOptimizer) {
  EXPECT_REFUSED(update_of("dp=2", "  %s = identity(%g) : f32[8,3]\n"),
                 "is a partial sum when it reaches the update of operand 4 'w'");
  EXPECT_RIGHT(update_of("dp=2", "  %s = all_reduce(%g) {axes=\"dp\", parts=[2]} : f32[8,3]\n"));
  EXPECT_REFUSED(update_of("dp=2", R"(  %h = all_reduce(%g) {axes="dp", parts=[2]} : f32[8,3]
  %s = all_reduce(%h) {axes="dp", parts=[2]} : f32[8,3]
)"),
                 "superfluous");
}

TEST(InferShards, RefusesAGradientHeldOtherwiseThanItsParameter) {
  EXPECT_REFUSED(lines("dp=2", R"(  %g = input "g" : f32[4,3]@dp:S(0)
  %lr = input "lr" : f32[]
  %t = input "step" : i64[]
  %w = state "w" : f32[4,3]
  %p = sgd_update(%lr, %t, _, _, %w, %g) : f32[4,3]
  return %lr "lr"
)"),
                 "operand 5 'g' is S(0), operand 4 'w' which it updates is R");
}

/// Loss sums and numbers of valid targets of the ranks' tokens: the mean over the whole batch is sum / sum.
/// For sums 6 and 10 over 1 and 3 targets it is 4, whereas the mean of means is 14/3.
TEST(InferShards, RefusesALocalCountUnderASum) {
  const std::string sums = R"(  %l = input "losses" : f32[4]@dp:S(0)
  %m = input "valid" : f32[4]@dp:S(0)
  %a = const : i64[1]{0}
  %s = reduce_sum(%l, %a) {keepdims=0} : f32[]
  %n = reduce_sum(%m, %a) {keepdims=0} : f32[]
)";
  EXPECT_REFUSED(lines("dp=2", sums + "  %q = div(%s, %n) : f32[]\n"
                                      "  %y = all_reduce(%q) {axes=\"dp\", parts=[2]} : f32[]\n"
                                      "  return %y \"mean\"\n"),
                 "is not linear in it: an all_reduce");
  EXPECT_REFUSED(lines("dp=2", sums + "  %t = all_reduce(%s) {axes=\"dp\", parts=[2]} : f32[]\n"
                                      "  %q = div(%t, %n) : f32[]\n  return %q \"mean\"\n"),
                 "partial sum");
  EXPECT_RIGHT(lines("dp=2", sums + "  %t, %c = all_reduce(%s, %n) {axes=\"dp\", parts=[2]} : f32[], f32[]\n"
                                    "  %q = div(%t, %c) : f32[]\n  return %q \"mean\"\n"));
  // First the count is reduced and the loss is scaled by it, then one sum follows: the form of C9.
  EXPECT_RIGHT(lines("dp=2", sums + "  %c = all_reduce(%n) {axes=\"dp\", parts=[2]} : f32[]\n"
                                    "  %q = div(%s, %c) : f32[]\n"
                                    "  %y = all_reduce(%q) {axes=\"dp\", parts=[2]} : f32[]\n"
                                    "  return %y \"mean\"\n"));
}

TEST(InferShards, RefusesAMeanOverPartsThatIsSummed) {
  // A mean over the rank's tokens divides by a local extent, so the result is not a partial sum.
  EXPECT_NE(refusal(lines("dp=2", R"(  %l = input "losses" : f32[4]@dp:S(0)
  %a = const : i64[1]{0}
  %s = reduce_mean(%l, %a) {keepdims=0} : f32[]
  %y = all_reduce(%s) {axes="dp", parts=[2]} : f32[]
  return %y "mean"
)")),
            "");
}

TEST(InferShards, SequenceParallelNormWeightsNeedTheirReduction) {
  const auto graph = [](const std::string& reduction) {
    return lines("tp=2", R"(  %dy = input "dy" : f32[2,3,8]@tp:S(1)
  %n = input "normal" : f32[2,3,8]@tp:S(1)
  %lr = input "lr" : f32[]
  %t = input "step" : i64[]
  %w = state "norm.weight" : f32[8]
  %a = const : i64[2]{0, 1}
  %c = mul(%dy, %n) : f32[2,3,8]
  %g = reduce_sum(%c, %a) {keepdims=0} : f32[8]
)" + reduction + "  %p = sgd_update(%lr, %t, _, _, %w, %s) : f32[8]\n  return %lr \"lr\"\n");
  };
  EXPECT_REFUSED(graph("  %s = identity(%g) : f32[8]\n"), "mesh axis tp: operand 5 is a partial sum");
  EXPECT_RIGHT(graph("  %s = all_reduce(%g) {axes=\"tp\", parts=[2]} : f32[8]\n"));
}

TEST(InferShards, ReplicatedKeyValueHeadsNeedTheirGradientsSummed) {
  // Query heads are split over tpr and tp, the key heads over tp only: each tpr rank has the gradient from
  // its queries.
  const auto graph = [](const std::string& reduction) {
    return lines("tpr=2 tp=2", R"(  %x = input "x" : f32[8,4]
  %dk = input "dk" : f32[4,3]@tpr:P@tp:S(1)
  %lr = input "lr" : f32[]
  %t = input "step" : i64[]
  %w = state "k.weight" : f32[8,3]@tp:S(1)
  %g = matmul(%x, %dk) : f32[8,3]
)" + reduction + "  %p = sgd_update(%lr, %t, _, _, %w, %s) : f32[8,3]\n  return %lr \"lr\"\n");
  };
  EXPECT_REFUSED(graph("  %s = identity(%g) : f32[8,3]\n"), "mesh axis tpr: operand 5 is a partial sum");
  EXPECT_RIGHT(graph("  %s = all_reduce(%g) {axes=\"tpr\", parts=[2]} : f32[8,3]\n"));
  EXPECT_REFUSED(graph("  %s = all_reduce(%g) {axes=\"tpr,tp\", parts=[2,2]} : f32[8,3]\n"), "mesh axis tp");
}

/// The gradient graph of a forward graph in text form with the scalar %l and the state "w".
Graph gradients(const std::string& forward) {
  Graph graph = graph_of(forward);
  ir::ValueId w = ir::kNoValue;
  for (size_t i = 0; i < graph.values().size(); ++i) {
    if (graph.values()[i].name == "w") w = ir::ValueId(static_cast<uint32_t>(i));
  }
  const ir::ValueId loss = graph.outputs()[0];
  const std::vector<ParamGradient> grads = differentiate(graph, loss, {w});
  graph.set_outputs({grads.at(0).gradient}, {"dw"});
  graph.sort();
  return graph;
}

/// A gathered weight: all ranks use it for the same product (x replicated), or each for its part of x.
std::string gathered_weight(const std::string& grad, const std::string& x) {
  return lines("tp=2", "  %x = input \"x\" : f32[4,8]" + x + R"(
  %w = state "w" : f32[4,3]@tp:S(0)
  %a = const : i64[2]{0, 1}
  %g = all_gather(%w) {axes="tp", parts=[2], index=[1], dim=0, grad=")" +
                           grad + R"("} : f32[8,3]
  %y = matmul(%x, %g) : f32[4,3]
  %l = reduce_sum(%y, %a) {keepdims=0} : f32[]
  return %l "loss"
)");
}

TEST(InferShards, RefusesAGatherWithTheWrongBackward) {
  // All ranks compute the same gradient; a sum would count it once per rank.
  EXPECT_REFUSED(gradients(gathered_weight("partial", "")), "superfluous");
  const Graph right = gradients(gathered_weight("replicated", ""));
  EXPECT_EQ(infer_shards(right)[ir::index(right.outputs()[0])].on(0), Placement::split(0));
  // Each rank has the gradient from its rows; a slice would lose those of the others.
  EXPECT_REFUSED(gradients(gathered_weight("replicated", "@tp:S(0)")), "a slice of it drops");
  EXPECT_RIGHT(gradients(gathered_weight("partial", "@tp:S(0)")));
}

TEST(InferShards, EnteringSharedOutWorkNeedsASumOfTheGradient) {
  const auto graph = [](const std::string& enter) {
    return gradients(lines("tp=2", R"(  %w = state "w" : f32[4,8]
  %b = input "b" : f32[8,3]@tp:S(1)
  %a = const : i64[2]{0, 1}
)" + enter + R"(  %y = matmul(%u, %b) : f32[4,3]
  %s = reduce_sum(%y, %a) {keepdims=0} : f32[]
  %l = all_reduce(%s) {axes="tp", parts=[2]} : f32[]
  return %l "loss"
)"));
  };
  const Graph with = graph("  %u = gradient_sum(%w) {axes=\"tp\", parts=[2]} : f32[4,8]\n");
  EXPECT_TRUE(infer_shards(with)[ir::index(with.outputs()[0])].on(0).is_replicated());
  const Graph without = graph("  %u = identity(%w) : f32[4,8]\n");
  EXPECT_TRUE(infer_shards(without)[ir::index(without.outputs()[0])].on(0).is_partial());
}

TEST(InferShards, MasksOfReplicasAreEqualAndOfPartsAreNot) {
  const auto graph = [](const std::string& x, const std::string& rng, const std::string& attrs) {
    return lines("tp=2", "  %x = input \"x\" : f32[4,6]" + x + "\n  %r = input \"rng\" : i64[3]" + rng +
                             "\n  %y = dropout_train(%x, %r) {" + attrs +
                             "} : f32[4,6]\n  return %y \"y\"\n");
  };
  EXPECT_RIGHT(graph("", "", "op=1"));
  EXPECT_RIGHT(graph("@tp:S(1)", "", "op=1, dims=[4,12], begin=[0,6]"));
  EXPECT_RIGHT(graph("@tp:S(0)", "@tp:O", "op=1"));  // rows of the rank's own micro-batch
  EXPECT_REFUSED(graph("@tp:S(1)", "", "op=1"), "the masks of the parts would be the same");
  EXPECT_REFUSED(graph("", "", "op=1, dims=[4,12], begin=[0,6]"), "replicas would drop different elements");
  EXPECT_REFUSED(graph("", "@tp:O", "op=1"), "replicas would drop different elements");
}

TEST(InferShards, VocabularyPartsMayDifferInLengthAndNeedNoPadding) {
  EXPECT_EQ(outputs_of(lines("tp=2", R"(  %z = input "logits" : f32[4,3]@tp:S(1)
  %y = all_gather(%z) {axes="tp", parts=[2], index=[1], dim=1, extents=[7]} : f32[4,7]
  return %y "y"
)")),
            std::vector{Placement{}});
  // A softmax over a part of the vocabulary differs from the softmax over all of it.
  EXPECT_REFUSED(lines("tp=2", R"(  %z = input "logits" : f32[4,3]@tp:S(1)
  %y = softmax(%z) {axis=-1} : f32[4,3]
  return %y "y"
)"),
                 "S(1)");
}

TEST(InferShards, ClipNormsCountEachElementOnce) {
  const std::string squares = R"(  %g = input "split" : f32[4,3]@tp:S(0)
  %h = input "whole" : f32[4,3]
  %a = const : i64[2]{0, 1}
  %i = mul(%g, %g) : f32[4,3]
  %j = mul(%h, %h) : f32[4,3]
  %s = reduce_sum(%i, %a) {keepdims=0} : f32[]
  %t = reduce_sum(%j, %a) {keepdims=0} : f32[]
)";
  EXPECT_REFUSED(lines("tp=2", squares + "  %n = add(%s, %t) : f32[]\n"
                                         "  %y = all_reduce(%n) {axes=\"tp\", parts=[2]} : f32[]\n"
                                         "  return %y \"norm\"\n"),
                 "would count once for every rank");
  EXPECT_RIGHT(lines("tp=2", squares + "  %r = all_reduce(%s) {axes=\"tp\", parts=[2]} : f32[]\n"
                                       "  %n = add(%r, %t) : f32[]\n  return %n \"norm\"\n"));
}

TEST(InferShards, ZeroUpdatesASliceAndGathersIt) {
  const auto graph = [](const std::string& gather_dim) {
    return lines("dp=2", R"(  %g = input "g" : f32[4,6]@dp:P
  %lr = input "lr" : f32[]
  %t = input "step" : i64[]
  %w = state "w" : f32[4,6]
  %c = state "w.part" : f32[2,6]@dp:S(0)
  %s = reduce_scatter(%g) {axes="dp", parts=[2], dim=0} : f32[2,6]
  %p = sgd_update(%lr, %t, _, _, %c, %s) : f32[2,6]
  %q = gather_into(%w, %p) {axes="dp", parts=[2], dim=)" +
                             gather_dim + "} : f32[4,6]\n  return %lr \"lr\"\n");
  };
  EXPECT_RIGHT(graph("0"));
  EXPECT_REFUSED(lines("dp=2", R"(  %x = input "x" : f32[2,6]
  %w = state "w" : f32[4,6]
  %q = gather_into(%w, %x) {axes="dp", parts=[2], dim=0} : f32[4,6]
  return %x "x"
)"),
                 "superfluous");
}

TEST(InferShards, InnerAxesAreGatheredFirst) {
  // The last axis cuts outermost, so parts over dp are subdivisions of parts over tp.
  const std::string x = "  %x = input \"x\" : f32[2,6]@dp:S(0)@tp:S(0)\n";
  EXPECT_RIGHT(lines("dp=2 tp=2", x + R"(  %y = all_gather(%x) {axes="dp", parts=[2], dim=0} : f32[4,6]
  %z = all_gather(%y) {axes="tp", parts=[2], dim=0} : f32[8,6]
  return %z "z"
)"));
  EXPECT_RIGHT(lines("dp=2 tp=2", x + R"(  %z = all_gather(%x) {axes="dp,tp", parts=[2,2], dim=0} : f32[8,6]
  return %z "z"
)"));
  EXPECT_REFUSED(lines("dp=2 tp=2", x + R"(  %y = all_gather(%x) {axes="tp", parts=[2], dim=0} : f32[4,6]
  return %y "y"
)"),
                 "mesh axis dp: operand 0 'x': dimension 0 is also split over dp, inside the parts of tp");
}

TEST(InferShards, OpsWithoutARuleTakeWholeValues) {
  EXPECT_RIGHT(lines("tp=2", "  %x = input \"x\" : f32[4,4]\n  %y = det(%x) : f32[]\n  return %y \"y\"\n"));
  const std::string split =
      "  %x = input \"x\" : f32[4,4]@tp:S(0)\n  %y = det(%x) : f32[]\n  return %y \"y\"\n";
  EXPECT_REFUSED(lines("tp=2", split), "(det), mesh axis tp");
}

TEST(InferShards, ExtentsOfOneThatAreSplitAreNotBroadcast) {
  // Two heads on two ranks, one for each.
  EXPECT_EQ(outputs_of(lines("tp=2", R"(  %x = input "x" : f32[4,1,8]@tp:S(1)
  %y = input "y" : f32[4,1,8]@tp:S(1)
  %z = add(%x, %y) : f32[4,1,8]
  return %z "z"
)")),
            std::vector{Placement::split(1)});
}

TEST(InferShards, RecordedPlacementsAreHeldAgainstInferredOnes) {
  EXPECT_REFUSED(lines("tp=2", R"(  %x = input "x" : f32[4,6]
  %y = relu(%x) : f32[4,6]@tp:S(0)
  return %y "y"
)"),
                 "was placed as S(0) and is R");
}

TEST(InferShards, AConstantThatRepeatsItselfStandsForAnyPart) {
  const auto with_positions = [](const std::string& positions) {
    return lines("dp=2", R"(  %x = input "x" : f32[2,3,4]@dp:S(0)
  %cos = input "cos" : f32[8,2]
  %sin = input "sin" : f32[8,2]
  %at = const : )" + positions +
                             R"(
  %y = rotary_embedding(%x, %cos, %sin, %at) {num_heads=1} : f32[2,3,4]  # rotate
  return %y "y"
)");
  };
  EXPECT_RIGHT(with_positions("i64[2,3]{0, 1, 2, 0, 1, 2}"));
  EXPECT_REFUSED(with_positions("i64[2,3]{0, 1, 2, 3, 4, 5}"), "operand 3");
}

TEST(InferShards, CollectivesKeepTheirPlacesWhateverStandsBetween) {
  // If nodes were sorted by operands alone, the chain of %b would come first, as it makes the first output.
  Graph graph = graph_of(lines("tp=2", R"(  %x = input "x" : f32[4]@tp:P
  %y = input "y" : f32[4]@tp:P
  %a = all_reduce(%x) {axes="tp", parts=[2]} : f32[4]
  %b = all_reduce(%y) {axes="tp", parts=[2]} : f32[4]
  return %a "a", %b "b"
)"));
  fix_collective_order(graph);
  ir::OpTable const& table = ops::table();
  const ir::ValueId late = graph.add1(table.need("relu"), {graph.inputs()[0]});
  graph.set_operand(graph.value(graph.outputs()[0]).producer, 0, late);
  graph.sort();
  std::vector<int64_t> order;
  for (const ir::Node& node : graph.nodes()) {
    if (node.op->schema.is_collective) order.push_back(node.attrs.get_int("order", -1));
  }
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1}));
}

}  // namespace
}  // namespace trireme::passes
