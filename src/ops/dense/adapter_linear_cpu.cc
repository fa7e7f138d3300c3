// Kernels of adapter_linear on CPU: vectors over the rows of an adapter, and plain loops.
#include <cstring>

#include "backend/cpu/dense/adapter_rows.h"
#include "backend/cpu/device/cpu_stream.h"
#include "ops/dense/adapter_linear.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

/// Provides the product to add to: programs work in place, otherwise it is copied first.
void keep_product(const ir::RunArgs& args, int64_t bytes) {
  if (args.out[0] != args.in[0] && bytes > 0)
    std::memcpy(args.out[0], args.in[0], static_cast<size_t>(bytes));
}

cpu::AdapterRows adapter_rows_of(const AdapterPlan& p, const ir::RunArgs& args) {
  return {.slots = in_ptr<int32_t>(args, 2),
          .ranks = in_ptr<int32_t>(args, 3),
          .rows = p.rows,
          .in = p.in,
          .out = p.out,
          .slot_count = p.slots,
          .most_rank = p.rank};
}

/// Returns false, and reports it, if slots or ranks exceed the operands.
bool is_sound(const cpu::AdapterRows& call, const ir::RunArgs& args) {
  int64_t value = 0;
  const char* fault = cpu::adapter_fault(call, &value);
  if (fault != nullptr && args.status != nullptr) args.status->fail(fault, value);
  return fault == nullptr;
}

ir::BoundKernel prepare_adapter_rows(const ir::KernelInit& init) {
  const AdapterPlan p = plan_adapter(init.node);
  const int64_t bytes = tensor::bytes_of(tensor::DType::f32, p.rows * p.out);
  auto run = [p, bytes](const ir::RunArgs& args) {
    keep_product(args, bytes);
    cpu::AdapterRows call = adapter_rows_of(p, args);
    if (!is_sound(call, args)) return;
    call.x = in_ptr<float>(args, 1);
    call.a = in_ptr<float>(args, 4);
    call.b = in_ptr<float>(args, 5);
    call.y = out_ptr<float>(args, 0);
    call.workspace = args.workspace;
    cpu::adapter_rows(call, cpu::pool_of(args.stream));
  };
  return {run, cpu::adapter_rows_workspace_bytes({.rows = p.rows, .most_rank = p.rank})};
}

template <class T>
void add_row(const AdapterPlan& p, const ir::RunArgs& args, int64_t row) {
  const int64_t slot = in_ptr<int32_t>(args, 2)[row];
  if (slot < 0) return;
  const T* x = in_ptr<T>(args, 1) + row * p.in;
  T* y = out_ptr<T>(args, 0) + row * p.out;
  for (int64_t r = 0; r < in_ptr<int32_t>(args, 3)[slot]; ++r) {
    const T* a = in_ptr<T>(args, 4) + (slot * p.rank + r) * p.in;
    const T* b = in_ptr<T>(args, 5) + (slot * p.rank + r) * p.out;
    T u = 0;
    for (int64_t k = 0; k < p.in; ++k) u += x[k] * a[k];
    for (int64_t n = 0; n < p.out; ++n) y[n] += u * b[n];
  }
}

ir::BoundKernel prepare_adapter_reference(const ir::KernelInit& init) {
  const AdapterPlan p = plan_adapter(init.node);
  const tensor::DType type = init.node.in[0].dtype;
  return {[p, type](const ir::RunArgs& args) {
    keep_product(args, tensor::bytes_of(type, p.rows * p.out));
    if (!is_sound(adapter_rows_of(p, args), args)) return;
    visit_float(type, [&](auto zero) {
      for (int64_t row = 0; row < p.rows; ++row) add_row<decltype(zero)>(p, args, row);
    });
  }};
}

}  // namespace

std::vector<ir::Kernel> adapter_linear_cpu_kernels() {
  return {{.name = "adapter_rows",
           .refuse =
               [](const ir::NodeView& node) {
                 if (auto why = refuse_empty(node)) return why;
                 return refuse_dtype(node, 0, {tensor::DType::f32});
               },
           .prepare = prepare_adapter_rows,
           .may_overwrite = 1},
          {.name = "reference",
           .is_reference = true,
           .refuse = refuse_non_float,
           .prepare = prepare_adapter_reference,
           .may_overwrite = 1}};
}

}  // namespace trireme::ops
