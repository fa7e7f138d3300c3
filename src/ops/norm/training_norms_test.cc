// Batch norm with running statistics, and cross entropy, against PyTorch (tools/oracles/training_norms.py).
#include "base/files/file.h"
#include "base/text/json.h"
#include "ops/test_eval.h"
#include "tests/run_kernels.h"
#include "tests/test_data.h"

namespace trireme::ops {
namespace {

using base::Json;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

const Json& reference() {
  static const Json file = base::parse_json(
      base::read_file((tests::source_dir() / "src/ops/norm/testdata/training_norms.json").string()));
  return file;
}

std::vector<double> numbers(const Json& list) {
  std::vector<double> out;
  for (const Json& v : list.as_array()) out.push_back(v.as_double());
  return out;
}

/// Tensor number k of the script.
Tensor numbered(DType dtype, int64_t k, const Dims& dims) {
  Tensor t = Tensor::empty(dtype, dims);
  tensor::visit_dtype(dtype, [&](auto zero) {
    int64_t i = 0;
    for (auto& v : t.mutable_data<decltype(zero)>())
      v = static_cast<decltype(zero)>(static_cast<double>((i++ * 37 + 11 * k) % 64 - 31) / 16);
  });
  return t;
}

Tensor permuted(const Tensor& t, const std::vector<int64_t>& perm) {
  return testing::run("transpose", {t}, {{"perm", perm}})[0];
}

/// A precision and layout of the three steps; images in the file are [3, 4, 5, 2].
struct Form {
  DType dtype;
  bool channels_last, residual;
  Tensor image(int64_t k) const {
    const Tensor t = numbered(dtype, k, {3, 4, 5, 2});
    return channels_last ? permuted(t, {0, 2, 3, 1}) : t;
  }
  Tensor back(const Tensor& t) const { return channels_last ? permuted(t, {0, 3, 1, 2}) : t; }
};

void expect_steps(const Form& f) {
  const double near = f.dtype == DType::f64 ? 1e-12 : 3e-6;
  const ir::Attrs attrs{
      {"axis", int64_t{f.channels_last ? 3 : 1}}, {"epsilon", 1e-3}, {"activation", std::string("relu")}};
  const Tensor scale = numbered(f.dtype, 1, {4}), bias = numbered(f.dtype, 2, {4});
  Tensor mean = Tensor::zeros(f.dtype, {4}), variance = testing::random_tensor(f.dtype, {4}, 1, 1);
  int64_t step = 0;
  for (const Json& want : reference().at(f.residual ? "residual" : "plain").as_array()) {
    const Tensor x = f.image(10 + step), up = f.image(30 + step);
    std::vector<Tensor> in{x, scale, bias};
    if (f.residual) in.push_back(f.image(20 + step));
    const auto y = testing::run("batch_norm_train", in, attrs, 4);
    tests::expect_close(f.back(y[0]), numbers(want.at("y")), near, near, "y");
    const ir::Attrs keep{{"keep", 0.9}};
    mean = testing::run("ema_update", {mean, y[1]}, keep)[0];
    variance = testing::run("ema_update", {variance, y[3]}, keep)[0];
    tests::expect_close(mean, numbers(want.at("running_mean")), near, near, "running mean");
    tests::expect_close(variance, numbers(want.at("running_var")), near, near, "running variance");
    std::vector<Tensor> back{up, x, scale, bias, y[1], y[2]};
    if (f.residual) back.push_back(y[0]);
    const auto grads = testing::run("batch_norm_grad", back, attrs, f.residual ? 4 : 3);
    for (size_t i = 0; i < grads.size(); ++i) {
      const Tensor got = grads[i].rank() == 4 ? f.back(grads[i]) : grads[i];
      tests::expect_close(got, numbers(want.at("grads").as_array()[i]), near, 5 * near,
                          base::concat("gradient ", i));
    }
    ++step;
  }
  EXPECT_EQ(step, 3);
}

TEST(TrainingNorms, BatchNormFollowsPyTorch) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (int form = 0; form < 4; ++form) {
      SCOPED_TRACE(base::concat(name_of(dtype), " form ", form));
      expect_steps({dtype, (form & 1) != 0, (form & 2) != 0});
    }
  }
}

TEST(TrainingNorms, CrossEntropyIsPyTorchs) {
  const Tensor target = testing::ints({0, 8, -100, 3, -100, 5});
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double near = dtype == DType::f64 ? 1e-12 : 1e-6;
    for (const Json& want : reference().at("cross_entropy").as_array()) {
      const Tensor x = numbered(dtype, 40, {6, 9});
      const ir::Attrs attrs{{"label_smoothing", want.at("smoothing").as_double()}};
      const auto loss = testing::run("cross_entropy", {x, target}, attrs, 4);
      tests::expect_close(loss[0], {want.at("loss").as_double()}, near, near, "loss");
      tests::expect_close(loss[2], {4}, 0, 0, "count");
      const Tensor one = testing::random_tensor(dtype, {}, 1, 1);
      const auto grad = testing::run("cross_entropy_grad", {x, target, loss[1], one}, attrs);
      tests::expect_close(grad[0], numbers(want.at("grad")), near, near, "gradient");
    }
  }
}

}  // namespace
}  // namespace trireme::ops
