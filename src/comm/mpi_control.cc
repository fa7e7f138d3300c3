// The control thread. Its letters have one size, so that one posted receive serves whichever rank writes.
#include "comm/mpi_control.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

namespace trireme::comm {
namespace {

constexpr int kTag = 1;
// How often letters are polled for, which delays the news of a failure; more often while the world ends.
constexpr auto kPeriod = std::chrono::milliseconds(5);
constexpr auto kLeavingPeriod = std::chrono::microseconds(300);
constexpr size_t kTextBytes = 2048;
// How long processes may take to answer. Their control threads are idle, so only the OS delays answers.
constexpr int64_t kLeastAnswerNs = 300 * base::kNsPerMs;
constexpr int64_t kMostAnswerNs = 2 * base::kNsPerSecond;

}  // namespace

enum class LetterKind : uint8_t { failed, question, answer, goodbye };

/// One size for all kinds. Times in `flight` are ages, because clocks of different machines are unrelated.
struct MpiControl::Letter {
  LetterKind kind = LetterKind::goodbye;
  bool gone = false, known = false;
  base::ErrorCode code = base::ErrorCode::internal;
  int from = 0;  // world rank
  uint64_t group = 0;
  Flight flight;
  std::array<char, kTextBytes> text{};

  void set_text(const std::string& value) {
    std::copy_n(value.data(), std::min(value.size(), kTextBytes - 1), text.data());
  }
};

struct MpiControl::Posted {
  Letter letter;
  std::unique_ptr<Transfers> transfer;
};

struct MpiControl::Inquiry {
  int64_t answers_by_ns = 0;
  int64_t sequence = 0;  // of the overdue operation
  std::vector<RankFlight> ranks;
  size_t missing = 0;
};

base::Error Failure::as_met() const {
  if (!gone) return {code, text};
  return {base::ErrorCode::unavailable, base::concat("rank ", rank, " is gone: ", text)};
}

base::Error Failure::cause() const { return base::Error(code, text).with(base::concat("rank ", rank)); }

MpiControl::MpiControl(std::unique_ptr<Link> link, MpiOptions options)
    : link_(std::move(link)), options_(std::move(options)) {
  thread_ = std::thread([this] {
    try {
      work();
    } catch (const base::Error& e) {  // MPI itself failed: no other rank can be told
      fail({.rank = link_->rank(), .code = e.code(), .text = e.message()});
      link_->give_up();
    }
  });
}

MpiControl::~MpiControl() { (void)leave(0); }

void MpiControl::add(const std::shared_ptr<GroupRecord>& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& g) { return g.expired(); });
  groups_.push_back(group);
}

std::vector<std::shared_ptr<GroupRecord>> MpiControl::groups() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<GroupRecord>> out;
  for (const auto& g : groups_) {
    if (auto group = g.lock()) out.push_back(std::move(group));
  }
  return out;
}

void MpiControl::fail(Failure failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    announce_ = failure.rank == link_->rank();
    failure_ = std::move(failure);
  }
  failed_.store(true, std::memory_order_release);
  wake_.notify_all();
}

std::optional<Failure> MpiControl::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void MpiControl::throw_failure() const {
  const std::optional<Failure> known = failure();
  base::check(known.has_value(), "a world failed without a reason");
  throw known->as_met();
}

