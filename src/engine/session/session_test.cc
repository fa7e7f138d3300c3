// Sessions: buckets, data-dependent shapes, control flow, shared weights, thread-count invariance, refused
// inputs.
#include "engine/session/session.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "base/memory/memory_budget.h"
#include "engine/run_stop.h"
#include "engine/session/test_noise.h"
#include "ops/table.h"
#include "tests/test_device.h"

namespace trireme::engine {
namespace {

using tensor::Dim;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

std::shared_ptr<const PreparedModel> model_of(const std::string& text) {
  return std::make_shared<const PreparedModel>(ir::parse(text, ops::table()));
}

Tensor floats(std::vector<float> values, Dims dims = {}) {
  if (dims.empty()) dims = {static_cast<int64_t>(values.size())};
  return Tensor::from<float>(std::move(dims), std::span<const float>(values));
}

Tensor longs(std::vector<int64_t> values) {
  return Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, std::span<const int64_t>(values));
}

std::vector<double> values(const Tensor& t) { return t.to_doubles(); }
using Doubles = std::vector<double>;

void expect_refused(Session& session, const std::vector<Tensor>& inputs, const std::string& why) {
  try {
    session.run(inputs);
    FAIL() << "accepted where the reason should have been: " << why;
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
    EXPECT_NE(e.message().find(why), std::string::npos) << e.message();
  }
}

const char* const kTwice = R"(graph "twice"
  %0 = input "x" : f32[batch,3]
  %1 = input "z" : f32[batch,1]
  %2 = add(%0, %1)
  %3 = shape(%2)
  return %2 "y", %3 "shape"
)";

TEST(Session, CompilesOncePerShapeAndForgetsTheOldest) {
  Session session(model_of(kTwice), {.device = tests::device_under_test(), .threads = 1, .max_programs = 2});
  const auto prepared = [&](int64_t n) { return &session.prepare({{n, 3}, {n, 1}}); };
  const auto* one = prepared(1);
  EXPECT_EQ(prepared(1), one);
  prepared(2);
  EXPECT_EQ(prepared(1), one);  // now 2 is the oldest
  prepared(3);
  EXPECT_EQ(prepared(1), one);
  for (int64_t n : {4, 2, 5, 1, 4, 3}) {
    const auto out = session.run({noise({n, 3}, 1), noise({n, 1}, 2)});
    EXPECT_EQ(out[0].dims(), (Dims{n, 3}));
    EXPECT_EQ(out[1].to_ints(), (std::vector<int64_t>{n, 3}));
  }
}

TEST(Session, EmptyBatches) {
  Session session(model_of(kTwice), {.device = tests::device_under_test(), .threads = 2});
  const auto out = session.run({noise({0, 3}, 1), noise({0, 1}, 2)});
  EXPECT_EQ(out[0].dims(), (Dims{0, 3}));
  EXPECT_EQ(out[1].to_ints(), (std::vector<int64_t>{0, 3}));
}

TEST(Session, RefusesInputsTheModelDoesNotTake) {
  Session session(model_of(kTwice), {.device = tests::device_under_test(), .threads = 1});
  const Tensor x = noise({2, 3}, 1), z = noise({2, 1}, 2);
  expect_refused(session, {x}, "takes 2 inputs");
  expect_refused(session, {x, Tensor()}, "'z' is missing");
  expect_refused(session, {x, Tensor::zeros(DType::f64, {2, 1})}, "'z' has type f64");
  expect_refused(session, {noise({2, 4}, 1), z}, "'x' has shape [2,4]");
  expect_refused(session, {noise({2}, 1), z}, "'x' has shape [2]");
  expect_refused(session, {noise({3, 3}, 1), z}, "dimension 'batch' is 3 in one input and 2");
  EXPECT_EQ(session.run({x, z}).size(), 2u);  // a refusal does not change the session
}

