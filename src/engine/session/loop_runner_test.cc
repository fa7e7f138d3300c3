// Loops beside plain loops in double: random bodies whose values follow from counters, rows, constants and
// states.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "base/rng.h"
#include "engine/session/session.h"
#include "lower/loop_form.h"
#include "ops/table.h"
#include "tests/test_device.h"

namespace trireme::engine {
namespace {

using ir::ValueId;
using tensor::Dims;
using tensor::DType;
using tensor::Shape;
using tensor::Tensor;

using Reals = std::vector<double>;

/// Extents of a random loop: rows x [length, batch, inputs], states [batch, hidden].
struct LoopSizes {
  int64_t length = 9, batch = 2, inputs = 5, hidden = 4;
};

/// What a round works with, in the oracle: values [batch, hidden], and the numbers of the round.
struct OracleRound {
  std::vector<Reals> values;
  int64_t iteration = 0, counter = 0;
};

/// A body under construction and, step by step, what an oracle does instead.
class RandomBody {
 public:
  RandomBody(const LoopSizes& sizes, uint64_t seed) : sizes_(sizes), random_(seed), seed_(seed) {}

  int draw(int most) { return std::uniform_int_distribution<int>(0, most)(random_); }

  Tensor noise(const Dims& dims, float scale) {
    Tensor t = Tensor::empty(DType::f32, dims);
    base::Rng rng(++seed_ * 7919);
    for (float& v : t.mutable_data<float>()) v = scale * static_cast<float>(2 * rng.uniform() - 1);
    return t;
  }
  ValueId op(const char* name, std::vector<ValueId> in, ir::Attrs attrs = {}) {
    return graph.add1(ops::table().need(name), std::move(in), std::move(attrs));
  }
  ValueId ints(std::vector<int64_t> values) {
    return graph.add_constant(
        Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, std::span<const int64_t>(values)));
  }

  /// Registers a value [batch, hidden] and how the oracle computes it.
  size_t add(ValueId id, std::function<Reals(const OracleRound&)> oracle) {
    ids.push_back(id);
    oracles.push_back(std::move(oracle));
    return ids.size() - 1;
  }

  void add_unary() {
    const auto a = static_cast<size_t>(draw(static_cast<int>(ids.size()) - 1));
    const bool is_tanh = draw(1) == 0;
    add(op(is_tanh ? "tanh" : "sigmoid", {ids[a]}), [a, is_tanh](const OracleRound& r) {
      Reals y = r.values[a];
      for (double& v : y) v = is_tanh ? std::tanh(v) : 1 / (1 + std::exp(-v));
      return y;
    });
  }
  void add_binary() {
    const auto a = static_cast<size_t>(draw(static_cast<int>(ids.size()) - 1));
    const auto b = static_cast<size_t>(draw(static_cast<int>(ids.size()) - 1));
    const int kind = draw(2);
    const char* const names[] = {"add", "sub", "mul"};
    add(op("tanh", {op(names[kind], {ids[a], ids[b]})}), [a, b, kind](const OracleRound& r) {
      Reals y = r.values[a];
      for (size_t i = 0; i < y.size(); ++i) {
        const double other = r.values[b][i];
        y[i] = std::tanh(kind == 0 ? y[i] + other : kind == 1 ? y[i] - other : y[i] * other);
      }
      return y;
    });
  }
  static Reals product(const Reals& a, const Tensor& w, int64_t rows) {
    const int64_t k = w.dims()[0], n = w.dims()[1];
    Reals y(static_cast<size_t>(rows * n));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t p = 0; p < k; ++p)
          y[static_cast<size_t>(i * n + j)] +=
              a[static_cast<size_t>(i * k + p)] * double(w.data<float>()[static_cast<size_t>(p * n + j)]);
      }
    }
    return y;
  }
  void add_product() {
    const auto a = static_cast<size_t>(draw(static_cast<int>(ids.size()) - 1));
    const Tensor w = noise({sizes_.hidden, sizes_.hidden}, 0.7f);
    const int64_t rows = sizes_.batch;
    add(op("matmul", {ids[a], graph.add_constant(w)}),
        [a, w, rows](const OracleRound& r) { return product(r.values[a], w, rows); });
  }
  /// A row of x by a counter, in one of the forms of exporters, times a weight.
  void add_row(ValueId x, const Tensor& rows, ValueId counter, bool by_iteration, int64_t offset) {
    ValueId at = counter;
    if (offset != 0) at = op("add", {at, graph.add_constant(Tensor::scalar<int64_t>(offset))});
    ValueId row;
    const int form = draw(2);
    if (form == 0) {
      row = op("gather", {x, at}, {{"axis", int64_t{0}}});
    } else {
      const ValueId begin = op("unsqueeze", {at, ints({0})});
      row = form == 1 ? op("gather", {x, begin}, {{"axis", int64_t{0}}})
                      : op("slice", {x, begin, op("add", {begin, ints({1})}), ints({0})});
      row = op("squeeze", {row, ints({0})});
    }
    const Tensor w = noise({sizes_.inputs, sizes_.hidden}, 0.7f);
    const int64_t count = sizes_.batch, inputs = sizes_.inputs;
    add(op("matmul", {row, graph.add_constant(w)}), [=](const OracleRound& r) {
      const int64_t t = (by_iteration ? r.iteration : r.counter) + offset;
      const float* first = rows.data<float>().data() + t * count * inputs;
      return product(Reals(first, first + count * inputs), w, count);
    });
  }

  ir::Graph graph;
  std::vector<ValueId> ids;
  std::vector<std::function<Reals(const OracleRound&)>> oracles;

 private:
  LoopSizes sizes_;
  std::mt19937_64 random_;
  uint64_t seed_;
};

