// Configurations of a language model's server, and the search among them by loads that are measured.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme::tune {

struct TextCandidate {
  std::string weights;  ///< how matrices are stored; empty: as the model has them
  std::string cache_type;
  int64_t sequences = 0, chunk = 0;

  /// "q8_0 bf16 s64 c512".
  std::string id() const;
  /// What `trireme serve` is told.
  std::vector<std::string> flags() const;
  bool operator==(const TextCandidate&) const = default;
};

/// What competes: of each the values, the one to begin with first.
struct TextSpace {
  std::vector<std::string> weights{""}, cache_types{"f32", "bf16"};
  std::vector<int64_t> sequences{64, 16, 32, 128}, chunks{512, 128, 256, 1024};
};

/// One load on one candidate.
struct TextMeasurement {
  double rate = 0;  ///< requests a second, offered; 0: one client that asks again and again
  double throughput = 0;
  double first_ns = 0,
         token_ns = 0;  ///< that nine of ten answers keep: to the first token, and each further one
  int64_t peak_bytes = 0;
  double miss = 0;     ///< the larger of both over its goal; infinite where requests failed
  bool holds = false;  ///< the goals are met, and the server keeps up
};

struct TextTrial {
  TextCandidate candidate;
  std::string changed;  ///< what is other than in the best one before: "chunk"; empty: it was the first
  std::vector<TextMeasurement> runs;
  double rate = 0;          ///< the highest that held; 0: none was found
  bool was_better = false;  ///< than all before it
  std::string failure;      ///< why it could not be measured; empty: it was
};

/// Measures a candidate at a rate (0: one client). Throws unavailable where it does not serve.
using MeasureTexts = std::function<TextMeasurement(const TextCandidate&, double rate)>;

/// Changes one thing at a time, keeps what carries at least kGain times the rate, and goes over all things
/// again where one was kept: a candidate that does not hold a higher rate than the best costs one load.
class TextSearch {
 public:
  static constexpr double kGain = 1.05;

  TextSearch(TextSpace space, MeasureTexts measure)
      : space_(std::move(space)), measure_(std::move(measure)) {}

  void run();
  /// In the order in which they were tried.
  const std::vector<TextTrial>& trials() const { return trials_; }
  /// Of them the best: the highest rate; where no goal was met, the one that missed it least.
  size_t best() const { return best_; }
  bool is_reached() const { return !trials_.empty() && trials_[best_].rate > 0; }

 private:
  void attempt(const TextCandidate& candidate, const std::string& changed);
  void find_rate(TextTrial& trial, double at_least);
  bool holds(TextTrial& trial, double rate);
  bool is_better(const TextTrial& trial) const;

  const TextSpace space_;
  const MeasureTexts measure_;
  std::vector<TextTrial> trials_;
  size_t best_ = 0;
};

}  // namespace trireme::tune
