// Reads the attributes of rnn, gru and lstm.
#include "ops/rnn/recurrent_plan.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

namespace trireme::ops {
namespace {

using tensor::Dims;
using K = GateKind;

struct GateRow {
  std::string_view name;  // in lower case
  Gate gate;              // with ONNX's defaults
};

constexpr std::array<GateRow, 11> kGates{{{"sigmoid", {K::sigmoid, 0, 0}},
                                          {"tanh", {K::tanh, 0, 0}},
                                          {"relu", {K::relu, 0, 0}},
                                          {"affine", {K::affine, 1, 0}},
                                          {"leakyrelu", {K::leaky_relu, 0.01, 0}},
                                          {"thresholdedrelu", {K::thresholded_relu, 1, 0}},
                                          {"scaledtanh", {K::scaled_tanh, 1, 1}},
                                          {"hardsigmoid", {K::hard_sigmoid, 0.2, 0.5}},
                                          {"elu", {K::elu, 1, 0}},
                                          {"softsign", {K::softsign, 0, 0}},
                                          {"softplus", {K::softplus, 0, 0}}}};

bool takes_alpha(K kind) {
  return kind != K::sigmoid && kind != K::tanh && kind != K::relu && kind != K::softsign &&
         kind != K::softplus;
}
bool takes_beta(K kind) { return kind == K::affine || kind == K::scaled_tanh || kind == K::hard_sigmoid; }

Gate gate_named(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const GateRow& row : kGates) {
    if (row.name == name) return row.gate;
  }
  base::fail_unsupported("recurrent layers have no activation '", name, "'");
}

/// Names from the attribute or the op's defaults; functions with parameters consume these in order.
std::vector<Gate> gates_of(const ir::Attrs& attrs, const RecurrentPlan& p) {
  std::vector<std::string> names = attrs.get_strings("activations");
  if (names.empty()) {
    const std::vector<std::string> defaults = p.gates == 1 ? std::vector<std::string>{"Tanh"}
                                              : p.gates == 3
                                                  ? std::vector<std::string>{"Sigmoid", "Tanh"}
                                                  : std::vector<std::string>{"Sigmoid", "Tanh", "Tanh"};
    for (int64_t d = 0; d < p.directions; ++d) names.insert(names.end(), defaults.begin(), defaults.end());
  }
  base::require(static_cast<int64_t>(names.size()) >= p.directions * p.functions(), "recurrent layer has ",
                names.size(), " activations, needs ", p.directions * p.functions());
  const std::vector<double> alpha = attrs.get_floats("activation_alpha"),
                            beta = attrs.get_floats("activation_beta");
  size_t next_alpha = 0, next_beta = 0;
  std::vector<Gate> gates;
  for (const std::string& name : names) {
    Gate g = gate_named(name);
    if (takes_alpha(g.kind) && next_alpha < alpha.size()) g.alpha = alpha[next_alpha++];
    if (takes_beta(g.kind) && next_beta < beta.size()) g.beta = beta[next_beta++];
    gates.push_back(g);
  }
  return gates;
}

void require_dims(const ir::NodeView& node, size_t i, const Dims& want) {
  if (!node.present(i)) return;
  base::require(node.in_dims(i) == want, "operand ", i, " of a recurrent layer has shape ",
                node.in[i].shape.to_string(), ", needs ", tensor::to_string(want));
}

}  // namespace

double apply(const Gate& g, double x) {
  switch (g.kind) {
    case K::sigmoid: return 1 / (1 + std::exp(-x));
    case K::tanh: return std::tanh(x);
    case K::relu: return x < 0 ? 0 : x;
    case K::affine: return g.alpha * x + g.beta;
    case K::leaky_relu: return x < 0 ? g.alpha * x : x;
    case K::thresholded_relu: return x >= g.alpha ? x : 0;
    case K::scaled_tanh: return g.alpha * std::tanh(g.beta * x);
    case K::hard_sigmoid: return std::clamp(g.alpha * x + g.beta, 0.0, 1.0);
    case K::elu: return x < 0 ? g.alpha * (std::exp(x) - 1) : x;
    case K::softsign: return x / (1 + std::abs(x));
    case K::softplus: return x > 30 ? x : std::log1p(std::exp(x));
  }
  return x;
}

double derivative(const Gate& g, double x) {
  const double y = apply(g, x);
  switch (g.kind) {
    case K::sigmoid: return y * (1 - y);
    case K::tanh: return 1 - y * y;
    case K::relu: return x > 0 ? 1 : 0;
    case K::affine: return g.alpha;
    case K::leaky_relu: return x < 0 ? g.alpha : 1;
    case K::thresholded_relu: return x >= g.alpha ? 1 : 0;
    case K::scaled_tanh: return g.alpha * g.beta * (1 - std::pow(std::tanh(g.beta * x), 2));
    case K::hard_sigmoid: return y > 0 && y < 1 ? g.alpha : 0;
    case K::elu: return x < 0 ? g.alpha * std::exp(x) : 1;
    case K::softsign: return 1 / ((1 + std::abs(x)) * (1 + std::abs(x)));
    case K::softplus: return 1 / (1 + std::exp(-x));
  }
  return 1;
}

RecurrentPlan plan_recurrent(const ir::NodeView& node, size_t gates) {
  const ir::Attrs& a = node.attrs;
  const Dims x = node.in_dims(0), w = node.in_dims(1), r = node.in_dims(2);
  base::require(x.size() == 3 && w.size() == 3 && r.size() == 3, "a recurrent layer takes 3-D x, w and r");
  RecurrentPlan p{.batch_first = a.get_int("layout", 0) != 0};
  p.seq = p.batch_first ? x[1] : x[0];
  p.batch = p.batch_first ? x[0] : x[1];
  p.input = x[2];
  p.hidden = r[2];
  p.gates = static_cast<int64_t>(gates);
  const std::string direction = a.get_string("direction", "forward");
  base::require(direction == "forward" || direction == "reverse" || direction == "bidirectional",
                "unknown direction '", direction, "'");
  p.directions = direction == "bidirectional" ? 2 : 1;
  p.starts_reversed = direction == "reverse";
  p.clip = a.get_float("clip", 0);
  p.linear_before_reset = a.get_int("linear_before_reset", 0) != 0;
  p.input_forget = a.get_int("input_forget", 0) != 0;
  base::require(a.get_int("hidden_size", p.hidden) == p.hidden, "hidden_size ", a.get_int("hidden_size", 0),
                " with recurrence weights ", tensor::to_string(r));
  const int64_t d = p.directions, rows = p.gates * p.hidden;
  require_dims(node, 1, {d, rows, p.input});
  require_dims(node, 2, {d, rows, p.hidden});
  require_dims(node, 3, {d, 2 * rows});
  require_dims(node, 4, {p.batch});
  const Dims state = p.batch_first ? Dims{p.batch, d, p.hidden} : Dims{d, p.batch, p.hidden};
  require_dims(node, 5, state);
  require_dims(node, 6, state);
  require_dims(node, 7, {d, 3 * p.hidden});
  p.activations = gates_of(a, p);
  return p;
}

void check_lengths(const RecurrentPlan& plan, const int32_t* lengths, ir::RunStatus* status) {
  for (int64_t b = 0; lengths != nullptr && status != nullptr && b < plan.batch; ++b) {
    if (lengths[b] < 0 || lengths[b] > plan.seq)
      return status->fail("the length of a sequence is out of range", lengths[b]);
  }
}

}  // namespace trireme::ops
