// Tests that loops end when another thread says so, and that what is no loop ends only for reasons that
// concern the whole run.
#include "engine/run_stop.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "engine/session/session.h"
#include "ops/table.h"

namespace trireme::engine {
namespace {

using tensor::Tensor;

/// `trips` rounds, while `go` is true, of v + v; each of them a loop of `inner` rounds if there are some.
std::shared_ptr<const PreparedModel> doubling_loop(bool is_nested) {
  const auto parsed = [](const std::string& text) {
    return std::make_shared<const ir::Graph>(ir::parse(text, ops::table()));
  };
  ir::Attrs inner{{"captures", int64_t{0}}};
  inner.set("body", parsed("graph \"b\"\n %0 = input \"i\" : i64[]\n %1 = input \"go\" : bool[]\n"
                           " %2 = input \"v\" : f32[n]\n %3 = identity(%1)\n %4 = add(%2, %2)\n"
                           " return %3, %4\n"));
  const auto loop_in = [](ir::Graph& g, ir::ValueId trips, ir::ValueId go, ir::ValueId v,
                          const ir::Attrs& attrs) {
    return g.add1(ops::table().need("loop"), {trips, go, v}, attrs);
  };
  const tensor::TensorType vector{tensor::DType::f32, {tensor::Dim::symbol("n")}};
  ir::Attrs outer = inner;
  if (is_nested) {
    ir::Graph body;
    body.add_input("i", {tensor::DType::i64, {}});
    const ir::ValueId go = body.add_input("go", {tensor::DType::boolean, {}});
    const ir::ValueId v = body.add_input("v", vector);
    const ir::ValueId three = body.add_constant(Tensor::scalar<int64_t>(3));
    body.add_output(body.add1(ops::table().need("identity"), {go}), "go_on");
    body.add_output(loop_in(body, three, ir::kNoValue, v, inner), "next");
    outer.set("body", std::make_shared<const ir::Graph>(std::move(body)));
  }
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", vector);
  const ir::ValueId trips = g.add_input("trips", {tensor::DType::i64, {}});
  const ir::ValueId go = g.add_input("go", {tensor::DType::boolean, {}});
  g.add_output(loop_in(g, trips, go, x, outer), "y");
  return std::make_shared<const PreparedModel>(std::move(g));
}

std::vector<Tensor> feeds(int64_t trips) {
  return {Tensor::zeros(tensor::DType::f32, {2}), Tensor::scalar(trips), Tensor::scalar(true)};
}

TEST(RunStop, ALoopEndsBetweenTwoRounds) {
  for (const bool is_nested : {false, true}) {
    RunStop stop;
    Session session(doubling_loop(is_nested), {.threads = 1, .stop = &stop});
    session.run(feeds(3));
    for (const StopReason reason :
         {StopReason::rounds, StopReason::late, StopReason::abandoned, StopReason::closing}) {
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        stop.set(reason);
      });
      try {
        session.run(feeds(INT64_MAX));
        ADD_FAILURE() << "2^63 rounds have run";
      } catch (const base::Error& e) {
        EXPECT_EQ(e.code(), reason == StopReason::rounds ? base::ErrorCode::invalid_argument
                                                         : base::ErrorCode::unavailable)
            << e.message();
      }
      other.join();
      stop.set(StopReason::none);
      session.run(feeds(3));  // it runs again
    }
  }
}

TEST(RunStop, TheTimeOfLoopsEndsNothingElse) {
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", {tensor::DType::f32, {tensor::Dim::symbol("n")}});
  g.add_output(g.add1(ops::table().need("non_zero"), {x}),
               "y");  // as large as the data says: several programs
  RunStop stop;
  Session session(std::make_shared<const PreparedModel>(std::move(g)), {.threads = 1, .stop = &stop});
  const std::vector<Tensor> in = {Tensor::zeros(tensor::DType::f32, {4})};
  stop.set(StopReason::rounds);
  EXPECT_EQ(session.run(in).size(), 1U);
  stop.set(StopReason::late);
  EXPECT_THROW(session.run(in), base::Error);
}

}  // namespace
}  // namespace trireme::engine
