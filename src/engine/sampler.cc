// Chooses the next token from logits.
#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/rng.h"

namespace trireme::engine {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr uint64_t kStream = 0x73616d706c65;  // apart from other users of the seed

bool is_before(float a, int32_t a_id, float b, int32_t b_id) { return a != b ? a > b : a_id < b_id; }

}  // namespace

void SamplingOptions::fields(base::OptionList& f) {
  f.add("temperature", &temperature, "divides the logits; 0: always the most likely token").at_least(0);
  f.add("top_k", &top_k, "draw among so many of the most likely tokens; 0: all").at_least(0);
  f.add("top_p", &top_p, "draw among the most likely tokens that have this probability together")
      .at_least(0)
      .at_most(1);
  f.add("min_p", &min_p, "drop tokens less likely than this share of the most likely one")
      .at_least(0)
      .at_most(1);
  f.add("repetition_penalty", &repetition_penalty,
        "divides positive logits of tokens that occurred, multiplies negative ones; 1: off")
      .at_least(1e-3);
  f.add("presence_penalty", &presence_penalty, "taken from the logit of every token generated before");
  f.add("frequency_penalty", &frequency_penalty, "the same, for each time it was generated");
  f.add("seed", &seed, "of the draws; the same seed gives the same text");
}

Sampler::Sampler(const SamplingOptions& options, int64_t vocabulary) : options_(options) {
  base::require(options.temperature >= 0 && options.top_k >= 0 && options.top_p >= 0 && options.top_p <= 1 &&
                    options.min_p >= 0 && options.min_p <= 1 && options.repetition_penalty > 0,
                "sampling with temperature ", options.temperature, ", top_k ", options.top_k, ", top_p ",
                options.top_p, ", min_p ", options.min_p, ", repetition_penalty ",
                options.repetition_penalty);
  const auto n = static_cast<size_t>(vocabulary);
  if (options.temperature > 0) candidates_.resize(n);
  if (!has_penalties()) return;
  scores_.resize(n);
  generated_.resize(n);
  in_prompt_.resize(n);
}

bool Sampler::has_penalties() const {
  return options_.repetition_penalty != 1 || options_.presence_penalty != 0 ||
         options_.frequency_penalty != 0;
}

void Sampler::see_prompt(std::span<const int64_t> tokens) {
  if (!has_penalties()) return;
  for (int64_t id : tokens) in_prompt_.at(static_cast<size_t>(id)) = true;
}

void Sampler::penalize() {
  const auto repetition = static_cast<float>(options_.repetition_penalty);
  const auto presence = static_cast<float>(options_.presence_penalty);
  const auto frequency = static_cast<float>(options_.frequency_penalty);
  for (size_t i = 0; i < scores_.size(); ++i) {
    if (generated_[i] == 0 && !in_prompt_[i]) continue;
    float& s = scores_[i];
    s = s > 0 ? s / repetition : s * repetition;
    if (generated_[i] > 0) s -= presence + frequency * static_cast<float>(generated_[i]);
  }
}

/// Orders the likeliest candidates first and returns how many may be drawn.
size_t Sampler::cut(size_t count) {
  const auto before = [](const Candidate& a, const Candidate& b) {
    return is_before(a.logit, a.id, b.logit, b.id);
  };
  size_t kept = count;
  if (options_.top_k > 0) kept = std::min(kept, static_cast<size_t>(options_.top_k));
  const auto first = candidates_.begin();
  if (kept < count)
    std::nth_element(first, first + static_cast<ptrdiff_t>(kept), first + static_cast<ptrdiff_t>(count),
                     before);
  std::sort(first, first + static_cast<ptrdiff_t>(kept), before);
  const auto weight = [&](size_t i) {
    return std::exp((double{candidates_[i].logit} - candidates_[0].logit) / options_.temperature);
  };
  if (options_.top_p < 1) {
    double all = 0, sum = 0;
    for (size_t i = 0; i < kept; ++i) all += weight(i);
    size_t n = 0;
    while (n < kept && (n == 0 || sum < options_.top_p * all)) sum += weight(n++);
    kept = n;
  }
  while (kept > 1 && weight(kept - 1) < options_.min_p) --kept;
  return kept;
}

int64_t Sampler::choose(std::span<const float> logits) {
  if (options_.temperature == 0) {
    size_t best = 0;
    float most = kNever;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] > most) most = logits[best = i];
    }
    return static_cast<int64_t>(best);
  }
  size_t count = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > kNever) candidates_[count++] = {logits[i], static_cast<int32_t>(i)};
  }
  base::require(count > 0, "no token can be drawn: all logits are minus infinity or no numbers");
  const size_t kept = cut(count);
  double all = 0;
  const auto weight = [&](size_t i) {
    return std::exp((double{candidates_[i].logit} - candidates_[0].logit) / options_.temperature);
  };
  for (size_t i = 0; i < kept; ++i) all += weight(i);
  const auto words =
      base::philox_block(static_cast<uint64_t>(options_.seed), kStream, static_cast<uint64_t>(count_));
  double left = base::uniform_f64(words[0], words[1]) * all;
  for (size_t i = 0; i + 1 < kept; ++i) {
    left -= weight(i);
    if (left < 0) return candidates_[i].id;
  }
  return candidates_[kept - 1].id;
}

int64_t Sampler::next(std::span<const float> logits) {
  std::span<const float> scores = logits;
  if (has_penalties()) {
    std::copy(logits.begin(), logits.end(), scores_.begin());
    penalize();
    scores = scores_;
  }
  const int64_t id = choose(scores);
  float top = kNever;
  for (float v : logits) top = v > top ? v : top;
  double sum = 0;
  for (float v : logits) sum += v > kNever ? std::exp(double{v} - top) : 0;
  log_probability_ = double{logits[static_cast<size_t>(id)]} - top - std::log(sum);
  if (has_penalties()) ++generated_[static_cast<size_t>(id)];
  ++count_;
  return id;
}

}  // namespace trireme::engine
