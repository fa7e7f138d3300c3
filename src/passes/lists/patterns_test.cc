// Subgraphs as PyTorch's exporters write them, through all passes of a bucket: found, and of the same value.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "ops/test_eval.h"
#include "passes/fuse/transformer.h"
#include "passes/lists/lists.h"
#include "tests/run_kernels.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using Ints = std::vector<int64_t>;

/// A graph under construction, in the words of the exporters.
struct Pattern {
  ir::Graph graph;
  std::vector<Tensor> inputs;

  ValueId input(const Dims& dims) {
    inputs.push_back(tests::random_tensor(dims, static_cast<uint32_t>(inputs.size()) + 1));
    return graph.add_input(base::concat("x", inputs.size()), {DType::f32, tensor::Shape::of(dims)});
  }
  ValueId weight(const Dims& dims, float scale = 1) {
    const auto seed = static_cast<uint32_t>(graph.values().size()) + 100;
    return graph.add_param(base::concat("w", seed), tests::random_tensor(dims, seed, scale));
  }
  ValueId ints(const Ints& values) {
    return graph.add_constant(
        Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, std::span(values)));
  }
  ValueId number(float value) { return graph.add_constant(Tensor::from<float>({}, {value})); }
  ValueId op(const std::string& name, std::vector<ValueId> in, ir::Attrs attrs = {}) {
    return graph.add1(ops::table().need(name), std::move(in), std::move(attrs));
  }
  ValueId transpose(ValueId x, Ints perm) { return op("transpose", {x}, {{"perm", std::move(perm)}}); }
  ValueId reshape(ValueId x, const Ints& to) { return op("reshape", {x, ints(to)}); }
  Dims dims(ValueId x) const { return graph.type(x).shape.to_dims(); }
};

std::vector<Tensor> run(const ir::Graph& g, const std::vector<Tensor>& inputs) {
  base::ThreadPool pool(2);
  std::vector<Tensor> value(g.values().size());
  for (size_t i = 0; i < value.size(); ++i) value[i] = g.values()[i].data;
  for (size_t i = 0; i < inputs.size(); ++i) value[ir::index(g.inputs()[i])] = inputs[i];
  for (const ir::Node& node : g.nodes()) {
    if (node.op == nullptr) continue;
    std::vector<Tensor> in;
    for (ValueId id : node.in) in.push_back(id == ir::kNoValue ? Tensor() : value[ir::index(id)]);
    const auto out = ops::evaluate(*node.op, node.attrs, in, node.out.size(), pool);
    for (size_t i = 0; i < out.size(); ++i)
      if (node.out[i] != ir::kNoValue) value[ir::index(node.out[i])] = out[i];
  }
  std::vector<Tensor> results;
  for (ValueId id : g.outputs()) results.push_back(value[ir::index(id)]);
  return results;
}

size_t count(const ir::Graph& g, std::string_view op) {
  return static_cast<size_t>(std::count_if(g.nodes().begin(), g.nodes().end(), [&](const ir::Node& node) {
    return node.op != nullptr && node.op_name() == op;
  }));
}

/// The graph after all passes of a bucket, which computes what it did before.
ir::Graph optimized(const Pattern& p) {
  ir::Graph after = p.graph;
  run_passes(bucket_passes(), after, {.verify = true});
  const std::vector<Tensor> want = run(p.graph, p.inputs), got = run(after, p.inputs);
  EXPECT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].dims(), want[i].dims());
    tests::expect_close(got[i], want[i].to_doubles(), 2e-5, 2e-5, "values");
  }
  return after;
}

/// How an exporter writes one attention.
struct Form {
  int64_t batch, heads, rows, channels;
  int heads_by;  // 0: transpose of heads; 1: keys through joined heads (torch.export); 2: one stacked
                 // projection, selected by index (Swin); 3: rows first, stacked (torchvision's
                 // MultiheadAttention)
  int scale_at;  // 0: queries; 1: queries and keys; 2: scores, divided
  int mask;     // 0: none; 1: [rows, rows]; 2: [batch, 1, 1, rows]; 3: bias of heads and windows of an image;
                // 4: one number; 5: [rows, 1]
  bool factor;  // scores times [heads, 1, 1]
  bool safe;    // where(is_nan(softmax), 0, softmax)
  int64_t width() const { return heads * channels; }
};

