// 8-bit products on the device against the CPU's results: sums are exact, so results differ by at most one
// step where f32 rounds a tie the other way.
#include "tests/half_tensors.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using tests::random_bytes;
using tests::random_tensor;

template <class T>
Tensor list(std::vector<T> v) {
  const auto n = static_cast<int64_t>(v.size());
  return Tensor::from<T>({n}, v);
}

/// Signedness of x and w, whether weights have zero points, and the type of the result.
struct Form {
  bool x_signed = false, w_signed = true, w_zeros = false, to_float = false;
  const char* activation = "none";
};
const std::vector<Form> kForms{{},
                               {.x_signed = true},
                               {.w_signed = false, .w_zeros = true},
                               {.x_signed = true, .w_zeros = true, .to_float = true},
                               {.activation = "relu"},
                               {.to_float = true, .activation = "relu"},
                               {.activation = "silu"}};

Tensor bytes_of(const Dims& dims, uint32_t seed, bool is_signed) {
  return is_signed ? random_bytes<int8_t>(dims, seed, -128, 127) : random_bytes<uint8_t>(dims, seed, 0, 255);
}

/// The operands x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias.
std::vector<Tensor> form_operands(const Dims& x, const Dims& w, int64_t channels, const Form& f) {
  std::vector<float> scale;
  std::vector<int32_t> bias;
  for (int64_t i = 0; i < channels; ++i) {
    scale.push_back(0.01f + 0.001f * static_cast<float>(i % 7));
    bias.push_back(static_cast<int32_t>(i * 37 % 200 - 100));
  }
  const Tensor w_zero =
      f.w_signed ? Tensor::scalar<int8_t>(f.w_zeros ? 3 : 0) : Tensor::scalar<uint8_t>(f.w_zeros ? 120 : 128);
  std::vector<Tensor> in{bytes_of(x, 1, f.x_signed),
                         Tensor::scalar(0.02f),
                         f.x_signed ? Tensor::scalar<int8_t>(-3) : Tensor::scalar<uint8_t>(120),
                         bytes_of(w, 2, f.w_signed),
                         list(scale),
                         w_zero,
                         Tensor::scalar(0.05f),
                         f.x_signed ? Tensor::scalar<int8_t>(5) : Tensor::scalar<uint8_t>(100),
                         list(bias)};
  if (f.to_float) in[6] = in[7] = Tensor();
  return in;
}

TEST(QProductsCuda, Linear) {
  for (const auto& [m, k, n] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {5, 17, 33}, {32, 64, 48}, {3, 100, 7}, {0, 5, 4}, {70, 160, 20}}) {
    for (const Form& f : kForms) {
      for (const int64_t transposed : {0, 1}) {
        tests::expect_as_cpu(
            {.op = "qlinear",
             .in = form_operands({m, k}, transposed != 0 ? Dims{n, k} : Dims{k, n}, n, f),
             .attrs = {{"transposed", transposed}, {"activation", std::string(f.activation)}},
             .relative = 1e-5,
             .absolute = f.to_float ? 1e-4 : 1.0,
             .fed = {0}});
      }
    }
  }
}

/// Programs of a model share packed constants; a matrix may be the second operand of one product and, turned,
/// that of another.
TEST(QProductsCuda, OneConstantInBothLayouts) {
  const auto device = tests::device_or_skip();
  if (device == nullptr) return;
  base::ThreadPool pool(1);
  base::SharedCache packs;
  const std::unique_ptr<tensor::Stream> stream = device->open_stream(pool);
  const ir::OpDef& def = table().need("qlinear");
  const std::vector<Tensor> in = form_operands({3, 24}, {24, 24}, 24, {.to_float = true});
  std::vector<ir::BoundKernel> alive;  // a constant is shared by those that live at the same time
  for (const int64_t transposed : {0, 1}) {
    const tests::DeviceTrial trial{
        .op = "qlinear", .in = in, .attrs = {{"transposed", transposed}}, .absolute = 1e-4, .fed = {0}};
    const ir::NodeView node = tests::node_of(def, trial);
    const ir::Kernel* kernel = choose_kernel(def, node, tensor::DeviceKind::cuda);
    ASSERT_NE(kernel, nullptr);
    alive.push_back(kernel->prepare({node, packs, 1, device.get()}));
    const ir::BoundKernel& bound = alive.back();
    tests::DeviceBuffers memory(*device, *stream);
    std::vector<const void*> operands;
    for (const Tensor& t : in) operands.push_back(t.defined() ? memory.add(t.bytes(), t.raw()) : nullptr);
    Tensor y = Tensor::empty(node.out[0].dtype, node.out_dims(0));
    void* results[]{memory.add(y.bytes(), nullptr)};
    bound.run({.in = operands.data(),
               .out = results,
               .workspace = memory.add(bound.workspace_bytes, nullptr),
               .stream = *stream});
    stream->download(y.mutable_raw(), results[0], y.bytes());
    stream->synchronize();
    const std::vector<Tensor> want = evaluate(def, trial.attrs, in, 1, pool);
    tests::expect_same_values(y, want[0], trial, base::concat("transposed ", transposed));
  }
}

