// Models as batch jobs see them: every row's answer is the one it has alone, wherever and with whomever it
// runs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "base/files/file.h"
#include "batch/models/column_values.h"
#include "batch/models/open_row_model.h"
#include "batch/models/prompt_text.h"
#include "batch/models/score_front.h"
#include "batch/models/tensor_row_model.h"
#include "batch/models/text_row_model.h"
#include "batch/test_job.h"
#include "engine/session/session.h"
#include "ops/table.h"
#include "tests/tiny_llama.h"

namespace trireme::batch {
namespace {

using data::Column;
using data::FieldKind;
using data::Rows;
using tensor::Dim;
using tensor::DType;
using tensor::Tensor;

constexpr int64_t kWidth = 12;

const base::Clock& the_clock() {
  static base::SystemClock clock;
  return clock;
}

model::Model named(ir::Graph graph) {
  model::Model m;
  m.name = "small";
  m.format = "builder";
  m.graph = std::move(graph);
  return m;
}

Tensor weights(int64_t rows, int64_t columns) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  Tensor w = Tensor::empty(DType::f32, {rows, columns});
  for (float& v : w.mutable_data<float>()) v = normal(random);
  return w;
}

/// y = sigmoid(x w), x [batch, 12], y [batch, 5].
model::Model rows_apart() {
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", {DType::f32, {Dim::symbol("batch"), Dim(kWidth)}});
  const ir::ValueId product = g.add1(ops::table().need("matmul"), {x, g.add_param("w", weights(kWidth, 5))});
  g.add_output(g.add1(ops::table().need("sigmoid"), {product}), "y");
  return named(std::move(g));
}

/// y = softmax over the rows: no row's answer is its own.
model::Model rows_mixed() {
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", {DType::f32, {Dim::symbol("batch"), Dim(kWidth)}});
  g.add_output(g.add1(ops::table().need("softmax"), {x}, {{"axis", int64_t{0}}}), "y");
  return named(std::move(g));
}

/// y = tanh(x), x [batch, length].
model::Model any_length() {
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", {DType::f32, {Dim::symbol("batch"), Dim::symbol("length")}});
  g.add_output(g.add1(ops::table().need("tanh"), {x}), "y");
  return named(std::move(g));
}

Tensor random_values(std::mt19937& random, tensor::Dims dims) {
  std::normal_distribution<float> normal;
  Tensor t = Tensor::empty(DType::f32, std::move(dims));
  for (float& v : t.mutable_data<float>()) v = normal(random);
  return t;
}

Rows one_column(Column column, int64_t count) {
  Rows rows;
  rows.count = count;
  rows.columns.push_back(std::move(column));
  return rows;
}

Rows number_rows(std::mt19937& random, int64_t count) {
  return one_column(
      {.field = {.name = "x", .shape = {Dim(kWidth)}}, .numbers = random_values(random, {count, kWidth})},
      count);
}

/// Submits pieces and waits for all answers, in order of the pieces.
std::vector<PieceAnswer> ask(RowModel& model, const std::vector<std::shared_ptr<const Rows>>& pieces) {
  std::vector<PieceAnswer> answers(pieces.size());
  std::mutex mutex;
  std::condition_variable changed;
  size_t left = pieces.size();
  for (size_t i = 0; i < pieces.size(); ++i) {
    model.submit(pieces[i], [&, i](PieceAnswer&& answer) {
      const std::lock_guard lock(mutex);
      answers[i] = std::move(answer);
      --left;
      changed.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return left == 0; });
  return answers;
}

PieceAnswer ask_one(RowModel& model, Rows rows) {
  return std::move(ask(model, {std::make_shared<const Rows>(std::move(rows))})[0]);
}

std::unique_ptr<RowModel> open(const model::Model& model, ModelOptions options = {}) {
  options.model = "builder";
  options.threads = 1;
  return open_row_model(
      options, [&](const std::string&) { return model; }, the_clock());
}

/// What a session of its own gives for one row.
Tensor alone(const model::Model& model, const Tensor& row) {
  engine::Session session(std::make_shared<const engine::PreparedModel>(model.graph), {.threads = 1});
  tensor::Dims dims = row.dims();
  dims.insert(dims.begin(), 1);
  const Tensor out = session.run({row.reshaped(dims)})[0];
  return out.reshaped({out.dims().begin() + 1, out.dims().end()});
}

TEST(RowModel, RowsHaveTheAnswersTheyHaveAloneInPiecesOfAnySize) {
  const model::Model model = rows_apart();
  for (const int instances : {1, 2}) {
    ModelOptions options;
    options.instances = instances;
    options.front_threads = 2;
    options.batch_rows = 16;
    options.window_rows = 50;  // less than the rows that come: submit() waits
    const auto rows_model = open(model, options);
    EXPECT_EQ(rows_model->columns(), std::vector<std::string>{"x"});
    ASSERT_EQ(rows_model->outputs().size(), 1u);
    EXPECT_EQ(rows_model->outputs()[0].name, "y");
    std::mt19937 random(11);
    std::vector<std::shared_ptr<const Rows>> pieces;
    for (const int64_t rows : {1, 7, 0, 64, 33, 2, 100}) {
      pieces.push_back(std::make_shared<const Rows>(number_rows(random, rows)));
    }
    const std::vector<PieceAnswer> answers = ask(*rows_model, pieces);
    int64_t rows = 0;
    for (size_t p = 0; p < pieces.size(); ++p) {
      ASSERT_EQ(answers[p].outputs.count, pieces[p]->count);
      EXPECT_TRUE(answers[p].errors.empty());
      for (int64_t i = 0; i < pieces[p]->count; ++i, ++rows) {
        const Tensor want = alone(model, pieces[p]->columns[0].tensor_at(i));
        ASSERT_TRUE(answers[p].outputs.columns[0].tensor_at(i).same_as(want))
            << "piece " << p << " row " << i;
      }
    }
    EXPECT_EQ(rows_model->use().rows, rows);
    EXPECT_GT(rows_model->use().busy_ns, 0);
  }
}

/// Submits more than the model can have under way, and gives it up at the first answer.
void expect_given_up(RowModel& model, const Rows& rows, int64_t pieces) {
  const auto piece = std::make_shared<const Rows>(rows);
  std::atomic<int64_t> answered{0}, failed{0};
  std::thread asks([&] {
    for (int64_t i = 0; i < pieces; ++i) {
      model.submit(piece, [&](PieceAnswer&& answer) {
        EXPECT_EQ(answer.outputs.count, rows.count);
        for (const auto& error : answer.errors) {
          if (!error) continue;
          EXPECT_EQ(error->code(), base::ErrorCode::unavailable) << error->message();
          ++failed;
        }
        ++answered;
      });
    }
  });
  while (answered == 0) std::this_thread::yield();
  model.give_up();
  asks.join();
  while (answered < pieces) std::this_thread::yield();
  EXPECT_GT(failed, 0);
  EXPECT_EQ(model.use().rows + failed, pieces * rows.count);
}

TEST(RowModel, WhatIsGivenUpIsAnsweredWithoutBeingComputed) {
  ModelOptions options;
  options.window_rows = 16;
  std::mt19937 random(1);
  expect_given_up(*open(rows_apart(), options), number_rows(random, 8), 4000);
}

TEST(RowModel, RowsThatWouldMixRunAlone) {
  const model::Model model = rows_mixed();
  const auto rows_model = open(model);
  std::mt19937 random(3);
  const auto piece = std::make_shared<const Rows>(number_rows(random, 20));
  const PieceAnswer answer = std::move(ask(*rows_model, {piece})[0]);
  for (int64_t i = 0; i < 20; ++i) {
    // A softmax over one row is 1 everywhere; with a stranger beside it, it is not.
    for (const float v : answer.outputs.columns[0].tensor_at(i).data<float>()) EXPECT_EQ(v, 1.0f);
  }
}

/// The places where x is positive, and what is there: as many as there are, like the boxes of a detector.
/// x [rows, 6] -> scores [found], places [found, 2]; halves [2 rows, 3].
model::Model detector(const Dim& rows) {
  ir::Graph g;
  const auto op = [&](const char* name, std::vector<ir::ValueId> in) {
    return g.add1(ops::table().need(name), std::move(in));
  };
  const ir::ValueId x = g.add_input("x", {DType::f32, {rows, Dim(6)}});
  const ir::ValueId places = op("transpose", {op("non_zero", {op("relu", {x})})});
  g.add_output(op("gather_nd", {x, places}), "scores");
  g.add_output(places, "places");
  const ir::ValueId shape = g.add_constant(Tensor::from<int64_t>({2}, {-1, 3}));
  g.add_output(op("reshape", {x, shape}), "halves");
  g.add_output(op("relu", {x}), "own");
  return named(std::move(g));
}

TEST(RowModel, OutputsWhoseFirstDimensionIsNotTheRowsAreWhole) {
  const Tensor x = Tensor::from<float>({4, 6}, {1,  -1, 2,  -1, 3,  -1,  //
                                                -1, -1, -1, -1, -1, -1,  //
                                                -1, 5,  -1, -1, -1, -1,  //
                                                1,  1,  1,  1,  1,  1});
  const std::vector<std::vector<float>> found = {{1, 2, 3}, {}, {5}, {1, 1, 1, 1, 1, 1}};
  for (const Dim& rows : {Dim(1), Dim::symbol("batch"), Dim::unknown()}) {
    const auto rows_model = open(detector(rows));
    const std::vector<data::Field> fields = rows_model->outputs();
    ASSERT_EQ(fields.size(), 4u);
    EXPECT_TRUE(fields[0].shape.rank() == 1 && !fields[0].shape[0].is_static())
        << fields[0].shape.to_string();
    EXPECT_EQ(fields[1].shape.rank(), 2u);
    EXPECT_EQ(fields[2].shape.rank(), 2u);
    EXPECT_EQ(fields[3].shape, tensor::Shape{6});
    const PieceAnswer answer =
        ask_one(*rows_model, one_column({.field = {.name = "x", .shape = {Dim(6)}}, .numbers = x}, 4));
    EXPECT_TRUE(answer.errors.empty());
    for (int64_t i = 0; i < 4; ++i) {
      const std::vector<float>& want = found[static_cast<size_t>(i)];
      const auto count = static_cast<int64_t>(want.size());
      const auto at = [&](size_t c) { return answer.outputs.columns[c].tensor_at(i); };
      EXPECT_TRUE(at(0).same_as(Tensor::from<float>({count}, want))) << i;
      EXPECT_EQ(at(1).dims(), (tensor::Dims{count, 2})) << i;
      EXPECT_TRUE(at(2).same_as(x.rows(i, i + 1).reshaped({2, 3}))) << i;
      EXPECT_EQ(at(3).dims(), tensor::Dims{6}) << i;
    }
  }
}

TEST(RowModel, AnOutputThatIsNotTheRowsItIsSaidToBeFailsItsRow) {
  model::Model model = detector(Dim::symbol("batch"));
  model.graph.value(model.graph.outputs()[0]).type.shape = {Dim::symbol("batch")};
  const auto rows_model = open(model);
  EXPECT_EQ(rows_model->outputs()[0].shape.rank(), 0u);
  const Tensor x = Tensor::from<float>({2, 6}, {1, -1, 2, -1, 3, -1, -1, 4, -1, -1, -1, -1});
  const PieceAnswer answer =
      ask_one(*rows_model, one_column({.field = {.name = "x", .shape = {Dim(6)}}, .numbers = x}, 2));
  ASSERT_EQ(answer.errors.size(), 2u);
  ASSERT_TRUE(answer.errors[0].has_value());
  EXPECT_NE(answer.errors[0]->message().find("[3] for 1 rows"), std::string::npos)
      << answer.errors[0]->message();
  EXPECT_FALSE(answer.errors[1].has_value());
}

TEST(RowModel, RowsOfManyLengthsComeBackInTheirOrder) {
  const model::Model model = any_length();
  const auto rows_model = open(model);
  std::mt19937 random(5);
  Column column{.field = {.name = "x", .shape = {Dim::unknown()}}};
  for (int i = 0; i < 200; ++i) column.ragged.push_back(random_values(random, {1 + int64_t(random() % 9)}));
  const auto piece = std::make_shared<const Rows>(one_column(column, 200));
  const PieceAnswer answer = std::move(ask(*rows_model, {piece})[0]);
  EXPECT_TRUE(answer.errors.empty());
  for (int64_t i = 0; i < 200; ++i) {
    const Tensor want = alone(model, column.ragged[size_t(i)]);
    ASSERT_TRUE(answer.outputs.columns[0].tensor_at(i).same_as(want)) << i;
  }
}

TEST(RowModel, OnlyTheRowsThatAreWrongFail) {
  const model::Model model = rows_apart();
  const auto rows_model = open(model);
  std::mt19937 random(9);
  Column column{.field = {.name = "x", .shape = {Dim::unknown()}}};
  for (int i = 0; i < 12; ++i) column.ragged.push_back(random_values(random, {i % 4 == 1 ? 3 : kWidth}));
  column.is_missing.assign(12, false);
  column.is_missing[6] = true;
  Rows rows = one_column(column, 12);
  rows.errors.resize(12);
  rows.errors[10] = base::Error(base::ErrorCode::invalid_argument, "line 11: not JSON");
  const PieceAnswer answer = ask_one(*rows_model, rows);
  ASSERT_EQ(answer.errors.size(), 12u);
  for (int64_t i = 0; i < 12; ++i) {
    const bool is_wrong = i % 4 == 1 || i == 6 || i == 10;
    ASSERT_EQ(answer.errors[size_t(i)].has_value(), is_wrong) << i;
    EXPECT_EQ(answer.outputs.columns[0].is_missing_at(i), is_wrong) << i;
    if (!is_wrong) {
      EXPECT_TRUE(answer.outputs.columns[0].tensor_at(i).same_as(alone(model, column.ragged[size_t(i)])));
    }
  }
  EXPECT_NE(answer.errors[1]->message().find("column 'x'"), std::string::npos) << answer.errors[1]->message();
  EXPECT_NE(answer.errors[6]->message().find("no value"), std::string::npos);
  EXPECT_EQ(answer.errors[10]->message(), "line 11: not JSON");
}

TEST(RowModel, AJobWithoutTheColumnSaysSoForEveryRow) {
  const auto rows_model = open(rows_apart());
  Rows rows;
  rows.count = 3;
  const PieceAnswer answer = ask_one(*rows_model, rows);
  ASSERT_EQ(answer.errors.size(), 3u);
  for (const auto& error : answer.errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->message(), "the input has no column 'x'");
  }
}

TEST(RowModel, ClassesAreTheLargestLogits) {
  ModelOptions options;
  options.task = "classify";
  options.columns = {"x=features"};
  const model::Model model = rows_apart();
  const auto rows_model = open(model, options);
  EXPECT_EQ(rows_model->columns(), std::vector<std::string>{"features"});
  std::mt19937 random(2);
  Rows rows = number_rows(random, 30);
  rows.columns[0].field.name = "features";
  const Column column = rows.columns[0];
  const PieceAnswer answer = ask_one(*rows_model, std::move(rows));
  for (int64_t i = 0; i < 30; ++i) {
    const Tensor logits = alone(model, column.tensor_at(i));
    const auto values = logits.data<float>();
    const auto top = std::max_element(values.begin(), values.end());
    double sum = 0;
    for (const float v : values) sum += std::exp(double(v));
    EXPECT_EQ(answer.outputs.columns[0].tensor_at(i).data<int64_t>()[0], top - values.begin());
    EXPECT_NEAR(answer.outputs.columns[1].tensor_at(i).data<float>()[0], std::exp(double(*top)) / sum, 1e-6);
  }
}

TEST(RowModel, ClassesHaveTheirNames) {
  model::Model model = rows_apart();
  model.config = base::parse_json(R"({"id2label": {"0": "a", "1": "b", "2": "c", "3": "d", "4": "e"}})");
  ModelOptions options;
  options.task = "classify";
  std::mt19937 random(2);
  const Rows rows = number_rows(random, 20);
  const auto names_by = [&](RowModel& classifier) {
    EXPECT_EQ(classifier.outputs().at(1), (data::Field{.name = "name", .kind = FieldKind::text}));
    const PieceAnswer answer = ask_one(classifier, rows);
    for (int64_t i = 0; i < 20; ++i) {
      const int64_t label = answer.outputs.columns[0].tensor_at(i).data<int64_t>()[0];
      EXPECT_EQ(answer.outputs.columns[1].strings.at(static_cast<size_t>(i)),
                std::string(1, static_cast<char>('a' + label)));
    }
  };
  names_by(*open(model, options));
  model.config = {};
  EXPECT_EQ(open(model, options)->outputs().size(), 2U) << "no names, no column";
  const std::string labels = base::concat(::testing::TempDir(), "/row_model_labels_", ::getpid());
  base::write_file_atomic(labels, "a\nb\nc\nd\ne\n");
  options.labels = labels;
  const auto named_by_file = open(model, options);
  names_by(*named_by_file);
  base::write_file_atomic(labels, "a\nb\nc\nd\nf\n");
  EXPECT_NE(open(model, options)->identity(), named_by_file->identity());
  base::write_file_atomic(labels, "a\nb\n");
  EXPECT_NE(error_of([&] { open(model, options); }).find("5 logits, and there are 2 names"),
            std::string::npos);
  options.task = "run";
  EXPECT_NE(error_of([&] { open(model, options); }).find("labels are for task classify"), std::string::npos);
}

TEST(RowModel, IdentityHoldsWhatChangesTheBytesAndNothingElse) {
  const model::Model model = rows_apart();
  ModelOptions options;
  const base::Json usual = open(model, options)->identity();
  options.instances = 2;
  options.window_rows = 7;
  options.batch_rows = 3;
  EXPECT_EQ(open(model, options)->identity().dump(), usual.dump());
  options.precision = passes::Precision::bf16;
  EXPECT_NE(open(model, options)->identity().dump(), usual.dump());
}

/// y = relu(x), x [batch, 3, side, side].
model::Model pictures(int64_t side) {
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", {DType::f32, {Dim::symbol("batch"), Dim(3), Dim(side), Dim(side)}});
  g.add_output(g.add1(ops::table().need("relu"), {x}), "y");
  return named(std::move(g));
}

TEST(RowModel, AWindowHoldsAsManyRowsAsHaveRoom) {
  // Four pieces a window, 32 rows a batch: 32 batches of small rows, and of large ones four.
  EXPECT_EQ(open(rows_apart())->piece_rows(), 32 * 32 / 4);
  EXPECT_EQ(open(any_length())->piece_rows(), 32 * 32 / 4);
  EXPECT_EQ(open(pictures(16))->piece_rows(), 32 * 32 / 4);
  EXPECT_EQ(open(pictures(96))->piece_rows(), (64 << 20) / (3 * 96 * 96 * 4) / 4);
  EXPECT_EQ(open(pictures(224))->piece_rows(), 4 * 32 / 4);
  ModelOptions options;
  options.batch_rows = 8;
  options.instances = 2;
  EXPECT_EQ(open(pictures(512), options)->piece_rows(), 4 * 8 * 2 / 4);
  options.window_rows = 40;
  EXPECT_EQ(open(pictures(512), options)->piece_rows(), 10);
}

TEST(RowModel, BatchesAreNoLargerThanTheWindow) {
  // A batch of 32 that never fills up would wait 20 ms for every 4 rows: 10 s in all.
  ModelOptions options;
  options.window_rows = 4;
  const auto rows_model = open(rows_apart(), options);
  std::mt19937 random(1);
  std::vector<std::shared_ptr<const Rows>> pieces;
  for (int i = 0; i < 1000; ++i) pieces.push_back(std::make_shared<const Rows>(number_rows(random, 2)));
  const int64_t begin = the_clock().now_ns();
  ask(*rows_model, pieces);
  EXPECT_LT(the_clock().now_ns() - begin, 5 * base::kNsPerSecond);
}

TEST(RowModel, StagesAreNoPartOfTheIdentityWhereTheyDoNotShow) {
  ModelOptions options;
  const model::Model model = tests::tiny_llama();
  const auto identity = [&](int pp, const char* device, passes::Precision precision) {
    options.pp = pp;
    options.device = device;
    options.precision = precision;
    return open(model, options)->identity().dump();
  };
  using passes::Precision;
  ModelOptions parts;
  parts.tp = parts.pp = 2;
  EXPECT_TRUE(parts.stages_show("score"));
  EXPECT_FALSE(parts.stages_show("generate"));
  EXPECT_EQ(identity(1, "cpu", Precision::f32), identity(2, "cpu", Precision::f32));
  EXPECT_EQ(identity(1, "cpu", Precision::bf16), identity(2, "cpu", Precision::bf16));
  EXPECT_NE(identity(1, "cpu", Precision::fp8), identity(2, "cpu", Precision::fp8));
  EXPECT_NE(identity(1, "emulated", Precision::f32), identity(2, "emulated", Precision::f32));
}

TEST(RowModel, RefusesWhatTheModelIsNotMadeFor) {
  const model::Model model = rows_apart();
  const auto refused = [&](auto change) {
    ModelOptions options;
    change(options);
    try {
      open(model, options);
    } catch (const base::Error& e) {
      return e.message();
    }
    return std::string("taken");
  };
  EXPECT_NE(refused([](auto& o) { o.task = "sing"; }).find("none of auto"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.task = "generate"; }).find("needs a language model"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.task = "embed"; }).find("sentence_embedding"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.columns = {"z=x"}; }).find("no input 'z'"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.columns = {"x"}; }).find("not input=column"), std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.image_values = data::PixelValues::unit; }).find("image_values"),
            std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.pp = o.instances = 2; }).find("ranks hold one instance"),
            std::string::npos);
  EXPECT_EQ(refused([](auto&) {}), "taken");
}

