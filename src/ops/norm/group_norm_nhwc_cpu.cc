// group_norm_nhwc on CPU: column sums with vectors of channels.
#include <algorithm>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/norm/group_norm_last.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

ir::BoundKernel prepare_group_norm_nhwc(const ir::KernelInit& init) {
  const tensor::Dims x = init.node.in_dims(0);
  const cpu::GroupNormLast norm{.x = nullptr,
                                .y = nullptr,
                                .batch = x[0],
                                .points = tensor::element_count(x) / std::max<int64_t>(1, x[0] * x.back()),
                                .channels = x.back(),
                                .groups = init.node.attrs.need_int("num_groups"),
                                .eps = static_cast<float>(init.node.attrs.get_float("epsilon", 1e-5))};
  return {.run =
              [norm](const ir::RunArgs& args) {
                cpu::GroupNormLast call = norm;
                call.x = in_ptr<float>(args, 0);
                call.y = out_ptr<float>(args, 0);
                call.scale = in_ptr<float>(args, 1);
                call.bias = in_ptr<float>(args, 2);
                cpu::group_norm_last(call, args.workspace, cpu::pool_of(args.stream));
              },
          .workspace_bytes = static_cast<int64_t>(cpu::group_norm_last_workspace_bytes(norm))};
}

ir::Refusal refuse_group_norm_nhwc(const ir::NodeView& n) {
  if (auto why = refuse_empty(n)) return why;
  for (size_t i : {0, 1, 2}) {
    if (auto why = refuse_dtype(n, i, {tensor::DType::f32})) return why;
  }
  return std::nullopt;
}

}  // namespace

std::vector<ir::Kernel> group_norm_nhwc_cpu_kernels() {
  return faster({{.name = "channel_vectors",
                  .refuse = refuse_group_norm_nhwc,
                  .prepare = prepare_group_norm_nhwc,
                  .may_overwrite = 1}},
                {});
}

}  // namespace trireme::ops