TEST(Session, RefusesMemoryThatDoesNotFit) {
  Session session(model_of(kTwice), {.device = tests::device_under_test(), .threads = 1});
  const std::vector<Tensor> in{noise({2, 3}, 1), noise({2, 1}, 2)};
  std::vector<Tensor> out = session.run(in);
  session.run_into(in, out);
  out[0] = Tensor::zeros(DType::f32, {3, 2});
  EXPECT_THROW(session.run_into(in, out), base::Error);
  out.pop_back();
  EXPECT_THROW(session.run_into(in, out), base::Error);
}

TEST(Session, ShapesThatDependOnData) {
  // Finds, gathers and scales positive elements: two cuts, then a program for the size found.
  Session session(model_of(R"(graph "chain"
  %0 = input "x" : f32[n]
  %1 = const : f32[]{0}
  %2 = const : i64[1]{-1}
  %3 = const : f32[]{10}
  %4 = greater(%0, %1)
  %5 = non_zero(%4)
  %6 = reshape(%5, %2)
  %7 = gather(%0, %6)
  %8 = mul(%7, %3)
  %9 = compress(%0, %4)
  %10 = sub(%8, %9)
  %11 = neg(%0)
  return %8 "scaled", %10 "nine", %11 "all", %6 "where"
)"),
                  {.device = tests::device_under_test(), .threads = 2});
  EXPECT_FALSE(session.is_static({{5}}));
  for (int round = 0; round < 2; ++round) {
    const auto out = session.run({floats({1, -2, 3, 0, 4})});
    EXPECT_EQ(values(out[0]), (Doubles{10, 30, 40}));
    EXPECT_EQ(values(out[1]), (Doubles{9, 27, 36}));
    EXPECT_EQ(values(out[2]), (Doubles{-1, 2, -3, 0, -4}));
    EXPECT_EQ(out[3].to_ints(), (std::vector<int64_t>{0, 2, 4}));
    const auto none = session.run({floats({-1, -1, -1, -1, -1})});
    EXPECT_EQ(none[0].dims(), (Dims{0}));
    EXPECT_EQ(none[1].dims(), (Dims{0}));
  }
}

TEST(Session, ShapesThatAreInputs) {
  Session session(model_of(R"(graph "by value"
  %0 = input "x" : f32[n]
  %1 = input "to" : i64[k]
  %2 = reshape(%0, %1)
  %3 = exp(%2)
  %4 = expand(%3, %1)
  return %3 "y", %4 "z"
)"),
                  {.device = tests::device_under_test(), .threads = 1});
  EXPECT_EQ(session.run({noise({6}, 1), longs({2, 3})})[0].dims(), (Dims{2, 3}));
  EXPECT_EQ(session.run({noise({6}, 1), longs({3, 2})})[0].dims(), (Dims{3, 2}));
  EXPECT_EQ(session.run({noise({6}, 1), longs({6})})[1].dims(), (Dims{6}));
  expect_refused(session, {noise({6}, 1), longs({4, 2})}, "reshape");
}

/// A graph attribute cannot be written as text, so control nodes are added by hand.
ir::GraphPtr subgraph(const std::string& text) {
  return std::make_shared<const ir::Graph>(ir::parse(text, ops::table()));
}

std::shared_ptr<const PreparedModel> control_model(const std::string& op,
                                                   const std::vector<tensor::TensorType>& inputs,
                                                   ir::Attrs attrs, size_t results) {
  ir::Graph g;
  std::vector<ir::ValueId> in;
  for (size_t i = 0; i < inputs.size(); ++i) in.push_back(g.add_input(base::concat("in", i), inputs[i]));
  const auto out = g.add(ops::table().need(op), in, std::move(attrs), results, "control");
  for (size_t i = 0; i < out.size(); ++i) g.add_output(out[i], base::concat("out", i));
  return std::make_shared<const PreparedModel>(std::move(g));
}

