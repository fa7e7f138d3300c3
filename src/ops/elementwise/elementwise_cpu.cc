// Elementwise ops on CPU: vector tiles for f32 functions that have vector code, typed loops for everything
// else.
#include "backend/cpu/device/cpu_stream.h"
#include "ops/elementwise/elementwise.h"

namespace trireme::ops {

ir::BoundKernel broadcast_run(RowFn row, const ir::NodeView& node, Params params) {
  const StridedLoop loop = StridedLoop::broadcast(node.out_dims(0), all_in_dims(node));
  return {[loop, row, params](const ir::RunArgs& args) {
    loop.run(cpu::pool_of(args.stream), [&](const int64_t* offset, int64_t out_offset, int64_t n) {
      row({args.in, offset, loop.inner_steps(), args.out[0], out_offset, n, params.data(), loop.operands()});
    });
  }};
}

std::vector<ir::Kernel> elementwise_cpu_kernels(const ElementwiseRow& row) {
  ir::Kernel reference{.name = "reference", .is_reference = true};
  reference.refuse = [&row](const ir::NodeView& n) -> ir::Refusal {
    if (row.row(n.in[0].dtype) == nullptr) return no_type(n.in[0].dtype);
    return std::nullopt;
  };
  reference.prepare = [&row](const ir::KernelInit& init) {
    return broadcast_run(row.row(init.node.in[0].dtype), init.node, params_of(row, init.node.attrs));
  };
  // An operand of the result's size has the same order of elements, so each is read before it is overwritten.
  reference.may_overwrite = 0xffffffffu;
  std::vector<ir::Kernel> kernels = vector_kernels(row);
  kernels.push_back(std::move(reference));
  return kernels;
}

}  // namespace trireme::ops
