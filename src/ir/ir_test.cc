// The graph: adding, rewiring, sorting, verifying; its text form; attributes; index notation and
// broadcasting.
#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/table.h"

namespace trireme::ir {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::Tensor;

const OpTable& table() { return ops::table(); }

Graph parsed(const std::string& text) { return parse(text, table()); }

std::string error_of(const std::function<void()>& f,
                     base::ErrorCode code = base::ErrorCode::invalid_argument) {
  try {
    f();
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), code) << e.message();
    return e.message();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

const char* const kMany = R"(graph "all kinds \"of\" things"
  %0 = input "x" : f32[batch,4]
  %1 = input "y" : i64[?]
  %2 = input "z" : f16[*]
  %3 = param "w" : f32[4,8]#ones
  %4 = const "flat" : f64[3]{1, 0.1, -inf}
  %5 = const : i8[2,2]{-128, 127, 0, 1}
  %6 = const : bool[2]{1, 0}
  %7 = const : bf16[2]{1.5, -2}
  %8 = const : f32[]{1e-05}
  %9 = const : u64[0]{}
  %10 = const : f32[100]#zeros
  %11 = matmul(%0, %3) : f32[batch,8]  # layer one
  %12 = add(%11, %8) : f32[batch,8]
  %13 = leaky_relu(%12) {alpha=0.25} : f32[batch,8]
  %14 = transpose(%13) {perm=[1, 0]} : f32[8,batch]
  %15 = gelu(%14) {approximate="tanh"} : f32[8,batch]
  %16 = clip(%15, _, %8) : f32[8,batch]
  return %16 "result", %0 "again", %1 "", %2 "z2", %4 "a", %5 "b", %6 "c", %7 "d", %9 "e", %10 "f"
)";

TEST(Text, PrintsWhatItParsed) {
  const Graph g = parsed(kMany);
  EXPECT_EQ(print(g), kMany);
  verify(g);
  Graph sorted = g;
  sorted.sort();
  const std::string text = print(sorted);
  EXPECT_EQ(print(parsed(text)), text);
}

TEST(Text, GraphsBuiltInAnyOrderRoundTripOnceSorted) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {Dim::symbol("n"), 2}});
  const ValueId a = g.add1(table().need("exp"), {x});
  const ValueId c = g.add_constant(Tensor::from<float>({2}, {0.1f, 3e38f}));
  const ValueId b = g.add1(table().need("mul"), {a, c}, {}, "late");
  g.add_output(b, "y");
  g.sort();
  const std::string text = print(g);
  const Graph again = parsed(text);
  EXPECT_EQ(print(again), text);
  EXPECT_TRUE(again.known(ValueId{1})->same_as(Tensor::from<float>({2}, {0.1f, 3e38f})));
}

TEST(Text, ResultsNobodyAskedFor) {
  const Graph g = parsed(R"(graph "holes"
  %0 = input "x" : f32[3,4]
  %1 = const : i64[1]{2}
  _, %2 = top_k(%0, %1) : _, i64[3,2]
  return %2 "index"
)");
  EXPECT_EQ(g.nodes()[0].out[0], kNoValue);
  const std::string text = print(g);
  EXPECT_EQ(print(parsed(text)), text);
}

TEST(Text, AttributesOfEveryKind) {
  // Text stores kinds only by how values look, so every look must come back as the same kind.
  Attrs attrs{{"i", int64_t{-3}},
              {"f", 2.0},
              {"s", std::string("a\"b\\\n")},
              {"is", std::vector<int64_t>{1, 2}},
              {"fs", std::vector<double>{0.5, 1e300}},
              {"ss", std::vector<std::string>{"x", ""}},
              {"t", Tensor::from<int32_t>({2}, {7, -8})}};
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {1}});
  g.add_output(g.add1(table().need("relu"), {x}, attrs), "y");
  const Graph again = parsed(print(g));
  EXPECT_TRUE(again.nodes()[0].attrs.same_as(attrs)) << print(g);
}

