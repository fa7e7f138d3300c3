// Stands in for MPI in builds without it.
#if !TRIREME_MPI
#include "base/error.h"
#include "comm/mpi.h"

namespace trireme::comm {

struct MpiSession::State {};
struct MpiWorld::State {};

bool has_mpi() { return false; }

MpiSession::MpiSession() {
  base::fail_unsupported(
      "this program was built without MPI: install Open MPI's headers (libopenmpi-dev) and build again, or "
      "use "
      "local ranks");
}
MpiSession::~MpiSession() = default;
int MpiSession::rank() const { return 0; }
int MpiSession::size() const { return 1; }

MpiWorld::MpiWorld(MpiSession&, MpiOptions) {}
MpiWorld::~MpiWorld() = default;
Communicator& MpiWorld::communicator() { base::fail_unsupported("no MPI in this program"); }
void MpiWorld::run(const std::function<void(Communicator&)>&) {}

}  // namespace trireme::comm
#endif