void expect_close(const Tensor& got, const Reals& want, const std::string& what) {
  const std::vector<double> values = got.to_doubles();
  ASSERT_EQ(values.size(), want.size()) << what;
  for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], want[i], 2e-4) << what << " at " << i;
}

enum class Ends { by_trips, by_counter, by_both, by_data };

/// A loop with a counter, two states and a state that no round changes, beside the oracle's.
class RandomLoop {
 public:
  explicit RandomLoop(uint64_t seed)
      : sizes_{.batch = 1 + static_cast<int64_t>(seed % 3)},
        body_(sizes_, seed),
        state_{sizes_.batch, sizes_.hidden},
        ends_(static_cast<Ends>(body_.draw(3))),
        start_(body_.draw(2)),
        limit_(start_ + 1 + body_.draw(3)),
        trips_(ends_ == Ends::by_counter ? INT64_MAX : body_.draw(6)),
        x_is_input_(body_.draw(1) == 0),
        held_is_input_(body_.draw(1) == 0),
        rows_(body_.noise({sizes_.length, sizes_.batch, sizes_.inputs}, 1)),
        first_{body_.noise(state_, 1), body_.noise(state_, 1), body_.noise(state_, 1)} {
    make_values();
    make_results();
  }

  void check(const std::string& seed, int threads) {
    if (!run_oracle()) return;  // rounding decides when it ends
    Session session(std::make_shared<const PreparedModel>(outer_graph(), passes::PassOptions{.verify = true}),
                    {.device = tests::device_under_test(), .threads = threads, .passes = {.verify = true}});
    std::vector<Tensor> inputs{Tensor::scalar<int64_t>(start_), first_[0], first_[1]};
    if (held_is_input_) inputs.push_back(first_[2]);
    if (x_is_input_) inputs.push_back(rows_);
    for (int run = 0; run < 2; ++run) {
      const std::vector<Tensor> got = session.run(inputs);
      const std::string what = base::concat(seed, " ends ", int(ends_), " rounds ", round_.iteration);
      EXPECT_EQ(got[0].to_ints(), std::vector<int64_t>{round_.counter}) << what;
      for (size_t s = 0; s < 3; ++s) expect_close(got[1 + s], round_.values[s], what);
      if (round_.iteration > 0) {
        EXPECT_EQ(got[4].dims(), (Dims{round_.iteration, sizes_.batch, sizes_.hidden})) << what;
      }
      expect_close(got[4], stacked_, what);
    }
  }

