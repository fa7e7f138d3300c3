// Tests that every real ONNX model of the shared data gives its reference output.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/session/session.h"
#include "model/load/load.h"
#include "model/npy.h"
#include "model/onnx/tensor_proto.h"
#include "tests/test_data.h"
#include "tests/test_device.h"

namespace trireme {
namespace {

using tensor::Tensor;

/// `tolerance`: the largest difference, relative to the largest magnitude of an output.
struct ModelCase {
  const char* model;
  double tolerance;
};

// The int8 model's reference follows the fused integer kernels of one runtime exactly; other runtimes round
// some values differently. For the same input the largest difference, at a largest magnitude of 8.1, is 0.31
// here and in ONNX Runtime without fusion, and 0.61 in OpenVINO.
constexpr ModelCase kCases[] = {
    {"cifar10_resnet20_derived/model.onnx", 1e-4},
    {"kwt1_keyword_derived/model.onnx", 1e-4},
    {"magika_v3_3/model.onnx", 1e-4},
    {"mnist_cntk/mnist.onnx", 1e-4},
    {"mobilenetv2_fp32_derived/model.onnx", 1e-4},
    {"mobilenetv2_qdq/model.onnx", 0.06},
    {"nnsplit_en/model.onnx", 1e-4},
    {"silero_vad/silero_vad_16k_op15.onnx", 1e-4},
    {"squeezenet10_pruned_derived/model.onnx", 1e-4},
    {"ultraface/version-RFB-320.onnx", 1e-4},
};

std::vector<Tensor> read_all(const std::filesystem::path& dir, const std::string& stem) {
  std::vector<Tensor> tensors;
  for (size_t i = 0;; ++i) {
    const auto file = dir / (stem + std::to_string(i) + ".pb");
    if (!std::filesystem::exists(file)) return tensors;
    tensors.push_back(model::onnx::read_tensor_file(file.string()));
  }
}

double relative_error(const Tensor& got, const Tensor& want) {
  const auto a = got.to_doubles(), b = want.to_doubles();
  double error = 0, magnitude = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    error = std::max(error, std::abs(a[i] - b[i]));
    magnitude = std::max(magnitude, std::abs(b[i]));
  }
  return magnitude == 0 ? error : error / magnitude;
}

void expect_outputs(const std::string& path, const std::vector<Tensor>& in, const std::vector<Tensor>& want,
                    double tolerance) {
  auto prepared = std::make_shared<engine::PreparedModel>(model::load_model(path).graph);
  engine::Session session(prepared, {.device = tests::device_under_test(), .threads = 2});
  const auto got = session.run(in);
  ASSERT_GE(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].dims(), want[i].dims());
    EXPECT_LE(relative_error(got[i], want[i]), tolerance) << session.graph().output_names()[i];
  }
}

class OnnxModels : public ::testing::TestWithParam<ModelCase> {};

TEST_P(OnnxModels, GivesItsReferenceOutput) {
  const auto path = tests::shared_data(std::string("onnx-models/") + GetParam().model);
  if (!path) GTEST_SKIP() << tests::kNoSharedData;
  const auto data = path->parent_path() / "test_data_set_0";
  expect_outputs(path->string(), read_all(data, "input_"), read_all(data, "output_"), GetParam().tolerance);
}

INSTANTIATE_TEST_SUITE_P(Shared, OnnxModels, ::testing::ValuesIn(kCases), [](const auto& one) {
  const std::string name = one.param.model;
  return name.substr(0, name.find('/'));
});

TEST(OnnxModelsNpz, ByteLstmGivesItsReferenceOutput) {
  const auto path = tests::shared_data("onnx-models/byte_sb_bidi_lstm/model.onnx");
  if (!path) GTEST_SKIP() << tests::kNoSharedData;
  const auto arrays = model::read_npz((path->parent_path() / "io.npz").string());
  ASSERT_GE(arrays.size(), 2u);
  const model::Model loaded = model::load_model(path->string());
  std::vector<Tensor> in, want;
  for (const auto& [name, t] : arrays) (in.size() < loaded.graph.inputs().size() ? in : want).push_back(t);
  expect_outputs(path->string(), in, want, 1e-4);
}

}  // namespace
}  // namespace trireme