struct Heads {
  ValueId q, k, v;  // [batch, heads, rows, channels]; k transposed
};

Heads projected(Pattern& p, const Form& f) {
  const int64_t b = f.batch, n = f.rows, c = f.width();
  const auto linear = [&](ValueId x, int64_t out) { return p.op("matmul", {x, p.weight({c, out}, 0.3f)}); };
  const Ints split{b, n, f.heads, f.channels};
  if (f.heads_by < 2) {
    const ValueId x = p.input({b, n, c});
    const ValueId q = p.transpose(p.reshape(linear(x, c), split), {0, 2, 1, 3});
    const ValueId k = p.transpose(p.reshape(linear(x, c), split), {0, 2, 1, 3});
    const ValueId v = p.transpose(p.reshape(linear(x, c), split), {0, 2, 1, 3});
    if (f.heads_by == 0) return {q, p.transpose(k, {0, 1, 3, 2}), v};
    const ValueId joined = p.transpose(p.reshape(k, {b * f.heads, n, f.channels}), {0, 2, 1});
    return {q, p.reshape(joined, {b, f.heads, f.channels, n}), v};
  }
  const auto selected = [&](ValueId stack, int64_t i) {
    const ValueId index = p.graph.add_constant(Tensor::from<int64_t>({}, {i}));
    return p.op("gather", {stack, index}, {{"axis", int64_t{0}}});
  };
  if (f.heads_by == 2) {
    const ValueId x = p.input({b, n, c});
    const ValueId stack =
        p.transpose(p.reshape(linear(x, 3 * c), {b, n, 3, f.heads, f.channels}), {2, 0, 3, 1, 4});
    return {selected(stack, 0), p.transpose(selected(stack, 1), {0, 1, 3, 2}), selected(stack, 2)};
  }
  const ValueId x = p.transpose(p.input({b, n, c}), {1, 0, 2});
  const ValueId unsqueezed = p.op("unsqueeze", {p.reshape(linear(x, 3 * c), {n, b, 3, c}), p.ints({0})});
  const ValueId stack = p.op("squeeze", {p.transpose(unsqueezed, {3, 1, 2, 0, 4}), p.ints({3})});
  const auto heads = [&](int64_t i) {
    const ValueId flat = p.transpose(p.reshape(selected(stack, i), {n, b * f.heads, f.channels}), {1, 0, 2});
    return flat;
  };
  const Ints apart{b, f.heads, n, f.channels};
  const ValueId keys = p.reshape(p.transpose(heads(1), {0, 2, 1}), {b, f.heads, f.channels, n});
  return {p.reshape(heads(0), apart), keys, p.reshape(heads(2), apart)};
}

ValueId masked(Pattern& p, const Form& f, ValueId scores) {
  const int64_t b = f.batch, n = f.rows;
  if (f.mask == 1) return p.op("add", {scores, p.weight({n, n})});
  if (f.mask == 4) return p.op("add", {scores, p.number(0.5f)});
  if (f.mask == 5) return p.op("add", {p.weight({n, 1}), scores});
  if (f.mask == 2) return p.op("add", {scores, p.input({b, 1, 1, n})});
  if (f.mask == 3) {
    const ValueId biased = p.op("add", {scores, p.weight({1, f.heads, n, n})});
    const int64_t windows = b % 2 == 0 ? b / 2 : b;
    const ValueId apart = p.reshape(biased, {b / windows, windows, f.heads, n, n});
    return p.reshape(p.op("add", {apart, p.weight({1, windows, 1, n, n})}), {b, f.heads, n, n});
  }
  return scores;
}