 private:
  void make_values() {
    const tensor::TensorType open{DType::f32, body_.draw(1) == 0 ? Shape::of(state_) : Shape::unknown(2)};
    ir::Graph& g = body_.graph;
    const ValueId iteration = g.add_input("i", kNumber);
    go_ = g.add_input("go", {DType::boolean, Shape{}});
    counter_ = g.add_input("counter", kNumber);
    for (const char* name : {"a", "b", "same"}) body_.add(g.add_input(name, open), nullptr);
    const ValueId x =
        x_is_input_ ? g.add_input("x", {DType::f32, Shape::of(rows_.dims())}) : g.add_constant(rows_);
    body_.add(body_.op("tanh", {body_.ids[2]}), [](const OracleRound& r) { return tanh_of(r.values[2]); });
    body_.add_row(x, rows_, counter_, false, body_.draw(1));
    if (body_.draw(1) == 0) body_.add_row(x, rows_, iteration, true, body_.draw(1));
    for (int n = 0; n < 8; ++n) {
      const int kind = body_.draw(2);
      kind == 0 ? body_.add_unary() : kind == 1 ? body_.add_binary() : body_.add_product();
    }
  }

  void make_results() {
    ir::Graph& g = body_.graph;
    for (size_t& id : result_)
      id = static_cast<size_t>(3 + body_.draw(static_cast<int>(body_.ids.size()) - 4));
    const ValueId a = body_.op("tanh", {body_.ids[result_[0]]}),
                  b = body_.op("tanh", {body_.ids[result_[1]]});
    const ValueId next = body_.op("add", {counter_, g.add_constant(Tensor::scalar<int64_t>(1))});
    g.add_output(condition(next, a), "again");
    g.add_output(next, "next");
    g.add_output(a, "next_a");
    g.add_output(b, "next_b");
    g.add_output(body_.op("identity", {body_.ids[2]}), "kept");
    g.add_output(body_.ids[result_[2]], "row");
    g.sort();
  }

  ValueId condition(ValueId next, ValueId a) {
    ir::Graph& g = body_.graph;
    if (ends_ == Ends::by_trips) return body_.op("identity", {go_});
    if (ends_ == Ends::by_data) {
      const ValueId most = body_.op("reduce_max", {a, body_.ints({0, 1})}, {{"keepdims", int64_t{0}}});
      return body_.op("less", {most, g.add_constant(Tensor::scalar<float>(kMostValue))});
    }
    const bool as_floats = body_.draw(1) == 0;  // as older comparisons need them
    const ValueId limit = as_floats ? g.add_constant(Tensor::scalar<float>(static_cast<float>(limit_)))
                                    : g.add_constant(Tensor::scalar<int64_t>(limit_));
    if (as_floats) next = body_.op("cast", {next}, {{"to", int64_t{1}}});
    const ValueId bounded =
        body_.draw(1) == 0 ? body_.op("less", {next, limit}) : body_.op("greater", {limit, next});
    return ends_ == Ends::by_counter ? bounded : body_.op("and", {bounded, go_});
  }

  ir::Graph outer_graph() const {
    ir::Graph outer;
    const tensor::TensorType state{DType::f32, Shape::of(state_)};
    std::vector<ValueId> in{outer.add_constant(Tensor::scalar<int64_t>(trips_)), ir::kNoValue,
                            outer.add_input("start", kNumber), outer.add_input("a", state),
                            outer.add_input("b", state)};
    in.push_back(held_is_input_ ? outer.add_input("held", state) : outer.add_constant(first_[2]));
    if (x_is_input_) in.push_back(outer.add_input("x", {DType::f32, Shape::of(rows_.dims())}));
    ir::Attrs attrs{{"captures", int64_t{x_is_input_ ? 1 : 0}}};
    attrs.set("body", std::make_shared<const ir::Graph>(body_.graph));
    const auto out = outer.add(ops::table().need("loop"), in, attrs, 5, "loop");
    for (size_t i = 0; i < out.size(); ++i) outer.add_output(out[i], base::concat("out", i));
    return outer;
  }

