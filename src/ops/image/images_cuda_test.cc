// Resizing and grid sampling on the device against the CPU's results: every mode, layout and type, and the
// gradients.
#include "ops/test_eval.h"
#include "tests/run_kernels.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using testing::as_type;
using Text = std::string;

Tensor sizes_of(const tensor::Dims& dims) {
  return Tensor::from<int64_t>({static_cast<int64_t>(dims.size())}, std::span<const int64_t>(dims));
}

void expect_resize(const Tensor& x, const tensor::Dims& to, const ir::Attrs& attrs, double within = 1e-5) {
  SCOPED_TRACE(base::concat(tensor::to_string(x.dims()), " to ", tensor::to_string(to), " ",
                            name_of(x.dtype()), " ", attrs.get_string("mode", ""), " ",
                            attrs.get_string("coordinate_transformation_mode", "")));
  tests::expect_as_cpu({.op = "resize",
                        .in = {x, Tensor(), Tensor(), sizes_of(to)},
                        .attrs = attrs,
                        .relative = within,
                        .absolute = within});
}

TEST(ImagesCuda, EveryModeAndCoordinate) {
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const char* coordinates :
         {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"}) {
      const ir::Attrs attrs{{"mode", Text(mode)}, {"coordinate_transformation_mode", Text(coordinates)}};
      const Tensor x = tests::random_tensor({2, 3, 7, 6}, 1);
      expect_resize(x, {2, 3, 14, 12}, attrs);
      expect_resize(x, {2, 3, 3, 5}, attrs);
      expect_resize(x, {2, 3, 7, 9}, attrs);
      expect_resize(tests::random_tensor({1, 5, 4, 8}, 2), {1, 9, 7, 8}, attrs);  // channels last
      expect_resize(tests::random_tensor({1, 2, 3, 4, 5}, 3), {1, 2, 5, 7, 8}, attrs);
    }
  }
}

TEST(ImagesCuda, ManyTermsGoAxisByAxis) {
  for (const char* mode : {"linear", "cubic"}) {
    ir::Attrs attrs{{"mode", Text(mode)}, {"antialias", int64_t{1}}};
    expect_resize(tests::random_tensor({1, 2, 40, 36}, 4), {1, 2, 5, 7}, attrs);
    expect_resize(as_type(tests::random_tensor({1, 2, 40, 36}, 4), DType::bf16), {1, 2, 5, 8}, attrs, 2e-2);
    attrs.set("exclude_outside", int64_t{1});
    expect_resize(tests::random_tensor({1, 2, 9, 11}, 5), {1, 2, 5, 20}, attrs);
  }
  expect_resize(tests::random_tensor({3, 2, 3, 2, 3}, 6), {5, 4, 5, 4, 5}, {{"mode", Text("linear")}});
}

TEST(ImagesCuda, EveryType) {
  const Tensor x = tests::random_tensor({1, 2, 5, 8}, 7);
  for (const DType type : {DType::f16, DType::bf16, DType::f64}) {
    expect_resize(as_type(x, type), {1, 2, 9, 16}, {{"mode", Text("linear")}}, 2e-2);
    expect_resize(as_type(x, type), {1, 2, 9, 16}, {}, 0);
  }
  const Tensor bytes = tests::random_bytes<uint8_t>({1, 2, 5, 8}, 8, 0, 255);
  for (const DType type : {DType::u8, DType::i8, DType::i32, DType::i64, DType::u16, DType::boolean})
    expect_resize(as_type(bytes, type), {1, 2, 10, 16}, {}, 0);
  // An f32 sum may fall on either side of a whole number, where truncation differs by one.
  for (const DType type : {DType::u8, DType::i8, DType::i32})
    expect_resize(as_type(bytes, type), {1, 2, 10, 15}, {{"mode", Text("linear")}}, 1.0);
}

TEST(ImagesCuda, CropsAndEmptyImages) {
  ir::Attrs crop{{"mode", Text("linear")}, {"extrapolation_value", 2.5}};
  crop.set("coordinate_transformation_mode", Text("tf_crop_and_resize"));
  const Tensor roi = Tensor::from<float>({8}, {0, 0, 0.3f, -0.2f, 1, 1, 1.2f, 0.8f});
  for (const char* mode : {"linear", "nearest"}) {
    crop.set("mode", Text(mode));
    tests::expect_as_cpu(
        {.op = "resize",
         .in = {tests::random_tensor({1, 2, 6, 4}, 9), roi, Tensor(), sizes_of({1, 2, 5, 8})},
         .attrs = crop});
  }
  tests::expect_as_cpu({.op = "resize",
                        .in = {tests::random_tensor({0, 2, 3, 4}, 1), Tensor(), Tensor(), sizes_of({6, 8})},
                        .attrs = {{"axes", std::vector<int64_t>{2, 3}}}});
  expect_resize(tests::random_tensor({1, 2, 3, 4}, 1), {1, 2, 3, 4}, {{"mode", Text("linear")}});
  tests::expect_as_cpu(
      {.op = "upsample",
       .in = {tests::random_tensor({1, 3, 4, 5}, 2), Tensor::from<float>({4}, {1, 1, 2, 2.5f})},
       .attrs = {{"mode", Text("linear")}}});
}

