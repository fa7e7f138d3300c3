// Programs: memory placement, views, in-place results, outputs that are inputs or weights, and kernels that
// refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>

#include "base/rng.h"
#include "compile/program.h"
#include "ops/table.h"

namespace trireme::compile {
namespace {

using tensor::DType;

Program compiled(const std::string& text, const CompileOptions& options = {}) {
  base::SharedCache packs;
  ir::Graph g = ir::parse(text, ops::table());
  g.sort();
  return compile(g, options, packs);
}

bool overlap(int64_t a, int64_t a_bytes, int64_t b, int64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

TEST(Place, NoTwoThatLiveTogetherOverlap) {
  base::Rng rng(11);
  const auto below = [&](uint32_t n) { return static_cast<int>(rng() % n); };
  for (int round = 0; round < 300; ++round) {
    std::vector<Interval> list(static_cast<size_t>(below(60)));
    int64_t sum = 0, busiest = 0;
    for (Interval& i : list) {
      i.bytes = below(5) == 0 ? below(3) : below(100000);
      i.first = below(40);
      i.last = i.first + below(10);
      sum += (i.bytes + 63) / 64 * 64;
    }
    const int64_t total = place(list);
    for (int step = 0; step < 50; ++step) {
      int64_t live = 0;
      for (const Interval& i : list) live += i.first <= step && step <= i.last ? i.bytes : 0;
      busiest = std::max(busiest, live);
    }
    EXPECT_LE(total, sum);
    EXPECT_GE(total, busiest);
    for (size_t a = 0; a < list.size(); ++a) {
      EXPECT_EQ(list[a].offset % 64, 0);
      EXPECT_LE(list[a].offset + list[a].bytes, total);
      for (size_t b = 0; b < a; ++b) {
        const bool together = list[a].first <= list[b].last && list[b].first <= list[a].last;
        ASSERT_FALSE(together && overlap(list[a].offset, list[a].bytes, list[b].offset, list[b].bytes))
            << "round " << round;
      }
    }
  }
}

TEST(Place, NothingNeedsNothing) {
  std::vector<Interval> none;
  EXPECT_EQ(place(none), 0);
}

TEST(Place, AChainTakesTwoBuffers) {
  std::vector<Interval> chain;
  for (int i = 0; i < 100; ++i) chain.push_back({1024, i, i + 1});
  EXPECT_EQ(place(chain), 2048);
}

/// The lowest gap that fits, found by looking at every buffer that is placed already.
void place_plainly(std::vector<Interval>& list) {
  const auto aligned = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  std::vector<Interval*> order;
  for (Interval& i : list) order.push_back(&i);
  std::stable_sort(order.begin(), order.end(),
                   [](const Interval* a, const Interval* b) { return a->bytes > b->bytes; });
  for (size_t n = 0; n < order.size(); ++n) {
    std::vector<const Interval*> beside;
    for (size_t p = 0; p < n; ++p) {
      if (order[p]->first <= order[n]->last && order[n]->first <= order[p]->last) beside.push_back(order[p]);
    }
    std::sort(beside.begin(), beside.end(),
              [](const Interval* a, const Interval* b) { return a->offset < b->offset; });
    int64_t offset = 0;
    for (const Interval* p : beside) {
      if (offset + order[n]->bytes <= p->offset) break;
      offset = std::max(offset, aligned(p->offset + p->bytes));
    }
    order[n]->offset = offset;
  }
}

TEST(Place, FindsTheLowestGap) {
  base::Rng rng(12);
  const auto below = [&](uint32_t n) { return static_cast<int>(rng() % n); };
  for (int round = 0; round < 300; ++round) {
    std::vector<Interval> list(static_cast<size_t>(below(80)));
    for (Interval& i : list) {
      i.bytes = below(4) == 0 ? below(300) : 64 * below(4);
      i.first = below(30);
      i.last = i.first + (below(3) == 0 ? below(20) : below(3));
    }
    std::vector<Interval> plain = list;
    place(list);
    place_plainly(plain);
    for (size_t i = 0; i < list.size(); ++i) ASSERT_EQ(list[i].offset, plain[i].offset) << "round " << round;
  }
}

/// Buffers one after another and buffers side by side, so many that looking at every pair takes minutes.
TEST(Place, ManyBuffersArePlacedWithoutLookingAtPairs) {
  constexpr int kMany = 400000;
  std::vector<Interval> chain, together;
  for (int i = 0; i < kMany; ++i) {
    chain.push_back({64, i, i + 1});
    together.push_back({64, 3, 5});
  }
  EXPECT_EQ(place(chain), 128);
  EXPECT_EQ(place(together), int64_t{64} * kMany);
}

/// All values of a step and its workspace must be disjoint in memory unless they share a root on purpose, and
/// no step may overwrite values that are still to be read.
void expect_sound(const Program& p) {
  std::vector<int> last(p.slots.size(), -1);
  for (size_t s = 0; s < p.steps.size(); ++s) {
    for (SlotId id : p.steps[s].in) {
      if (id != kNoSlot) last[index(p.slot(id).root)] = static_cast<int>(s);
    }
  }
  std::set<size_t> live;
  for (size_t s = 0; s < p.steps.size(); ++s) {
    for (SlotId id : p.steps[s].out) {
      if (id != kNoSlot) live.insert(index(p.slot(id).root));
    }
    for (size_t a : live) {
      if (p.slots[a].kind != SlotKind::arena) continue;
      EXPECT_LE(p.slots[a].offset + p.slots[a].bytes, p.memory.arena_bytes);
      const int64_t work = p.steps[s].bound.workspace_bytes;
      EXPECT_FALSE(overlap(p.slots[a].offset, p.slots[a].bytes, p.steps[s].workspace_offset, work))
          << "step " << s;
      for (size_t b : live) {
        if (b >= a || p.slots[b].kind != SlotKind::arena) continue;
        EXPECT_FALSE(overlap(p.slots[a].offset, p.slots[a].bytes, p.slots[b].offset, p.slots[b].bytes))
            << "%" << a << " and %" << b << " at step " << s;
      }
    }
    std::erase_if(live, [&](size_t r) { return last[r] <= static_cast<int>(s); });
  }
  EXPECT_LE(p.memory.arena_bytes,
            p.memory.sum_bytes + 64 * static_cast<int64_t>(p.slots.size() + p.steps.size()));
}

TEST(Compile, RandomGraphsArePlacedSoundly) {
  base::Rng rng(5);
  const auto& ops = ops::table();
  for (int round = 0; round < 60; ++round) {
    ir::Graph g;
    std::vector<ir::ValueId> values{g.add_input("x", {DType::f32, {8, 16}}),
                                    g.add_input("z", {DType::f32, {8, 16}})};
    const auto pick = [&] { return values[rng() % values.size()]; };
    const ir::ValueId flat = g.add_constant(tensor::Tensor::from<int64_t>({2}, {16, 8}));
    const ir::ValueId back = g.add_constant(tensor::Tensor::from<int64_t>({2}, {8, 16}));
    for (int n = 0; n < 30; ++n) {
      switch (rng() % 5) {
        case 0: values.push_back(g.add1(ops.need("add"), {pick(), pick()})); break;
        case 1: values.push_back(g.add1(ops.need("relu"), {pick()})); break;
        case 2: {
          const ir::ValueId viewed = g.add1(ops.need("reshape"), {pick(), flat});
          values.push_back(g.add1(ops.need("reshape"), {viewed, back}));
          break;
        }
        case 3: values.push_back(g.add1(ops.need("softmax"), {pick()})); break;
        default:
          values.push_back(g.add1(ops.need("transpose"), {g.add1(ops.need("reshape"), {pick(), flat})}));
      }
    }
    for (int o = 0; o < 3; ++o) g.add_output(pick(), "y" + std::to_string(o));
    g.sort();
    base::SharedCache packs;
    expect_sound(compile(g, {}, packs));
  }
}

TEST(Compile, ResultsTakeTheBytesOfOperandsThatDie) {
  const Program p = compiled(R"(graph "in place"
  %0 = input "x" : f32[256]
  %1 = exp(%0)
  %2 = neg(%1)
  %3 = abs(%2)
  %4 = sigmoid(%3)
  return %4 "y"
)");
  expect_sound(p);
  EXPECT_EQ(p.memory.arena_bytes, 1024);  // one buffer for the whole chain
}

TEST(Compile, FusedRunsTakeTheBytesOfAnOperandThatDies) {
  const Program p = compiled(R"(graph "fused"
  %0 = input "x" : f32[16,16]
  %1 = transpose(%0) {perm=[1, 0]}
  %2 = fused_elementwise(%0, %1) {params=[0.0, 0.0, 0.0, 0.0], steps=["r0 exp i1", "o0 add r0 i0"]}
  %3 = softmax(%2)
  return %3 "y"
)");
  expect_sound(p);
  EXPECT_EQ(p.steps[1].kernel, "vector_in_place");
  EXPECT_EQ(p.memory.arena_bytes, 1024);
}

TEST(Compile, AnOperandReadLaterKeepsItsBytes) {
  const Program p = compiled(R"(graph "alive"
  %0 = input "x" : f32[256]
  %1 = exp(%0)
  %2 = neg(%1)
  %3 = add(%2, %1)
  return %3 "y"
)");
  expect_sound(p);
  EXPECT_NE(p.slot(p.steps[1].out[0]).root, p.slot(p.steps[0].out[0]).root);
}

TEST(Compile, ResultsOfAnotherWidthKeepTheirOperandsBytes) {
  // 256 floats spread over 4 rows give as many bytes of bool: row 0 of the result is not to overwrite what
  // rows 1 to 3 read.
  const Program p = compiled(R"(graph "spread"
  %0 = input "x" : f32[1,256]
  %1 = input "t" : f32[4,1]
  %2 = relu(%0)
  %3 = greater(%2, %1)
  %4 = not(%3)
  return %4 "y"
)");
  expect_sound(p);
  EXPECT_EQ(p.slot(p.steps[0].out[0]).bytes, p.slot(p.steps[1].out[0]).bytes);
  EXPECT_NE(p.slot(p.steps[1].out[0]).root, p.slot(p.steps[0].out[0]).root);
}

TEST(Compile, InputsAndWeightsAreNeverOverwritten) {
  const Program p = compiled(R"(graph "read only"
  %0 = input "x" : f32[256]
  %1 = param "w" : f32[256]#ones
  %2 = relu(%0)
  %3 = relu(%1)
  %4 = add(%2, %3)
  return %4 "y"
)");
  for (const Step& s : p.steps) {
    const SlotKind kind = p.root(s.out[0]).kind;
    EXPECT_TRUE(kind == SlotKind::arena || kind == SlotKind::output);
  }
}

TEST(Compile, ViewsTakeNoStepAndNoMemory) {
  const Program p = compiled(R"(graph "views"
  %0 = input "x" : f32[4,6]
  %1 = const : i64[1]{24}
  %2 = reshape(%0, %1)
  %3 = exp(%2)
  return %3 "y"
)");
  EXPECT_EQ(p.steps.size(), 1u);
  EXPECT_EQ(p.memory.arena_bytes, 0);
  EXPECT_EQ(p.root(p.steps[0].in[0]).kind, SlotKind::input);
}

TEST(Compile, OutputsHaveTheExtentsOfTheirView) {
  const Program p = compiled(R"(graph "views"
  %0 = input "x" : f32[4,6]
  %1 = const : i64[1]{24}
  %2 = const : i64[2]{2, 12}
  %3 = exp(%0)
  %4 = reshape(%3, %1)
  %5 = reshape(%3, %2)
  return %4 "y", %5 "z", %3 "w", %4 "again"
)");
  EXPECT_EQ(p.slot(p.outputs[0]).dims, (tensor::Dims{24}));
  EXPECT_EQ(p.slot(p.outputs[1]).dims, (tensor::Dims{2, 12}));
  EXPECT_EQ(p.slot(p.outputs[2]).dims, (tensor::Dims{4, 6}));
  EXPECT_EQ(p.slot(p.outputs[3]).dims, (tensor::Dims{24}));
  EXPECT_EQ(p.steps.size(), 4u);  // exp, and a copy for each further output
  std::set<size_t> distinct;
  for (SlotId id : p.outputs) distinct.insert(index(p.slot(id).root));
  EXPECT_EQ(distinct.size(), 4u);
}

TEST(Compile, OutputsThatAreInputsOrWeightsAreCopied) {
  const Program p = compiled(R"(graph "copies"
  %0 = input "x" : f32[4]
  %1 = param "w" : f32[3]{1, 2, 3}
  return %0 "x2", %1 "w2", %0 "x3"
)");
  ASSERT_EQ(p.steps.size(), 3u);
  for (const Step& s : p.steps) EXPECT_EQ(s.kernel, "copy");
  EXPECT_FALSE(p.root(p.steps[1].in[0]).unread);
}

TEST(Compile, RefusesWhatNoKernelRuns) {
  std::vector<ir::OpDef> defs;
  ir::OpDef def;
  def.schema = {.name = "strange", .doc = "nothing", .dims = "...->..."};
  def.kernels.push_back(
      {.name = "picky", .refuse = [](const ir::NodeView&) { return ir::Refusal("not today"); }});
  defs.push_back(def);
  const ir::OpTable table(std::move(defs));
  ir::Graph g;
  g.add_output(g.add1(table.need("strange"), {g.add_input("x", {DType::f32, {1}})}, {}, "layer"), "y");
  base::SharedCache packs;
  try {
    compile(g, {}, packs);
    FAIL() << "nothing was thrown";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::unsupported);
    EXPECT_NE(e.message().find("layer"), std::string::npos);
    EXPECT_NE(e.message().find("picky: not today"), std::string::npos);
  }
}

/// A device for which kernels are only prepared.
class HeldDevice final : public tensor::Device {
 public:
  tensor::DeviceKind kind() const override { return tensor::DeviceKind::cuda; }
  std::string describe() const override { return "held"; }
  std::shared_ptr<void> allocate(int64_t) override { base::fail_unsupported("no memory"); }
  std::unique_ptr<tensor::Stream> open_stream(base::ThreadPool&) override {
    base::fail_unsupported("no streams");
  }
};

/// A chain of six nodes, "0" to "5", whose operator is prepared for the device by `prepare`.
Program prepared_on_device(const std::function<ir::BoundKernel(const ir::KernelInit&)>& prepare,
                           int threads) {
  std::vector<ir::OpDef> defs;
  ir::OpDef def;
  def.schema = {.name = "strange", .doc = "nothing", .dims = "...->..."};
  def.kernels.push_back({.on = tensor::DeviceKind::cuda, .name = "slow", .prepare = prepare});
  defs.push_back(def);
  const ir::OpTable table(std::move(defs));
  ir::Graph g;
  ir::ValueId x = g.add_input("x", {DType::f32, {1}});
  for (int i = 0; i < 6; ++i) x = g.add1(table.need("strange"), {x}, {}, std::to_string(i));
  g.add_output(x, "y");
  base::SharedCache packs;
  HeldDevice device;
  return compile(g, {.on = tensor::DeviceKind::cuda, .device = &device, .threads = threads}, packs);
}

TEST(Compile, KernelsOfADeviceArePreparedSideBySide) {
  std::mutex mutex;
  std::condition_variable came;
  int inside = 0, most = 0;
  const auto prepare = [&](const ir::KernelInit&) {
    std::unique_lock lock(mutex);
    most = std::max(most, ++inside);
    came.notify_all();
    // Waits this long only if the test fails.
    came.wait_for(lock, std::chrono::seconds(20), [&] { return most >= 2; });
    --inside;
    return ir::BoundKernel{.run = [](const ir::RunArgs&) {}};
  };
  const Program p = prepared_on_device(prepare, 3);
  EXPECT_GE(most, 2);
  ASSERT_EQ(p.steps.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(p.steps[i].from, std::to_string(i));
}

TEST(Compile, TheFirstFailureInTheOrderOfStepsIsThrown) {
  for (const int threads : {1, 4}) {
    const auto prepare = [&](const ir::KernelInit&) -> ir::BoundKernel { base::fail_unsupported("no plan"); };
    try {
      prepared_on_device(prepare, threads);
      FAIL() << "nothing was thrown";
    } catch (const base::Error& e) {
      EXPECT_EQ(e.message(), "node '0' (strange, kernel slow): no plan");
    }
  }
}

TEST(Compile, ListingsNameStepsMemoryAndRefusals) {
  const Program p = compiled(R"(graph "list"
  %0 = input "x" : f32[4,8]
  %1 = softmax(%0)  # head
  %2 = exp(%1)
  return %2 "y"
)");
  EXPECT_NE(print_steps(p).find("# head"), std::string::npos);
  EXPECT_NE(print_memory(p).find("planned peak 128 B"), std::string::npos) << print_memory(p);
  EXPECT_NE(print_refusals(p).find("softmax 'head'"), std::string::npos);
}

}  // namespace
}  // namespace trireme::compile