TEST(ColumnValues, TextsThatAreNumbersAndValuesThatAreNone) {
  const auto value_of = [](const Column& column, const BoundInput& input) -> std::string {
    try {
      return base::concat(row_value(input, column, 0).to_doubles().at(0));
    } catch (const base::Error& e) {
      return e.message();
    }
  };
  const BoundInput real{.input = "x", .column = "c", .dtype = DType::f32, .row = {Dim(1)}};
  const BoundInput whole{.input = "x", .column = "c", .dtype = DType::u64, .row = {}};
  const auto text = [](const char* t) {
    return Column{.field = {.name = "c", .kind = FieldKind::text}, .strings = {t}};
  };
  EXPECT_EQ(value_of(text("007"), real), "7");
  const BoundInput list{.input = "x", .column = "c", .dtype = DType::f32, .row = {Dim(2), Dim(2)}};
  EXPECT_TRUE(
      row_value(list, text("[[1, 2], [3, 0.5]]"), 0).same_as(Tensor::from<float>({2, 2}, {1, 2, 3, 0.5f})));
  EXPECT_EQ(value_of(text("[9007199254740993, 0.5]"),
                     {.input = "x", .column = "c", .dtype = DType::f64, .row = {2}}),
            base::concat(9007199254740993.0));
  for (const char* none : {"[1, null]", "[1", "[[1], [2, 3]]", "[\"a\"]"})
    EXPECT_NE(value_of(text(none), list).find("the model takes numbers"), std::string::npos) << none;
  EXPECT_EQ(value_of(text("-1.5"), real), "-1.5");
  EXPECT_EQ(value_of(text("18446744073709551615"), whole), base::concat(std::ldexp(1.0, 64)));
  for (const char* none : {"", "7a", "x"})
    EXPECT_NE(value_of(text(none), real).find("the model takes numbers"), std::string::npos);
  Column column{.field = {.name = "c", .shape = {Dim::unknown()}}, .is_missing = {true}};
  column.ragged = {Tensor::zeros(DType::f32, {0})};
  EXPECT_NE(value_of(column, real).find("column 'c': the row has no value"), std::string::npos);
  column.errors = {base::Error(base::ErrorCode::invalid_argument, "a null among its items")};
  EXPECT_NE(value_of(column, real).find("column 'c': a null among its items"), std::string::npos);
  Rows rows = one_column(column, 1);
  EXPECT_NE(error_of([&] { PromptText("", "c").of(rows, 0); }).find("a null among its items"),
            std::string::npos);
}

