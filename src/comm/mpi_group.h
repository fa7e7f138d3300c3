// A group of MPI ranks: collectives in the fixed order, over the transfers of a link.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "comm/agreement.h"
#include "comm/communicator.h"
#include "comm/link.h"
#include "comm/mpi_control.h"
#include "comm/slices.h"

namespace trireme::comm {

/// Every collective begins with a meeting: ranks gather what each asks for in log2(size) rounds of small
/// messages, compare, and then move bytes pairwise. Reductions are summed by the owner of a slice in the
/// order of Communicator, never on the way.
class MpiCommunicator : public Communicator {
 public:
  /// `control` outlives the communicator.
  MpiCommunicator(MpiControl& control, std::unique_ptr<Link> link, std::shared_ptr<GroupRecord> record);
  ~MpiCommunicator() override;

  int rank() const override { return link_->rank(); }
  int size() const override { return link_->size(); }
  int64_t deadline_ns() const override { return control_.deadline_ns(); }
  const FlightRecorder& flights() const override { return record_->flights; }
  std::unique_ptr<Communicator> split(int color, int key) override;
  /// A barrier that disagrees with every other collective: no rank waits for one that is done.
  void finish() { execute({.what = Collective::finish}); }

 protected:
  void execute(const Call& call) override;

 private:
  int64_t enqueue(const Call& call);
  void meet(const Call& call, int64_t sequence, int color, int key);
  void require_same() const;
  void require_same_sizes(const Call& call);
  [[noreturn]] void disagree(const std::string& text) const;
  void perform(const Call& call);
  void all_reduce_small(const Call& call);
  void reduce_parts(const Call& call);
  void send_pieces(const Call& call, size_t at, size_t step);
  void reduce_piece(const Call& call, size_t at, size_t step);
  void share_piece(const Call& call, size_t at);
  void all_gather(const Call& call);
  void all_to_all(const Call& call);
  void all_to_all_in_place(const Call& call);
  void all_to_all_uneven(const Call& call);
  void broadcast(const Call& call);
  void broadcast_tree(Bytes data, int root);
  void exchange(const Call& call);

  Part piece(const Call& call, int rank, size_t at) const;
  std::byte* scratch(size_t index, size_t bytes_each);
  void wait_for_ranks(Transfers& transfers);
  void wait_for_bytes(Transfers& transfers);

  MpiControl& control_;
  std::unique_ptr<Link> link_;
  std::shared_ptr<GroupRecord> record_;
  base::SystemClock clock_;
  std::unique_ptr<Transfers> calls_;                     // meetings and small messages
  std::array<std::unique_ptr<Transfers>, 2> gathering_;  // pieces on their way to who reduces them
  std::unique_ptr<Transfers> sharing_;                   // reduced pieces on their way to all
  std::vector<AskedLetter> questions_;                   // [size], beginning with this rank's while it meets
  std::vector<AskedLetter> halves_;                      // of an exchange: what leaves, what comes
  std::vector<const std::byte*> sources_;                // [size]
  std::vector<std::byte> scratch_;
  size_t piece_bytes_;
};

}  // namespace trireme::comm
