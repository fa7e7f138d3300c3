// Casts and quantization of element types without arithmetic on the device against the CPU's results: same
// codes.
#include "tests/run_kernels.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;

const std::vector<std::pair<DType, int64_t>> kNumberedTypes{
    {DType::f8e4m3fn, 17}, {DType::f8e4m3fnuz, 18}, {DType::f8e5m2, 19}, {DType::f8e5m2fnuz, 20},
    {DType::u4, 21},       {DType::i4, 22},         {DType::f4e2m1, 23}, {DType::f8e8m0, 24},
    {DType::u2, 25},       {DType::i2, 26},         {DType::f32, 1},     {DType::f16, 10},
    {DType::f64, 11},      {DType::i8, 3},          {DType::u64, 13},    {DType::boolean, 9}};

/// Numbers of many magnitudes with infinities and NaN; their count is odd.
Tensor numbers() {
  std::vector<float> v{0.0f, -0.0f, 1,    -1,     INFINITY, -INFINITY, NAN, 448,
                       449,  57344, 1e9f, -1e-9f, 6,        2.5f,      3.5f};
  const Tensor more = tests::random_tensor({100}, 1);
  float scale = 1e-4f;
  for (float x : more.data<float>()) {
    v.push_back(x * scale);
    scale = scale > 1e4f ? 1e-4f : scale * 1.7f;
  }
  return Tensor::from<float>({static_cast<int64_t>(v.size())}, std::span<const float>(v));
}

Tensor as_number(const Tensor& t, int64_t type) {
  base::ThreadPool pool(1);
  return evaluate(table().need("cast"), {{"to", type}}, {t}, 1, pool)[0];
}

/// Expects the same codes, except that in floats of more than 8 bits any NaN equals any other, as GPU and
/// host differ.
void expect_same_codes(const Tensor& got, const Tensor& want, const std::string& what) {
  if (!tensor::is_float(want.dtype()) || tensor::bits_of(want.dtype()) <= 8) {
    EXPECT_EQ(std::memcmp(got.raw(), want.raw(), static_cast<size_t>(want.bytes())), 0) << what;
    return;
  }
  const std::vector<double> a = got.to_doubles(), b = want.to_doubles();
  for (size_t i = 0; i < b.size(); ++i) {
    const bool is_same =
        std::isnan(b[i]) ? std::isnan(a[i]) : a[i] == b[i] && std::signbit(a[i]) == std::signbit(b[i]);
    ASSERT_TRUE(is_same) << what << " at " << i << ": got " << a[i] << ", want " << b[i];
  }
}

void expect_codes(const tests::DeviceTrial& trial) {
  std::string why;
  const std::unique_ptr<tensor::Device> device = tests::open_test_device(why);
  if (device == nullptr) GTEST_SKIP() << why;
  const ir::OpDef& def = table().need(trial.op);
  base::ThreadPool pool(1);
  const Tensor want = evaluate(def, trial.attrs, trial.in, 1, pool)[0];
  ir::NodeView node{.attrs = trial.attrs, .in = {}, .out = {}, .known = {}, .is_present = {}, .out_count = 1};
  for (const Tensor& t : trial.in) {
    node.is_present.push_back(t.defined());
    node.in.push_back(t.defined() ? t.type() : tensor::TensorType{});
    node.known.push_back(t.defined() ? &t : nullptr);
  }
  node.out = ir::infer_types(def.schema, node);
  const ir::Kernel* kernel = choose_kernel(def, node, tensor::DeviceKind::cuda);
  ASSERT_NE(kernel, nullptr);
  base::SharedCache packs;
  const ir::BoundKernel bound =
      kernel->prepare({.node = node, .packs = packs, .threads = 1, .device = device.get()});
  const std::unique_ptr<tensor::Stream> stream = device->open_stream(pool);
  tests::DeviceBuffers buffers(*device, *stream);
  std::vector<const void*> in;
  for (const Tensor& t : trial.in) in.push_back(t.defined() ? buffers.add(t.bytes(), t.raw()) : nullptr);
  void* out[] = {buffers.add(want.bytes(), nullptr)};
  bound.run({.in = in.data(), .out = out, .workspace = nullptr, .stream = *stream});
  stream->synchronize();
  Tensor got = Tensor::empty(want.dtype(), want.dims());
  stream->download(got.mutable_raw(), out[0], got.bytes());
  stream->synchronize();
  expect_same_codes(got, want,
                    base::concat(trial.op, " ", name_of(trial.in[0].dtype()), " to ", name_of(want.dtype())));
  buffers.expect_guards(trial.op);
}

TEST(CodesCuda, CastsBetweenAllTypes) {
  for (const auto& [from, from_number] : kNumberedTypes) {
    const Tensor x = as_number(numbers(), from_number);
    for (const auto& [to, to_number] : kNumberedTypes) {
      // Pairs of larger types are tested elsewhere.
      const bool is_plain = tensor::bits_of(from) > 8 && tensor::bits_of(to) > 8;
      if (is_plain) continue;
      for (const int64_t saturate : {0, 1})
        expect_codes({.op = "cast", .in = {x}, .attrs = {{"to", to_number}, {"saturate", saturate}}});
    }
  }
  for (const char* mode : {"down", "nearest"}) {
    expect_codes(
        {.op = "cast", .in = {numbers()}, .attrs = {{"to", int64_t{24}}, {"round_mode", std::string(mode)}}});
  }
}

TEST(CodesCuda, QuantizesToAllCodes) {
  const Tensor x = tests::random_tensor({5, 7}, 2),
               scales = Tensor::from<float>({7}, {1, 0.1f, 0.02f, 3, 0.5f, 1, 2});
  for (const int64_t type : {2, 3, 4, 5, 17, 19, 21, 22, 25, 26}) {
    for (const int64_t half : {0, 10, 16}) {
      const Tensor values = half == 0 ? x : as_number(x, half);
      const Tensor steps = half == 0 ? scales : as_number(scales, half);
      const Tensor zero = as_number(Tensor::from<float>({7}, {0, 1, 0, 1, 0, 1, 0}), type);
      const ir::Attrs attrs{{"axis", int64_t{1}}, {"output_dtype", type}};
      if (half == 0 && (type == 2 || type == 3)) continue;  // the kernel of the common types takes these
      expect_codes({.op = "quantize_linear", .in = {values, steps, zero}, .attrs = attrs});
      const Tensor codes = as_number(values, type);
      expect_codes({.op = "dequantize_linear", .in = {codes, steps, zero}, .attrs = {{"axis", int64_t{1}}}});
    }
  }
}

}  // namespace
}  // namespace trireme::ops
