// Subgraphs as PyTorch's exporters write them, through all passes of a bucket: they are recognized, and
// compute the same values.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "ops/test_eval.h"
#include "passes/fuse/batch_norm.h"
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

/// A graph under construction, with the ops that exporters use.
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

/// The graph after all passes of a bucket; checks that it computes the same results as before.
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

/// A way in which an exporter writes attention.
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
  ValueId q, k, v;  // [batch, heads, rows, channels]; k is transposed
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
    // A single projection that reaches attention unchanged is read in place.
    if (f.heads_by == 2 && f.scale_at == 2 && !f.factor) {
      EXPECT_EQ(count(after, "attention_qkv"), 1u);
      EXPECT_EQ(count(after, "transpose"), 0u);
    }
  }
}

/// Products over a softmax that are not replaced by attention report which part does not fit.
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

/// A factor for each window that is applied while windows are a separate axis.
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
    Pattern p;  // as MaxViT partitions: [images, windows, heads, rows, channels]
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

/// A random einsum of two operands: every letter is in one or both of them, and in the result or summed; some
/// have extent 1 in one operand, some are under an ellipsis. Operands are inputs or weights.
struct EinsumForm {
  std::string equation;
  Dims at[2];
  bool weight[2];
};

EinsumForm einsum_form(std::mt19937& random) {
  const auto draw = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  EinsumForm f;
  std::string a, b, y;
  for (const char c : std::string("abcdef")) {
    // In both operands and the result, in both and summed, in one and the result, in one alone, or in none.
    const int side = draw(8);
    const int64_t extent = 1 + draw(3);
    const bool repeated = draw(5) == 0;
    if (side == 8) continue;
    if (side != 4 && side != 7) a += c, f.at[0].push_back(repeated && draw(1) == 0 ? 1 : extent);
    if (side != 3 && side != 6) b += c, f.at[1].push_back(repeated && draw(1) == 0 ? 1 : extent);
    if (side != 2 && side != 5 && side != 6 && side != 7) y += c;
  }
  std::shuffle(y.begin(), y.end(), random);
  if (draw(3) == 0) {
    a = "..." + a, b = "..." + b, y += "...";
    const int64_t under = 1 + draw(3);
    f.at[0].insert(f.at[0].begin(), under);
    if (draw(1) == 0) f.at[1].insert(f.at[1].begin(), draw(2) == 0 ? 1 : under);
  }
  f.equation = a + "," + b + "->" + y;
  f.weight[0] = draw(3) == 0, f.weight[1] = !f.weight[0] && draw(1) == 0;
  return f;
}

TEST(Patterns, EinsumsOfAnyLettersAreProducts) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const EinsumForm f = einsum_form(random);
    SCOPED_TRACE(base::concat(f.equation, " ", tensor::to_string(f.at[0]), tensor::to_string(f.at[1])));
    Pattern p;
    ValueId in[2];
    for (int i = 0; i < 2; ++i) in[i] = f.weight[i] ? p.weight(f.at[i]) : p.input(f.at[i]);
    p.graph.add_output(p.op("einsum", {in[0], in[1]}, {{"equation", f.equation}}), "y");
    EXPECT_EQ(count(optimized(p), "einsum"), 0u);
  }
}

/// A way in which an exporter writes a norm over the last axis, or over the channels of images.
struct NormForm {
  Dims x;
  bool images;   // over axis 1 of 4
  bool centred;  // layer norm; else RMS norm
  bool scale, shift;
  int inverse;  // 0: div by sqrt; 1: reciprocal; 2: 1 / sqrt; 3: pow of -1/2
  int shifted;  // 0: (x - mean) g; as TensorFlow: 1: beta + (-mean) g; 2: beta - mean g; 3: beta + -(mean g)
  bool pooled;  // means over the last of three axes as a pool
  bool square;  // mul(v, v) instead of pow(v, 2)
  bool turned;  // operands of sums and products are swapped
};