TEST(Text, SeededConstantsRepeat) {
  const std::string text =
      "graph \"s\"\n %a = const : f32[100]#seed=3\n %b = const : f32[100]#seed=4\n return %a, %b\n";
  const Graph one = parsed(text), two = parsed(text);
  EXPECT_TRUE(one.known(ValueId{0})->same_as(*two.known(ValueId{0})));
  EXPECT_FALSE(one.known(ValueId{0})->same_as(*one.known(ValueId{1})));
}

TEST(Text, ShardsRoundTrip) {
  const std::string text =
      "graph \"s\"\n  mesh dp=2 tp=4\n  %0 = input \"x\" : f32[8,4]@dp:S(1/3)@tp:P\n"
      "  %1 = relu(%0) : f32[8,4]@tp:P(max)\n  return %1 \"y\"\n";
  EXPECT_EQ(print(parsed(text)), text);
}

TEST(Text, ErrorsNameTheLine) {
  const auto message = [](const std::string& body) {
    return error_of([&] { parsed("graph \"g\"\n  %0 = input \"x\" : f32[2]\n" + body); });
  };
  EXPECT_EQ(message("  %1 = rleu(%0)\n return %1").substr(0, 7), "line 3:");
  EXPECT_NE(message("  %1 = relu(%7)\n return %1").find("%7 is read before"), std::string::npos);
  EXPECT_NE(message("  %0 = relu(%0)\n return %0").find("defined twice"), std::string::npos);
  EXPECT_NE(message("  %1 = relu(%0) : f32[3]\n return %1").find("the text says f32[3]"), std::string::npos);
  EXPECT_NE(message("  %1 = const : f32[2]{1}\n return %1").find("expected ','"), std::string::npos);
  EXPECT_NE(message("  %1 = const : f32[2]{1, x}\n return %1").find("not a number"), std::string::npos);
  EXPECT_NE(message("  %1 = const : f32[99]#1f\n return %1").find("left out"), std::string::npos);
  EXPECT_NE(message("  %1 = const : f33[2]{1, 2}\n return %1").find("line 3"), std::string::npos);
  EXPECT_NE(message("  %1 = relu(%0) {a=[1, \"x\"]}\n return %1").find("mixes"), std::string::npos);
  EXPECT_NE(message("  %1 = relu(%0) {a={...}}\n return %1").find("subgraph"), std::string::npos);
  EXPECT_NE(message("  %1 = relu(%0) rest\n return %1").find("unexpected"), std::string::npos);
  EXPECT_NE(message("  %1 = relu(%0\n return %1").find("line 3"), std::string::npos);
  EXPECT_NE(message("").find("no return line"), std::string::npos);
  EXPECT_NE(message(" return %0\n %1 = relu(%0)").find("after the return"), std::string::npos);
}

TEST(Graph, SortOrdersDropsDeadNodesAndKeepsInputs) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {2}});
  g.add_input("unread", {DType::f32, {2}});
  const ValueId a = g.add1(table().need("relu"), {x});
  g.add1(table().need("exp"), {a});  // nobody reads it
  const ValueId b = g.add1(table().need("neg"), {a});
  g.add_output(b, "y");
  // A node added last but read by the first: sort has to move it up.
  const ValueId late = g.add1(table().need("abs"), {x});
  g.node(NodeId{0}).in[0] = late;
  g.sort();
  ASSERT_EQ(g.nodes().size(), 3u);
  EXPECT_EQ(g.nodes()[0].op_name(), "abs");
  EXPECT_EQ(g.nodes()[1].op_name(), "relu");
  EXPECT_EQ(g.nodes()[2].op_name(), "neg");
  EXPECT_EQ(g.inputs().size(), 2u);
  verify(g);
}

