// Tests every graph pass against the golden texts in tests/passes, and the results before and after the pass.
//
// A file holds the cases of the pass it is named after. A case is "case <what it shows>", lines "set <word>
// <value>", the graph before, "=>", and the graph after ("unchanged" if the pass must leave it alone). With
// TRIREME_UPDATE_GOLDEN set, the test writes the graphs after into the files instead, for a person to review.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/rng.h"
#include "engine/session/session.h"
#include "ops/table.h"
#include "passes/lists/lists.h"
#include "passes/train/train.h"
#include "tests/test_data.h"
#include "tests/test_device.h"

namespace trireme::passes {
namespace {

using tensor::DType;
using tensor::Tensor;

struct GoldenCase {
  std::string title, before, after;
  double tolerance = 1e-5;  ///< of the largest magnitude; "set tolerance"
  double absolute = 0;      ///< "set absolute", e.g. one step of a quantized result
  double reach = 2;         ///< inputs are uniform in [-reach, reach); "set reach"
};

void set_option(GoldenCase& c, std::istringstream& words) {
  std::string name;
  double value = 0;
  words >> name >> value;
  if (name == "tolerance") c.tolerance = value;
  if (name == "absolute") c.absolute = value;
  if (name == "reach") c.reach = value;
}

std::vector<GoldenCase> read_cases(const std::filesystem::path& path) {
  std::vector<GoldenCase> cases;
  bool after = false;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first == "case") {
      cases.push_back({.title = line.size() > 5 ? line.substr(5) : "", .before = {}, .after = {}});
      after = false;
    } else if (cases.empty() || first.empty()) {
      continue;
    } else if (first == "set") {
      set_option(cases.back(), words);
    } else if (first == "=>") {
      after = true;
    } else {
      (after ? cases.back().after : cases.back().before) += line + "\n";
    }
  }
  return cases;
}

/// Replaces the text after each "=>" by the graph that the pass made.
void write_cases(const std::filesystem::path& path, const std::vector<std::string>& afters) {
  std::ifstream file(path);
  std::ostringstream out;
  size_t next = 0;
  bool skipping = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("case ", 0) == 0) {
      if (skipping) out << "\n";
      skipping = false;
    }
    if (!skipping) out << line << "\n";
    if (line == "=>") {
      out << afters.at(next++);
      skipping = true;
    }
  }
  file.close();
  std::ofstream(path) << out.str();
}

const Pass& pass_named(const std::string& name) {
  for (const auto* list : {&prepare_passes(), &bucket_passes(), &inference_passes(tensor::DeviceKind::cpu),
                           &program_passes(tensor::DeviceKind::cuda)}) {
    for (const Pass& p : *list) {
      if (p.name == name) return p;
    }
  }
  base::fail_invalid("tests/passes names no pass: ", name);
}

PassOptions no_passes() {
  PassOptions options;
  for (const auto* list : {&prepare_passes(), &bucket_passes(), &inference_passes(tensor::DeviceKind::cpu)}) {
    for (const Pass& p : *list) options.off.push_back(p.name);
  }
  return options;
}

std::vector<Tensor> random_inputs(const ir::Graph& g, double reach) {
  std::vector<Tensor> inputs;
  base::Rng rng(7);
  for (ir::ValueId id : g.inputs()) {
    Tensor t = Tensor::zeros(g.type(id).dtype, g.type(id).shape.to_dims());
    tensor::visit_dtype(t.dtype(), [&](auto zero) {
      using T = decltype(zero);
      for (T& v : t.mutable_data<T>()) {
        const double real = (2 * rng.uniform() - 1) * reach;
        v = static_cast<T>(std::is_unsigned_v<T> ? std::abs(real) : real);
      }
    });
    inputs.push_back(std::move(t));
  }
  return inputs;
}

std::vector<Tensor> results_of(const ir::Graph& g, const std::vector<Tensor>& inputs,
                               const PassOptions& passes, const std::string& kernel) {
  const auto model = std::make_shared<const engine::PreparedModel>(g, passes);
  engine::Session session(
      model, {.device = tests::device_under_test(), .threads = 2, .only_kernel = kernel, .passes = passes});
  return session.run(inputs);
}

void expect_close(const std::vector<Tensor>& want, const std::vector<Tensor>& got, const GoldenCase& c) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t o = 0; o < want.size(); ++o) {
    ASSERT_EQ(want[o].type().to_string(), got[o].type().to_string());
    const std::vector<double> a = want[o].to_doubles(), b = got[o].to_doubles();
    double largest = 0;
    for (double v : a) largest = std::max(largest, std::abs(v));
    for (size_t i = 0; i < a.size(); ++i) {
      const bool both_nan = std::isnan(a[i]) && std::isnan(b[i]);
      ASSERT_TRUE(both_nan || std::abs(a[i] - b[i]) <= c.absolute + c.tolerance * largest)
          << "output " << o << " element " << i << ": " << a[i] << " became " << b[i];
    }
  }
}

