// Compares every family of networks with PyTorch and Transformers: logits, gradients, and the losses of 50
// steps. tools/oracles/networks.py writes the references in tests/networks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/files/file.h"
#include "engine/train/train_session.h"
#include "model/interpret.h"
#include "model/loss.h"
#include "model/onnx/export.h"
#include "model/onnx/import.h"
#include "model/params.h"
#include "model/zoo/zoo.h"
#include "tests/test_data.h"

namespace trireme {
namespace {

using tensor::DType;
using tensor::Tensor;

constexpr size_t kSteps = 50, kBatches = 4;

/// splitmix64 over the FNV-1a hash of the name: 64 random bits for each index, the same as in networks.py.
uint64_t bits(uint64_t name_hash, uint64_t index) {
  uint64_t x = name_hash + (index + 1) * 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// Uniform in [-1, 1), exact in f32.
float uniform(uint64_t name_hash, uint64_t index) {
  return static_cast<float>(bits(name_hash, index) >> 40) * 0x1p-23f - 1;
}

/// The values of a weight: near 1 for scales and variances, small for vectors, otherwise of variance 1 / fan.
Tensor weight(const std::string& name, const tensor::Dims& dims) {
  Tensor t = Tensor::empty(DType::f32, dims);
  const bool is_vector = dims.size() == 1;
  const bool is_scale = name.ends_with("running_var") || (is_vector && name.ends_with(".weight"));
  const double fan = static_cast<double>(t.elements()) / static_cast<double>(dims[0]);
  const double power = is_scale ? -2 : is_vector ? -3 : std::floor(0.5 * std::log2(3 / fan) + 0.5);
  const float scale = static_cast<float>(std::exp2(power)), offset = is_scale ? 1.0f : 0.0f;
  const uint64_t hash = model::name_hash(name);
  for (size_t i = 0; float& v : t.mutable_data<float>()) v = offset + uniform(hash, i++) * scale;
  return t;
}

Tensor make_input(const base::Json& spec, const std::string& name, size_t batch) {
  tensor::Dims dims;
  for (const base::Json& d : spec.at("dims").as_array()) dims.push_back(d.as_int());
  const uint64_t hash = model::name_hash(base::concat(name, "#", batch));
  if (spec.contains("scale")) {
    Tensor t = Tensor::empty(DType::f32, dims);
    const float scale = static_cast<float>(spec.at("scale").as_double());
    for (size_t i = 0; float& v : t.mutable_data<float>()) v = uniform(hash, i++) * scale;
    return t;
  }
  Tensor t = Tensor::empty(DType::i64, dims);
  const auto values = t.mutable_data<int64_t>();
  for (size_t i = 0; i < values.size(); ++i) {
    if (spec.contains("prefix")) {
      const auto row = static_cast<size_t>(dims[1]);
      values[i] = static_cast<int64_t>(i % row) < spec.at("prefix").at(i / row).as_int();
      continue;
    }
    const uint64_t random = bits(hash, i);
    const bool is_ignored = (random >> 60) % 4 < spec.get_or("ignored", uint64_t{0});
    values[i] = is_ignored ? -100 : static_cast<int64_t>(random % spec.at("modulo").as_uint());
  }
  return t;
}

/// One reference case: the network with the oracle's weights, its loss graph and its batches.
struct ReferenceCase {
  base::Json reference;
  model::Model model;
  ir::Graph loss;  // model and loss; keeps the model's own outputs
};

base::Json read_reference(const std::string& name) {
  const auto path = tests::source_dir() / "tests/networks" / (name + ".json");
  return base::parse_json(base::read_file(path.string()));
}

ir::Graph with_loss(ir::Graph graph, const base::Json& reference) {
  const bool is_detection = reference.at("loss").as_string() == "detection";
  model::add_loss(graph, {.kind = is_detection ? model::LossKind::detection : model::LossKind::cross_entropy,
                          .keeps_outputs = true});
  graph.sort();
  return graph;
}

ReferenceCase open_case(const std::string& name) {
  ReferenceCase c{.reference = read_reference(name), .model = {}, .loss = {}};
  std::vector<std::string> options;
  for (const base::Json& o : c.reference.at("options").as_array()) options.push_back(o.as_string());
  c.model = model::zoo::build(c.reference.at("network").as_string(), options);
  ir::Graph& g = c.model.graph;
  for (size_t i = 0; i < g.values().size(); ++i) {
    ir::Value& v = g.value(ir::ValueId(static_cast<uint32_t>(i)));
    if (v.kind == ir::ValueKind::param) v.data = weight(v.name, v.data.dims());
  }
  c.loss = with_loss(g, c.reference);
  return c;
}

/// The inputs of batch `number`, in the order of the graph's inputs.
std::vector<Tensor> batch_of(const ReferenceCase& c, size_t number) {
  std::vector<Tensor> feeds;
  for (ir::ValueId id : c.loss.inputs()) {
    const std::string& name = c.loss.value(id).name;
    feeds.push_back(make_input(c.reference.at("inputs").at(name), name, number));
  }
  return feeds;
}

/// The number of labels that are not ignored.
double valid_of(const ReferenceCase& c, const std::vector<Tensor>& feeds) {
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (c.loss.value(c.loss.inputs()[i]).name != "labels") continue;
    const auto labels = feeds[i].data<int64_t>();
    return static_cast<double>(
        std::count_if(labels.begin(), labels.end(), [](int64_t l) { return l != -100; }));
  }
  return 0;
}

engine::TrainSession open_session(const ReferenceCase& c) {
  engine::TrainOptions options;
  options.threads = 2;
  const bool is_sgd = c.reference.at("optimizer").as_string() == "sgd";
  options.optimizer.kind = is_sgd ? passes::OptimizerKind::sgd : passes::OptimizerKind::adamw;
  options.optimizer.weight_decay = is_sgd ? 1e-4 : 0.01;
  return engine::TrainSession(c.loss, options);
}

class Networks : public ::testing::TestWithParam<const char*> {};

TEST_P(Networks, LogitsAreTheOracles) {
  const ReferenceCase c = open_case(GetParam());
  const auto out = model::interpret(c.loss, batch_of(c, 0));
  for (const base::JsonMember& want : c.reference.at("outputs").as_object()) {
    const auto& names = c.loss.output_names();
    const auto at = std::find(names.begin(), names.end(), want.key);
    ASSERT_NE(at, names.end()) << want.key;
    const auto got = out[static_cast<size_t>(at - names.begin())].data<float>();
    double error = 0;
    for (size_t i = 0; i < want.value.size(); ++i) {
      const double exact = want.value.at(i).as_double();
      error = std::max(error, std::abs(double{got[i]} - exact) / std::max(1.0, std::abs(exact)));
    }
    EXPECT_LT(error, 1e-5) << want.key;
  }
}

/// Compares a session's gradient sums of two micro-batches with the oracle, except for parameter `except`.
void expect_gradients(engine::TrainSession& session, const base::Json& gradients, std::string_view except) {
  size_t compared = 0;
  double whole = 0;  // norm over all parameters, the scale of the allowed rounding error
  for (const base::JsonMember& g : gradients.as_object()) {
    whole += g.value.at("norm").as_double() * g.value.at("norm").as_double();
  }
  for (const lower::TrainedParam& p : session.params()) {
    SCOPED_TRACE(p.name);
    const base::Json* want = gradients.find(p.name);
    ASSERT_NE(want, nullptr);
    ++compared;
    if (p.name == except) continue;
    const auto got = session.scratch().at(p.name + ".sum1").data<float>();
    double sum = 0, squares = 0;
    for (const float v : got) {
      sum += double{v};
      squares += double{v} * double{v};
    }
    const double norm = want->at("norm").as_double(), noise = 1e-6 * std::sqrt(whole);
    EXPECT_NEAR(std::sqrt(squares), norm, 1e-5 * norm + noise);
    EXPECT_NEAR(sum, want->at("sum").as_double(), (1e-5 * norm + noise) * std::sqrt(double(got.size())));
    for (size_t i = 0; i < want->at("first").size(); ++i) {
      EXPECT_NEAR(double{got[i]}, want->at("first").at(i).as_double(), 1e-5 * norm + noise) << i;
    }
  }
  EXPECT_EQ(compared, gradients.size());
}

/// Runs three micro-batches of the same rows at half the weight: the sum of the first two equals the oracle's
/// mean gradient, and is still in scratch memory after the third has been added.
void expect_oracle_step(const ReferenceCase& c, std::string_view except = {}) {
  engine::TrainSession session = open_session(c);
  const engine::Feeds feeds = batch_of(c, 0);
  const double valid = valid_of(c, feeds);
  const std::vector<engine::Feeds> thrice{feeds, feeds, feeds};
  const auto result = session.step(thrice, {.lr = 0, .loss_weight = static_cast<float>(0.5 / valid)});
  EXPECT_EQ(result.count, 3 * valid);
  EXPECT_EQ(c.reference.at("count").as_double(), valid);
  EXPECT_EQ(result.correct, 3 * c.reference.at("correct").as_double());
  EXPECT_NEAR(result.loss_sum / 3 / c.reference.at("loss_sum").as_double(), 1, 2e-6);
  expect_gradients(session, c.reference.at("gradients"), except);
}

TEST_P(Networks, GradientsAreTheOracles) { expect_oracle_step(open_case(GetParam())); }

/// Imported networks must train like built ones: the same network, exported to ONNX and imported again.
TEST_P(Networks, ImportedGradientsAreTheOracles) {
  ReferenceCase c = open_case(GetParam());
  const auto bytes = std::make_shared<std::string>(model::onnx::export_onnx(c.model.graph));
  c.model = model::onnx::import_onnx(*bytes, bytes, "");
  c.loss = with_loss(c.model.graph, c.reference);
  // ONNX cannot express that the padding token's row is not trained.
  expect_oracle_step(c, "bert.embeddings.word_embeddings.weight");
}

/// The largest difference of 50 losses from PyTorch's, relative to the loss (or to a floor, if it gets tiny).
double trajectory_error(const ReferenceCase& c) {
  engine::TrainSession session = open_session(c);
  double error = 0;
  for (size_t step = 0; step < kSteps; ++step) {
    const engine::Feeds feeds = batch_of(c, step % kBatches);
    const double valid = valid_of(c, feeds);
    const auto result = session.step(feeds, {.lr = static_cast<float>(c.reference.at("lr").as_double()),
                                             .step = static_cast<int64_t>(step + 1),
                                             .loss_weight = static_cast<float>(1 / valid)});
    const double want = c.reference.at("losses").at(step).as_double();
    const double scale = std::max(want, c.reference.get_or("losses_floor", 0.0));
    error = std::max(error, std::abs(result.loss_sum / valid - want) / scale);
  }
  return error;
}

TEST_P(Networks, FiftyStepsAreTheOracles) {
  const ReferenceCase c = open_case(GetParam());
  ASSERT_EQ(c.reference.at("losses").size(), kSteps);
  // Batch norms over few values make steps in f32 diverge from f64; the reference states by how much.
  EXPECT_LT(trajectory_error(c), c.reference.get_or("losses_within", 1e-5));
}

INSTANTIATE_TEST_SUITE_P(Families, Networks,
                         ::testing::Values("mlp", "cnn", "small_resnet", "resnet18", "gpt2", "llama", "bert",
                                           "bert_classes", "vit", "perception"),
                         [](const auto& name) { return std::string(name.param); });

/// Networks of full size take minutes, so they run only on request.
class LargeNetworks : public ::testing::TestWithParam<const char*> {};

TEST_P(LargeNetworks, FiftyStepsAreTheOracles) {
  if (std::getenv("TRIREME_TEST_ALL") == nullptr) GTEST_SKIP() << "networks of full size: ./dev test --all";
  EXPECT_LT(trajectory_error(open_case(GetParam())), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Sizes, LargeNetworks, ::testing::Values("resnet18_224", "gpt2_small", "bert_small"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace trireme
