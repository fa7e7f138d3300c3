// Guessed tokens beside the steps of a scheduler: which texts have some, and what became of them.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/text/draft_policy.h"
#include "sched/text/step_meter.h"

namespace trireme::sched {

/// Guesses so far.
struct DraftCounts {
  int64_t drafts = 0;    ///< how often a text had some
  int64_t tokens = 0;    ///< that were checked
  int64_t accepted = 0;  ///< of these

  DraftCounts& operator+=(const DraftCounts& more) {
    drafts += more.drafts;
    tokens += more.tokens;
    accepted += more.accepted;
    return *this;
  }
};

/// One owner thread.
class Drafting {
 public:
  /// Null: nothing is guessed. `most`: tokens of a text. `runs_ahead`: steps are launched before the last
  /// one's tokens are here, and a text that may have guesses must wait for its own.
  struct Options {
    engine::Drafter* drafter = nullptr;
    int64_t most = 8;
    bool runs_ahead = false;
  };
  Drafting(engine::Generator& generator, const Options& options)
      : generator_(generator), options_(options), policy_(options.most) {}

  /// Adds guesses to a step that runs tokens[i] tokens of text i, as many as pay and as there are rows, pages
  /// and tokens for: `left` tokens fit beside the others.
  void share(std::vector<int64_t>& tokens, int64_t left, const StepMeter& meter);
  /// What became of the guesses of the step that was collected last.
  const std::vector<engine::CheckedDrafts>& account();
  void forget(int64_t text) { policy_.forget(text); }
  const DraftCounts& counts() const { return counts_; }

 private:
  void find_candidates(const std::vector<int64_t>& tokens);
  void draft(const StepMeter& meter);
  void take(std::vector<int64_t>& tokens);

  engine::Generator& generator_;
  const Options options_;
  DraftPolicy policy_;
  DraftCounts counts_;
  std::vector<DraftPolicy::Candidate> candidates_;
  std::vector<size_t> places_;  ///< of the candidates in the generator
  std::vector<int64_t> most_;   ///< of each text in the generator
};

}  // namespace trireme::sched