const tensor::TensorType kVector{DType::f32, {Dim::symbol("n")}};
const tensor::TensorType kTrips{DType::i64, {}}, kCondition{DType::boolean, {}};

TEST(Control, IfTakesOneBranchWithItsCaptures) {
  ir::Attrs attrs{{"captures", int64_t{2}}};
  attrs.set("then_branch", subgraph("graph \"t\"\n %0 = input \"a\" : f32[n]\n %1 = input \"b\" : f32[n]\n"
                                    " %2 = add(%0, %1)\n return %2\n"));
  attrs.set("else_branch", subgraph("graph \"e\"\n %0 = input \"a\" : f32[n]\n %1 = input \"b\" : f32[n]\n"
                                    " %2 = sub(%0, %1)\n return %2\n"));
  Session session(control_model("if", {kCondition, kVector, kVector}, attrs, 1),
                  {.device = tests::device_under_test(), .threads = 1});
  const Tensor a = floats({1, 2}), b = floats({10, 20});
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(values(session.run({Tensor::scalar(true), a, b})[0]), (Doubles{11, 22}));
    EXPECT_EQ(values(session.run({Tensor::scalar(false), a, b})[0]), (Doubles{-9, -18}));
  }
}

/// A chain of nodes that wait for each other is compiled part by part; results that no program computes are
/// copies, since callers may free their inputs.
TEST(Control, ChainsOfBranchesHandOutMemoryOfTheirOwn) {
  constexpr int kLinks = 300;
  const tensor::TensorType pair{DType::f32, {2}};
  ir::Attrs attrs{{"captures", int64_t{1}}};
  attrs.set("then_branch",
            subgraph("graph \"t\"\n %0 = input \"a\" : f32[2]\n %1 = add(%0, %0)\n return %1\n"));
  attrs.set("else_branch", subgraph("graph \"e\"\n %0 = input \"a\" : f32[2]\n return %0\n"));
  ir::Graph g;
  const ir::ValueId c = g.add_input("c", kCondition), d = g.add_input("d", kCondition);
  const ir::ValueId x = g.add_input("x", pair);
  const ir::ValueId root = g.add1(ops::table().need("sqrt"), {x});
  ir::ValueId v = root;
  for (int i = 0; i < kLinks; ++i) {
    v = g.add1(ops::table().need("if"), {i % 100 == 0 ? d : c, v}, attrs);
    if (i % 2 == 0) v = g.add1(ops::table().need("neg"), {v});
  }
  g.add_output(v, "y");
  g.add_output(g.add1(ops::table().need("if"), {c, x}, attrs), "same");
  g.add_output(root, "root");
  g.add_output(root, "again");
  g.add_output(x, "x");
  Session session(std::make_shared<const PreparedModel>(std::move(g)),
                  {.device = tests::device_under_test(), .threads = 1});
  const Tensor in = floats({4, 9});
  for (int round = 0; round < 2; ++round) {
    const auto out = session.run({Tensor::scalar(false), Tensor::scalar(true), in});
    EXPECT_EQ(values(out[0]), (Doubles{16, 24}));
    EXPECT_EQ(values(out[1]), (Doubles{4, 9}));
    EXPECT_EQ(values(out[2]), (Doubles{2, 3}));
    EXPECT_EQ(values(out[3]), (Doubles{2, 3}));
    EXPECT_EQ(values(out[4]), (Doubles{4, 9}));
    std::set<const std::byte*> places{in.raw()};
    for (const Tensor& t : out) EXPECT_TRUE(places.insert(t.raw()).second);
  }
}

const char* const kLoopBody = R"(graph "body"
  %0 = input "i" : i64[]
  %1 = input "go" : bool[]
  %2 = input "v" : f32[n]
  %3 = input "step" : f32[n]
  %4 = const : f32[]{20}
  %5 = const : i64[1]{0}
  %6 = add(%2, %3)
  %7 = reduce_max(%6, %5) {keepdims=0}
  %8 = less(%7, %4)
  %9 = cast(%0) {to=1}
  %10 = mul(%9, %3)
  return %8 "go", %6 "v", %10 "scan"
)";