TEST(ColumnValues, NumbersKeepTheirValueOrAreRefused) {
  const Tensor ints = Tensor::from<int64_t>({3}, {-1, 0, 127});
  EXPECT_TRUE(converted(ints, DType::i8).same_as(Tensor::from<int8_t>({3}, {-1, 0, 127})));
  EXPECT_TRUE(converted(ints, DType::f32).same_as(Tensor::from<float>({3}, {-1, 0, 127})));
  EXPECT_THROW(converted(ints, DType::u8), base::Error);
  EXPECT_THROW(converted(Tensor::from<int64_t>({1}, {128}), DType::i8), base::Error);
  EXPECT_THROW(converted(Tensor::from<float>({1}, {0.5f}), DType::i32), base::Error);
  EXPECT_THROW(converted(Tensor::from<float>({1}, {std::nanf("")}), DType::i64), base::Error);
  EXPECT_THROW(converted(Tensor::from<double>({1}, {std::ldexp(1.0, 63)}), DType::i64), base::Error);
  EXPECT_TRUE(converted(Tensor::from<double>({1}, {-std::ldexp(1.0, 63)}), DType::i64)
                  .same_as(Tensor::from<int64_t>({1}, {INT64_MIN})));
  EXPECT_TRUE(converted(Tensor::from<int64_t>({2}, {0, 1}), DType::boolean)
                  .same_as(Tensor::from<bool>({2}, {false, true})));
  EXPECT_THROW(converted(Tensor::from<int64_t>({1}, {2}), DType::boolean), base::Error);
  EXPECT_EQ(fitted({6}, {Dim(2), Dim(3)}), (tensor::Dims{2, 3}));
  EXPECT_EQ(fitted({}, {Dim(1)}), (tensor::Dims{1}));
  EXPECT_EQ(fitted({4}, {Dim::symbol("n")}), (tensor::Dims{4}));
  EXPECT_THROW(fitted({5}, {Dim(2), Dim(3)}), base::Error);
  EXPECT_THROW(fitted({4}, {Dim::symbol("n"), Dim(2)}), base::Error);
}

