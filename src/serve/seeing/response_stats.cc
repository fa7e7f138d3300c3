// Statistics of a decoupled model's answers, by their position.
#include "serve/seeing/response_stats.h"

#include <algorithm>
#include <string>

namespace trireme::serve {
namespace {

/// The number of positions that are distinguished; the last one covers all later ones.
constexpr int64_t kMostPlaces = 1024;

}  // namespace

void ResponseStats::Sum::add(int64_t by_ns) {
  ++count;
  ns += static_cast<uint64_t>(std::max<int64_t>(0, by_ns));
}

base::Json ResponseStats::Sum::json() const { return base::Json::object({{"count", count}, {"ns", ns}}); }

ResponseStats::Place& ResponseStats::at(std::vector<Place>& places, int64_t index) {
  const auto place = static_cast<size_t>(std::clamp<int64_t>(index, 0, kMostPlaces - 1));
  if (places.size() <= place) places.resize(place + 1);
  return places[place];
}

void ResponseStats::count_answer(int64_t index, int64_t infer_ns, int64_t output_ns) {
  places_.with([&](auto& places) {
    Place& place = at(places, index);
    place.infer.add(infer_ns);
    place.output.add(output_ns);
    place.success.add(infer_ns + output_ns);
  });
}

void ResponseStats::count_empty(int64_t index, int64_t took_ns) {
  places_.with([&](auto& places) { at(places, index).empty.add(took_ns); });
}

void ResponseStats::count_failure(int64_t index, int64_t took_ns) {
  places_.with([&](auto& places) { at(places, index).fail.add(took_ns); });
}

void ResponseStats::count_cancel(int64_t index, int64_t took_ns) {
  places_.with([&](auto& places) { at(places, index).cancel.add(took_ns); });
}

base::Json ResponseStats::json() const {
  return places_.with([](const auto& places) {
    base::Json all = base::Json::object();
    for (size_t i = 0; i < places.size(); ++i) {
      const Place& p = places[i];
      all.set(std::to_string(i), base::Json::object({{"compute_infer", p.infer.json()},
                                                     {"compute_output", p.output.json()},
                                                     {"success", p.success.json()},
                                                     {"fail", p.fail.json()},
                                                     {"empty_response", p.empty.json()},
                                                     {"cancel", p.cancel.json()}}));
    }
    return all;
  });
}

}  // namespace trireme::serve