bool MpiControl::leave(int64_t limit_ns) {
  {
    const std::lock_guard lock(mutex_);
    if (!leaving_) leave_by_ns_ = clock_.now_ns() + limit_ns;
    leaving_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  return clean_;
}

void MpiControl::work() {
  Letter incoming;
  const Bytes place = as_bytes(std::span(&incoming, 1));
  const std::unique_ptr<Transfers> receive = link_->transfers();
  receive->receive(place, Transfers::kAnyRank, kTag);
  for (;;) {
    while (receive->done()) {
      handle(incoming);
      receive->receive(place, Transfers::kAnyRank, kTag);
    }
    std::unique_lock lock(mutex_);
    if (announce_) {
      announce_ = false;
      Letter news{
          .kind = LetterKind::failed, .gone = failure_->gone, .code = failure_->code, .from = failure_->rank};
      news.set_text(failure_->text);
      lock.unlock();
      post_all(news);
      lock.lock();
    }
    if (leaving_ && !said_goodbye_) {
      said_goodbye_ = true;
      lock.unlock();
      post_all({.kind = LetterKind::goodbye, .from = link_->rank()});
      lock.lock();
    }
    const bool all_sent = sent();
    clean_ = said_goodbye_ && all_sent && goodbyes_ == link_->size() - 1;
    if (clean_ || (leaving_ && clock_.now_ns() > leave_by_ns_)) break;
    if (leaving_) {
      wake_.wait_for(lock, kLeavingPeriod);
      continue;
    }
    wake_.wait_for(lock, kPeriod, [this] { return announce_ || leaving_; });
    const bool watch = options_.deadline_ns > 0 && !failed() && !leaving_;
    lock.unlock();
    if (watch) look_for_overdue();
  }
  receive->abandon();
  if (!clean_) link_->give_up();
}

void MpiControl::post(const Letter& letter, int to) {
  Posted& p = posted_.emplace_back(Posted{letter, link_->transfers()});
  p.transfer->send(as_bytes(std::span(&p.letter, 1)), to, kTag);
}

void MpiControl::post_all(const Letter& letter) {
  for (int r = 0; r < link_->size(); ++r) {
    if (r != link_->rank()) post(letter, r);
  }
}

bool MpiControl::sent() {
  posted_.remove_if([](Posted& p) { return p.transfer->done(); });
  return posted_.empty();
}

void MpiControl::handle(const Letter& letter) {
  switch (letter.kind) {
    case LetterKind::failed:
      fail({.rank = letter.from, .gone = letter.gone, .code = letter.code, .text = letter.text.data()});
      return;
    case LetterKind::question:
      if (!said_goodbye_) answer(letter);
      return;
    case LetterKind::goodbye: ++goodbyes_; return;
    case LetterKind::answer: break;
  }
  const auto found = inquiries_.find(letter.group);
  if (found == inquiries_.end()) return;
  for (RankFlight& r : found->second.ranks) {
    if (r.world_rank != letter.from || r.answers) continue;
    r.answers = true;
    --found->second.missing;
    if (!letter.known) continue;
    const int64_t now = clock_.now_ns();
    r.last = letter.flight;
    for (int64_t* time : {&r.last->enqueue_ns, &r.last->start_ns, &r.last->end_ns}) {
      if (*time != 0) *time = now - *time;
    }
  }
}

void MpiControl::answer(const Letter& question) {
  Letter reply{.kind = LetterKind::answer, .from = link_->rank(), .group = question.group};
  for (const auto& g : groups()) {
    const std::optional<Flight> last = g->id == question.group ? g->flights.last() : std::nullopt;
    if (!last) continue;
    const int64_t now = clock_.now_ns();
    reply.known = true;
    reply.flight = *last;
    for (int64_t* time : {&reply.flight.enqueue_ns, &reply.flight.start_ns, &reply.flight.end_ns}) {
      if (*time != 0) *time = std::max<int64_t>(1, now - *time);
    }
  }
  post(reply, question.from);
}

/// When an operation of this rank is older than the deadline, asks the group's members what they are doing;
/// asks again after the same time if their answers explain the delay.
void MpiControl::look_for_overdue() {
  const int64_t now = clock_.now_ns();
  for (const auto& g : groups()) {
    const auto found = inquiries_.find(g->id);
    if (found != inquiries_.end()) {
      Inquiry& inquiry = found->second;
      if (inquiry.missing > 0 && now < inquiry.answers_by_ns) continue;
      conclude(*g, inquiry);
      inquiries_.erase(found);
      continue;
    }
    const std::optional<Flight> own = g->flights.last();
    if (!own || own->end_ns != 0 || now - own->enqueue_ns <= options_.deadline_ns) continue;
    const int64_t patience = std::clamp(options_.deadline_ns, kLeastAnswerNs, kMostAnswerNs);
    Inquiry inquiry{.answers_by_ns = now + patience, .sequence = own->sequence};
    for (const int r : g->world_ranks) {
      const bool self = r == link_->rank();
      inquiry.ranks.push_back({r, self ? own : std::nullopt, self});
      if (self) continue;
      ++inquiry.missing;
      post({.kind = LetterKind::question, .from = link_->rank(), .group = g->id}, r);
    }
    inquiries_.emplace(g->id, std::move(inquiry));
  }
}

void MpiControl::conclude(const GroupRecord& group, const Inquiry& inquiry) {
  const std::optional<Flight> own = group.flights.last();
  if (!own || own->end_ns != 0 || own->sequence != inquiry.sequence) return;  // the operation has ended
  const std::optional<std::string> report = diagnose(inquiry.ranks, clock_.now_ns(), options_.deadline_ns);
  if (!report || failed()) return;
  if (options_.on_stuck) options_.on_stuck(*report);
  fail({.rank = link_->rank(), .code = base::ErrorCode::unavailable, .text = *report});
}

}  // namespace trireme::comm