TEST(Graph, SortIsStable) {
  Graph g = parsed(R"(graph "s"
  %x = input "x" : f32[2]
  %a = relu(%x)
  %b = exp(%x)
  %c = neg(%x)
  %d = sum(%c, %b, %a)
  return %d
)");
  g.sort();
  const std::string once = print(g);
  g.sort();
  EXPECT_EQ(print(g), once);
  EXPECT_EQ(g.nodes()[0].op_name(), "relu");
  EXPECT_EQ(g.nodes()[2].op_name(), "neg");
}

TEST(Graph, SortNamesANodeOfACycle) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {2}});
  const ValueId a = g.add1(table().need("add"), {x, x}, {}, "first");
  const ValueId b = g.add1(table().need("relu"), {a}, {}, "second");
  g.node(NodeId{0}).in[1] = b;
  g.add_output(b, "y");
  EXPECT_NE(error_of([&] { g.sort(); }).find("cycle"), std::string::npos);
}

TEST(Graph, SortSurvivesVeryDeepGraphs) {
  Graph g;
  ValueId v = g.add_input("x", {DType::f32, {1}});
  for (int i = 0; i < 50000; ++i) v = g.add1(table().need("relu"), {v});
  g.add_output(v, "y");
  g.sort();
  EXPECT_EQ(g.nodes().size(), 50000u);
}

TEST(Graph, ReplaceUsesRewiresReadersAndOutputs) {
  Graph g = parsed(R"(graph "r"
  %x = input "x" : f32[2]
  %a = relu(%x)
  %b = add(%a, %a)
  return %a "a", %b "b"
)");
  g.replace_uses(g.nodes()[0].out[0], g.inputs()[0]);
  g.sort();
  EXPECT_EQ(g.nodes().size(), 1u);
  EXPECT_EQ(g.outputs()[0], g.inputs()[0]);
  EXPECT_EQ(g.nodes()[0].in, std::vector<ValueId>(2, g.inputs()[0]));
  EXPECT_EQ(g.uses()[index(g.inputs()[0])].size(), 2u);
}

TEST(Graph, AddNamesTheNodeItRefuses) {
  Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {2, 3}});
  const ValueId y = g.add_input("y", {DType::f32, {4, 5}});
  EXPECT_NE(error_of([&] {
              g.add1(table().need("matmul"), {x, y}, {}, "head");
            }).find("head"),
            std::string::npos);
  EXPECT_NE(error_of([&] { g.add1(table().need("relu"), {x, y}); }).find("operands"), std::string::npos);
}

TEST(Verify, FindsBrokenGraphs) {
  const auto fresh = [] {
    return parsed(
        "graph \"v\"\n %x = input \"x\" : f32[2]\n %a = relu(%x)\n %b = exp(%a)\n return %b \"y\"\n");
  };
  const auto fails = [](Graph g) { return error_of([&] { verify(g); }, base::ErrorCode::internal); };
  Graph g = fresh();
  g.value(g.nodes()[0].out[0]).type.shape = Shape{3};
  EXPECT_NE(fails(g).find("relu"), std::string::npos);
  g = fresh();
  g.node(NodeId{0}).in[0] = g.nodes()[1].out[0];
  EXPECT_NE(fails(g).find("before it is computed"), std::string::npos);
  g = fresh();
  g.erase(NodeId{0});
  EXPECT_NE(fails(g).find("erased"), std::string::npos);
  g = fresh();
  g.add_input("x", {DType::f32, {2}});
  EXPECT_NE(fails(g).find("two inputs"), std::string::npos);
  g = fresh();
  g.value(g.inputs()[0]).kind = ValueKind::constant;
  EXPECT_NE(fails(g).find("disagree"), std::string::npos);
}

