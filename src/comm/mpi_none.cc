// Stands in for MPI in builds without it.
#if !TRIREME_MPI
#include "base/error.h"
#include "comm/link.h"
#include "comm/mpi.h"

namespace trireme::comm {

bool has_mpi() { return false; }

std::unique_ptr<MpiProcess> start_mpi() {
  base::fail_unsupported(
      "this program was built without MPI: install Open MPI (libopenmpi-dev, openmpi-bin) and build again, "
      "or "
      "use local ranks");
}

}  // namespace trireme::comm
#endif