TEST(PromptText, PutsValuesIntoTheirPlaces) {
  Rows rows;
  rows.count = 1;
  rows.columns.push_back({.field = {.name = "name", .kind = FieldKind::text}, .strings = {"Ada {x}"}});
  rows.columns.push_back(
      {.field = {.name = "age", .dtype = DType::i64}, .numbers = Tensor::from<int64_t>({1}, {36})});
  rows.columns.push_back({.field = {.name = "score"}, .numbers = Tensor::from<float>({1}, {0.5f})});
  const PromptText text("{{{name}}} is {age}, {score}: {name}?", "");
  EXPECT_EQ(text.of(rows, 0), "{Ada {x}} is 36, 0.5: Ada {x}?");
  EXPECT_EQ(text.columns(), (std::vector<std::string>{"name", "age", "score"}));
  EXPECT_EQ(PromptText("", "name").of(rows, 0), "Ada {x}");
  EXPECT_THROW(PromptText("{name", ""), base::Error);
  EXPECT_THROW(PromptText("name}", ""), base::Error);
  EXPECT_THROW(PromptText("{}", ""), base::Error);
  EXPECT_THROW(PromptText("{other}", "").of(rows, 0), base::Error);
}

constexpr const char* kCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,!?-012";

Rows text_rows(const std::vector<std::string>& texts) {
  return one_column({.field = {.name = "prompt", .kind = FieldKind::text}, .strings = texts},
                    static_cast<int64_t>(texts.size()));
}