  static Reals tanh_of(Reals values) {
    for (double& v : values) v = std::tanh(v);
    return values;
  }

  /// Returns false if rounding decides whether a round follows.
  bool run_oracle() {
    round_ = {.values = std::vector<Reals>(body_.ids.size()), .counter = start_};
    for (size_t s = 0; s < 3; ++s) round_.values[s] = first_[s].to_doubles();
    for (bool go_on = true; go_on && round_.iteration < trips_; ++round_.iteration) {
      for (size_t v = 3; v < body_.ids.size(); ++v) round_.values[v] = body_.oracles[v](round_);
      const Reals &row = round_.values[result_[2]], a = tanh_of(round_.values[result_[0]]);
      stacked_.insert(stacked_.end(), row.begin(), row.end());
      round_.values[1] = tanh_of(round_.values[result_[1]]);
      round_.values[0] = a;
      ++round_.counter;
      const double most = *std::max_element(a.begin(), a.end());
      if (ends_ == Ends::by_counter || ends_ == Ends::by_both) go_on = round_.counter < limit_;
      if (ends_ == Ends::by_data && std::abs(most - kMostValue) < 1e-3) return false;
      if (ends_ == Ends::by_data) go_on = most < kMostValue;
    }
    return true;
  }

  static constexpr float kMostValue = 0.4f;
  inline static const tensor::TensorType kNumber{DType::i64, Shape{}};
  LoopSizes sizes_;
  RandomBody body_;
  Dims state_;
  Ends ends_;
  int64_t start_, limit_, trips_;
  bool x_is_input_, held_is_input_;
  Tensor rows_, first_[3];
  ValueId go_ = ir::kNoValue, counter_ = ir::kNoValue;
  size_t result_[3] = {};  ///< the values that become states, and the one that is stacked
  OracleRound round_;
  Reals stacked_;
};

TEST(Loops, RandomBodiesComputeWhatPlainLoopsDo) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    RandomLoop(seed).check(base::concat("seed ", seed), 1 + static_cast<int>(seed % 2));
    if (HasFatalFailure()) return;
  }
}

/// The recurrent step of TensorFlow's converter: the products of the rows leave the rounds, and so do
/// counters and the condition.
TEST(Loops, RowsCountersAndConditionsLeaveTheRounds) {
  const ir::Graph body = ir::parse(R"(graph "body"
  %0 = input "i" : i64[]
  %1 = input "go" : bool[]
  %2 = input "time" : i32[]
  %3 = input "h" : f32[2,4]
  %4 = input "x" : f32[9,2,5]
  %5 = input "bias" : f32[4]
  %6 = param "w" : f32[5,4]#seed=1
  %7 = param "r" : f32[4,4]#seed=2
  %8 = const : i32[]{1}
  %9 = const : i32[]{9}
  %10 = gather(%4, %2) {axis=0}
  %11 = matmul(%10, %6)
  %12 = tanh(%5)
  %13 = add(%11, %12)
  %14 = matmul(%3, %7)
  %15 = add(%13, %14)
  %16 = tanh(%15)
  %17 = add(%2, %8)
  %18 = less(%17, %9)
  return %18 "again", %17 "next", %16 "h2", %16 "row"
)",
                                   ops::table());
  const std::vector<Dims> shapes{{}, {}, {}, {2, 4}, {9, 2, 5}, {4}};
  const lower::LoopForm form = lower::form_loop(body, {.states = 2}, shapes, lower::LoopRows::exist);
  EXPECT_TRUE(form.is_exact);
  EXPECT_FALSE(form.has_condition);
  EXPECT_EQ(form.states[0].kind, lower::StateRule::Kind::counted);
  const auto names = [](const ir::Graph& graph) {
    std::string text;
    for (const ir::Node& node : graph.nodes()) text += std::string(node.op_name()) + " ";
    return text;
  };
  EXPECT_EQ(names(form.before), "tanh ");
  EXPECT_EQ(names(form.lifted), "matmul add ");
  EXPECT_EQ(names(form.round), "matmul add tanh ");
  EXPECT_EQ(form.round_inputs.size(), 2u);
}

