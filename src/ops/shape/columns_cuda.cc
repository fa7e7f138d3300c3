// im2col and col2im on NVIDIA GPUs.
#include "backend/cuda/conv/columns.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"
#include "ops/shape/fill_ops.h"
#include "ops/shape/strided_copy.h"
#include "ops/shape/shape_rules.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

/// The operands are x, the image's extents and the block's extents.
cuda::ColumnShape shape_of(const ir::NodeView& n) {
  const std::vector<int64_t> image = *known_ints(n, 1), block = *known_ints(n, 2);
  const size_t rank = image.size();
  const std::vector<int64_t> positions = window_positions(n), ones(rank, 1), zeros(2 * rank, 0);
  const std::vector<int64_t> dilations = n.attrs.get_ints("dilations", ones),
                             strides = n.attrs.get_ints("strides", ones),
                             pads = n.attrs.get_ints("pads", zeros);
  cuda::ColumnShape s;
  for (size_t d = 0; d < rank; ++d)
    s.axes.push_back({image[d], block[d], positions[d], strides[d], dilations[d], pads[d]});
  return s;
}

ir::Refusal refuse_unknown(const ir::NodeView& n) {
  if (ir::Refusal no = needs_values({1, 2})(n)) return no;
  if (known_ints(n, 1)->size() > cuda::kColumnRank) return "more than four spatial axes";
  return std::nullopt;
}

ir::Kernel columns_kernel() {
  auto refuse = [](const ir::NodeView& n) -> ir::Refusal {
    const int bits = tensor::bits_of(n.in[0].dtype);
    if (bits < 8 || bits > 64) return "packed or complex elements";
    return refuse_unknown(n);
  };
  auto prepare = [](const ir::KernelInit& init) {
    cuda::ColumnShape shape = shape_of(init.node);
    shape.planes = product(init.node.in_dims(0), 0, 2);
    return ir::BoundKernel{
        [shape, bytes = tensor::bits_of(init.node.in[0].dtype) / 8](const ir::RunArgs& args) {
          cuda::columns_of_image(args.stream, shape, bytes, args.in[0], args.out[0]);
        }};
  };
  return {.name = "elements", .refuse = refuse, .prepare = prepare};
}

ir::Kernel image_kernel() {
  auto refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (auto why = refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16, DType::f64})) return why;
    return refuse_unknown(n);
  };
  auto prepare = [](const ir::KernelInit& init) {
    cuda::ColumnShape shape = shape_of(init.node);
    shape.planes = product(init.node.out_dims(0), 0, 2);
    int64_t positions = 1;
    for (const cuda::ColumnShape::Axis& a : shape.axes) positions *= a.positions;
    base::require(init.node.in_dims(0)[2] == positions, "col2im: ", init.node.in_dims(0)[2],
                  " columns, the image has ", positions, " positions");
    return ir::BoundKernel{[shape, dtype = init.node.in[0].dtype](const ir::RunArgs& args) {
      cuda::image_of_columns({args.stream, dtype}, shape, args.in[0], args.out[0]);
    }};
  };
  return {.name = "elements", .refuse = refuse, .prepare = prepare};
}

}  // namespace

std::vector<CudaKernels> columns_cuda_kernels() {
  return {{"im2col", {columns_kernel()}}, {"col2im", {image_kernel()}}};
}

}  // namespace trireme::ops