TextRowModel::Parts text_parts(const std::shared_ptr<const engine::DecodeModel>& prepared) {
  TextRowModel::Parts parts;
  parts.tokenizer = data::character_tokenizer(kCharacters);
  parts.prompt.emplace("", "prompt");
  parts.generate.max_tokens = 9;
  parts.generate.sampling.temperature = 0;
  parts.window_rows = 8;
  engine::DecodeOptions d;
  d.threads = 1;
  d.max_sequences = 5;
  d.cache_bytes = 1 << 20;
  parts.make = [prepared, d] { return std::make_unique<engine::DecodeSession>(prepared, d); };
  return parts;
}

TEST(TextRowModel, AnswersAreThoseOfPromptsAlone) {
  const auto prepared = std::make_shared<const engine::DecodeModel>(tests::tiny_llama().graph);
  std::mt19937 random(4);
  std::vector<std::string> prompts;
  for (int i = 0; i < 40; ++i) {
    std::string text;
    for (size_t n = 1 + random() % 20; n > 0; --n) text += kCharacters[random() % 61];
    prompts.push_back(text);
  }
  prompts[7] = "";      // no token: refused
  prompts[9] = "\xff";  // no character
  TextRowModel together(text_parts(prepared), the_clock());
  TextRowModel single(text_parts(prepared), the_clock());
  const PieceAnswer all = ask_one(together, text_rows(prompts));
  for (size_t i = 0; i < prompts.size(); ++i) {
    const PieceAnswer one = ask_one(single, text_rows({prompts[i]}));
    const auto row = static_cast<int64_t>(i);
    ASSERT_EQ(one.errors.empty(), i != 7 && i != 9);
    ASSERT_EQ(all.errors[i].has_value(), i == 7 || i == 9) << i;
    if (all.errors[i]) continue;
    EXPECT_EQ(all.outputs.columns[0].strings[i], one.outputs.columns[0].strings[0]);
    EXPECT_EQ(all.outputs.columns[1].strings[i], "length");
    for (size_t c = 2; c < 5; ++c)
      EXPECT_TRUE(all.outputs.columns[c].tensor_at(row).same_as(one.outputs.columns[c].tensor_at(0))) << i;
    EXPECT_EQ(all.outputs.columns[2].tensor_at(row).data<int64_t>()[0],
              static_cast<int64_t>(prompts[i].size()));
    EXPECT_EQ(all.outputs.columns[3].tensor_at(row).data<int64_t>()[0], 9);
    EXPECT_LT(all.outputs.columns[4].tensor_at(row).data<double>()[0], 0);
  }
  EXPECT_EQ(together.use().rows, 38);
}