/// Extents of a random scan: x has `length` rows [batch, inputs] along some axis, as the results along
/// another.
struct ScanCase {
  int64_t length, batch, inputs, hidden, in_axis, out_axis;
  bool in_from_last, out_from_last;
};

/// Offset of element (row, i, j) where `rows` rows of [n, m] are stacked along an axis.
size_t offset_of(int64_t axis, const Dims& extents, int64_t row, int64_t i, int64_t j) {
  const int64_t rows = extents[0], n = extents[1], m = extents[2];
  return static_cast<size_t>(axis == 0   ? (row * n + i) * m + j
                             : axis == 1 ? (i * rows + row) * m + j
                                         : (i * m + j) * rows + row);
}

Dims stacked_dims(int64_t axis, const Dims& extents) {
  Dims dims{extents[1], extents[2]};
  dims.insert(dims.begin() + axis, extents[0]);
  return dims;
}

void check_random_scan(const ScanCase& c, RandomBody& draw) {
  const Tensor w = draw.noise({c.inputs, c.hidden}, 0.8f), r = draw.noise({c.hidden, c.hidden}, 0.8f);
  const Dims in{c.length, c.batch, c.inputs}, result{c.length, c.batch, c.hidden};
  const Tensor x = draw.noise(stacked_dims(c.in_axis, in), 1), h = draw.noise({c.batch, c.hidden}, 1);
  ir::Graph body;
  const auto& ops = ops::table();
  const ValueId state = body.add_input("h", {DType::f32, Shape{c.batch, c.hidden}});
  const ValueId row = body.add_input("x", {DType::f32, Shape{c.batch, c.inputs}});
  const ValueId sum =
      body.add1(ops.need("add"), {body.add1(ops.need("matmul"), {row, body.add_constant(w)}),
                                  body.add1(ops.need("matmul"), {state, body.add_constant(r)})});
  const ValueId next = body.add1(ops.need("tanh"), {sum});
  body.add_output(next, "next");
  body.add_output(body.add1(ops.need("identity"), {next}), "row");
  body.sort();
  ir::Graph outer;
  ir::Attrs attrs{{"num_scan_inputs", int64_t{1}}, {"captures", int64_t{0}}};
  attrs.set("scan_input_axes", std::vector<int64_t>{c.in_axis});
  attrs.set("scan_output_axes", std::vector<int64_t>{c.out_axis - 3 * (c.length % 2)});  // or from the last
  attrs.set("scan_input_directions", std::vector<int64_t>{c.in_from_last});
  attrs.set("scan_output_directions", std::vector<int64_t>{c.out_from_last});
  attrs.set("body", std::make_shared<const ir::Graph>(body));
  const auto out = outer.add(ops.need("scan"),
                             {outer.add_input("h", {DType::f32, Shape::of(h.dims())}),
                              outer.add_input("x", {DType::f32, Shape::of(x.dims())})},
                             attrs, 2, "scan");
  outer.add_output(out[0], "last");
  outer.add_output(out[1], "all");
  Session session(std::make_shared<const PreparedModel>(std::move(outer)),
                  {.device = tests::device_under_test(), .threads = 1});
  const auto got = session.run({h, x});

  Reals now = h.to_doubles(), all(static_cast<size_t>(tensor::element_count(result)));
  for (int64_t t = 0; t < c.length; ++t) {
    Reals row_now;
    for (int64_t i = 0; i < c.batch; ++i) {
      for (int64_t j = 0; j < c.inputs; ++j)
        row_now.push_back(
            double(x.data<float>()[offset_of(c.in_axis, in, c.in_from_last ? c.length - 1 - t : t, i, j)]));
    }
    const Reals a = RandomBody::product(row_now, w, c.batch), b = RandomBody::product(now, r, c.batch);
    for (size_t i = 0; i < now.size(); ++i) now[i] = std::tanh(a[i] + b[i]);
    for (int64_t i = 0; i < c.batch; ++i) {
      for (int64_t j = 0; j < c.hidden; ++j)
        all[offset_of(c.out_axis, result, c.out_from_last ? c.length - 1 - t : t, i, j)] =
            now[static_cast<size_t>(i * c.hidden + j)];
    }
  }
  EXPECT_EQ(got[1].dims(), stacked_dims(c.out_axis, result));
  expect_close(got[0], now, "last");
  expect_close(got[1], all, "all");
}