Pattern attention(const Form& f) {
  Pattern p;
  Heads h = projected(p, f);
  const float root = std::sqrt(static_cast<float>(f.channels));
  if (f.scale_at == 0) h.q = p.op("mul", {h.q, p.number(1 / root)});
  if (f.scale_at == 1) {
    h.q = p.op("mul", {h.q, p.number(std::sqrt(1 / root))});
    h.k = p.op("mul", {h.k, p.number(std::sqrt(1 / root))});
  }
  ValueId scores = p.op("matmul", {h.q, h.k});
  if (f.scale_at == 2) scores = p.op("div", {scores, p.number(root)});
  if (f.factor) scores = p.op("mul", {scores, p.weight({f.heads, 1, 1})});
  ValueId weights = p.op("softmax", {masked(p, f, scores)}, {{"axis", int64_t{-1}}});
  if (f.safe) weights = p.op("where", {p.op("is_nan", {weights}), p.number(0), weights});
  const ValueId y = p.transpose(p.op("matmul", {weights, h.v}), {0, 2, 1, 3});
  p.graph.add_output(p.reshape(y, {f.batch, f.rows, f.width()}), "y");
  return p;
}

TEST(Patterns, AttentionAsExportersWriteIt) {
  std::mt19937 random(1);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int trial = 0; trial < 200; ++trial) {
    const Form f{.batch = draw(1, 4),
                 .heads = draw(1, 3),
                 .rows = draw(2, 9),
                 .channels = 4 * draw(1, 3),
                 .heads_by = draw(0, 3),
                 .scale_at = draw(0, 2),
                 .mask = draw(0, 5),
                 .factor = draw(0, 3) == 0,
                 .safe = draw(0, 2) == 0};
    SCOPED_TRACE(base::concat("b ", f.batch, " h ", f.heads, " n ", f.rows, " c ", f.channels, " form ",
                              f.heads_by, " scale ", f.scale_at, " mask ", f.mask, " factor ", f.factor,
                              " safe ", f.safe));
    const ir::Graph after = optimized(attention(f));
    EXPECT_EQ(count(after, "attention_qkv") + count(after, "attention_bsnd"), 1u);
    EXPECT_EQ(count(after, "softmax"), 0u);
    // One projection that is not changed on its way is read in place.
    if (f.heads_by == 2 && f.scale_at == 2 && !f.factor) {
      EXPECT_EQ(count(after, "attention_qkv"), 1u);
      EXPECT_EQ(count(after, "transpose"), 0u);
    }
  }
}

/// Products over a softmax that are no attention say which part does not fit.
TEST(Patterns, NearMissesSayWhy) {
  const auto misses = [](const std::function<void(Pattern&, ValueId, ValueId)>& build) {
    Pattern p;
    const ValueId scores = p.op("matmul", {p.input({2, 3, 5, 8}), p.input({2, 3, 8, 7})});
    build(p, scores, p.input({2, 3, 7, 8}));
    run_passes(bucket_passes(), p.graph, {.stop_after = "attention", .verify = true});
    const std::vector<std::string> lines = attention_misses(p.graph);
    return lines.empty() ? std::string() : lines[0];
  };
  const auto finish = [](Pattern& p, ValueId weights, ValueId v) {
    p.graph.add_output(p.op("matmul", {weights, v}), "y");
  };
  EXPECT_EQ(misses([&](Pattern& p, ValueId s, ValueId v) { finish(p, p.op("softmax", {s}), v); }), "");
  EXPECT_NE(misses([&](Pattern& p, ValueId s, ValueId v) {
              finish(p, p.op("softmax", {s}, {{"axis", int64_t{1}}}), v);
            }).find("not over the last axis"),
            std::string::npos);
  EXPECT_NE(misses([&](Pattern& p, ValueId s, ValueId v) {
              p.graph.add_output(p.op("relu", {s}), "scores");
              finish(p, p.op("softmax", {s}), v);
            }).find("something else reads"),
            std::string::npos);
  EXPECT_NE(misses([&](Pattern& p, ValueId s, ValueId v) {
              finish(p, p.op("softmax", {p.op("tanh", {s})}), v);
            }).find("no product of queries and keys"),
            std::string::npos);
}