/// Runs the graph on plain kernels, after the pass, and after all passes: all three results must agree.
void check_numbers(const GoldenCase& c, const ir::Graph& before, const ir::Graph& after) {
  const std::vector<Tensor> inputs = random_inputs(before, c.reach);
  const std::vector<Tensor> want = results_of(before, inputs, no_passes(), "reference");
  {
    SCOPED_TRACE("after the pass");
    expect_close(want, results_of(after, inputs, no_passes(), {}), c);
  }
  SCOPED_TRACE("after all passes");
  expect_close(want, results_of(before, inputs, {.verify = true}, {}), c);
}

std::string run_case(const GoldenCase& c, const Pass& pass) {
  ir::Graph before = ir::parse(c.before, ops::table());
  before.sort();
  ir::Graph after = before;
  run_passes({pass}, after, {.verify = true});
  check_numbers(c, before, after);
  const std::string text = ir::print(after);
  return text == ir::print(before) ? "unchanged\n" : text;
}

class GoldenPass : public testing::TestWithParam<std::string> {};

TEST_P(GoldenPass, KeepsItsPromise) {
  const std::filesystem::path path = tests::source_dir() / "tests/passes" / (GetParam() + ".txt");
  const Pass& pass = pass_named(GetParam());
  const std::vector<GoldenCase> cases = read_cases(path);
  EXPECT_GE(cases.size(), 2u) << "a pass needs a case that changes and one that must not";
  const bool updating = std::getenv("TRIREME_UPDATE_GOLDEN") != nullptr;
  std::vector<std::string> afters;
  for (const GoldenCase& c : cases) {
    SCOPED_TRACE(c.title);
    try {
      afters.push_back(run_case(c, pass));
    } catch (const base::Error& e) {
      ADD_FAILURE() << e.message();
      afters.push_back(c.after);
    }
    if (!updating) {
      EXPECT_EQ(afters.back(), c.after);
    }
  }
  if (updating) write_cases(path, afters);
}

/// Every pass once: some functions are in the lists twice, under different names. `captures` works on
/// subgraphs, which the text of a graph cannot say; passes/cleanup/captures_test.cc has its cases.
std::vector<std::string> all_passes() {
  std::vector<std::string> names;
  std::vector<size_t (*)(ir::Graph&)> seen{pass_named("captures").run};
  for (const auto* list : {&prepare_passes(), &bucket_passes(), &inference_passes(tensor::DeviceKind::cpu),
                           &program_passes(tensor::DeviceKind::cuda)}) {
    for (const Pass& p : *list) {
      if (std::find(seen.begin(), seen.end(), p.run) == seen.end()) names.push_back(p.name);
      seen.push_back(p.run);
    }
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Passes, GoldenPass, testing::ValuesIn(all_passes()),
                         [](const auto& one) { return one.param; });

TEST(RunPasses, StopsAfterSkipsAndRecords) {
  ir::Graph g = ir::parse(
      "graph \"g\"\n %0 = input \"x\" : f32[2]\n %1 = identity(%0)\n %2 = const : f32[]{2}\n %3 = neg(%2)\n"
      " %4 = add(%1, %3)\n return %4 \"y\"\n",
      ops::table());
  ir::Graph stopped = g;
  const auto records = run_passes(prepare_passes(), stopped, {.stop_after = "noops"});
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].changes, 1u);
  EXPECT_EQ(stopped.nodes().size(), 2u);
  const auto without = run_passes(prepare_passes(), g, {.off = {"noops"}});
  EXPECT_EQ(without.size() + 1, prepare_passes().size());
  EXPECT_EQ(g.nodes().size(), 2u);  // the identity remains, the constant is folded
  EXPECT_THROW(run_passes(prepare_passes(), g, {.stop_after = "nothing"}), base::Error);
}

TEST(BindShapes, FollowsShapeArithmetic) {
  // The batch size flows through shape -> gather -> concat -> reshape and must come out static.
  const ir::Graph g = ir::parse(R"(graph "g"
  %0 = input "x" : f32[batch,2,6]
  %1 = const : i64[1]{0}
  %2 = const : i64[1]{-1}
  %3 = shape(%0)
  %4 = gather(%3, %1)
  %5 = concat(%4, %2) {axis=0}
  %6 = reshape(%0, %5)
  return %6 "y"
)",
                                ops::table());
  const ir::Graph bound = bind_shapes(g, {{5, 2, 6}});
  EXPECT_EQ(bound.type(bound.outputs()[0]).shape, (tensor::Shape{5, 12}));
  EXPECT_EQ(bound.nodes().size(), 1u);
  ir::verify(bound);
}

}  // namespace
}  // namespace trireme::passes
