// Doubling and bisection over loads; which runs count as sustained.
#include "load/run/search.h"

#include <algorithm>
#include <cmath>

namespace trireme::load {

bool sustained(const Measured& m) {
  return all_met(m.slos) && kept_up(m.result) && m.result.error_share() < 0.01;
}

double find_highest(const Search& search, std::vector<Measured>& runs) {
  constexpr double kPrecision = 1.05;
  constexpr size_t kMostRuns = 24;
  double good = 0, bad = 0, load = search.start;
  while (runs.size() < kMostRuns) {
    runs.push_back(search.run(load));
    if (runs.back().result.is_interrupted) break;
    (sustained(runs.back()) ? good : bad) = load;
    if (good > 0 && bad > 0 && (bad / good <= kPrecision || (search.is_whole && bad - good <= 1))) break;
    if (good >= search.most || (bad > 0 && bad <= search.least)) break;
    load = bad == 0 ? good * 2 : good == 0 ? bad / 2 : (good + bad) / 2;
    if (search.is_whole) load = std::floor(load);
    load = std::clamp(load, search.least, search.most);
  }
  std::stable_sort(runs.begin(), runs.end(), [](const Measured& a, const Measured& b) {
    if (a.result.is_interrupted != b.result.is_interrupted) return b.result.is_interrupted;
    return a.result.offered_rate + static_cast<double>(a.result.concurrency) <
           b.result.offered_rate + static_cast<double>(b.result.concurrency);
  });
  return good;
}

}  // namespace trireme::load