TEST(TextRowModel, WhatIsGivenUpIsAnsweredWithoutBeingComputed) {
  const auto prepared = std::make_shared<const engine::DecodeModel>(tests::tiny_llama().graph);
  TextRowModel model(text_parts(prepared), the_clock());
  expect_given_up(model, text_rows({"Hello", "you", "and", "me"}), 2000);
}

TEST(ScoreFront, AScoreIsTheSumOfItsTokens) {
  const model::Model model = tests::tiny_llama();
  const auto tokenizer = data::character_tokenizer(kCharacters);
  TensorRowModel::Parts parts;
  parts.prepared = std::make_shared<const engine::PreparedModel>(model.graph);
  parts.front = std::make_unique<ScoreFront>(model, data::character_tokenizer(kCharacters),
                                             PromptText("", "prompt"), 64);
  parts.by_row = {true};
  parts.window_rows = 64;
  parts.scheduler.limits.max_rows = 4;
  parts.scheduler.session.threads = 1;
  parts.front->pad(parts.scheduler.padding);
  TensorRowModel rows_model(std::move(parts), the_clock());
  const std::vector<std::string> texts{"Hello, you.", "a", "The quick brown fox jumps over the lazy dog.", "",
                                       std::string(65, 'x')};
  const PieceAnswer answer = ask_one(rows_model, text_rows(texts));
  EXPECT_TRUE(answer.errors[3] && answer.errors[4]);
  engine::Session session(std::make_shared<const engine::PreparedModel>(model.graph), {.threads = 1});
  for (size_t i = 0; i < 3; ++i) {
    const std::vector<int64_t> ids = tokenizer->encode(texts[i]);
    double want = 0;
    for (size_t n = 1; n < ids.size(); ++n) {
      // p(token | what is before it), from a run that sees no more than that
      const Tensor out = session.run({Tensor::from<int64_t>({1, int64_t(n)}, std::span(ids).first(n))})[0];
      const auto last = out.data<float>().last(61);
      double sum = 0;
      for (const float v : last) sum += std::exp(double(v));
      want += double(last[size_t(ids[n])]) - std::log(sum);
    }
    EXPECT_NEAR(answer.outputs.columns[0].tensor_at(int64_t(i)).data<double>()[0], want, 1e-4) << texts[i];
    EXPECT_EQ(answer.outputs.columns[1].tensor_at(int64_t(i)).data<int64_t>()[0], int64_t(ids.size()) - 1);
  }
}

}  // namespace
}  // namespace trireme::batch
