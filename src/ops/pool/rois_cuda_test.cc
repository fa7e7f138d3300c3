// Region pooling on the device against the CPU's results: every mode, regions inside, across and outside the
// image.
#include "ops/test_eval.h"
#include "tests/run_kernels.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using testing::as_type;
using Text = std::string;

const Tensor kRegions = Tensor::from<float>({6, 4}, {0, 0, 5,  4,  1.5f, 0.5f, 6.5f, 7.5f, -3, -2, 4,  3,
                                                     5, 5, 14, 12, 2,    2,    2.2f, 2.1f, 20, 20, 25, 25});
const Tensor kImages = Tensor::from<int64_t>({6}, {0, 1, 1, 0, 1, 0});

TEST(RoisCuda, AlignedRegionsAndTheirGradients) {
  const Tensor x = tests::random_tensor({2, 3, 9, 8}, 1), dy = tests::random_tensor({6, 3, 4, 3}, 2);
  for (const char* mode : {"avg", "max"}) {
    for (const char* transform : {"half_pixel", "output_half_pixel"}) {
      for (const int64_t sampling : {0, 2}) {
        ir::Attrs attrs{{"mode", Text(mode)}, {"sampling_ratio", sampling}, {"spatial_scale", 0.8}};
        attrs.set("coordinate_transformation_mode", Text(transform));
        const ir::Attrs way_back = attrs;
        attrs.set("output_height", int64_t{4});
        attrs.set("output_width", int64_t{3});
        tests::expect_as_cpu({.op = "roi_align", .in = {x, kRegions, kImages}, .attrs = attrs});
        if (mode[0] == 'a')
          tests::expect_as_cpu({.op = "roi_align_grad", .in = {x, kRegions, kImages, dy}, .attrs = way_back});
      }
    }
  }
  const ir::Attrs attrs{{"output_height", int64_t{2}}, {"output_width", int64_t{2}}};
  tests::expect_as_cpu({.op = "roi_align",
                        .in = {as_type(x, DType::f16), as_type(kRegions, DType::f16), kImages},
                        .attrs = attrs,
                        .relative = 1e-2,
                        .absolute = 1e-2});
}

TEST(RoisCuda, MaximaOverWholePixels) {
  const Tensor regions =
      Tensor::from<float>({4, 5}, {0, 0, 0, 5, 4, 1, 2, 1, 7, 8, 1, -3, -2, 2, 3, 0, 20, 20, 25, 25});
  for (const double scale : {1.0, 0.5}) {
    tests::expect_as_cpu({.op = "max_roi_pool",
                          .in = {tests::random_tensor({2, 3, 9, 8}, 3), regions},
                          .attrs = {{"pooled_shape", std::vector<int64_t>{3, 2}}, {"spatial_scale", scale}}});
  }
}

}  // namespace
}  // namespace trireme::ops
