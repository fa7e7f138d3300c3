// Links over MPI's point-to-point messages. This is the only file that includes mpi.h.
#if TRIREME_MPI
#include <mpi.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/link.h"
#include "comm/mpi.h"

namespace trireme::comm {
namespace {

// MPI counts in int: longer buffers are sent in pieces, which both sides cut alike.
constexpr size_t kPieceBytes = size_t{1} << 30;
// How long a cancelled receive may take to end: if it was matched, it still waits for its bytes.
constexpr int64_t kAbandonNs = 200 * base::kNsPerMs;

void require_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  base::fail(base::ErrorCode::unavailable, "MPI: ", what, ": ",
             std::string_view(text, static_cast<size_t>(length)));
}

class MpiTransfers : public Transfers {
 public:
  explicit MpiTransfers(MPI_Comm group) : group_(group) {}
  ~MpiTransfers() override { abandon(); }

  void send(ConstBytes data, int to, int tag) override { send_pieces(data, to, tag, MPI_Isend); }
  void send_until_taken(ConstBytes data, int to, int tag) override { send_pieces(data, to, tag, MPI_Issend); }

  void receive(Bytes data, int from, int tag) override {
    const int source = from == kAnyRank ? MPI_ANY_SOURCE : from;
    size_t at = 0;
    do {
      const size_t n = std::min(kPieceBytes, data.size() - at);
      require_mpi(MPI_Irecv(data.data() + at, static_cast<int>(n), MPI_BYTE, source, tag, group_, add(true)),
                  "receive");
      at += n;
    } while (at < data.size());
  }

  bool done() override {
    int all = 0;
    require_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, MPI_STATUSES_IGNORE),
                "test");
    if (all == 0) return false;
    requests_.clear();
    receives_.clear();
    return true;
  }

  void abandon() override {
    const base::SystemClock clock;
    const int64_t end = clock.now_ns() + kAbandonNs;
    for (size_t i = 0; i < requests_.size(); ++i) {
      MPI_Request& request = requests_[i];
      if (request == MPI_REQUEST_NULL) continue;
      if (receives_[i]) {
        MPI_Cancel(&request);
        int over = 0;
        while (over == 0 && clock.now_ns() < end) MPI_Test(&request, &over, MPI_STATUS_IGNORE);
      }
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
    }
    requests_.clear();
    receives_.clear();
  }

 private:
  using Send = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);

  void send_pieces(ConstBytes data, int to, int tag, Send how) {
    size_t at = 0;
    do {
      const size_t n = std::min(kPieceBytes, data.size() - at);
      require_mpi(how(data.data() + at, static_cast<int>(n), MPI_BYTE, to, tag, group_, add(false)), "send");
      at += n;
    } while (at < data.size());
  }

  MPI_Request* add(bool receives) {
    receives_.push_back(receives);
    return &requests_.emplace_back(MPI_REQUEST_NULL);
  }

  MPI_Comm group_;
  std::vector<MPI_Request> requests_;
  std::vector<bool> receives_;  // parallel to requests_
};

class MpiLink : public Link {
 public:
  explicit MpiLink(MPI_Comm group) : group_(group) {
    MPI_Comm_rank(group, &rank_);
    MPI_Comm_size(group, &size_);
  }
  /// A failed rank does not free its communicator: others may still send to it, and Open MPI reads freed
  /// memory if another thread receives such a message meanwhile.
  ~MpiLink() override {
    int ended = 0;
    MPI_Finalized(&ended);
    const bool fails = given_up_ || std::uncaught_exceptions() > 0;
    if (!fails && ended == 0) MPI_Comm_free(&group_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Transfers> transfers() override { return std::make_unique<MpiTransfers>(group_); }
  std::unique_ptr<Link> split(int color, int key) override { return split_of(group_, color, key); }
  void give_up() override { given_up_ = true; }

  static std::unique_ptr<Link> split_of(MPI_Comm group, int color, int key) {
    MPI_Comm part = MPI_COMM_NULL;
    require_mpi(MPI_Comm_split(group, color, key, &part), "split");
    MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN);
    return std::make_unique<MpiLink>(part);
  }

 private:
  MPI_Comm group_;
  int rank_ = 0, size_ = 1;
  bool given_up_ = false;
};

class Process : public MpiProcess {
 public:
  Process() {
    int before = 0, threads = MPI_THREAD_SINGLE;
    MPI_Initialized(&before);
    base::check(before == 0, "MPI was started already in this process");
    require_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &threads), "start");
    if (threads < MPI_THREAD_MULTIPLE) {
      base::fail_unsupported("this MPI serves one thread at a time: MPI_THREAD_MULTIPLE is needed");
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  std::unique_ptr<Link> open() override { return MpiLink::split_of(MPI_COMM_WORLD, 0, rank_); }
  void finalize() override { MPI_Finalize(); }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

 private:
  int rank_ = 0, size_ = 1;
};

}  // namespace

bool has_mpi() { return true; }

std::unique_ptr<MpiProcess> start_mpi() { return std::make_unique<Process>(); }

}  // namespace trireme::comm
#endif
