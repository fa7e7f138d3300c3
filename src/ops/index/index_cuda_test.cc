// Lookups by index on the device against the CPU's results: repeated, negative and absent indices.
#include "ops/test_eval.h"
#include "tests/run_kernels.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using testing::as_type;
using Ints = std::vector<int64_t>;

/// Random indices in [low, high].
Tensor indices(const tensor::Dims& dims, uint32_t seed, int low, int high, DType dtype = DType::i64) {
  return as_type(tests::random_bytes<int8_t>(dims, seed, low, high), dtype);
}

void expect(const std::string& op, const std::vector<Tensor>& in, const ir::Attrs& attrs,
            double tolerance = 0) {
  SCOPED_TRACE(base::concat(op, " ", tensor::to_string(in[0].dims()), " ", name_of(in[0].dtype())));
  tests::expect_as_cpu({.op = op, .in = in, .attrs = attrs, .relative = tolerance, .absolute = tolerance});
}

TEST(IndexCuda, SlicesOfEverySize) {
  for (const DType dtype : {DType::u8, DType::f16, DType::f32, DType::f64}) {
    for (const int64_t width : {1, 3, 8}) {
      const Tensor x = as_type(tests::random_tensor({4, 9, width}, 1, 9), dtype);
      for (const int64_t axis : {0, 1, -1}) {
        const int rows = static_cast<int>(x.dims()[ir::normal_axis(axis, 3)]);
        expect("gather", {x, indices({2, 5}, 2, -rows, rows - 1, DType::i32)}, {{"axis", axis}});
      }
    }
  }
  expect("gather", {tests::random_tensor({9, 4}, 3), indices({}, 4, 5, 5)}, {});
  expect("gather", {tests::random_tensor({5, 4}, 3), indices({40}, 5, 0, 19)},
         {{"first", int64_t{7}}, {"extent", int64_t{20}}});
}

TEST(IndexCuda, GradientsSumInTheOrderOfThePlaces) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t count : {1, 33, 1500}) {
      const Tensor dy = as_type(tests::random_tensor({count, 150}, 6), dtype);
      expect("gather_grad", {dy, indices({count}, 7, -10, 9)}, {{"shape", Ints{10, 150}}}, 0);
    }
  }
  const Tensor dy = tests::random_tensor({3, 2, 20, 5}, 8), at = indices({2, 20}, 9, 0, 7);
  const ir::Attrs attrs{{"shape", Ints{3, 8, 5}}, {"axis", int64_t{1}}, {"padding_idx", int64_t{-2}}};
  expect("gather_grad", {dy, at}, attrs, 0);
  expect("gather_grad", {dy, at, tests::random_tensor({3, 8, 5}, 10)}, attrs, 0);
  expect("gather_grad", {tests::random_tensor({40, 3}, 11), indices({40}, 12, 0, 19)},
         {{"shape", Ints{5, 3}}, {"first", int64_t{7}}, {"extent", int64_t{20}}}, 0);
}

TEST(IndexCuda, ElementsAndTuples) {
  const Tensor x = tests::random_tensor({4, 6, 5}, 13);
  expect("gather_elements", {x, indices({3, 8, 5}, 14, -6, 5)}, {{"axis", int64_t{1}}});
  expect("gather_nd", {x, indices({7, 2}, 15, -4, 3)}, {});
  expect("gather_nd", {x, indices({4, 3, 1}, 16, -6, 5)}, {{"batch_dims", int64_t{1}}});
}

TEST(IndexCuda, OfRepeatedWritesTheLastStays) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i64}) {
    const Tensor x = as_type(tests::random_tensor({4, 6, 5}, 17, 9), dtype);
    expect("scatter_elements",
           {x, indices({4, 9, 5}, 18, -6, 5), as_type(tests::random_tensor({4, 9, 5}, 19, 9), dtype)},
           {{"axis", int64_t{1}}});
    expect("scatter_nd",
           {x, indices({300, 1}, 20, -4, 3), as_type(tests::random_tensor({300, 6, 5}, 21, 9), dtype)}, {});
    expect("scatter_nd", {x, indices({9, 3}, 22, 0, 3), as_type(tests::random_tensor({9}, 23, 9), dtype)},
           {});
  }
}

TEST(IndexCuda, RepeatedUpdatesAreJoinedInTheirOrder) {
  for (const DType dtype : {DType::f32, DType::f64, DType::i32, DType::i64}) {
    for (const char* reduction : {"add", "mul", "max", "min"}) {
      SCOPED_TRACE(base::concat(reduction, " ", name_of(dtype)));
      const ir::Attrs attrs{{"reduction", std::string(reduction)}};
      ir::Attrs along = attrs;
      along.set("axis", int64_t{1});
      const Tensor x = as_type(tests::random_tensor({4, 6, 5}, 17, 3), dtype);
      expect("scatter_elements",
             {x, indices({4, 9, 5}, 18, -6, 5), as_type(tests::random_tensor({4, 9, 5}, 19, 2), dtype)},
             along);
      expect("scatter_nd",
             {x, indices({40, 1}, 20, -4, 3), as_type(tests::random_tensor({40, 6, 5}, 21, 2), dtype)},
             attrs);
      expect("scatter_nd", {x, indices({9, 3}, 22, 0, 3), as_type(tests::random_tensor({9}, 23, 9), dtype)},
             attrs);
    }
  }
}

TEST(IndexCuda, AnIndexOutOfRangeIsReported) {
  std::string why;
  const std::unique_ptr<tensor::Device> device = tests::open_test_device(why);
  if (device == nullptr) GTEST_SKIP() << why;
  const ir::OpDef& op = table().need("gather");
  const Tensor x = tests::random_tensor({4, 8}, 24), at = indices({3}, 25, 9, 9);
  ir::NodeView node{.attrs = {},
                    .in = {x.type(), at.type()},
                    .out = {{DType::f32, tensor::Shape::of({3, 8})}},
                    .known = {nullptr, nullptr},
                    .is_present = {true, true},
                    .out_count = 1};
  const ir::Kernel* kernel = choose_kernel(op, node, tensor::DeviceKind::cuda);
  ASSERT_NE(kernel, nullptr);
  base::SharedCache packs;
  base::ThreadPool pool(1);
  const ir::BoundKernel bound =
      kernel->prepare({.node = node, .packs = packs, .threads = 1, .device = device.get()});
  const std::unique_ptr<tensor::Stream> stream = device->open_stream(pool);
  tests::DeviceBuffers buffers(*device, *stream);
  const void* in[] = {buffers.add(x.bytes(), x.raw()), buffers.add(at.bytes(), at.raw())};
  void* out[] = {buffers.add(96, nullptr)};
  const std::shared_ptr<void> fault = device->allocate_host(2 * sizeof(int64_t));
  auto* words = static_cast<int64_t*>(fault.get());
  words[0] = words[1] = 0;
  bound.run({.in = in, .out = out, .workspace = nullptr, .stream = *stream, .fault = words, .step = 5});
  stream->synchronize();
  EXPECT_EQ(words[0], 6);
  EXPECT_EQ(words[1], 9);
}

}  // namespace
}  // namespace trireme::ops
