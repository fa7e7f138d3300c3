// 20 steps of every optimizer that PyTorch also has, against its trajectories (tools/oracles).
#include <gtest/gtest.h>

#include <cmath>

#include "base/files/file.h"
#include "base/text/json.h"
#include "ops/optim/test_update_cpu.h"
#include "tests/test_data.h"

namespace trireme::ops::testing {
namespace {

/// How a case of the file is run.
struct Case {
  std::string name, op;
  ir::Attrs attrs;
  double lr;
};

std::vector<Case> cases() {
  const double decay = 0.0625;
  return {
      {"sgd", "sgd_update", {}, 0.125},
      {"sgd_l2", "sgd_update", {{"weight_decay", decay}}, 0.125},
      {"momentum",
       "momentum_update",
       {{"momentum", 0.75}, {"dampening", 0.25}, {"weight_decay", decay}},
       0.125},
      {"nesterov", "momentum_update", {{"momentum", 0.75}, {"nesterov", int64_t{1}}}, 0.125},
      {"adam", "adam_update", {{"weight_decay", decay}, {"decoupled", int64_t{0}}}, 0.03125},
      {"adamw", "adam_update", {{"weight_decay", decay}}, 0.03125},
      {"adafactor", "adafactor_update", {{"weight_decay", decay}}, 0.25},
      {"muon", "muon_update", {{"weight_decay", decay}}, 0.03125},
      {"muon_rms",
       "muon_update",
       {{"weight_decay", 0.1}, {"nesterov", int64_t{0}}, {"adjust", std::string("match_rms_adamw")}},
       0.03125},
      {"muon_bf16", "muon_update", {{"weight_decay", decay}, {"iterate", std::string("bf16")}}, 0.03125},
  };
}

const base::Json& reference() {
  static const base::Json file = base::parse_json(
      base::read_file((tests::source_dir() / "src/ops/optim/testdata/optimizer_trajectories.json").string()));
  return file;
}

tensor::Dims shape_of(const std::string& name) {
  tensor::Dims dims;
  for (const base::Json& d : reference().at("shapes").at(name).as_array()) dims.push_back(d.as_int());
  return dims;
}

Group start(const std::string& name, DType type, const std::string& op) {
  const tensor::Dims dims = shape_of(name);
  Group g{Tensor::empty(type, dims), Tensor::zeros(type, dims)};
  tensor::visit_dtype(type, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T>) {
      const auto p = g[0].mutable_data<T>();
      for (size_t i = 0; i < p.size(); ++i) p[i] = (T(i * 37 % 64) - T(31)) / T(32);
    }
  });
  if (op == "adafactor_update") {
    g.push_back(Tensor::zeros(type, {dims[0], 1}));
    g.push_back(Tensor::zeros(type, {1, dims[1]}));
    return g;
  }
  for (size_t s = 0; s < update_layout(op).states; ++s) g.push_back(Tensor::zeros(type, dims));
  return g;
}

template <class T>
void set_gradient(Group& g) {
  const auto p = g[0].data<T>();
  const auto grad = g[1].mutable_data<T>();
  for (size_t i = 0; i < p.size(); ++i) {
    const T slope = T(i % 7 + 1) / T(8), goal = (T(i % 5) - T(2)) / T(4);
    grad[i] = slope * (p[i] - goal);
  }
}

/// The op for one parameter: Adafactor stores the whole second moment of vectors.
std::string op_of(const Case& c, const std::string& param) {
  return c.op == "adafactor_update" && shape_of(param).size() == 1 ? "adafactor_vector_update" : c.op;
}

void follow(const Case& c, const std::string& param, DType type, double tolerance) {
  const base::Json& want = reference().at("cases").at(c.name).at(type == DType::f64 ? "float64" : "float32");
  if (want.at(size_t{0}).find(param) == nullptr) return;
  const std::string op = op_of(c, param);
  std::vector<Group> groups{start(param, type, op)};
  const auto steps = reference().at("steps").as_array();
  size_t next = 0;
  for (int64_t t = 1; next < steps.size(); ++t) {
    type == DType::f64 ? set_gradient<double>(groups[0]) : set_gradient<float>(groups[0]);
    run_update({.op = op, .attrs = c.attrs, .lr = c.lr, .step = t}, groups);
    if (steps[next].as_int() != t) continue;
    const auto values = want.at(next).at(param).as_array();
    const std::vector<double> got = groups[0][0].to_doubles();
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], values[i].as_double(), tolerance)
          << c.name << " " << param << " " << name_of(type) << " step " << t << " element " << i;
    ++next;
  }
}

TEST(PyTorch, TrajectoriesInF64) {
  for (const Case& c : cases()) {
    if (c.name == "muon_bf16") continue;
    for (const char* param : {"wide", "tall", "bias"}) follow(c, param, DType::f64, 1e-13);
  }
}

TEST(PyTorch, TrajectoriesInF32) {
  for (const Case& c : cases()) {
    if (c.name == "muon_bf16") continue;
    for (const char* param : {"wide", "tall", "bias"}) follow(c, param, DType::f32, 3e-6);
  }
}

// With the same order of additions the error is 1e-6; otherwise some roundings to bf16 differ, hence 1e-3.
TEST(PyTorch, MuonWithABf16Iterate) {
  for (const char* param : {"wide", "tall"}) follow(cases().back(), param, DType::f32, 1e-3);
}

}  // namespace
}  // namespace trireme::ops::testing
