// Rates held against the most that was measured here: no machine does more than it can.
#pragma once

#include <optional>
#include <string>

#include "base/text/json.h"

namespace trireme::base {

/// How far a rate and its ceiling, measured at different moments, may stray from each other.
inline constexpr double kCeilingNoise = 1.15;

/// The most of a kind of work that this machine was measured to do a second; 0: not measured.
struct Ceiling {
  double per_s = 0;
  std::string what;  ///< what was measured: "square f32 products on 2 threads"
};

/// Work done in a time. A rate above its ceiling is none: what was counted is not what was done.
class Rate {
 public:
  Rate(double work, double seconds, Ceiling ceiling = {});

  /// Units a second, or nothing where the time is none or the ceiling is passed by more than kCeilingNoise.
  std::optional<double> per_s() const;
  /// Of the ceiling; nothing without a rate or a measured ceiling.
  std::optional<double> share() const;
  /// "123.4 GFLOP/s (61 % of square f32 products on 2 threads)"; `unit` is how many of them make one `name`.
  /// For a refused rate: why there is none.
  std::string text(double unit, const std::string& name) const;
  /// Sets KEY to units of `unit` a second, and KEY_share where a ceiling was measured; for a refused rate KEY
  /// is null and KEY_refused says why.
  void write(Json& to, const std::string& key, double unit) const;

 private:
  std::string refusal() const;

  double raw_ = 0;
  Ceiling ceiling_;
};

}  // namespace trireme::base