TEST(Control, LoopCarriesStopsAndStacks) {
  ir::Attrs attrs{{"captures", int64_t{1}}};
  attrs.set("body", subgraph(kLoopBody));
  Session session(control_model("loop", {kTrips, kCondition, kVector, kVector}, attrs, 2),
                  {.device = tests::device_under_test(), .threads = 1});
  const auto run = [&](int64_t trips, bool go) {
    return session.run({Tensor::scalar(trips), Tensor::scalar(go), floats({1, 2}), floats({5, 7})});
  };
  auto out = run(2, true);
  EXPECT_EQ(values(out[0]), (Doubles{11, 16}));
  EXPECT_EQ(out[1].dims(), (Dims{2, 2}));
  EXPECT_EQ(values(out[1]), (Doubles{0, 0, 5, 7}));
  out = run(100, true);  // 2, 9, 16, 23: the third iteration stops the loop
  EXPECT_EQ(values(out[0]), (Doubles{16, 23}));
  EXPECT_EQ(out[1].dims(), (Dims{3, 2}));
  out = run(0, true);
  EXPECT_EQ(values(out[0]), (Doubles{1, 2}));
  EXPECT_EQ(out[1].elements(), 0);
  out = run(5, false);
  EXPECT_EQ(values(out[0]), (Doubles{1, 2}));
}

/// Expects an error for amounts of memory that a request's numbers ask for beyond the session's limit.
void expect_exhausted(Session& session, const std::vector<Tensor>& inputs, const std::string& why) {
  try {
    session.run(inputs);
    FAIL() << "accepted where the reason should have been: " << why;
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::exhausted) << e.message();
    EXPECT_NE(e.message().find(why), std::string::npos) << e.message();
  }
}

TEST(Session, SizesThatAreDataKeepToTheSessionsMemory) {
  Session session(model_of(R"(graph "sized"
  %0 = input "to" : i64[k]
  %1 = constant_of_shape(%0)
  %2 = exp(%1)
  return %2 "y"
)"),
                  {.device = tests::device_under_test(), .threads = 1, .memory_bytes = 1 << 20});
  EXPECT_EQ(session.run({longs({100, 100})})[0].dims(), (Dims{100, 100}));
  expect_exhausted(session, {longs({1'000'000})}, "constant_of_shape");
  expect_exhausted(session, {longs({1 << 20, 1 << 20})}, "f32[1048576,1048576] needs 4398046511104 bytes");
  EXPECT_EQ(session.run({longs({7})})[0].dims(), (Dims{7}));
}

TEST(Control, WhatRoundsKeepIsBounded) {
  ir::Attrs attrs{{"captures", int64_t{1}}};
  attrs.set("body", subgraph("graph \"b\"\n %0 = input \"i\" : i64[]\n %1 = input \"go\" : bool[]\n"
                             " %2 = input \"v\" : f32[n]\n %3 = input \"s\" : f32[n]\n"
                             " %4 = identity(%1)\n %5 = identity(%2)\n %6 = identity(%3)\n"
                             " return %4, %5, %6\n"));
  Session session(control_model("loop", {kTrips, kCondition, kVector, kVector}, attrs, 2),
                  {.device = tests::device_under_test(), .threads = 1, .memory_bytes = 1 << 20});
  const auto inputs = [](int64_t trips) {
    return std::vector<Tensor>{Tensor::scalar(trips), Tensor::scalar(true), floats({1, 2}), floats({5, 7})};
  };
  EXPECT_EQ(session.run(inputs(1000))[1].dims(), (Dims{1000, 2}));
  expect_exhausted(session, inputs(INT64_MAX), "rounds leave no room");
  // A loop that keeps nothing is stopped by another thread.
  RunStop stop;
  attrs.set("body", subgraph("graph \"b\"\n %0 = input \"i\" : i64[]\n %1 = input \"go\" : bool[]\n"
                             " %2 = input \"v\" : f32[n]\n %3 = input \"s\" : f32[n]\n"
                             " %4 = identity(%1)\n %5 = add(%2, %3)\n return %4, %5\n"));
  Session endless(control_model("loop", {kTrips, kCondition, kVector, kVector}, attrs, 1),
                  {.device = tests::device_under_test(), .threads = 1, .stop = &stop});
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop.set(StopReason::closing);
  });
  EXPECT_THROW(endless.run(inputs(INT64_MAX)), base::Error);
  other.join();
}