/// A factor for each window, multiplied while windows were an axis of their own.
TEST(Patterns, FactorsOfWindowsKeepTheirPlace) {
  Pattern p;
  const ValueId scores = p.op("matmul", {p.input({4, 3, 5, 8}), p.input({4, 3, 8, 5})});
  const ValueId apart = p.op("mul", {p.reshape(scores, {2, 2, 3, 5, 5}), p.weight({2, 1, 1, 1})});
  const ValueId weights = p.op("softmax", {p.reshape(apart, {4, 3, 5, 5})});
  p.graph.add_output(p.op("matmul", {weights, p.input({4, 3, 5, 8})}), "y");
  EXPECT_EQ(count(optimized(p), "attention_bsnd"), 0u);
}

TEST(Patterns, AttentionOfEinsums) {
  for (const int64_t batch : {1, 2}) {
    Pattern p;  // MaxViT's partitions: [images, windows, heads, rows, channels]
    const auto heads = [&] {
      const ValueId x = p.reshape(p.op("matmul", {p.input({batch, 3, 9, 16}), p.weight({16, 16}, 0.3f)}),
                                  {batch, 3, 9, 2, 8});
      return p.transpose(x, {0, 1, 3, 2, 4});
    };
    const ValueId q = heads(), k = p.op("mul", {heads(), p.number(0.3f)}), v = heads();
    ValueId scores = p.op("einsum", {q, k}, {{"equation", std::string("B G H I D, B G H J D -> B G H I J")}});
    scores = p.op("softmax", {p.op("add", {scores, p.weight({1, 2, 9, 9})})}, {{"axis", int64_t{-1}}});
    const ValueId y = p.op("einsum", {scores, v}, {{"equation", std::string("BGHIJ,BGHJD->BGHID")}});
    p.graph.add_output(p.reshape(p.transpose(y, {0, 1, 3, 2, 4}), {batch, 3, 9, 16}), "y");
    const ir::Graph after = optimized(p);
    EXPECT_EQ(count(after, "attention_bsnd"), 1u);
    EXPECT_EQ(count(after, "transpose"), 0u);
  }
}

TEST(Patterns, EinsumsOfAnyLettersKeepTheirValue) {
  std::mt19937 random(3);
  size_t opened = 0;
  for (int trial = 0; trial < 100; ++trial) {
    std::string a, b, y;
    Dims at[2];
    const std::string all = "abcdef";
    for (const char c : all) {
      const int side = std::uniform_int_distribution<int>(0, 5)(random);
      const int64_t extent = std::uniform_int_distribution<int64_t>(1, 4)(random);
      // in both and the result, in both and summed, in one and the result
      if (side != 4) a += c, at[0].push_back(extent);
      if (side != 3) b += c, at[1].push_back(extent);
      if (side != 2 && side != 5) y += c;
    }
    if (a.empty() || b.empty()) continue;
    std::shuffle(y.begin(), y.end(), random);
    Pattern p;
    p.graph.add_output(
        p.op("einsum", {p.input(at[0]), p.input(at[1])}, {{"equation", a + "," + b + "->" + y}}), "y");
    opened += count(optimized(p), "einsum") == 0;
  }
  EXPECT_GE(opened, 40u);
}

/// conv(x) of `channels` outputs, 3 x 3.
ValueId conv(Pattern& p, ValueId x, int64_t channels, int64_t group = 1) {
  return p.op("conv", {x, p.weight({channels, p.dims(x)[1] / group, 3, 3}, 0.2f)},
              {{"pads", Ints{1, 1, 1, 1}}, {"group", group}});
}

