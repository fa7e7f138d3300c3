// How many guessed tokens of each text a step checks: as many as make tokens come fastest.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/decode/generator.h"
#include "sched/text/step_prices.h"

namespace trireme::sched {

/// A guess at place j behind a text's last token counts if all before it are right: with the chance `a` that
/// one is right, k guesses bring a + a^2 + ... + a^k tokens more. Of all guesses of all texts the likeliest
/// are taken, as many as give the most tokens for the price of the step. Where texts are many, or guesses
/// poor, that is none. A text without guesses tries one again from time to time, ever more rarely. Nothing
/// here changes a token. Not for several threads at once.
class DraftPolicy {
 public:
  /// Of a text at most so many.
  explicit DraftPolicy(int64_t most) : most_(most) {}

  struct Candidate {
    int64_t text = 0;    ///< its number
    int64_t most = 0;    ///< guesses that it may have
    int64_t chosen = 0;  ///< by choose()
  };
  /// The step without guesses.
  struct Step {
    int64_t tokens = 0;
    int64_t draws = 0;  ///< tokens that it gives
    int64_t room = 0;   ///< tokens and rows that still fit
  };
  /// `prices` of steps; null: nobody measures, and all guesses are taken that fit.
  void choose(std::span<Candidate> candidates, const Step& step, const StepPrices* prices);

  /// Whether the text had guesses last time, or it is time to try again: asked once a step, of texts whose
  /// last tokens are on their way.
  bool is_tried(int64_t text);
  void observe(const engine::CheckedDrafts& checked);
  /// Guessing `tokens` tokens one after another, for all texts at once, took `ns`.
  void observe_drafting(int64_t tokens, int64_t ns);
  void forget(int64_t text) { records_.erase(text); }
  /// The chance that a guess for this text is right.
  double chance(int64_t text) const;

 private:
  struct Record {
    double tried = 0, right = 0;  ///< guesses whose predecessors were right; old ones count less
    int64_t idle = 0;             ///< steps without guesses, where it might have had some
    int64_t pause = 0;            ///< so many of them until the next try
  };
  struct Guess {
    double chance;
    size_t candidate;
  };
  size_t best_count(const Step& step, size_t candidates, const StepPrices* prices);

  int64_t most_;
  Record all_;
  double draft_ns_ = 0;  ///< of one token of all texts
  std::unordered_map<int64_t, Record> records_;
  std::vector<Guess> guesses_;   ///< of a choice, the likeliest first
  std::vector<int64_t> counts_;  ///< by candidates
};

}  // namespace trireme::sched
