// Formats measured rates with their share of the peak rate of the machine.
#include "base/report/rate.h"

#include <cmath>

#include "base/error.h"
#include "base/report/svg_plot.h"

namespace trireme::base {

Rate::Rate(double work, double seconds, Ceiling ceiling)
    : raw_(seconds > 0 ? work / seconds : 0), ceiling_(std::move(ceiling)) {}

std::optional<double> Rate::per_s() const {
  if (!(raw_ > 0) || !std::isfinite(raw_)) return std::nullopt;
  if (ceiling_.per_s > 0 && raw_ > kCeilingNoise * ceiling_.per_s) return std::nullopt;
  return raw_;
}

std::optional<double> Rate::share() const {
  if (!per_s() || !(ceiling_.per_s > 0)) return std::nullopt;
  return raw_ / ceiling_.per_s;
}

std::string Rate::refusal() const {
  if (!(raw_ > 0) || !std::isfinite(raw_)) return "nothing was counted";
  return concat("the count would be ", format_number(100 * raw_ / ceiling_.per_s, 0), " % of ", ceiling_.what,
                ", so less was done than was counted");
}

std::string Rate::text(double unit, const std::string& name) const {
  if (!per_s()) return concat("no rate in ", name, "/s: ", refusal());
  std::string out = concat(format_number(raw_ / unit, raw_ / unit < 10 ? 2 : 1), " ", name, "/s");
  if (const std::optional<double> of = share())
    out += concat(" (", format_number(100 * *of, 0), " % of ", ceiling_.what, ")");
  return out;
}

void Rate::write(Json& to, const std::string& key, double unit) const {
  if (!per_s()) {
    to.set(key, Json());
    to.set(key + "_refused", refusal());
    return;
  }
  to.set(key, raw_ / unit);
  if (const std::optional<double> of = share()) to.set(key + "_share", *of);
}

}  // namespace trireme::base
