// The overhead of a session besides its kernels: one tiny op, and a chain of a hundred.
#include <benchmark/benchmark.h>

#include "engine/session/session.h"
#include "ops/table.h"

namespace trireme::engine {
namespace {

using tensor::Tensor;

void run_session(benchmark::State& state, const std::string& text, const passes::PassOptions& passes) {
  const auto model = std::make_shared<const PreparedModel>(ir::parse(text, ops::table()), passes);
  Session session(model, {.threads = static_cast<int>(state.range(0)), .passes = passes});
  std::vector<Tensor> in, out;
  for (ir::ValueId id : session.graph().inputs()) {
    in.push_back(Tensor::zeros(tensor::DType::f32, session.graph().type(id).shape.to_dims()));
  }
  out = session.run(in);
  for (auto _ : state) session.run_into(in, out);
}

/// One addition of one element. Goal: at most 1 us.
void one_add(benchmark::State& state) {
  run_session(state,
              "graph \"add\"\n %0 = input \"x\" : f32[1]\n %1 = input \"z\" : f32[1]\n %2 = add(%0, %1)\n"
              " return %2 \"y\"\n",
              {});
}
BENCHMARK(one_add)->Arg(1)->Arg(4);

std::string chain(int length) {
  std::string text = "graph \"chain\"\n %0 = input \"x\" : f32[1,16]\n";
  for (int i = 1; i <= length; ++i) {
    const char* op = i % 4 == 0 ? "relu" : i % 4 == 1 ? "softmax" : i % 4 == 2 ? "neg" : "sigmoid";
    text += base::concat(" %", i, " = ", op, "(%", i - 1, ")\n");
  }
  return text + base::concat(" return %", length, " \"y\"\n");
}

/// A hundred small ops that do not fuse into long chains. Goal: at most 20 us.
void chain_of_100(benchmark::State& state) { run_session(state, chain(100), {}); }
BENCHMARK(chain_of_100)->Arg(1)->Arg(4);

/// A gated activation on [1024,1024] f32, fused into one pass (8 MiB moved) or not (28 MiB).
void gate(benchmark::State& state) {
  const passes::PassOptions apart{.off = {"fuse_elementwise"}};
  run_session(state,
              "graph \"gate\"\n %0 = input \"x\" : f32[1024,1024]\n %1 = const : f32[]{0.5}\n"
              " %2 = mul(%0, %1)\n %3 = tanh(%2)\n %4 = add(%3, %1)\n %5 = mul(%4, %0)\n return %5 \"y\"\n",
              state.range(1) != 0 ? passes::PassOptions{} : apart);
  state.SetBytesProcessed(state.iterations() * (8 << 20));
}
BENCHMARK(gate)->ArgNames({"threads", "fused"})->ArgsProduct({{1, 4}, {0, 1}});

/// The same gate on 64 elements: the cost of a step.
void small_gate(benchmark::State& state) {
  const passes::PassOptions apart{.off = {"fuse_elementwise"}};
  run_session(state,
              "graph \"gate\"\n %0 = input \"x\" : f32[64]\n %1 = const : f32[]{0.5}\n"
              " %2 = mul(%0, %1)\n %3 = tanh(%2)\n %4 = add(%3, %1)\n %5 = mul(%4, %0)\n return %5 \"y\"\n",
              state.range(1) != 0 ? passes::PassOptions{} : apart);
}
BENCHMARK(small_gate)->ArgNames({"threads", "fused"})->ArgsProduct({{1}, {0, 1}});

}  // namespace
}  // namespace trireme::engine