TEST(Loops, RandomScansAlongAllAxesInBothDirections) {
  RandomBody draw({}, 11);
  for (int trial = 0; trial < 40; ++trial) {
    const ScanCase c{1 + draw.draw(5), 1 + draw.draw(2), 2 + draw.draw(2),  2 + draw.draw(2),
                     draw.draw(2),     draw.draw(2),     draw.draw(1) == 0, draw.draw(1) == 0};
    SCOPED_TRACE(base::concat(trial, ": axes ", c.in_axis, " ", c.out_axis, " from last ", c.in_from_last,
                              " ", c.out_from_last, " length ", c.length));
    check_random_scan(c, draw);
  }
}

/// A sequence of single rows that every round adds to the rows of a batch does not go with them.
TEST(Loops, SequencesOfOtherRowsStayInTheRounds) {
  const ir::GraphPtr body = std::make_shared<const ir::Graph>(ir::parse(R"(graph "body"
  %0 = input "h" : f32[2,1]
  %1 = input "x" : f32[2,3]
  %2 = input "shift" : f32[1,1]
  %3 = param "w" : f32[3,1]{1, 10, 100}
  %4 = matmul(%1, %3)
  %5 = add(%4, %2)
  %6 = add(%0, %5)
  %7 = identity(%6)
  return %6, %7
)",
                                                                        ops::table()));
  ir::Graph outer;
  const ValueId h = outer.add_input("h", {DType::f32, Shape{2, 1}});
  const ValueId x = outer.add_input("x", {DType::f32, Shape{2, 2, 3}});
  const ValueId shift = outer.add_input("shift", {DType::f32, Shape{2, 1, 1}});
  ir::Attrs attrs{{"num_scan_inputs", int64_t{2}}, {"captures", int64_t{0}}};
  attrs.set("body", body);
  const auto out = outer.add(ops::table().need("scan"), {h, x, shift}, attrs, 2, "scan");
  outer.add_output(out[0], "last");
  outer.add_output(out[1], "all");
  Session session(std::make_shared<const PreparedModel>(std::move(outer)),
                  {.device = tests::device_under_test(), .threads = 1});
  const auto got = session.run({Tensor::from<float>({2, 1}, {0.5f, 0.25f}),
                                Tensor::from<float>({2, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 1, 1}),
                                Tensor::from<float>({2, 1, 1}, {1000, 2000})});
  EXPECT_EQ(got[1].to_doubles(), (Reals{1321.5, 1654.25, 4308.5, 3765.25}));
  EXPECT_EQ(got[0].to_doubles(), (Reals{4308.5, 3765.25}));
  const lower::LoopForm form =
      lower::form_loop(*body, {.is_scan = true, .states = 1, .slices = 2, .from_last = {false, false}},
                       {{2, 1}, {2, 3}, {1, 1}}, lower::LoopRows::exist);
  EXPECT_EQ(form.lifted.nodes().size(), 1u);  // the product
}

