// Programs that are planned without the content of weights, and bound to it later.
#include <gtest/gtest.h>

#include <set>

#include "base/threads/team_meetings.h"
#include "ops/table.h"
#include "runtime/executor.h"
#include "runtime/open_device.h"
#include "tensor/absent.h"
#include "tests/op_cases.h"
#include "tests/run_kernels.h"

namespace trireme::runtime {
namespace {

using tensor::DType;
using tensor::Tensor;
using tests::OpCase;
using tests::random_bytes;
using tests::random_tensor;
using Ints = std::vector<int64_t>;

/// Products and convolutions as passes produce them, with all ways of packing weights.
std::vector<OpCase> packing_cases() {
  const auto x = [](tensor::Dims dims) { return random_tensor(dims, 1); };
  const auto w = [](tensor::Dims dims) { return random_tensor(dims, 2, 0.3f); };
  const ir::Attrs same{{"pads", Ints{1, 1, 1, 1}}};
  const auto grouped = [](int64_t groups) {
    return ir::Attrs{{"pads", Ints{1, 1, 1, 1}}, {"group", groups}};
  };
  const Tensor scale = Tensor::scalar<float>(0.1f), zero = Tensor::scalar<uint8_t>(120);
  return {
      {"linear", {x({5, 24}), w({24, 40}), w({40})}},
      {"linear", {x({5, 24}), w({40, 24})}, {{"transposed", int64_t{1}}}},
      {"matmul", {x({2, 5, 24}), w({24, 40})}},
      {"gemm", {x({5, 24}), w({40, 24}), w({40})}, {{"transB", int64_t{1}}}},
      {"conv_nhwc", {x({1, 16, 16, 32}), w({32, 32, 3, 3})}, same},
      {"conv_nhwc", {x({1, 16, 16, 32}), w({48, 32, 1, 1})}},
      {"conv_nhwc", {x({1, 9, 9, 32}), w({32, 1, 3, 3})}, grouped(32)},
      {"conv_nhwc", {x({1, 9, 9, 32}), w({32, 8, 3, 3})}, grouped(4)},
      {"conv_nhwc", {x({1, 16, 16, 64}), w({3, 64, 3, 3})}, same},
      {"conv_nhwc", {x({1, 4, 6, 6, 8}), w({8, 8, 3, 3, 3})}, {{"pads", Ints{1, 1, 1, 1, 1, 1}}}},
      {"conv", {x({1, 8, 9, 9}), w({12, 8, 3, 3})}, same},
      {"conv_transpose", {x({1, 8, 5, 5}), w({8, 6, 3, 3})}, {{"strides", Ints{2, 2}}}},
      {"separable_conv_nhwc", {x({1, 8, 8, 16}), w({16, 1, 3, 3}), w({24, 16, 1, 1})}, same},
      {"lstm", {x({4, 2, 7}), w({1, 36, 7}), w({1, 36, 9}), w({1, 72})}, {{"hidden_size", int64_t{9}}}, 3},
      {"qlinear",
       {random_bytes<uint8_t>({5, 24}, 1, 0, 255), scale, zero, random_bytes<int8_t>({24, 40}, 2, -90, 90),
        scale, Tensor(), Tensor(), Tensor(), Tensor()}},
      {"qconv_nhwc",
       {random_bytes<uint8_t>({1, 8, 8, 16}, 1, 0, 255), scale, zero,
        random_bytes<int8_t>({24, 16, 3, 3}, 2, -90, 90), scale, Tensor(), scale, zero, Tensor()},
       same},
      {"qconv_nhwc",
       {random_bytes<uint8_t>({1, 8, 8, 16}, 1, 0, 255), scale, zero,
        random_bytes<int8_t>({16, 1, 3, 3}, 2, -90, 90), scale, Tensor(), scale, zero, Tensor()},
       grouped(16)},
  };
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> all = packing_cases();
  for (const auto& list : {tests::window_cases(), tests::index_cases(), tests::shape_cases(),
                           tests::layer_cases(), tests::product_cases()})
    all.insert(all.end(), list.begin(), list.end());
  for (const ir::OpDef& op : ops::table().all()) {
    const ir::OpSchema& s = op.schema;
    if (s.onnx.empty() || s.is_random || s.is_control || s.is_collective || s.updates_state()) continue;
    if (std::optional<OpCase> plain = tests::plain_case(s)) all.push_back(*std::move(plain));
  }
  return all;
}

/// The case as a graph: operand `fed` is its input, all others are constants. If `is_absent`, weights have
/// types only, where that is allowed.
ir::Graph graph_of(const OpCase& c, size_t fed, bool is_absent) {
  ir::Graph g;
  std::vector<ir::ValueId> in;
  for (size_t i = 0; i < c.in.size(); ++i) {
    const Tensor& t = c.in[i];
    if (!t.defined()) {
      in.push_back(ir::kNoValue);
    } else if (i == fed) {
      in.push_back(g.add_input(base::concat("x", i), t.type()));
    } else {
      const bool is_type = is_absent && tests::may_be_absent(t);
      in.push_back(g.add_constant(is_type ? tensor::absent(t.dtype(), t.dims()) : t, base::concat("w", i)));
    }
  }
  const auto out = g.add(ops::table().need(c.op), in, c.attrs, c.results);
  for (size_t i = 0; i < out.size(); ++i) g.add_output(out[i], base::concat("y", i));
  g.sort();
  return g;
}

std::vector<Tensor> run(const compile::Program& program, const Tensor& input) {
  base::ThreadPool pool(2);
  const auto device = open_device("cpu");
  const auto stream = device->open_stream(pool);
  Executor executor(std::make_shared<const compile::Program>(program));
  const auto arena = device->allocate(executor.program().memory.arena_bytes);
  executor.bind_arena(arena.get());
  std::vector<Tensor> results;
  std::vector<void*> out;
  for (const compile::SlotId id : program.outputs)
    results.push_back(Tensor::zeros(program.slot(id).dtype, program.slot(id).dims));
  for (Tensor& t : results) out.push_back(t.mutable_raw());
  const std::vector<const void*> in(program.inputs.size(), input.defined() ? input.raw() : nullptr);
  executor.run(in, out, *stream);
  return results;
}

std::string text_of(const compile::Program& p) {
  return compile::print_steps(p) + compile::print_memory(p) + compile::print_refusals(p);
}

/// The kernel of the case's step, if its plan waited for content and gave the same result with it; nullopt if
/// it did not wait, or if the case cannot be compiled.
std::optional<std::string> kernel_that_waits(const OpCase& c, size_t fed) {
  SCOPED_TRACE(base::concat(c.op, ", operand ", fed, " fed"));
  base::SharedCache packs;
  compile::Program want;
  try {
    want = compile::compile(graph_of(c, fed, false), {.threads = 2}, packs);
  } catch (const base::Error&) {
    return std::nullopt;  // the operand must be a constant, or the op runs outside of programs
  }
  const ir::Graph types = graph_of(c, fed, true);
  for (const ir::Value& v : types.values()) {
    if (!v.type.shape.is_static()) return std::nullopt;  // its extents depend on the operand's content
  }
  compile::Program plan = compile::plan(types, {.threads = 2}, packs);
  EXPECT_EQ(text_of(plan), text_of(want)) << c.op;
  const bool waits = !plan.is_bound();
  std::string kernel;
  for (const compile::Step& step : plan.steps) kernel = step.bind ? step.kernel : kernel;
  if (waits) {
    EXPECT_THROW(Executor(std::make_shared<const compile::Program>(plan)), base::Error) << c.op;
    EXPECT_THROW(compile::bind(plan, {packs}), base::Error) << c.op << " without content";
  }
  for (compile::Slot& slot : plan.slots) {
    if (slot.constant.defined() && tensor::is_absent(slot.constant))
      slot.constant = c.in[static_cast<size_t>(std::stoi(slot.name.substr(1)))];
  }
  const compile::Program bound = compile::bind(plan, {packs});
  EXPECT_TRUE(bound.is_bound());
  EXPECT_EQ(text_of(bound), text_of(want)) << c.op;
  const Tensor input = fed < c.in.size() ? c.in[fed] : Tensor();
  const std::vector<Tensor> a = run(bound, input), b = run(want, input);
  for (size_t i = 0; i < b.size(); ++i) EXPECT_TRUE(a[i].same_as(b[i])) << c.op << ", result " << i;
  return waits ? std::optional(base::concat(c.op, " ", kernel)) : std::nullopt;
}

TEST(Plan, IsBoundToTheSameProgramAndBitsForEveryOperator) {
  std::set<std::string> waited;
  for (const OpCase& c : all_cases()) {
    for (size_t fed = 0; fed < c.in.size(); ++fed) {
      if (!tests::may_be_absent(c.in[fed])) continue;  // numbers that determine shapes are constants
      if (const auto kernel = kernel_that_waits(c, fed)) waited.insert(*kernel);
    }
  }
  for (const OpCase& c : packing_cases()) {
    const bool is_there =
        std::any_of(waited.begin(), waited.end(), [&](const std::string& k) { return k.starts_with(c.op); });
    EXPECT_TRUE(is_there || c.op == "conv") << c.op << " packs nothing";
  }
  EXPECT_GE(waited.size(), 14u) << testing::PrintToString(waited);
}

/// A plan does not read large weights even if they have content: nothing is packed before the program is
/// bound, and bound programs share packed weights.
TEST(Plan, PacksNothingBeforeItIsBound) {
  const Tensor w = random_tensor({256, 300}, 1);
  ASSERT_GT(w.bytes(), tensor::kSmallBytes);
  const OpCase c{"linear", {random_tensor({3, 256}, 2), w}};
  base::SharedCache packs;
  const auto plan =
      std::make_shared<const compile::Program>(compile::plan(graph_of(c, 0, false), {.threads = 2}, packs));
  EXPECT_FALSE(plan->is_bound());
  EXPECT_GT(plan->steps[0].bound.unread_inputs, 0u);
  const auto bound = compile::bind(plan, {packs});
  EXPECT_TRUE(bound->is_bound());
  EXPECT_EQ(compile::bind(bound, {packs}), bound);
  const std::vector<Tensor> a = run(*bound, c.in[0]);
  EXPECT_TRUE(a[0].same_as(run(compile::compile(graph_of(c, 0, false), {.threads = 2}, packs), c.in[0])[0]));
}

/// Weights of some size are packed by the team that a plan is bound with, small ones by the caller; the bits
/// are the same.
TEST(Plan, IsBoundByTheTeamOnlyWhereWeightsAreLarge) {
  for (const auto& [columns, meets] : std::vector<std::pair<int64_t, bool>>{{300, true}, {70, false}}) {
    const OpCase c{"linear", {random_tensor({3, 232}, 2), random_tensor({232, columns}, 1)}};
    const auto plan_of = [&](base::SharedCache& packs) {
      return compile::plan(graph_of(c, 0, false), {.threads = 3}, packs);
    };
    base::SharedCache shared, own;
    base::ThreadPool team(3);
    int64_t before = base::team_meetings();
    const compile::Program together = compile::bind(plan_of(shared), {shared, &team});
    EXPECT_EQ(base::team_meetings() > before, meets) << columns << " columns";
    before = base::team_meetings();
    const compile::Program alone = compile::bind(plan_of(own), {own});
    EXPECT_EQ(base::team_meetings(), before);
    EXPECT_TRUE(run(together, c.in[0])[0].same_as(run(alone, c.in[0])[0]));
  }
}

}  // namespace
}  // namespace trireme::runtime
