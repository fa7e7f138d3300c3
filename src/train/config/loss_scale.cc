// Implements the dynamic loss scale.
#include "train/config/loss_scale.h"

#include <algorithm>
#include <limits>

namespace trireme::train {

void LossScaleOptions::fields(base::OptionList& f) {
  f.add("dynamic", &dynamic, "the scale follows what the gradients bear; else it stays at initial");
  f.add("initial", &initial, "scale of the first step").at_least(1);
  f.add("growth", &growth, "factor after `window` steps without inf or NaN").at_least(1);
  f.add("backoff", &backoff, "factor after inf or NaN").at_least(0).at_most(1);
  f.add("window", &window, "steps without inf or NaN before the scale grows").at_least(1);
  f.add("hysteresis", &hysteresis, "steps with inf or NaN before the scale falls").at_least(1);
  f.add("minimum", &minimum, "the scale never falls below").at_least(0);
}

LossScaler::LossScaler(const LossScaleOptions& options)
    : options_(options), scale_(options.initial), hysteresis_(options.hysteresis) {}

void LossScaler::update(bool found_inf) {
  exhausted_ = found_inf && (!options_.dynamic || scale_ <= options_.minimum);
  if (!options_.dynamic) return;
  if (found_inf) {
    good_ = 0;
    hysteresis_ = std::max<int64_t>(0, hysteresis_ - 1);
    if (hysteresis_ == 0) scale_ = std::max(scale_ * options_.backoff, options_.minimum);
    return;
  }
  if (++good_ < options_.window) return;
  good_ = 0;
  hysteresis_ = options_.hysteresis;
  // At a scale beyond f32, the scaled loss itself would be infinite.
  if (scale_ * options_.growth <= static_cast<double>(std::numeric_limits<float>::max()))
    scale_ *= options_.growth;
}

base::Json LossScaler::state() const {
  return base::Json::object({{"scale", scale_}, {"good", good_}, {"hysteresis", hysteresis_}});
}

void LossScaler::restore(const base::Json& state) {
  scale_ = state.at("scale").as_double();
  good_ = state.at("good").as_int();
  hysteresis_ = state.at("hysteresis").as_int();
  exhausted_ = false;
}

}  // namespace trireme::train
