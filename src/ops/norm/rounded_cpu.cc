// Rounded results of norms on the CPU: an additional pass after the kernel.
#include <algorithm>
#include <array>

#include "backend/cpu/elementwise/cast_types.h"
#include "backend/cpu/device/cpu_stream.h"
#include "ops/kernel_forms.h"
#include "ops/norm/rounded.h"

namespace trireme::ops {
namespace {

using tensor::DType;

/// The node without its rounded result.
ir::NodeView plain_of(const ir::NodeView& node, size_t plain) {
  ir::NodeView view = node;
  view.out.resize(std::min(view.out.size(), plain));
  view.out_count = std::min(view.out_count, plain);
  return view;
}

/// Runs `inner`, whose first result may be absent, and rounds that result to result `at`.
struct Rounding {
  ir::BoundKernel inner;
  DType from, to;
  int64_t elements, place;  // of the first result, if nobody else reads it
  size_t at;

  void operator()(const ir::RunArgs& args) const {
    std::array<void*, 4> out{};
    std::copy_n(args.out, at, out.begin());
    if (out[0] == nullptr) out[0] = static_cast<std::byte*>(args.workspace) + place;
    ir::RunArgs within = args;
    within.out = out.data();
    inner.run(within);
    if (args.out[at] != nullptr)
      cpu::cast({out[0], from, args.out[at], to, elements}, cpu::pool_of(args.stream));
  }
};

ir::Kernel rounding(const ir::Kernel& kernel, size_t plain) {
  ir::Kernel made = kernel;
  made.refuse = [kernel, plain](const ir::NodeView& node) -> ir::Refusal {
    return kernel.refuse ? kernel.refuse(plain_of(node, plain)) : std::nullopt;
  };
  made.prepare = [kernel, plain](const ir::KernelInit& init) {
    const ir::NodeView view = plain_of(init.node, plain);
    ir::BoundKernel inner = kernel.prepare({view, init.packs, init.threads, init.device, init.team});
    if (init.node.out.size() <= plain) return inner;
    const tensor::TensorType& rounded = init.node.out[plain];
    Rounding run{.inner = inner,
                 .from = init.node.out[0].dtype,
                 .to = rounded.dtype,
                 .elements = rounded.shape.elements().value_or(0),
                 .place = align_up(inner.workspace_bytes),
                 .at = plain};
    inner.workspace_bytes = run.place + tensor::bytes_of(run.from, run.elements);
    if (inner.run) inner.run = std::move(run);
    return inner;
  };
  return made;
}

}  // namespace

std::vector<ir::Kernel> rounding(std::vector<ir::Kernel> kernels, size_t plain) {
  for (ir::Kernel& kernel : kernels) kernel = rounding(kernel, plain);
  return kernels;
}

}  // namespace trireme::ops