/// States that grow have a program for each length; results keep their type or are refused.
TEST(Loops, StatesMayGrow) {
  ir::Graph g;
  const tensor::TensorType number{DType::i64, Shape{}}, truth{DType::boolean, Shape{}};
  const auto& ops = ops::table();
  const ValueId i = g.add_input("i", number), go = g.add_input("go", truth);
  const ValueId list = g.add_input("list", {DType::f32, {tensor::Dim::unknown()}});
  const ValueId one = g.add_constant(Tensor::from<int64_t>({1}, {1}));
  const ValueId last =
      g.add1(ops.need("reshape"), {g.add1(ops.need("cast"), {i}, {{"to", int64_t{1}}}), one});
  g.add_output(g.add1(ops.need("identity"), {go}), "go");
  g.add_output(g.add1(ops.need("concat"), {list, last}, {{"axis", int64_t{0}}}), "longer");
  g.add_output(g.add1(ops.need("reduce_sum"), {list, ir::kNoValue}, {{"keepdims", int64_t{0}}}), "sum");
  g.sort();
  ir::Graph outer;
  const ValueId trips = outer.add_input("trips", number);
  const ValueId start = outer.add_input("start", {DType::f32, {tensor::Dim::symbol("n")}});
  ir::Attrs attrs;
  attrs.set("body", std::make_shared<const ir::Graph>(g));
  const auto out = outer.add(ops.need("loop"), {trips, ir::kNoValue, start}, attrs, 2, "loop");
  for (size_t r = 0; r < out.size(); ++r) outer.add_output(out[r], base::concat("out", r));
  Session session(std::make_shared<const PreparedModel>(std::move(outer)),
                  {.device = tests::device_under_test(), .threads = 1});
  for (const int64_t rounds : {3, 70, 0}) {
    const auto got = session.run({Tensor::scalar<int64_t>(rounds), Tensor::from<float>({2}, {10, 20})});
    Reals longer{10, 20}, sums;
    for (int64_t t = 0; t < rounds; ++t) {
      sums.push_back(30 + static_cast<double>(t * (t - 1)) / 2);
      longer.push_back(static_cast<double>(t));
    }
    EXPECT_EQ(got[0].to_doubles(), longer);
    EXPECT_EQ(got[1].to_doubles(), sums);
  }
}

/// Rows outside of what is there: a gathered row is refused, a part is empty as outside of loops.
TEST(Loops, RowsThatDoNotExist) {
  const auto run = [](const char* row, int64_t trips) {
    ir::Attrs attrs{{"captures", int64_t{1}}};
    const std::string text = base::concat(R"(graph "body"
  %0 = input "i" : i64[]
  %1 = input "go" : bool[]
  %2 = input "n" : f32[]
  %3 = input "x" : f32[k]
  %4 = const : i64[1]{0}
  %5 = const : i64[1]{1}
  %6 = unsqueeze(%0, %4)
  %7 = add(%6, %5)
)",
                                          row, R"(
  %9 = reduce_sum(%8, %4) {keepdims=0}
  %10 = add(%2, %9)
  %11 = identity(%1)
  return %11, %10
)");
    attrs.set("body", std::make_shared<const ir::Graph>(ir::parse(text, ops::table())));
    ir::Graph outer;
    const ValueId x = outer.add_input("x", {DType::f32, {tensor::Dim::symbol("k")}});
    const ValueId zero = outer.add_constant(Tensor::scalar<float>(0));
    const ValueId count = outer.add_constant(Tensor::scalar<int64_t>(trips));
    outer.add_output(outer.add1(ops::table().need("loop"), {count, ir::kNoValue, zero, x}, attrs), "y");
    Session session(std::make_shared<const PreparedModel>(std::move(outer)), {.threads = 1});
    return session.run({Tensor::from<float>({3}, {1, 2, 4})})[0].to_doubles()[0];
  };
  const char* const part = "  %8 = slice(%3, %6, %7, %4)";
  const char* const gathered = "  %8 = gather(%3, %6) {axis=0}";
  EXPECT_EQ(run(part, 3), 7);
  EXPECT_EQ(run(part, 5), 7);
  EXPECT_EQ(run(gathered, 2), 3);
  EXPECT_THROW(run(gathered, 4), base::Error);
}