ValueId pointwise(Pattern& p, ValueId x, int64_t channels) {
  return p.op("conv", {x, p.weight({channels, p.dims(x)[1], 1, 1}, 0.2f)});
}

TEST(Patterns, SqueezeAndExciteStaysChannelsLast) {
  for (const bool hard : {false, true}) {
    Pattern p;
    const ValueId x = conv(p, p.input({2, 3, 9, 8}), 16);
    const ValueId mean = p.op("reduce_mean", {x, p.ints({2, 3})}, {{"keepdims", int64_t{1}}});
    const ValueId gate =
        p.op(hard ? "hard_sigmoid" : "sigmoid", {pointwise(p, p.op("relu", {pointwise(p, mean, 4)}), 16)});
    p.graph.add_output(conv(p, p.op("mul", {gate, x}), 8), "y");
    EXPECT_LE(count(optimized(p), "transpose"), 1u);  // of the result
  }
}

TEST(Patterns, SequencesBetweenConvolutionsStayInPlace) {
  Pattern p;  // Segformer's mixed feed-forward and its head
  const ValueId x = p.input({2, 30, 16});
  const ValueId image =
      p.reshape(p.transpose(p.op("matmul", {x, p.weight({16, 24}, 0.2f)}), {0, 2, 1}), {2, 24, 5, 6});
  const ValueId back = p.transpose(p.reshape(conv(p, image, 24, 24), {2, 24, 30}), {0, 2, 1});
  const ValueId y = p.op("matmul", {p.op("gelu", {back}), p.weight({24, 16}, 0.2f)});
  const ValueId small = p.reshape(p.transpose(y, {0, 2, 1}), {2, 16, 5, 6});
  const std::vector<float> scales{1, 1, 2, 2};
  const ValueId up =
      p.op("resize", {small, ir::kNoValue, p.graph.add_constant(Tensor::from<float>({4}, std::span(scales)))},
           {{"mode", std::string("linear")}});
  const ValueId both = p.op("concat", {up, p.op("relu", {up})}, {{"axis", int64_t{1}}});
  p.graph.add_output(pointwise(p, both, 5), "y");
  EXPECT_LE(count(optimized(p), "transpose"), 1u);  // of the result
}

TEST(Patterns, ShuffledChannelsAndDenseBlocks) {
  Pattern p;
  const ValueId x = conv(p, p.input({2, 3, 6, 7}), 16);
  const ValueId apart = p.transpose(p.reshape(x, {2, 2, 8, 6, 7}), {0, 2, 1, 3, 4});
  const ValueId shuffled = p.reshape(apart, {2, 16, 6, 7});
  Tensor variance = tests::random_tensor({32}, 5);
  for (float& v : variance.mutable_data<float>()) v = std::abs(v);
  const ValueId norm =
      p.op("batch_norm", {p.op("concat", {shuffled, x}, {{"axis", int64_t{1}}}), p.weight({32}),
                          p.weight({32}), p.weight({32}), p.graph.add_param("variance", variance)});
  p.graph.add_output(conv(p, p.op("relu", {norm}), 8), "y");
  const ir::Graph after = optimized(p);
  EXPECT_EQ(count(after, "batch_norm"), 0u);
  EXPECT_LE(count(after, "transpose"), 2u);  // the shuffle, and that of the result
}

TEST(Patterns, ConvolutionsOfLines) {
  Pattern p;  // two layers of a sound's front end: only the result is channels-first
  const ValueId x = p.input({2, 20, 50});
  const ValueId first =
      p.op("gelu", {p.op("conv", {x, p.weight({24, 20, 3}, 0.2f)}, {{"strides", Ints{2}}})});
  p.graph.add_output(p.op("conv", {first, p.weight({16, 24, 2}, 0.2f)}), "y");
  const ir::Graph after = optimized(p);
  EXPECT_EQ(count(after, "conv_nhwc"), 2u);
  EXPECT_LE(count(after, "transpose"), 2u);  // of the operand and of the result
}

}  // namespace
}  // namespace trireme::passes
