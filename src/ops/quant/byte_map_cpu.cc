// byte_map on CPU.
#include "backend/cpu/quant/byte_map.h"

#include "backend/cpu/device/cpu_stream.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {

std::vector<ir::Kernel> byte_map_cpu_kernels() {
  auto prepare = [](const ir::KernelInit& init) {
    cpu::ByteTable table;
    const std::vector<int64_t> entries = init.node.attrs.get_ints("table");
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<uint8_t>(entries.at(i));
    const int64_t n = tensor::element_count(init.node.in_dims(0));
    return ir::BoundKernel{[table, n](const ir::RunArgs& args) {
      cpu::map_bytes(table, static_cast<const uint8_t*>(args.in[0]), static_cast<uint8_t*>(args.out[0]), n,
                     cpu::pool_of(args.stream));
    }};
  };
  return {{.name = "vector", .prepare = prepare}};
}

}  // namespace trireme::ops