/// A round would read values of another type behind their end.
TEST(Loops, ValuesOfOtherTypesAreRefused) {
  const auto run = [](const char* state, const char* row, const char* next) {
    const std::string text =
        base::concat("graph \"body\"\n  %0 = input \"h\" : ", state, "[64]\n  %1 = input \"x\" : ", row,
                     "[64]\n", next, "  return %2\n");
    ir::Attrs attrs{{"num_scan_inputs", int64_t{1}}, {"captures", int64_t{0}}};
    attrs.set("body", std::make_shared<const ir::Graph>(ir::parse(text, ops::table())));
    ir::Graph outer;
    const ValueId h = outer.add_input("h", {DType::f32, Shape{64}});
    const ValueId x = outer.add_input("x", {DType::f32, Shape{3, 64}});
    outer.add_output(outer.add1(ops::table().need("scan"), {h, x}, attrs), "last");
    Session session(std::make_shared<const PreparedModel>(std::move(outer)), {.threads = 1});
    return session.run({Tensor::zeros(DType::f32, {64}), Tensor::zeros(DType::f32, {3, 64})})[0];
  };
  const char* const sum = "  %2 = add(%0, %1)\n";
  EXPECT_EQ(run("f32", "f32", sum).dtype(), DType::f32);
  EXPECT_THROW(run("f64", "f64", sum), base::Error);
  EXPECT_THROW(run("f32", "f64", "  %2 = relu(%0)\n"), base::Error);
  EXPECT_THROW(run("f32", "f32", "  %2 = greater(%0, %1)\n"), base::Error);
}

/// Weights that the file computes, and those that it carries around the loop, are constants of the body.
TEST(Loops, WeightsThatAreFoundOutsideArePacked) {
  ir::Graph outer;
  const auto& ops = ops::table();
  ir::Attrs attrs{{"captures", int64_t{1}}};
  attrs.set("body", std::make_shared<const ir::Graph>(ir::parse(R"(graph "body"
  %0 = input "i" : i64[]
  %1 = input "go" : bool[]
  %2 = input "h" : f32[1,4]
  %3 = input "carried" : f32[4,4]
  %4 = input "captured" : f32[4,4]
  %5 = matmul(%2, %3)
  %6 = matmul(%5, %4)
  %7 = tanh(%6)
  %8 = identity(%1)
  %9 = identity(%3)
  return %8, %7, %9
)",
                                                                ops::table())));
  const ValueId h = outer.add_input("h", {DType::f32, Shape{1, 4}});
  const auto weight = [&](float value) {
    Tensor t = Tensor::zeros(DType::f32, {4, 4});
    for (size_t d = 0; d < 4; ++d) t.mutable_data<float>()[5 * d] = value;
    return outer.add1(ops.need("transpose"), {outer.add_constant(t)}, {{"perm", std::vector<int64_t>{1, 0}}});
  };
  const ValueId trips = outer.add_constant(Tensor::scalar<int64_t>(2));
  const ValueId carried = weight(0.5f), captured = weight(3);
  const auto out = outer.add(ops.need("loop"), {trips, ir::kNoValue, h, carried, captured}, attrs, 2, "loop");
  outer.add_output(out[0], "y");
  outer.add_output(out[1], "w");
  const auto model = std::make_shared<const PreparedModel>(std::move(outer));
  const ir::Node* loop = nullptr;
  for (const ir::Node& node : model->graph().nodes()) loop = node.op_name() == "loop" ? &node : loop;
  ASSERT_NE(loop, nullptr);
  const ir::Graph& body = *loop->attrs.get_graph("body");
  EXPECT_EQ(body.outputs()[2], body.inputs()[3]);  // and are not copied in every round
  for (const ir::Node& node : body.nodes()) {
    if (node.op_name() == "matmul") {
      EXPECT_NE(body.known(node.in[1]), nullptr);
    }
  }
  Session session(model, {.device = tests::device_under_test(), .threads = 1});
  const auto got = session.run({Tensor::from<float>({1, 4}, {0.1f, 0.2f, 0.3f, -0.4f})});
  for (size_t d = 0; d < 4; ++d) {
    const double first = d == 3 ? -0.4 : 0.1 * double(d + 1);
    EXPECT_NEAR(got[0].to_doubles()[d], std::tanh(1.5 * std::tanh(1.5 * first)), 1e-5);
  }
  EXPECT_EQ(got[1].to_doubles()[5], 0.5);
}

}  // namespace
}  // namespace trireme::engine
