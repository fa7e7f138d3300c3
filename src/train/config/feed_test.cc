// Tests how fields are assigned to inputs, conversions, the counting of targets, and evaluation against plain
// loops.
#include "train/config/feed.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "model/builder.h"
#include "train/evaluate.h"
#include "train/flop.h"

namespace trireme::train {
namespace {

using data::Field;
using data::FieldKind;
using tensor::Dim;
using tensor::DType;
using tensor::Tensor;

ir::Graph graph_of(const std::vector<std::pair<std::string, tensor::TensorType>>& inputs) {
  ir::Graph graph;
  for (const auto& [name, type] : inputs) graph.add_input(name, type);
  return graph;
}

const std::vector<Field> kImages{{"image", FieldKind::tensor, DType::f32, {2, 3, 1}, false},
                                 {"name", FieldKind::text, DType::u8, {}, false},
                                 {"label", FieldKind::tensor, DType::i64, {}, true}};

data::Batch image_batch() {
  data::Batch batch;
  batch.values.push_back(
      {"image", Tensor::from<float>({2, 2, 3, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), {}});
  batch.values.push_back({"label", Tensor::from<int64_t>({2}, {4, -100}), {}});
  batch.valid_rows = 2;
  return batch;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
    return e.message();
  }
  return "no error";
}

TEST(Feeder, ReshapesAndConverts) {
  const ir::Graph graph = graph_of({{"features", {DType::f32, {Dim::symbol("batch"), 6}}},
                                    {"labels", {DType::i32, {Dim::symbol("batch")}}}});
  const Feeder feeder(graph, kImages, {}, {"labels"});
  EXPECT_EQ(feeder.text(), "features <- image [6] f32\nlabels <- label [] i32 (target)\n");
  EXPECT_EQ(feeder.fields(), (std::vector<std::string>{"image", "label"}));
  const auto feeds = feeder.feeds(image_batch());
  ASSERT_EQ(feeds.size(), 2u);
  EXPECT_EQ(feeds[0].dims(), (tensor::Dims{2, 6}));
  EXPECT_EQ(feeds[0].data<float>()[7], 7.0f);
  EXPECT_EQ(feeds[1].dtype(), DType::i32);
  EXPECT_EQ(feeds[1].to_ints(), (std::vector<int64_t>{4, -100}));
  EXPECT_EQ(feeder.shapes(5), (std::vector<tensor::Dims>{{5, 6}, {5}}));
  EXPECT_EQ(feeder.targets_per_sample(), 1);
  EXPECT_EQ(feeder.count_targets(image_batch(), -100), 1);
  EXPECT_EQ(feeder.count_targets(image_batch(), 4), 1);
  EXPECT_EQ(feeder.count_targets(image_batch(), 0), 2);
}

TEST(Feeder, AllElementsOfFloatTargetsCount) {
  const Dim batch = Dim::symbol("batch");
  const std::vector<Field> fields{{"x", FieldKind::tensor, DType::f32, {2}, false},
                                  {"y", FieldKind::tensor, DType::f32, {3}, true}};
  const ir::Graph graph = graph_of({{"x", {DType::f32, {batch, 2}}}, {"labels", {DType::f32, {batch, 3}}}});
  const Feeder feeder(graph, fields, {}, {"labels"});
  data::Batch data;
  data.values.push_back({"x", Tensor::zeros(DType::f32, {4, 2}), {}});
  data.values.push_back({"y", Tensor::zeros(DType::f32, {4, 3}), {}});
  data.valid_rows = 4;
  EXPECT_EQ(feeder.count_targets(data, -100), 12);
  EXPECT_FALSE(feeder.has_integer_targets());
  // A loss of floats ignores no value, also if the field holds integers.
  const ir::Graph one = graph_of({{"image", {DType::f32, {batch, 6}}}, {"labels", {DType::f32, {batch}}}});
  const Feeder converting(one, kImages, {}, {"labels"});
  EXPECT_EQ(converting.count_targets(image_batch(), -100), 2);
  EXPECT_FALSE(converting.has_integer_targets());
}

TEST(Feeder, FeedsTruthValuesAndRefusesOtherTypesBeforeAnyBatch) {
  const Dim batch = Dim::symbol("batch");
  const std::vector<Field> fields{{"mask", FieldKind::tensor, DType::i64, {3}, false}};
  const auto feeder = [&](DType wanted) {
    return Feeder(graph_of({{"mask", {wanted, {batch, 3}}}}), fields, {}, {});
  };
  data::Batch data;
  data.values.push_back({"mask", Tensor::from<int64_t>({1, 3}, {0, 1, 256}), {}});
  data.valid_rows = 1;
  const Tensor fed = feeder(DType::boolean).feeds(data)[0];
  EXPECT_EQ(fed.dtype(), DType::boolean);
  EXPECT_EQ(fed.to_doubles(), (std::vector<double>{0, 1, 1}));
  EXPECT_NE(error_of([&] { feeder(DType::f64); }).find("wants f64, its field holds i64"), std::string::npos);
}

TEST(Feeder, SaysWhatIsMissing) {
  const Dim batch = Dim::symbol("batch");
  const ir::Graph two = graph_of({{"left", {DType::f32, {batch, 6}}}, {"right", {DType::f32, {batch, 6}}}});
  const std::string open = error_of([&] { Feeder(two, kImages, {{"left", "image"}}, {}); });
  EXPECT_NE(open.find("'right'"), std::string::npos) << open;
  EXPECT_NE(open.find("label"), std::string::npos) << open;
  EXPECT_NE(error_of([&] {
              Feeder(two, kImages, {{"up", "image"}}, {});
            }).find("no input 'up'"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              Feeder(two, kImages, {{"left", "picture"}}, {});
            }).find("no field 'picture'"),
            std::string::npos);
  const ir::Graph wide = graph_of({{"image", {DType::f32, {batch, 7}}}});
  EXPECT_NE(error_of([&] { Feeder(wide, kImages, {}, {}); }).find("wants rows of [7]"), std::string::npos);
}

/// Ten samples with three features; the class is the index modulo 3, and every fourth label is ignored.
class Points : public data::Dataset {
 public:
  Points() {
    info_.format = "points";
    info_.fields = {{"x", FieldKind::tensor, DType::f32, {3}, false},
                    {"label", FieldKind::tensor, DType::i64, {}, true}};
  }
  int64_t size() const override { return 10; }
  const data::DatasetInfo& info() const override { return info_; }
  data::Sample read(int64_t i) const override {
    const auto v = static_cast<float>(i);
    data::Sample sample;
    sample.set("x", Tensor::from<float>({3}, {v * 0.1f, 1 - v * 0.2f, v * v * 0.01f}));
    sample.set("label", Tensor::scalar<int64_t>(i % 4 == 3 ? -100 : i % 3));
    return sample;
  }

