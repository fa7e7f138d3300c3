// A language model that answers requests of any thread: one thread that owns its session and runs its steps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/guarded.h"
#include "engine/decode/decode_session.h"
#include "sched/text/parked_texts.h"
#include "sched/text/token_scheduler.h"

namespace trireme::sched {

/// Counts since the start, and how things stand after the last step.
struct TextStats {
  size_t running = 0, waiting = 0;
  /// Texts that were submitted and are not over: of stats() those of this moment, whatever step is under way.
  size_t under_way = 0;
  double page_use = 0;  ///< share of the pages that texts under way hold
  int64_t steps = 0, step_tokens = 0;
  int64_t busy_ns = 0;           ///< in steps
  int64_t told_ns = 0;           ///< processor time between them, spent on telling listeners
  int64_t prompt_tokens = 0;     ///< of texts that began
  int64_t known_tokens = 0;      ///< of these, those that did not run
  int64_t handed_tokens = 0;     ///< and those that another session had computed
  int64_t generated_tokens = 0;  ///< of all answers
  int64_t put_back = 0;          ///< texts that had to begin again because pages ran out
  DraftCounts drafts;            ///< guessed tokens
  engine::MaskCost masks;        ///< of answers that have a form
};

class TextService {
 public:
  using MakeSession = std::function<std::unique_ptr<engine::DecodeSession>()>;
  struct Options {
    size_t max_waiting = 1024;  ///< requests of clients that wait; further ones are refused
    /// Called by the service's thread after every step; null: nobody.
    std::function<void(const TextStats&)> on_step = {};
    /// Makes what lives while the listeners are told of a step; null: nothing.
    std::function<std::shared_ptr<void>()> begin_telling = {};
    /// Who guesses for a session; null: nobody.
    std::function<std::unique_ptr<engine::Drafter>()> make_drafter = {};
    int64_t draft_tokens = 8;  ///< that are guessed for a text, at most
    TextGoals goals = {};
    /// Who is asked for the pages of prompts before a text begins; null: they are computed here.
    std::shared_ptr<PageSource> pages = nullptr;
  };

  /// Makes the first session at once and throws what that throws. `clock` outlives the service. Where a step
  /// fails, all that runs and waits fails with it, and the next request finds a new session.
  TextService(MakeSession make, Options options, const base::Clock& clock);
  ~TextService();
  TextService(const TextService&) = delete;
  TextService& operator=(const TextService&) = delete;

  /// What a request may be. The same for every session.
  const engine::GenerateLimits& limits() const { return limits_; }
  /// Any thread. Throws what GenerateLimits::check() throws, exhausted where too many wait, unavailable once
  /// it drains. Otherwise the listener is told of everything. Requests in the background are not counted: who
  /// sends them bounds them.
  void submit(TextRequest request);
  /// The same of requests that belong together: all are queued, or none. Throws invalid_argument where they
  /// are more than may ever wait.
  void submit_all(std::vector<TextRequest> requests);

  TextStats stats() const;
  /// How long the step under way has been running; 0: none is.
  int64_t step_ns() const;
  /// Keys and values of all sequences, and scratch memory, of the session made last.
  int64_t memory_bytes() const { return shown_.memory_bytes.load(); }
  /// Refuses what comes and returns when nothing waits or runs. False where that takes longer than
  /// `patience_ns`.
  bool drain(int64_t patience_ns = INT64_MAX);
  /// Fails what waits and runs, and ends the thread. False where a step that is under way does not end within
  /// `patience_ns`: then the service must not be destroyed. Idempotent.
  bool stop(int64_t patience_ns = INT64_MAX);

 private:
  struct Live {
    std::shared_ptr<TextListener> listener;
    bool is_begun = false;
  };
  /// What other threads leave for the service's.
  struct Inbox {
    std::vector<TextRequest> requests;
    size_t waiting = 0;  ///< of these, of the parked and of the scheduler's, without those in the background
    bool is_closed = false, is_stopping = false, has_ended = false, is_idle = true;
  };
  void open();
  void run();
  bool take_in();
  void add(TextRequest request);
  void drop_gone();
  void step();
  void tell_step(const std::vector<engine::GenerateEvent>& events, int64_t began_ns);
  void tell(const engine::GenerateEvent& event);
  void end(int64_t number, bool cancels);
  void fail_all(const base::Error& error);
  void show();
  bool has_steps() const { return !live_.empty() || (scheduler_ && !scheduler_->is_idle()); }

  const MakeSession make_;
  const Options options_;
  const base::Clock& clock_;
  engine::GenerateLimits limits_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Inbox inbox_;  // under the mutex
  struct {
    base::Guarded<TextStats> stats;
    std::atomic<int64_t> step_began_ns{0}, memory_bytes{0};
    std::atomic<size_t> under_way{0};
  } shown_;  // to any thread
  // The thread's:
  struct {
    std::unique_ptr<engine::DecodeSession> session;
    std::unique_ptr<engine::Drafter> drafter;
  } engine_;
  std::unique_ptr<TokenScheduler> scheduler_;
  ParkedTexts parked_;
  std::map<int64_t, Live> live_;  // by the scheduler's numbers
  struct {
    std::set<int64_t> begun;  ///< of `live_`
    int64_t looked = -1;      ///< the number that was asked last
  } asked_;                   ///< whether anybody waits
  TextStats counts_;
  struct {
    int64_t put_back = 0;
    engine::MaskCost masks;
    DraftCounts drafts;
  } lost_;  // of schedulers before this one
  std::thread thread_;
};

}  // namespace trireme::sched