TEST(Attrs, KindsAreCheckedAndNamesSorted) {
  Attrs a{{"zeta", int64_t{1}}, {"alpha", 0.5}};
  EXPECT_EQ(a.to_string(), "alpha=0.5, zeta=1");
  EXPECT_EQ(a.get_int("zeta", 7), 1);
  EXPECT_EQ(a.get_int("absent", 7), 7);
  EXPECT_NE(error_of([&] { a.get_int("alpha", 0); }).find("has kind float, wanted int"), std::string::npos);
  EXPECT_NE(error_of([&] { a.need_int("absent"); }).find("missing"), std::string::npos);
  Attrs b = a;
  EXPECT_TRUE(a.same_as(b));
  b.set("zeta", int64_t{2});
  EXPECT_FALSE(a.same_as(b));
  b.erase("zeta");
  EXPECT_FALSE(b.has("zeta"));
  EXPECT_FALSE(Attrs({{"a", int64_t{1}}}).same_as(Attrs({{"a", 1.0}})));
}

TEST(Broadcast, FollowsNumPyAndKeepsSymbols) {
  const Dim n = Dim::symbol("n"), m = Dim::symbol("m");
  EXPECT_EQ(broadcast({2, 1}, {3}), (Shape{2, 3}));
  EXPECT_EQ(broadcast({}, {3, 0}), (Shape{3, 0}));
  EXPECT_EQ(broadcast({n, 1}, {1, m}), (Shape{n, m}));
  EXPECT_EQ(broadcast({n, 4}, {n, 4}), (Shape{n, 4}));
  EXPECT_EQ(broadcast({n}, {5}), (Shape{5}));
  EXPECT_TRUE(broadcast({n}, {m})[0].is_unknown());
  EXPECT_FALSE(broadcast(Shape::unknown_rank(), {2}).has_rank());
  EXPECT_NE(error_of([] { broadcast({2, 3}, {4}); }).find("do not broadcast"), std::string::npos);
}

TEST(Notation, BindsLettersAndEllipsis) {
  const Attrs none;
  const auto infer = [&](const std::string& notation, std::vector<Shape> shapes) {
    NodeView v{.attrs = none, .in = {}, .out = {}, .known = {}, .is_present = {}};
    for (Shape& s : shapes) v.in.push_back({DType::f32, std::move(s)}), v.is_present.push_back(true);
    return infer_from_notation(notation, v)[0].shape;
  };
  const Dim n = Dim::symbol("n");
  EXPECT_EQ(infer("...mk,kn->...mn", {{n, 2, 3}, {3, 5}}), (Shape{n, 2, 5}));
  EXPECT_EQ(infer("...mk,kn->...mn", {{2, n}, {3, 5}}), (Shape{2, 5}));
  EXPECT_EQ(infer("...,...->...", {{4, 1}, {n}}), (Shape{4, n}));
  EXPECT_EQ(infer("ij->ji", {{2, n}}), (Shape{n, 2}));
  EXPECT_NE(error_of([&] { infer("...mk,kn->...mn", {{2, 3}, {4, 5}}); }).find("'k'"), std::string::npos);
  EXPECT_NE(error_of([&] { infer("ij->ji", {{2}}); }).find("does not fit"), std::string::npos);
}

TEST(Axis, CountsFromTheEnd) {
  EXPECT_EQ(normal_axis(-1, 3), 2u);
  EXPECT_EQ(normal_axis(0, 3), 0u);
  error_of([] { normal_axis(3, 3); });
  error_of([] { normal_axis(-4, 3); });
}

TEST(Graph, ReadsAStateBeforeItIsUpdated) {
  Graph g;
  const ValueId state = g.add_state("s", {tensor::DType::f32, {4}});
  const ValueId x = g.add_input("x", {tensor::DType::f32, {4}});
  const ValueId sum = g.add1(ops::table().need("ema_update"), {state, x}, {{"keep", 0.5}});
  const ValueId old = g.add1(ops::table().need("relu"), {state});
  g.add_output(sum, "sum");
  g.add_output(old, "old");
  g.sort();
  verify(g);
  EXPECT_EQ(g.nodes()[0].op_name(), "relu");
}

}  // namespace
}  // namespace trireme::ir
