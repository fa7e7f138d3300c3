// The world of an MPI job: its session, and how the body of a rank begins and ends.
#include "comm/mpi.h"

#include "base/error.h"
#include "comm/link.h"
#include "comm/mpi_control.h"
#include "comm/mpi_group.h"

namespace trireme::comm {
namespace {

// How long a rank waits for the others to leave a world. If it is done, they are about to leave too; after a
// failure they leave when they next communicate, or never.
constexpr int64_t kLeaveDoneNs = 30 * base::kNsPerSecond;
constexpr int64_t kLeaveFailedNs = 3 * base::kNsPerSecond;

}  // namespace

struct MpiSession::State {
  std::unique_ptr<MpiProcess> process = start_mpi();
  bool clean = true;
};

MpiSession::MpiSession() : state_(std::make_unique<State>()) {}

MpiSession::~MpiSession() {
  if (state_->clean) state_->process->finalize();
}

int MpiSession::rank() const { return state_->process->rank(); }
int MpiSession::size() const { return state_->process->size(); }

struct MpiWorld::State {
  State(MpiSession& owner, MpiOptions options)
      : session(owner), control(owner.state_->process->open(), std::move(options)) {
    auto record = std::make_shared<GroupRecord>();
    for (int r = 0; r < owner.size(); ++r) record->world_ranks.push_back(r);
    world = std::make_unique<MpiCommunicator>(control, owner.state_->process->open(), std::move(record));
  }
  ~State() { leave(); }

  void leave() {
    if (left) return;
    left = true;
    if (!control.leave(control.failed() ? kLeaveFailedNs : kLeaveDoneNs)) session.state_->clean = false;
  }

  MpiSession& session;
  MpiControl control;
  std::unique_ptr<MpiCommunicator> world;
  bool left = false;
};

MpiWorld::MpiWorld(MpiSession& session, MpiOptions options)
    : state_(std::make_unique<State>(session, std::move(options))) {}

MpiWorld::~MpiWorld() = default;

Communicator& MpiWorld::communicator() { return *state_->world; }

void MpiWorld::run(const std::function<void(Communicator&)>& body) {
  const int rank = state_->session.rank();
  const auto gone = [&](base::ErrorCode code, const std::string& why) {
    state_->control.fail({.rank = rank, .gone = true, .code = code, .text = why});
  };
  try {
    body(*state_->world);
    // If a rank is done while others still wait for it, that is a disagreement, not a hang.
    state_->world->finish();
  } catch (const base::Error& e) {
    gone(e.code(), e.message());
  } catch (const std::exception& e) {
    gone(base::ErrorCode::internal, e.what());
  }
  state_->leave();
  if (const std::optional<Failure> failure = state_->control.failure()) throw failure->cause();
}

}  // namespace trireme::comm
