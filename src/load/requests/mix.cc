// Reading mixes; dealing classes in exact shares; messages for a trace.
#include "load/requests/mix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"

namespace trireme::load {
namespace {

constexpr size_t kCards = 1000;
constexpr std::array<std::string_view, 10> kEntryKeys = {
    "method", "header", "body", "text_file", "model", "shape", "range", "batch", "format", "variants"};

MixEntry parse_entry(const base::Json& json, const LoadOptions& defaults) {
  MixEntry entry;
  entry.options = defaults;
  base::Json rest = base::Json::object();
  for (const auto& member : json.as_object()) {
    const std::string& key = member.key;
    if (key == "name") {
      entry.name = member.value.as_string();
    } else if (key == "weight") {
      entry.weight = member.value.as_double();
    } else {
      base::require(std::find(kEntryKeys.begin(), kEntryKeys.end(), key) != kEntryKeys.end(),
                    "mix has an entry with an unknown key: ", key);
      rest.set(key, member.value);
    }
  }
  base::OptionList(entry.options).parse_json(rest);
  if (entry.name.empty()) entry.name = entry.options.model;
  base::require(!entry.name.empty(), "mix has an entry without a name");
  base::require(std::isfinite(entry.weight) && entry.weight > 0,
                "mix has a weight that is not above 0: ", entry.name);
  return entry;
}

// Gives each class its messages one after the other.
class Turns {
 public:
  explicit Turns(const Payload& payload) : members_(payload.classes.size()), next_(payload.classes.size()) {
    for (size_t i = 0; i < payload.class_of.size(); ++i) members_[payload.class_of[i]].push_back(i);
  }
  size_t next(size_t of_class) {
    const std::vector<size_t>& all = members_[of_class];
    return all[next_[of_class]++ % all.size()];
  }

 private:
  std::vector<std::vector<size_t>> members_;
  std::vector<size_t> next_;
};

}  // namespace

std::vector<MixEntry> parse_mix(const base::Json& json, const LoadOptions& defaults) {
  std::vector<MixEntry> entries;
  for (const base::Json& item : json.at("mix").as_array()) {
    MixEntry entry = parse_entry(item, defaults);
    for (const MixEntry& other : entries)
      base::require(other.name != entry.name, "mix has two entries of the name ", entry.name);
    entries.push_back(std::move(entry));
  }
  base::require(!entries.empty(), "mix has no entries");
  return entries;
}

std::vector<size_t> shuffled_shares(const std::vector<double>& weights, size_t cards, uint64_t seed) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  // Card i belongs to the class whose stretch of the summed weights holds its middle: whole cards, no drift.
  std::vector<size_t> deck;
  size_t at = 0;
  double end = weights[0];
  for (size_t i = 0; i < cards; ++i) {
    const double middle = (static_cast<double>(i) + 0.5) / static_cast<double>(cards) * total;
    while (middle > end && at + 1 < weights.size()) end += weights[++at];
    deck.push_back(at);
  }
  for (size_t i = deck.size() - 1; i > 0; --i) {
    const base::PhiloxBlock words = base::philox_block(seed, 0, i);
    const double share = base::uniform_f64(words[0], words[1]);
    std::swap(deck[i], deck[std::min(i, static_cast<size_t>(share * static_cast<double>(i + 1)))]);
  }
  return deck;
}

Payload make_mix(const std::vector<MixEntry>& entries, uint64_t seed) {
  Payload all;
  std::vector<double> weights;
  std::string description;
  for (size_t e = 0; e < entries.size(); ++e) {
    Payload one = make_payload(entries[e].options);
    if (e == 0) {
      all.url = one.url;
      all.target = one.target;
      all.prefix = one.prefix;
      all.headers = one.headers;
      all.items_per_request = one.items_per_request;
    }
    if (one.items_per_request != all.items_per_request) all.items_per_request = 1;
    for (std::string& request : one.requests) {
      all.requests.push_back(std::move(request));
      all.class_of.push_back(e);
    }
    std::move(one.warm_up.begin(), one.warm_up.end(), std::back_inserter(all.warm_up));
    for (const std::string& model : one.models) {
      if (std::find(all.models.begin(), all.models.end(), model) == all.models.end())
        all.models.push_back(model);
    }
    all.classes.push_back(entries[e].name);
    weights.push_back(entries[e].weight);
    description += (e > 0 ? "; " : "") + entries[e].name + ": " + one.description;
  }
  all.description = "mix of " + std::to_string(entries.size()) + ": " + description;
  Turns turns(all);
  for (const size_t card : shuffled_shares(weights, kCards, seed)) all.order.push_back(turns.next(card));
  return all;
}

std::vector<size_t> requests_of(const std::vector<Arrival>& arrivals, const Payload& payload) {
  Turns turns(payload);
  std::vector<size_t> out;
  size_t next = 0;
  for (const Arrival& a : arrivals) {
    if (a.model.empty() || payload.classes.empty()) {
      out.push_back(payload.order.empty() ? next % payload.requests.size()
                                          : payload.order[next % payload.order.size()]);
      ++next;
      continue;
    }
    const auto found = std::find(payload.classes.begin(), payload.classes.end(), a.model);
    base::require(found != payload.classes.end(), "trace names a model that the mix has not: ", a.model);
    out.push_back(turns.next(static_cast<size_t>(found - payload.classes.begin())));
  }
  return out;
}

}  // namespace trireme::load
