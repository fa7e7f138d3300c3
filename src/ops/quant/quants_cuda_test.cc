// Quantization on the device against the CPU's results, bit for bit.
#include "tests/half_tensors.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

void expect_same_bits(tests::DeviceTrial trial) {
  trial.relative = trial.absolute = 0;
  tests::expect_as_cpu(trial);
}

Tensor scales(const Dims& dims) {
  Tensor t = tests::random_tensor(dims, 9);
  for (float& v : t.mutable_data<float>()) v = 0.01f + v * v / 20;
  return t;
}

/// One scale per tensor, per index of an axis, or per block along it.
struct ScaleForm {
  Dims scale;
  ir::Attrs attrs;
};
const std::vector<ScaleForm> kScaleForms{
    {{}, {}}, {{6}, {{"axis", int64_t{1}}}}, {{3, 2, 7}, {{"axis", int64_t{1}}, {"block_size", int64_t{3}}}}};

TEST(QuantsCuda, ThereAndBack) {
  Tensor x = tests::random_tensor({3, 6, 7}, 1, 3);
  x.mutable_data<float>()[0] = 1e9f;
  x.mutable_data<float>()[1] = -1e9f;
  for (const ScaleForm& c : kScaleForms) {
    const Tensor u8 = tests::random_bytes<uint8_t>(c.scale, 2, 0, 255);
    const Tensor i8 = tests::random_bytes<int8_t>(c.scale, 3, -128, 127);
    expect_same_bits({.op = "quantize_linear", .in = {x, scales(c.scale), u8}, .attrs = c.attrs});
    expect_same_bits({.op = "quantize_linear", .in = {x, scales(c.scale), i8}, .attrs = c.attrs});
    expect_same_bits({.op = "quantize_linear", .in = {x, scales(c.scale)}, .attrs = c.attrs});
    expect_same_bits({.op = "dequantize_linear",
                      .in = {tests::random_bytes<uint8_t>({3, 6, 7}, 4, 0, 255), scales(c.scale), u8},
                      .attrs = c.attrs});
    expect_same_bits({.op = "dequantize_linear",
                      .in = {tests::random_bytes<int8_t>({3, 6, 7}, 5, -128, 127), scales(c.scale), i8},
                      .attrs = c.attrs});
    expect_same_bits({.op = "dequantize_linear",
                      .in = {tests::random_bytes<int32_t>({3, 6, 7}, 6, -100000, 100000), scales(c.scale)},
                      .attrs = c.attrs});
  }
}

}  // namespace
}  // namespace trireme::ops