ValueId norm_of(Pattern& p, const NormForm& f, ValueId x) {
  const auto both = [&](const char* op, ValueId a, ValueId b) {
    return f.turned ? p.op(op, {b, a}) : p.op(op, {a, b});
  };
  const auto mean = [&](ValueId v) {
    if (f.pooled) return p.op("global_average_pool", {v});
    return p.op("reduce_mean", {v, p.ints({f.images ? 1 : -1})}, {{"keepdims", int64_t{1}}});
  };
  const auto vector = [&] {
    const int64_t d = f.images ? f.x[1] : f.x.back();
    return p.weight(f.images ? Dims{d, 1, 1} : Dims{d});
  };
  const ValueId centre = f.centred ? mean(x) : ir::kNoValue;
  const ValueId v = f.centred ? p.op("sub", {x, centre}) : x;
  const ValueId square = f.square ? p.op("mul", {v, v}) : p.op("pow", {v, p.number(2)});
  const ValueId variance = both("add", mean(square), p.number(0.01f));
  const ValueId root = p.op("sqrt", {variance});
  const ValueId inverse = f.inverse == 3   ? p.op("pow", {variance, p.number(-0.5f)})
                          : f.inverse == 2 ? p.op("div", {p.number(1), root})
                                           : p.op("reciprocal", {root});
  if (f.shifted == 0) {
    ValueId y = f.inverse == 0 ? p.op("div", {v, root}) : both("mul", v, inverse);
    if (f.scale) y = both("mul", y, vector());
    return f.shift ? both("add", y, vector()) : y;
  }
  const ValueId g = f.scale ? both("mul", inverse, vector()) : inverse;
  const ValueId product = both("mul", x, g);
  const ValueId down = f.shifted == 1   ? both("mul", p.op("neg", {centre}), g)
                       : f.shifted == 2 ? both("mul", centre, g)
                                        : p.op("neg", {both("mul", centre, g)});
  if (!f.shift) return f.shifted == 2 ? p.op("sub", {product, down}) : both("add", product, down);
  return both("add", product, f.shifted == 2 ? p.op("sub", {vector(), down}) : both("add", down, vector()));
}

TEST(Patterns, NormsInAllWordsAreOneStep) {
  std::mt19937 random(11);
  const auto draw = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  for (int trial = 0; trial < 200; ++trial) {
    NormForm f{};
    f.images = draw(3) == 0, f.centred = draw(2) > 0, f.scale = draw(2) > 0,
    f.shift = f.centred && draw(2) > 0;
    f.inverse = draw(3), f.shifted = f.centred ? draw(3) : 0, f.square = draw(1) > 0, f.turned = draw(1) > 0;
    f.pooled = !f.images && draw(2) == 0;
    const size_t rank = f.images ? 4 : f.pooled ? 3 : static_cast<size_t>(2 + draw(2));
    for (size_t i = 0; i < rank; ++i) f.x.push_back(2 + draw(5));
    if (f.shifted == 2 && !f.shift) continue;  // x g - mean g: no exporter writes this
    Pattern p;
    p.graph.add_output(p.op("tanh", {norm_of(p, f, p.input(f.x))}), "y");
    const ir::Graph after = optimized(p);
    EXPECT_EQ(count(after, f.centred ? "layer_norm" : "rms_norm"), 1u)
        << trial << " images " << f.images << " scale " << f.scale << " shift " << f.shift << " inverse "
        << f.inverse << " shifted " << f.shifted << " pooled " << f.pooled;
    EXPECT_EQ(count(after, "reduce_mean") + count(after, "global_average_pool"), 0u);
  }
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
    EXPECT_LE(count(optimized(p), "transpose"), 1u);  // that of the result
  }
}

TEST(Patterns, SequencesBetweenConvolutionsStayInPlace) {
  Pattern p;  // Segformer's mixed feed-forward block and its head
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
  EXPECT_LE(count(optimized(p), "transpose"), 1u);  // that of the result
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
  EXPECT_LE(count(after, "transpose"), 2u);  // the shuffle, and the one of the result
}

TEST(Patterns, ConvolutionsOfLines) {
  Pattern p;  // two layers of an audio front end: only the result is channels-first
  const ValueId x = p.input({2, 20, 50});
  const ValueId first =
      p.op("gelu", {p.op("conv", {x, p.weight({24, 20, 3}, 0.2f)}, {{"strides", Ints{2}}})});
  p.graph.add_output(p.op("conv", {first, p.weight({16, 24, 2}, 0.2f)}), "y");
  const ir::Graph after = optimized(p);
  EXPECT_EQ(count(after, "conv_nhwc"), 2u);
  EXPECT_LE(count(after, "transpose"), 2u);  // of the operand, and of the result
}

