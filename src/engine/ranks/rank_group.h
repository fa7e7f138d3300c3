// The ranks that hold one model together: threads of this process or processes of a job, opened for a
// session, led by its first rank, ended together.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/local.h"
#include "comm/mesh.h"
#include "ir/graph.h"

namespace trireme::engine {

class RankService;

/// Where the other ranks are: threads of this process, unless a job is given.
struct RankHome {
  tensor::MeshShape shape = {};
  comm::Mesh* mesh = nullptr;        ///< a job of that shape, of which this is rank 0
  RankService* service = nullptr;    ///< or: opens a group of a job
  std::string model_key = {};        ///< by which the job's other ranks load the model
  const ir::Graph* graph = nullptr;  ///< what all must have loaded

  bool is_in_job() const { return mesh != nullptr || service != nullptr; }
  /// Ranks that live in this process.
  int here() const { return is_in_job() ? 1 : shape.size(); }
};

/// Threads and processors of one of `ranks` ranks of this machine. `threads` 0: of all there are.
struct ThreadShare {
  int threads = 1;
  std::vector<int> cpus = {};
};
ThreadShare share_of(int threads, const std::vector<int>& cpus, int rank, int ranks);

/// What all ranks of a group find at once: they end what they began together, and none waits for another.
class AgreedError : public base::Error {
 public:
  explicit AgreedError(const base::Error& error) : base::Error(error) {}
};

/// Collective: throws an AgreedError on all ranks where one of them has an error of its own, naming the first
/// that has. `own`: this rank's. Texts of more than 1,000 bytes are cut.
void require_all_well(comm::Communicator& ranks, const std::optional<base::Error>& own);

/// Processes load a model each for themselves: weights that differ would answer without a word. Throws an
/// AgreedError, invalid_argument naming the rank. Collective.
void require_same_model(comm::Communicator& ranks, const ir::Graph& graph);

/// Ranks that are up. The leader is the caller's.
class OpenRanks {
 public:
  /// `follow`: what another rank of this process does until it is told to end; what it throws ends all.
  using Follow = std::function<void(int rank, comm::Mesh& mesh)>;
  OpenRanks(const RankHome& home, const Follow& follow);
  /// Waits for the followers of this process, which have been told to end, or were failed.
  ~OpenRanks() { join(); }
  OpenRanks(const OpenRanks&) = delete;
  OpenRanks& operator=(const OpenRanks&) = delete;

  comm::Mesh& mesh() { return *mesh_; }
  comm::Communicator& world() { return mesh_->world(); }
  /// All ranks meet this error where they next communicate.
  void fail(int rank, const std::string& why) { local_.fail(rank, why); }
  void join();

 private:
  comm::LocalWorld local_;
  std::vector<std::thread> followers_;
  std::unique_ptr<comm::Communicator> opened_;  ///< by a service
  std::unique_ptr<comm::Mesh> own_;
  comm::Mesh* mesh_ = nullptr;
};

/// Opens ranks when they are needed, and again after one was lost, with a Leader over them each time. One
/// owner thread, but for lose().
template <class Leader>
class RankGroup {
 public:
  struct Crew {
    OpenRanks::Follow follow;                                  ///< the other ranks of this process
    std::function<std::unique_ptr<Leader>(comm::Mesh&)> lead;  ///< this one's part
    std::function<void(comm::Communicator&)> say_end;          ///< tells followers to end
    /// Once a rank is lost the session is over, for ranks keep what cannot be made again: the leader stays to
    /// be looked at, and lead() throws unavailable.
    bool is_kept = false;
  };
  RankGroup(RankHome home, Crew crew) : home_(std::move(home)), crew_(std::move(crew)) {}
  ~RankGroup() { close(); }

  /// Calls use(leader, world). Whatever goes wrong between ranks leaves some of them waiting for others: the
  /// group ends with it. Throws unavailable where ranks of a job are gone: only the job can start again.
  template <class Use>
  void lead(const Use& use) {
    if (is_over_)
      base::fail(base::ErrorCode::unavailable, "a rank of this session is gone: it has to be opened again");
    open();
    try {
      use(*leader_, ranks_->world());
    } catch (const std::exception& e) {
      end(e.what());
      throw;
    }
  }
  /// Opens the ranks unless they are up.
  void open();
  /// Null while no ranks are up.
  Leader* leader() const { return leader_.get(); }
  const RankHome& home() const { return home_; }
  /// Takes a rank away, as if its thread had died; for tests. From any thread.
  void lose(int rank) {
    if (ranks_ != nullptr) ranks_->fail(rank, "taken away");
  }
  /// How often ranks were opened again.
  int restarts() const { return opened_ - 1; }

 private:
  void end(const std::string& why);
  void close();

  RankHome home_;
  Crew crew_;
  std::unique_ptr<OpenRanks> ranks_;
  std::unique_ptr<Leader> leader_;
  int opened_ = 0;
  bool is_over_ = false;  ///< a rank was lost, and with it what the ranks kept
};

/// Throws unavailable where the home is a job that lost a rank.
void require_whole_job(const RankHome& home, bool was_open);
/// A service learns that its job is not whole any more.
void say_lost(const RankHome& home);

template <class Leader>
void RankGroup<Leader>::open() {
  if (ranks_ != nullptr) return;
  require_whole_job(home_, opened_ > 0);
  auto ranks = std::make_unique<OpenRanks>(home_, crew_.follow);
  try {
    leader_ = crew_.lead(ranks->mesh());
  } catch (const AgreedError& e) {
    ranks->fail(0, e.what());
    throw;
  } catch (const std::exception& e) {
    say_lost(home_);           // those of a job wait for this one
    ranks->fail(0, e.what());  // the followers need not wait
    throw;
  }
  ranks_ = std::move(ranks);
  ++opened_;
}

template <class Leader>
void RankGroup<Leader>::end(const std::string& why) {
  say_lost(home_);
  ranks_->fail(0, why);
  ranks_->join();
  if (crew_.is_kept) {
    is_over_ = true;
    return;
  }
  leader_.reset();
  ranks_.reset();
}

template <class Leader>
void RankGroup<Leader>::close() {
  if (ranks_ == nullptr) return;
  try {
    if (!is_over_) crew_.say_end(ranks_->world());
  } catch (const base::Error& e) {
    ranks_->fail(0, e.what());
  }
  ranks_->join();
  leader_.reset();
  ranks_.reset();
}

}  // namespace trireme::engine