/// Restores the memory limit of the process.
struct MemoryLimit {
  explicit MemoryLimit(int64_t more_bytes) {
    base::process_memory().set_limit(base::process_memory().used_bytes() + more_bytes);
  }
  ~MemoryLimit() { base::process_memory().set_limit(INT64_MAX); }
};

TEST(Session, WhatIsKeptForManyShapesIsBounded) {
  // Each shape folds a constant as large as the input: 1 MB or more.
  Session session(model_of(R"(graph "masks"
  %0 = input "x" : f32[n]
  %1 = shape(%0)
  %2 = constant_of_shape(%1)
  %3 = exp(%2)
  %4 = add(%0, %3)
  return %4 "y"
)"),
                  {.threads = 1});
  session.run({noise({8}, 1)});
  const MemoryLimit limit(int64_t{64} << 20);
  const int64_t before = base::process_memory().used_bytes();
  for (int64_t n = 0; n < 60; ++n) session.run({noise({(1 << 18) + n}, 1)});
  EXPECT_LT(base::process_memory().used_bytes() - before, int64_t{24} << 20);
}

TEST(Session, ScratchMemoryGoesBackWhereTheProcessHasLittle) {
  Session session(model_of(kTwice), {.threads = 1});
  const auto run = [&](int64_t rows) { session.run({noise({rows, 3}, 1), noise({rows, 1}, 2)}); };
  run(4);
  const int64_t before = base::process_memory().used_bytes();
  {
    const MemoryLimit limit(int64_t{400} << 20);
    run(4);
    EXPECT_GE(base::process_memory().used_bytes(), before);
    const base::MemoryLease others(base::MemoryUse::bodies, int64_t{340} << 20);
    run(1'000'000);  // 12 MB in, 12 MB out: all the memory there is
    run(4);
  }
  EXPECT_LT(base::process_memory().used_bytes() - before, int64_t{30} << 20);
}

TEST(Control, ScanReadsSlicesInBothDirections) {
  ir::Attrs attrs{{"num_scan_inputs", int64_t{1}}, {"captures", int64_t{1}}};
  attrs.set("body", subgraph("graph \"b\"\n %0 = input \"sum\" : f32[n]\n %1 = input \"x\" : f32[n]\n"
                             " %2 = input \"w\" : f32[n]\n %3 = mul(%1, %2)\n %4 = add(%0, %3)\n"
                             " %5 = identity(%4)\n return %4, %5\n"));
  const tensor::TensorType matrix{DType::f32, {Dim::symbol("t"), Dim::symbol("n")}};
  const Tensor start = floats({0, 0}), x = floats({1, 2, 3, 4, 5, 6}, {3, 2}), w = floats({1, 10});
  {
    Session session(control_model("scan", {kVector, matrix, kVector}, attrs, 2),
                    {.device = tests::device_under_test(), .threads = 1});
    const auto out = session.run({start, x, w});
    EXPECT_EQ(values(out[0]), (Doubles{9, 120}));
    EXPECT_EQ(values(out[1]), (Doubles{1, 20, 4, 60, 9, 120}));
  }
  attrs.set("scan_input_directions", std::vector<int64_t>{1});
  attrs.set("scan_output_directions", std::vector<int64_t>{1});
  attrs.set("scan_output_axes", std::vector<int64_t>{1});
  Session session(control_model("scan", {kVector, matrix, kVector}, attrs, 2),
                  {.device = tests::device_under_test(), .threads = 1});
  const auto out = session.run({start, x, w});
  EXPECT_EQ(out[1].dims(), (Dims{2, 3}));
  EXPECT_EQ(values(out[1]), (Doubles{9, 8, 5, 120, 100, 60}));
}