/// A matrix product between views, as converters write a product over the last of more than two axes (or an
/// einsum over heads): biases and activations after the view are fused into the product.
TEST(Patterns, ProductsEndBehindViews) {
  std::mt19937 random(7);
  const auto draw = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  for (int trial = 0; trial < 60; ++trial) {
    const int64_t a = 1 + draw(3), b = 1 + draw(4), k = 1 + draw(8), heads = 1 + draw(3), c = 1 + draw(5);
    const bool splits = draw(1) == 0, activates = draw(1) == 0, adds = draw(1) == 0;
    Pattern p;
    const ValueId rows = p.reshape(p.input({a, b, k}), {a * b, k});
    const Dims to = splits ? Dims{a, b, heads, c} : Dims{a, b, heads * c};
    ValueId y = p.reshape(p.op("matmul", {rows, p.weight({k, heads * c})}), to);
    const ValueId bias = p.weight(splits         ? Dims{heads, c}
                                  : draw(1) == 0 ? Dims{heads * c}
                                                 : Dims{1, 1, heads * c});
    y = draw(1) == 0 ? p.op("add", {bias, y}) : p.op("add", {y, bias});
    if (activates) y = p.op("gelu", {y});
    if (adds) y = p.op("add", {y, p.input(to)});
    p.graph.add_output(y, "y");
    const ir::Graph after = optimized(p);
    EXPECT_EQ(count(after, "linear"), 1u);
    EXPECT_EQ(count(after, "add") + count(after, "gelu") + count(after, "fused_elementwise"), 0u) << trial;
  }
  Pattern p;  // a weight that varies along rows, which the view puts last, is no bias
  const ValueId y = p.reshape(p.op("matmul", {p.input({6, 4}), p.weight({4, 6})}), {6, 2, 3});
  p.graph.add_output(p.op("add", {y, p.weight({6, 1, 1})}), "y");
  EXPECT_EQ(count(optimized(p), "add"), 1u);
}

/// Pools after convolutions of lines, images and blocks are channels-last, whatever their windows.
TEST(Patterns, PoolsOfAnyAxesAreChannelsLast) {
  std::mt19937 random(19);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  size_t plain = 0;
  for (int trial = 0; trial < 90; ++trial) {
    const size_t axes = static_cast<size_t>(draw(1, 3));
    Pattern p;
    Dims x{draw(1, 2), 3}, w{8, 3};
    Ints kernel, strides, pads(2 * axes, 0);
    for (size_t i = 0; i < axes; ++i) {
      x.push_back(draw(4, 9)), w.push_back(1);
      kernel.push_back(draw(1, 4)), strides.push_back(draw(1, 3));
      pads[i] = draw(0, static_cast<int>(kernel[i]) / 2),
      pads[axes + i] = draw(0, static_cast<int>(kernel[i]) / 2);
    }
    const ValueId image = p.op("conv", {p.input(x), p.weight(w)});
    const int kind = draw(0, 2);
    ir::Attrs attrs{{"kernel_shape", kernel}, {"strides", strides}, {"pads", pads}};
    if (draw(0, 2) == 0) attrs.set("ceil_mode", int64_t{1});
    if (kind == 1 && draw(0, 1) == 0) attrs.set("count_include_pad", int64_t{1});
    const char* op = kind == 0 ? "max_pool" : kind == 1 ? "average_pool" : "global_average_pool";
    p.graph.add_output(p.op(op, {image}, kind == 2 ? ir::Attrs{} : attrs), "y");
    SCOPED_TRACE(base::concat(op, " ", tensor::to_string(x), " ", attrs.to_string()));
    const ir::Graph after = optimized(p);
    EXPECT_LE(count(after, op), kind == 1 ? 1u : 0u);
    plain += count(after, op);
  }
  EXPECT_LE(plain, 15u);  // means whose last window is cut off by rounding up
}

/// Gates along channels, rows or columns that a product computes do not prevent channels-last layout.
TEST(Patterns, GatesOfProductsStayChannelsLast) {
  for (const Dims& gate :
       {Dims{2, 16, 1, 1}, Dims{2, 1, 9, 1}, Dims{2, 1, 1, 8}, Dims{16, 1, 1}, Dims{9, 8}}) {
    Pattern p;
    const ValueId x = conv(p, p.input({2, 3, 9, 8}), 16);
    const int64_t size = tensor::element_count(gate);
    const ValueId made = p.op("sigmoid", {p.op("matmul", {p.input({1, 5}), p.weight({5, size})})});
    p.graph.add_output(conv(p, p.op("mul", {x, p.reshape(made, gate)}), 8), "y");
    // The transpose of the result; one gate swaps channels and points, and so ends the layout.
    const bool moves = std::count_if(gate.begin(), gate.end(), [](int64_t n) { return n == 16; }) > 0 &&
                       tensor::element_count(gate) > 32;
    EXPECT_LE(count(optimized(p), "transpose"), moves ? 3u : 1u) << tensor::to_string(gate);
  }
}

