// Implements the spike guard: histories, limits and verdicts.
#include "train/config/spike_guard.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace trireme::train {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

}  // namespace

void SpikeOptions::fields(base::OptionList& f) {
  f.add_choice("policy", &policy, {"off", "skip", "rollback", "stop"},
               "what a spike does: skip its update; and after `patience` in a row go back to the last "
               "checkpoint, or stop");
  f.add("window", &window, "steps of history; until there are as many, nothing is a spike").at_least(2);
  f.add("z_loss", &z_loss, "standard deviations of the loss that make a spike; 0: not watched").at_least(0);
  f.add("z_norm", &z_norm, "the same of the gradient norm").at_least(0);
  f.add("patience", &patience, "spikes in a row before rollback or stop").at_least(1);
  f.add("loss_keep", &loss_keep, "share of the running mean of the loss kept each step")
      .at_least(0)
      .at_most(1);
}

// Two passes over the values: running sums would round differently depending on where a run was resumed.
SpikeWindow::Moments SpikeWindow::moments() const {
  const double n = static_cast<double>(values_.size());
  double sum = 0, squares = 0;
  for (size_t i = 0; i < values_.size(); ++i) sum += values_[(next_ + i) % values_.size()];
  const double mean = sum / n;
  for (size_t i = 0; i < values_.size(); ++i) {
    const double d = values_[(next_ + i) % values_.size()] - mean;
    squares += d * d;
  }
  return {mean, std::sqrt(squares / n)};
}

double SpikeWindow::limit(double z) const {
  if (values_.size() < size_ || z == 0) return kNone;
  const Moments m = moments();
  return m.mean + z * m.deviation;
}

double SpikeWindow::z_score(double value) const {
  if (values_.size() < size_) return 0;
  const Moments m = moments();
  return m.deviation == 0 ? 0 : (value - m.mean) / m.deviation;
}

void SpikeWindow::push(double value) {
  if (values_.size() < size_) {
    values_.push_back(value);
    return;
  }
  values_[next_] = value;
  next_ = (next_ + 1) % size_;
}

base::Json SpikeWindow::state() const {
  base::JsonArray oldest_first;
  for (size_t i = 0; i < values_.size(); ++i) oldest_first.push_back(values_[(next_ + i) % values_.size()]);
  return base::Json(std::move(oldest_first));
}

void SpikeWindow::restore(const base::Json& state) {
  values_.clear();
  next_ = 0;
  // If the window became longer, all values are kept; if shorter, the newest.
  const base::JsonArray& all = state.as_array();
  for (size_t i = all.size() > size_ ? all.size() - size_ : 0; i < all.size(); ++i)
    values_.push_back(all[i].as_double());
}

SpikeGuard::SpikeGuard(const SpikeOptions& options)
    : options_(options), losses_(options.window), norms_(options.window) {}

double SpikeGuard::loss_limit() const {
  return options_.policy == SpikePolicy::off ? kNone : losses_.limit(options_.z_loss);
}
double SpikeGuard::norm_limit() const {
  return options_.policy == SpikePolicy::off ? kNone : norms_.limit(options_.z_norm);
}

SpikeVerdict SpikeGuard::observe(double loss, double grad_norm) {
  SpikeVerdict verdict;
  if (std::isfinite(loss)) {
    loss_sum_ = options_.loss_keep * loss_sum_ + loss;
    loss_weight_ = options_.loss_keep * loss_weight_ + 1;
  }
  if (!std::isfinite(loss) || !std::isfinite(grad_norm)) return verdict;
  verdict.z_loss = losses_.z_score(loss);
  verdict.z_norm = norms_.z_score(grad_norm);
  // Compared in f32, as the training step compares them.
  const auto above = [](double value, double limit) {
    return static_cast<float>(value) > static_cast<float>(limit);
  };
  if (above(loss, loss_limit()))
    verdict.reason = base::concat("loss ", loss, " is ", verdict.z_loss, " deviations above its mean");
  if (above(grad_norm, norm_limit())) {
    if (!verdict.reason.empty()) verdict.reason += "; ";
    verdict.reason +=
        base::concat("gradient norm ", grad_norm, " is ", verdict.z_norm, " deviations above its mean");
  }
  // Spikes enter the history as well, so that a lasting change of level is not skipped for ever.
  losses_.push(loss);
  norms_.push(grad_norm);
  in_a_row_ = verdict.reason.empty() ? 0 : in_a_row_ + 1;
  if (in_a_row_ == 0) return verdict;
  verdict.action = SpikeAction::skipped;
  if (in_a_row_ < options_.patience || options_.policy == SpikePolicy::skip) return verdict;
  verdict.action = options_.policy == SpikePolicy::stop ? SpikeAction::stop : SpikeAction::rollback;
  return verdict;
}

double SpikeGuard::average_loss() const { return loss_weight_ > 0 ? loss_sum_ / loss_weight_ : 0; }

base::Json SpikeGuard::state() const {
  return base::Json::object({{"losses", losses_.state()},
                             {"norms", norms_.state()},
                             {"in_a_row", in_a_row_},
                             {"loss_sum", loss_sum_},
                             {"loss_weight", loss_weight_}});
}

void SpikeGuard::restore(const base::Json& state) {
  losses_.restore(state.at("losses"));
  norms_.restore(state.at("norms"));
  in_a_row_ = state.at("in_a_row").as_int();
  loss_sum_ = state.at("loss_sum").as_double();
  loss_weight_ = state.at("loss_weight").as_double();
}

}  // namespace trireme::train
