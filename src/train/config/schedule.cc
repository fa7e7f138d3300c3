// Learning rate schedules: warm-up, forms of decay, and scaling with the batch.
#include "train/config/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace trireme::train {
namespace {

constexpr double kMostRate = 1e30;  // finite in f32, in which updates take it

const std::vector<std::string> kKinds{"constant", "linear", "cosine", "step", "inverse_root", "wsd"};
const std::vector<std::string> kForms{"linear", "cosine", "exponential", "one_minus_sqrt"};

/// The decay from 1 at x = 0 to 0 at x = 1.
double fall(DecayForm form, double x) {
  switch (form) {
    case DecayForm::linear: return 1 - x;
    case DecayForm::cosine: return (1 + std::cos(std::numbers::pi * x)) / 2;
    case DecayForm::exponential: return 2 * std::pow(0.5, x) - 1;
    case DecayForm::one_minus_sqrt: return 1 - std::sqrt(x);
  }
  return 0;
}

double scale_for(const ScheduleOptions& o, int64_t batch) {
  const double k = static_cast<double>(batch) / static_cast<double>(o.base_batch);
  if (o.batch_scaling == BatchScaling::linear) return k;
  return o.batch_scaling == BatchScaling::sqrt ? std::sqrt(k) : 1;
}

}  // namespace

void ScheduleOptions::fields(base::OptionList& f) {
  f.add_choice("kind", &kind, kKinds, "how the learning rate goes after the warm-up");
  f.add("lr", &lr, "largest learning rate").at_least(0).at_most(kMostRate);
  f.add("min_lr", &min_lr, "floor of the decay").at_least(0);
  f.add_choice("unit", &unit, {"samples", "tokens"}, "what lengths are counted in");
  f.add("warmup", &warmup, "length of the linear warm-up").at_least(0);
  f.add("warmup_fraction", &warmup_fraction, "the same as a share of total, where warmup is 0")
      .at_least(0)
      .at_most(1);
  f.add("warmup_from", &warmup_from,
        "learning rate the warm-up begins with; -1: each step has the share of the peak that it completes")
      .at_least(-1);
  f.add("total", &total, "length of the schedule; 0: the whole run").at_least(0);
  f.add("decay", &decay, "wsd: length of the decay at the end; 0: a tenth of total").at_least(0);
  f.add_choice("decay_form", &decay_form, kForms, "wsd: form of the decay");
  f.add("drop_at", &drop_at, "step: where the rate drops").at_least(0);
  f.add("drop_factor", &drop_factor, "step: factor of each drop").at_least(0);
  f.add_choice("batch_scaling", &batch_scaling, {"none", "linear", "sqrt"},
               "multiplies lr and min_lr by global batch / base_batch, or its root");
  f.add("base_batch", &base_batch, "samples a step that lr was chosen for").at_least(1);
}

Schedule::Schedule(const ScheduleOptions& options, const ScheduleRun& run) : options_(options) {
  const double scale = scale_for(options, run.global_batch);
  peak_ = options.lr * scale;
  min_lr_ = options.min_lr * scale;
  base::require(min_lr_ <= peak_, "schedule: min_lr ", options.min_lr, " is above lr ", options.lr);
  total_ = static_cast<double>(options.total > 0 ? options.total : run.total);
  warmup_ =
      options.warmup > 0 ? static_cast<double>(options.warmup) : std::round(options.warmup_fraction * total_);
  base::require(warmup_ <= total_, "schedule: a warm-up of ", warmup_, " in a run of ", total_);
  if (options_.kind == ScheduleKind::wsd) {
    if (options_.decay == 0) options_.decay = static_cast<int64_t>(total_ / 10);
    base::require(warmup_ + static_cast<double>(options_.decay) <= total_, "schedule: a warm-up of ", warmup_,
                  " and a decay of ", options_.decay, " in a run of ", total_);
  }
  std::sort(options_.drop_at.begin(), options_.drop_at.end());
}

double Schedule::at(int64_t seen, int64_t units) const {
  const double i = static_cast<double>(seen);
  if (i >= warmup_) return decayed(i);
  if (options_.warmup_from >= 0) return options_.warmup_from + (peak_ - options_.warmup_from) * i / warmup_;
  return peak_ * std::min(1.0, (i + static_cast<double>(units)) / warmup_);
}

double Schedule::decayed(double seen) const {
  const auto share = [](double part, double whole) {
    return whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 1;
  };
  const double x = share(seen - warmup_, total_ - warmup_);
  switch (options_.kind) {
    case ScheduleKind::constant: return peak_;
    case ScheduleKind::linear: return min_lr_ + (peak_ - min_lr_) * fall(DecayForm::linear, x);
    case ScheduleKind::cosine: return min_lr_ + (peak_ - min_lr_) * fall(DecayForm::cosine, x);
    case ScheduleKind::inverse_root:
      return std::max(min_lr_, peak_ * std::sqrt(std::max(1.0, warmup_) / std::max({1.0, warmup_, seen})));
    case ScheduleKind::step: {
      const auto drops = std::count_if(options_.drop_at.begin(), options_.drop_at.end(),
                                       [&](int64_t at) { return seen >= static_cast<double>(at); });
      return std::max(min_lr_, peak_ * std::pow(options_.drop_factor, static_cast<double>(drops)));
    }
    case ScheduleKind::wsd: {
      const double length = static_cast<double>(options_.decay), start = total_ - length;
      if (seen < start) return peak_;
      return min_lr_ + (peak_ - min_lr_) * fall(options_.decay_form, share(seen - start, length));
    }
  }
  return peak_;
}

bool Schedule::is_as_long_as_the_run() const {
  if (options_.total > 0) return false;
  const bool has_share = options_.warmup == 0 && options_.warmup_fraction > 0;
  return has_share || options_.kind == ScheduleKind::linear || options_.kind == ScheduleKind::cosine ||
         options_.kind == ScheduleKind::wsd;
}

std::string Schedule::describe() const {
  const char* unit = options_.unit == ScheduleUnit::tokens ? " tokens" : " samples";
  std::string text =
      base::concat(kKinds[static_cast<size_t>(options_.kind)], " schedule: peak ", peak_, ", floor ", min_lr_,
                   ", warm-up ", static_cast<int64_t>(warmup_), " of ", static_cast<int64_t>(total_), unit);
  if (options_.batch_scaling != BatchScaling::none) {
    text += base::concat(", scaled from ", options_.lr, " for batches of ", options_.base_batch);
  }
  return text;
}

}  // namespace trireme::train