/// A maximum over points or channels, as in networks over point clouds, needs no transpose before it.
TEST(Patterns, ReductionsThatDropTheirAxesAreChannelsLast) {
  for (const bool line : {false, true}) {
    for (const Ints& axes :
         line ? std::vector<Ints>{{2}, {1}, {-1}} : std::vector<Ints>{{2, 3}, {1}, {-2, -1}}) {
      for (const char* op : {"reduce_max", "reduce_sum", "reduce_l2"}) {
        Pattern p;
        const Dims x = line ? Dims{2, 3, 9} : Dims{2, 3, 5, 4};
        const ValueId y = p.op("conv", {p.input(x), p.weight(line ? Dims{8, 3, 1} : Dims{8, 3, 1, 1})});
        p.graph.add_output(p.op(op, {y, p.ints(axes)}, {{"keepdims", int64_t{0}}}), "y");
        EXPECT_EQ(count(optimized(p), "transpose"), 0u) << op << tensor::to_string(axes);
      }
    }
  }
}

/// Group norms as exporters write them between convolutions become one channels-last node.
TEST(Patterns, GroupNormsStayChannelsLast) {
  std::mt19937 random(31);
  const auto draw = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  for (int trial = 0; trial < 40; ++trial) {
    const size_t axes = static_cast<size_t>(1 + draw(2));
    const int64_t groups = 1 + draw(3), channels = groups * (1 + draw(4)), batch = 1 + draw(1);
    Pattern p;
    Dims x{batch, 3}, one{channels, 3};
    for (size_t i = 0; i < axes; ++i) x.push_back(2 + draw(5)), one.push_back(1);
    const ValueId image = p.op("conv", {p.input(x), p.weight(one)});
    const auto filled = [&](float value, int64_t n) {
      const std::vector<float> values(static_cast<size_t>(n), value);
      return p.graph.add_constant(Tensor::from<float>({n}, std::span<const float>(values)));
    };
    ValueId y;
    if (draw(2) == 0) {
      y = p.op("instance_norm", {image, p.weight({channels}), p.weight({channels})}, {{"epsilon", 1e-3}});
    } else {
      const ValueId grouped = p.reshape(image, {batch, groups, -1});
      const ValueId normal =
          p.op("instance_norm", {grouped, filled(1, groups), filled(0, groups)}, {{"epsilon", 1e-3}});
      y = p.reshape(normal, p.dims(image));
      Dims vector(axes + 1, 1);
      vector[0] = channels;
      if (draw(3) > 0) y = p.op("mul", {y, p.weight(vector)});
      if (draw(3) > 0) y = p.op("add", {y, p.weight(vector)});
    }
    p.graph.add_output(p.op("conv", {p.op("swish", {y}, {{"alpha", 1.0}}), p.weight([&] {
                                       Dims w = one;
                                       w[1] = channels;
                                       return w;
                                     }())}),
                       "y");
    const ir::Graph after = optimized(p);
    EXPECT_EQ(count(after, "group_norm_nhwc"), 1u) << trial;
    EXPECT_LE(count(after, "transpose"), 2u) << trial;  // of the operand, and of the result
  }
}

/// Pointwise, depthwise and pointwise layers over 1 to 3 axes; only 2 axes have a kernel of their own.
TEST(Patterns, SeparableLayersOfAnyAxesRun) {
  for (const size_t axes : {1, 2, 3}) {
    Dims x{2, 6}, one{16, 6}, deep{16, 1}, last{5, 16};
    for (size_t i = 0; i < axes; ++i) x.push_back(6), one.push_back(1), deep.push_back(3), last.push_back(1);
    Pattern p;
    const ValueId expanded = p.op("relu", {p.op("conv", {p.input(x), p.weight(one, 0.3f)})});
    const ValueId middle = p.op("relu", {p.op("conv", {expanded, p.weight(deep, 0.3f)},
                                              {{"group", int64_t{16}}, {"pads", Ints(2 * axes, 1)}})});
    p.graph.add_output(p.op("conv", {middle, p.weight(last, 0.3f)}), "y");
    EXPECT_EQ(count(optimized(p), "separable_conv_nhwc"), axes == 2 ? 1u : 0u);
  }
}

