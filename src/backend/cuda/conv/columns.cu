// Launchers of im2col and col2im: images as columns of blocks.
#include "backend/cuda/conv/columns.h"

#include "backend/cuda/conv/column_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

ColumnWalk walk_of(const ColumnShape& s, bool of_columns) {
  ColumnWalk w{};
  w.rank = static_cast<int>(s.axes.size());
  w.image_count = w.block_count = w.position_count = 1;
  constexpr int64_t kAny = INT64_MAX;  // no upper bound: padding shifts the indices of an axis
  for (size_t d = 0; d < s.axes.size(); ++d) {
    const ColumnShape::Axis& a = s.axes[s.axes.size() - 1 - d];
    w.axes[d] = {Divider(a.image, kAny),
                 Divider(a.block, kAny),
                 Divider(a.positions, kAny),
                 Divider(a.stride, kAny),
                 a.dilation,
                 a.pad};
    w.image_count *= a.image;
    w.block_count *= a.block;
    w.position_count *= a.positions;
  }
  w.count = s.planes * (of_columns ? w.block_count * w.position_count : w.image_count);
  return w;
}

}  // namespace

void columns_of_image(tensor::Stream& stream, const ColumnShape& s, int64_t unit_bytes, const void* image,
                      void* columns) {
  const ColumnWalk walk = walk_of(s, true);
  if (walk.count == 0) return;
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    launch(stream, "columns_of_image", flat_launch(stream, walk.count),
           ColumnsOfImage<T>{walk, static_cast<const T*>(image), static_cast<T*>(columns)});
  };
  switch (unit_bytes) {
    case 1: return run(uint8_t{});
    case 2: return run(uint16_t{});
    case 4: return run(uint32_t{});
    default: return run(uint64_t{});
  }
}

void image_of_columns(On on, const ColumnShape& s, const void* columns, void* image) {
  const ColumnWalk walk = walk_of(s, false);
  if (walk.count == 0) return;
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    launch(on.stream, "image_of_columns", flat_launch(on.stream, walk.count),
           ImageOfColumns<T>{walk, static_cast<const T*>(columns), static_cast<T*>(image)});
  };
  if (on.dtype == tensor::DType::f64) return run(double{});
  by_float(on.dtype, run);
}

}  // namespace trireme::cuda