TEST(Control, NestedLoops) {
  // for i < 3: for j < 2: v += i * step
  ir::Graph outer;
  const ir::ValueId i = outer.add_input("i", kTrips), go = outer.add_input("go", kCondition);
  const ir::ValueId v = outer.add_input("v", kVector), step = outer.add_input("step", kVector);
  const ir::ValueId two = outer.add_constant(Tensor::scalar<int64_t>(2));
  const auto& ops = ops::table();
  const ir::ValueId scaled =
      outer.add1(ops.need("mul"), {outer.add1(ops.need("cast"), {i}, {{"to", int64_t{1}}}), step});
  ir::Attrs inner{{"captures", int64_t{1}}};
  inner.set("body", subgraph("graph \"inner\"\n %0 = input \"j\" : i64[]\n %1 = input \"go\" : bool[]\n"
                             " %2 = input \"v\" : f32[n]\n %3 = input \"s\" : f32[n]\n %4 = add(%2, %3)\n"
                             " %5 = identity(%1)\n return %5, %4\n"));
  const ir::ValueId sum = outer.add1(ops.need("loop"), {two, ir::kNoValue, v, scaled}, inner);
  outer.add_output(outer.add1(ops.need("identity"), {go}), "go");
  outer.add_output(sum, "v");
  outer.sort();
  ir::Attrs attrs{{"captures", int64_t{1}}};
  attrs.set("body", std::make_shared<const ir::Graph>(outer));
  Session session(control_model("loop", {kTrips, kCondition, kVector, kVector}, attrs, 1),
                  {.device = tests::device_under_test(), .threads = 1});
  const auto out =
      session.run({Tensor::scalar<int64_t>(3), Tensor::scalar(true), floats({100, 0}), floats({1, 10})});
  EXPECT_EQ(values(out[0]), (Doubles{106, 60}));
}

const char* const kNet = R"(graph "net"
  %0 = input "x" : f32[batch,3,17,19]
  %1 = param "w1" : f32[16,3,3,3]#seed=1
  %2 = param "w2" : f32[16,1,3,3]#seed=2
  %3 = param "w3" : f32[24,16,1,1]#seed=3
  %4 = param "w4" : f32[24,50]#seed=4
  %5 = param "b4" : f32[50]#seed=5
  %6 = param "g" : f32[50]#seed=6
  %7 = const : i64[2]{-1, 24}
  %8 = conv(%0, %1) {pads=[1, 1, 1, 1], strides=[2, 2]}
  %9 = relu(%8)
  %10 = conv(%9, %2) {group=16, pads=[1, 1, 1, 1]}
  %11 = conv(%10, %3)
  %12 = global_average_pool(%11)
  %13 = reshape(%12, %7)
  %14 = matmul(%13, %4)
  %15 = add(%14, %5)
  %16 = gelu(%15)
  %17 = layer_norm(%16, %6, %5) {axis=-1}
  %18 = softmax(%17) {axis=-1}
  return %18 "y"
)";

TEST(Session, ThreadCountDoesNotChangeABit) {
  const auto model = model_of(kNet);
  const Tensor x = noise({3, 3, 17, 19}, 9);
  const Tensor want = Session(model, {.device = tests::device_under_test(), .threads = 1}).run({x})[0];
  for (int threads : {2, 3, 4, 7}) {
    EXPECT_TRUE(
        Session(model, {.device = tests::device_under_test(), .threads = threads}).run({x})[0].same_as(want))
        << threads << " threads";
  }
}