TEST(QProductsCuda, Convolutions) {
  struct Case {
    int64_t n, h, w, c, oc, k, stride, pad, group;
  };
  for (const Case& c : {Case{2, 7, 9, 16, 24, 1, 1, 0, 1}, Case{1, 8, 8, 32, 32, 3, 1, 1, 32},
                        Case{1, 9, 7, 5, 7, 3, 2, 1, 1}, Case{1, 11, 5, 7, 7, 5, 2, 2, 7},
                        Case{1, 1, 1, 3, 1, 1, 1, 0, 1}, Case{1, 6, 5, 1, 1, 3, 1, 1, 1}}) {
    for (const Form& f : kForms) {
      tests::expect_as_cpu(
          {.op = "qconv_nhwc",
           .in = form_operands({c.n, c.h, c.w, c.c}, {c.oc, c.c / c.group, c.k, c.k}, c.oc, f),
           .attrs = {{"strides", std::vector<int64_t>{c.stride, c.stride}},
                     {"pads", std::vector<int64_t>(4, c.pad)},
                     {"group", c.group},
                     {"activation", std::string(f.activation)}},
           .relative = 1e-5,
           .absolute = f.to_float ? 1e-4 : 1.0,
           .fed = {0}});
    }
  }
}

TEST(QProductsCuda, Sums) {
  for (const int64_t n : {1, 7, 1000}) {
    for (const bool is_signed : {false, true}) {
      const Tensor zero = is_signed ? Tensor::scalar<int8_t>(-7) : Tensor::scalar<uint8_t>(90);
      tests::expect_as_cpu(
          {.op = "qadd",
           .in = {bytes_of({n}, 1, false), Tensor::scalar(0.03f), Tensor::scalar<uint8_t>(128),
                  bytes_of({n}, 2, true), Tensor::scalar(0.02f), Tensor::scalar<int8_t>(3),
                  Tensor::scalar(0.04f), zero},
           .attrs = {{"activation", std::string(is_signed ? "relu" : "none")}},
           .relative = 0,
           .absolute = 1.0,
           .fed = {0, 3}});
    }
  }
}

TEST(QProductsCuda, Integers) {
  for (const auto& [m, k, n] :
       std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {5, 17, 33}, {64, 48, 16}, {2, 100, 7}}) {
    for (const bool a_signed : {false, true}) {
      for (const bool b_signed : {false, true}) {
        for (const bool fed : {false, true}) {
          const Tensor a = bytes_of({2, m, k}, 1, a_signed), b = bytes_of({k, n}, 2, b_signed);
          const std::vector<size_t> unknown =
              fed ? std::vector<size_t>{0, 1, 2, 3} : std::vector<size_t>{0, 2};
          tests::DeviceTrial trial{.op = "matmul_integer", .in = {a, b}, .relative = 0, .absolute = 0};
          trial.fed = fed ? std::vector<size_t>{0, 1} : std::vector<size_t>{0};
          tests::expect_as_cpu(trial);
          trial.in.push_back(a_signed ? Tensor::scalar<int8_t>(-9) : Tensor::scalar<uint8_t>(130));
          trial.in.push_back(bytes_of({n}, 3, b_signed));
          trial.fed = unknown;
          tests::expect_as_cpu(trial);
        }
      }
    }
  }
}

TEST(QProductsCuda, DynamicRange) {
  for (const int64_t n : {1, 5, 1000, 70001}) {
    tests::expect_as_cpu({.op = "dynamic_quantize_linear",
                          .in = {random_tensor({n}, 3)},
                          .out_count = 3,
                          .relative = 0,
                          .absolute = 0});
  }
  for (const float v : {0.0f, 2.5f, -3.0f})
    tests::expect_as_cpu({.op = "dynamic_quantize_linear", .in = {list<float>({v, v})}, .out_count = 3});
}

}  // namespace
}  // namespace trireme::ops
