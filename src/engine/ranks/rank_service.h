// The ranks of a launched job as a service to sessions: the first rank opens groups, the others follow each
// of them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace trireme::engine {

/// On the first rank of the job. Sessions of any thread get groups of their own, so that several models and
/// instances run side by side.
class RankService {
 public:
  /// `world` outlives this; nothing else talks over it meanwhile.
  explicit RankService(comm::Communicator& world) : world_(world) {}
  /// Lets the other ranks end. All sessions are gone by then.
  ~RankService();
  RankService(const RankService&) = delete;
  RankService& operator=(const RankService&) = delete;

  /// A group of all ranks for one session of the model `key`, which the others load by that name. Throws what
  /// one of them met where it cannot load the model, after which other models go on, and unavailable once a
  /// rank is gone: the job has to be started again.
  std::unique_ptr<comm::Communicator> open(const std::string& key);
  /// A session found a rank gone.
  void say_lost() { is_lost_.store(true); }
  bool is_lost() const { return is_lost_.load(); }

 private:
  comm::Communicator& world_;
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;  ///< one thread opens at a time
  std::atomic<bool> is_lost_{false};
};

/// What another rank does in a session of a model that it has loaded, until the first rank ends it; of any
/// thread, for several sessions at a time.
using FollowSession = std::function<void(comm::Communicator& group)>;

/// What the other ranks do until the service ends: load models by their keys and follow their sessions, each
/// on a thread. A model is let go of when its last session is over; what `load` throws, the first rank gets.
void follow_service(comm::Communicator& world,
                    const std::function<std::shared_ptr<const FollowSession>(const std::string& key)>& load);

}  // namespace trireme::engine
