// Stands in for NCCL in builds without it.
#if !TRIREME_NCCL
#include "base/error.h"
#include "comm/nccl.h"

namespace trireme::comm {

bool has_nccl() { return false; }

std::string nccl_refusal() { return "this program was built without NCCL"; }

std::unique_ptr<DeviceGroup> open_nccl(Communicator&, tensor::Stream&, DeviceOrder) {
  base::fail_unsupported(
      "this program was built without NCCL: configure the preset cuda where nccl.h is found (NCCL_INCLUDE)");
}

}  // namespace trireme::comm
#endif