TEST(ImagesCuda, ResizingBackwards) {
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const tensor::Dims& to : {tensor::Dims{1, 2, 9, 16}, {1, 2, 2, 3}, {1, 5, 6, 8}}) {
        const ir::Attrs attrs{{"mode", Text(mode)}, {"shape", std::vector<int64_t>{1, 2, 5, 8}}};
        const double within = type == DType::f32 ? 1e-5 : 3e-2;
        tests::expect_as_cpu(
            {.op = "resize_grad",
             .in = {as_type(tests::random_tensor(to, 3), type), Tensor(), Tensor(), sizes_of(to)},
             .attrs = attrs,
             .relative = within,
             .absolute = within});
      }
    }
  }
}

/// Samples x at points inside and outside it, and computes both gradients.
void expect_grid(const tensor::Dims& x, tensor::Dims grid, const ir::Attrs& attrs, DType type) {
  SCOPED_TRACE(base::concat(tensor::to_string(x), " ", attrs.get_string("mode", ""), " ",
                            attrs.get_string("padding_mode", ""), " ", name_of(type)));
  const double within = type == DType::f32 ? 2e-5 : 5e-2;
  const Tensor image = as_type(tests::random_tensor(x, 1), type);
  base::ThreadPool pool(1);
  Tensor wide = tests::random_tensor(grid, 2);
  for (float& v : wide.mutable_data<float>()) v *= 1.4f;
  const Tensor points = as_type(wide, type);
  tests::expect_as_cpu(
      {.op = "grid_sample", .in = {image, points}, .attrs = attrs, .relative = within, .absolute = within});
  tensor::Dims out{x[0], x[1]};
  out.insert(out.end(), grid.begin() + 1, grid.end() - 1);
  const Tensor dy = as_type(tests::random_tensor(out, 3), type);
  ir::Attrs shaped = attrs;
  shaped.set("shape", std::vector<int64_t>(x));
  tests::expect_as_cpu({.op = "grid_sample_grad_x",
                        .in = {dy, points},
                        .attrs = shaped,
                        .relative = within,
                        .absolute = within});
  if (type != DType::f32) return;
  tests::expect_as_cpu({.op = "grid_sample_grad_grid",
                        .in = {dy, image, points},
                        .attrs = attrs,
                        .relative = 1e-4,
                        .absolute = 1e-4});
}

TEST(ImagesCuda, SamplesAtGrids) {
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const char* padding : {"zeros", "border", "reflection"}) {
      for (const int64_t align : {0, 1}) {
        ir::Attrs attrs{{"mode", Text(mode)}, {"padding_mode", Text(padding)}, {"align_corners", align}};
        expect_grid({2, 5, 6, 7}, {2, 4, 3, 2}, attrs, DType::f32);
        expect_grid({1, 2, 9}, {1, 8, 1}, attrs, DType::f32);
        expect_grid({1, 2, 3, 4, 5}, {1, 2, 3, 2, 3}, attrs, DType::f32);
      }
    }
  }
  expect_grid({2, 3, 8, 8}, {2, 16, 16, 2}, {}, DType::f32);  // many taps per element
  expect_grid({1, 2, 4, 4}, {1, 3, 3, 2}, {}, DType::bf16);
  expect_grid({1, 2, 4, 4}, {1, 3, 3, 2}, {}, DType::f16);
}

TEST(ImagesCuda, AffineGrids) {
  for (const int64_t align : {0, 1}) {
    const ir::Attrs attrs{{"align_corners", align}};
    tests::expect_as_cpu({.op = "affine_grid",
                          .in = {tests::random_tensor({2, 2, 3}, 1), sizes_of({2, 3, 4, 5})},
                          .attrs = attrs});
    tests::expect_as_cpu({.op = "affine_grid",
                          .in = {tests::random_tensor({1, 3, 4}, 2), sizes_of({1, 2, 1, 4, 5})},
                          .attrs = attrs});
  }
}

}  // namespace
}  // namespace trireme::ops