 private:
  data::DatasetInfo info_;
};

/// logits = x w, cross entropy.
ir::Graph softmax_graph() {
  ir::Graph graph;
  model::Builder b(graph);
  const Dim batch = Dim::symbol("batch");
  const ir::ValueId x = graph.add_input("x", {DType::f32, {batch, 3}});
  const ir::ValueId labels = graph.add_input("labels", {DType::i64, {batch}});
  const ir::ValueId w = b.param("w", Tensor::from<float>({3, 3}, {1, -1, 0, 0.5f, 2, -1, 0, 0, 3}));
  const auto loss =
      b.ops("cross_entropy", {b.op("matmul", {x, w}), labels}, {{"ignore_index", int64_t{-100}}}, 4);
  graph.add_output(loss[0], "loss_sum");
  graph.add_output(loss[2], "count");
  graph.add_output(loss[3], "correct");
  return graph;
}

TEST(Evaluator, EverySampleCountsOnceWhateverTheBatch) {
  const auto points = std::make_shared<const Points>();
  const double w[3][3] = {{1, -1, 0}, {0.5, 2, -1}, {0, 0, 3}};
  double loss = 0, correct = 0, count = 0;
  for (int64_t i = 0; i < 10; ++i) {
    const data::Sample sample = points->read(i);
    const int64_t label = sample.tensor("label").to_ints()[0];
    if (label < 0) continue;
    double logits[3] = {}, sum = 0;
    for (int c = 0; c < 3; ++c) {
      for (int k = 0; k < 3; ++k)
        logits[c] += sample.tensor("x").to_doubles()[static_cast<size_t>(k)] * w[k][c];
      sum += std::exp(logits[c]);
    }
    loss += std::log(sum) - logits[label];
    correct += logits[label] == std::max({logits[0], logits[1], logits[2]});
    ++count;
  }
  base::SystemClock clock;
  const ir::Graph graph = softmax_graph();
  for (const int64_t batch : {1, 3, 4, 10, 64}) {
    EvaluatorOptions options;
    options.batch = batch;
    options.threads = 1 + static_cast<int>(batch % 2);
    options.target_inputs = {"labels"};
    Evaluator evaluator(graph, points, {}, options, clock);
    for (int repeat = 0; repeat < 2; ++repeat) {
      const EvalRecord record = evaluator.run(graph, 7);
      EXPECT_EQ(record.step, 7);
      EXPECT_EQ(record.targets, static_cast<int64_t>(count));
      EXPECT_NEAR(record.loss, loss / count, 1e-6);
      EXPECT_NEAR(record.accuracy, correct / count, 1e-12);
    }
  }
}

/// Points of which some have a note, of different lengths.
class NotedPoints : public Points {
 public:
  data::Sample read(int64_t i) const override {
    data::Sample sample = Points::read(i);
    if (i % 3 == 0) sample.set("note", Tensor::zeros(DType::f32, {i + 1}));
    return sample;
  }
};

TEST(Evaluator, SamplesMayLackFieldsThatNothingReads) {
  base::SystemClock clock;
  const ir::Graph graph = softmax_graph();
  EvaluatorOptions options;
  options.batch = 4;
  options.target_inputs = {"labels"};
  Evaluator plain(graph, std::make_shared<const Points>(), {}, options, clock);
  Evaluator noted(graph, std::make_shared<const NotedPoints>(), {}, options, clock);
  EXPECT_EQ(noted.run(graph, 1).loss, plain.run(graph, 1).loss);
}

TEST(Flop, CountsProductsOnly) {
  // 2 x 5 x 3 x 3 for the product; the loss does not count.
  EXPECT_EQ(forward_flop(softmax_graph(), {{5, 3}, {5}}), 90);
  EXPECT_GT(measure_product_rate(1), 1e9);
}

}  // namespace
}  // namespace trireme::train
