// Finds the scale that belongs to an element.
#include "ops/quant/scale_map.h"

#include "ops/kernel_forms.h"

namespace trireme::ops {

using tensor::Dims;

ScaleMap scale_map(const ir::NodeView& node) {
  const Dims x = node.in_dims(0), scale = node.in_dims(1);
  const int64_t block = node.attrs.get_int("block_size", 0);
  ScaleMap map;
  if (tensor::element_count(scale) == 1 && scale.size() <= 1 && block == 0) return map;
  base::require(!x.empty(), "a scalar with scales of shape ", tensor::to_string(scale));
  const size_t axis = ir::normal_axis(node.attrs.get_int("axis", 1), x.size());
  const AxisLoops loops = axis_loops(x, axis);
  map.outer = loops.outer;
  map.n = loops.n;
  map.inner = loops.inner;
  if (block == 0) {
    base::require(scale.size() == 1 && scale[0] == loops.n, "scales of shape ", tensor::to_string(scale),
                  " for axis ", axis, " of ", tensor::to_string(x));
    map.kind = ScaleMap::Kind::axis;
    return map;
  }
  base::require(block > 0 && scale.size() == x.size(), "block_size ", block, " with scales of shape ",
                tensor::to_string(scale));
  base::require(block < (int64_t{1} << 31) && scale[axis] < (int64_t{1} << 31), "block_size ", block,
                " with scales of shape ", tensor::to_string(scale));
  map.kind = ScaleMap::Kind::blocked;
  map.block = block;
  map.blocks = scale[axis];
  base::require(
      map.blocks * (block - 1) < loops.n + block && loops.n <= map.blocks * block &&
          product(scale, 0, axis) == loops.outer && product(scale, axis + 1, scale.size()) == loops.inner,
      "scales of shape ", tensor::to_string(scale), " in blocks of ", block, " for ", tensor::to_string(x));
  return map;
}

void check_scale_shape(const ir::NodeView& node) {
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (node.present(i) && !node.in[i].shape.is_static()) return;
  }
  scale_map(node);
  if (!node.present(2)) return;
  base::require(node.in[2].shape.elements() == node.in[1].shape.elements(), "zero points of shape ",
                node.in[2].shape.to_string(), " with scales of shape ", node.in[1].shape.to_string());
}

}  // namespace trireme::ops