TEST(Session, BatchMatesDoNotChangeABit) {
  const auto model = model_of(kNet);
  Session session(model, {.device = tests::device_under_test(), .threads = 2});
  const Tensor x = noise({5, 3, 17, 19}, 9);
  const Tensor together = session.run({x})[0];
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(session.run({x.rows(i, i + 1)})[0].same_as(together.rows(i, i + 1))) << "row " << i;
  }
}

/// y = x * w[0], by a kernel that counts how often it packs w.
ir::OpTable counting_table(int& packed) {
  ir::Kernel kernel{.name = "counting"};
  kernel.prepare = [&packed](const ir::KernelInit& init) {
    const Tensor& w = *init.node.value(1);
    const auto pack = init.packs.get<float>(ir::pack_key(w, "counted"), [&] {
      ++packed;
      return std::make_shared<const float>(w.data<float>()[0]);
    });
    const int64_t count = tensor::element_count(init.node.in_dims(0));
    return ir::BoundKernel{.run =
                               [pack, count](const ir::RunArgs& a) {
                                 for (int64_t i = 0; i < count; ++i) {
                                   static_cast<float*>(a.out[0])[i] =
                                       static_cast<const float*>(a.in[0])[i] * *pack;
                                 }
                               },
                           .workspace_bytes = 0,
                           .unread_inputs = 2};
  };
  ir::OpDef def;
  def.schema = {.name = "counted", .doc = "x * w[0]", .dims = "...,w->...", .min_in = 2, .max_in = 2};
  def.kernels.push_back(std::move(kernel));
  std::vector<ir::OpDef> defs;
  defs.push_back(std::move(def));
  return ir::OpTable(std::move(defs));
}

TEST(Session, InstancesAndBucketsShareOnePackedWeight) {
  int packed = 0;
  const ir::OpTable table = counting_table(packed);
  const auto model = std::make_shared<const PreparedModel>(
      ir::parse("graph \"g\"\n %0 = input \"x\" : f32[n]\n %1 = param \"w\" : f32[1]{3}\n"
                " %2 = counted(%0, %1)\n %3 = counted(%2, %1)\n return %3 \"y\"\n",
                table));
  {
    Session first(model, {.device = tests::device_under_test(), .threads = 1}),
        second(model, {.device = tests::device_under_test(), .threads = 2});
    for (int64_t n : {1, 2, 3}) {
      for (Session* session : {&first, &second}) {
        const Tensor x = noise({n}, 1);
        EXPECT_FLOAT_EQ(session->run({x})[0].data<float>()[0], 9 * x.data<float>()[0]);
      }
    }
    EXPECT_EQ(packed, 1);
  }
  Session third(model, {.device = tests::device_under_test(), .threads = 1});
  third.prepare({{5}});
  EXPECT_EQ(packed, 2);  // the last session with the first copy has been destroyed
}

TEST(Session, BadDataIsTheCallersMistake) {
  Session session(model_of("graph \"g\"\n %0 = input \"x\" : f32[n,2]\n %1 = input \"i\" : i64[k]\n"
                           " %2 = gather(%0, %1)  # table\n return %2 \"y\"\n"),
                  {.device = tests::device_under_test(), .threads = 2});
  expect_refused(session, {noise({4, 2}, 1), longs({0, 4})}, "table");
  EXPECT_EQ(session.run({noise({4, 2}, 1), longs({0, -1})})[0].dims(), (Dims{2, 2}));
}

TEST(Session, UnknownPassesAreNamed) {
  passes::PassOptions options{.off = {"no_such_pass"}};
  EXPECT_THROW(PreparedModel(ir::parse(kNet, ops::table()), options), base::Error);
}

}  // namespace
}  // namespace trireme::engine