/// A separate pad of zeros before a convolution or pool.
TEST(Patterns, PaddingIsPartOfTheWindow) {
  std::mt19937 random(41);
  const auto draw = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  size_t absorbed = 0;
  for (int trial = 0; trial < 80; ++trial) {
    const size_t axes = static_cast<size_t>(1 + draw(2));
    Pattern p;
    Dims x{2, 3}, w{4, 3};
    Ints pads(2 * (axes + 2), 0), own(2 * axes, 0), kernel;
    for (size_t i = 0; i < axes; ++i) {
      x.push_back(4 + draw(4)), w.push_back(1 + draw(2)), kernel.push_back(w.back());
      pads[i + 2] = draw(2), pads[axes + 4 + i] = draw(2);
      own[i] = draw(1), own[axes + i] = draw(1);
    }
    const bool of_channels = draw(5) == 0, of_ones = draw(5) == 0, is_pool = draw(2) == 0;
    if (of_channels) pads[1] = 1, w[1] = 4;
    std::vector<ValueId> in{p.input(x), p.ints(pads)};
    if (draw(1) == 0 || of_ones) in.push_back(p.number(of_ones ? 1.0f : 0.0f));
    const ValueId padded = p.op("pad", std::move(in));
    ir::Attrs attrs{{"pads", own}};
    if (is_pool) attrs.set("kernel_shape", kernel);
    if (is_pool && draw(1) == 0) attrs.set("count_include_pad", int64_t{1});
    if (is_pool && draw(1) == 0) attrs.set("pads", Ints(2 * axes, 0));
    p.graph.add_output(
        is_pool ? p.op("average_pool", {padded}, attrs) : p.op("conv", {padded, p.weight(w)}, attrs), "y");
    const size_t left = count(optimized(p), "pad");
    absorbed += left == 0;
    const bool moves_nothing = std::all_of(pads.begin(), pads.end(), [](int64_t n) { return n == 0; });
    EXPECT_GE(left, of_channels || (of_ones && !moves_nothing) ? 1u : 0u) << trial;
    EXPECT_LE(left, is_pool || of_channels || of_ones ? 1u : 0u) << trial;
  }
  EXPECT_GE(absorbed, 40u);
}

/// Gates that exporters expand to the image's extents before a product, which broadcasts them itself.
TEST(Patterns, RepeatedOperandsAreNotCopied) {
  std::mt19937 random(43);
  const auto draw = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  for (int trial = 0; trial < 60; ++trial) {
    Pattern p;
    const Dims x{2, 5, 3, 4};
    Dims a = x, b = x;
    for (size_t i = 0; i < 4; ++i) {
      if (draw(1) == 0) b[i] = 1;
      if (draw(4) == 0) a[i] = 1;
    }
    if (b[0] == 1 && draw(1) == 0) b.erase(b.begin());
    const ValueId repeated = p.op("expand", {p.input(b), p.ints(Ints(x.begin(), x.end()))});
    ValueId other = p.input(a);
    if (draw(2) == 0) other = p.op("expand", {other, p.ints(Ints(x.begin(), x.end()))});
    p.graph.add_output(draw(1) == 0 ? p.op("mul", {repeated, other})
                                    : p.op("where", {p.op("less", {other, repeated}), repeated, other}),
                       "y");
    const bool covers = a == x;
    EXPECT_LE(count(optimized(p), "expand"), covers ? 0u : 2u) << trial;
  }
}

/// Statistics that are not one for each channel, which no type rule sees where x has no rank, and no
/// channels.
TEST(Patterns, BatchNormsWithoutStatisticsForEachChannelStay) {
  const struct {
    const char *x, *weight, *channels, *mean;
  } cases[] = {{"f32[*]", "f32[2,3,1,1]#seed=1", "f32[2]{1, 2}", "f32[1]{0}"},
               {"f32[1,3,4,4]", "f32[0,3,1,1]#zeros", "f32[0]{}", "f32[0]{}"}};
  for (const auto& c : cases) {
    ir::Graph graph = ir::parse(
        base::concat("graph \"g\"\n  %0 = input \"x\" : ", c.x, "\n  %1 = param \"w\" : ", c.weight,
                     "\n  %2 = const : ", c.channels, "\n  %3 = const : ", c.mean,
                     "\n  %4 = conv(%0, %1)\n  %5 = batch_norm(%4, %2, %2, %3, %2)\n", "  return %5 \"y\"\n"),
        ops::table());
    EXPECT_EQ(fold_batch_norm(graph), 0u) << c.x;
    EXPECT_EQ(count(graph, "batch_norm"), 1u) << c.x;
  }
}

}  // namespace
}  // namespace trireme::passes
