// Request mixes: several models, batch sizes or encodings in given shares of one load.
#pragma once

#include <string>
#include <vector>

#include "base/text/json.h"
#include "load/load_options.h"
#include "load/requests/payload.h"
#include "load/requests/trace.h"

namespace trireme::load {

struct MixEntry {
  std::string name;  // by default the model's
  double weight = 1;
  LoadOptions options;
};

/// Reads {"mix": [{"name": "small", "weight": 3, "model": "m", "batch": 1, "shape": ["x:1,8"]}, ...]}. An
/// entry takes the keys that say what is sent (method, header, body, text_file, model, shape, range, batch,
/// format, variants); the rest is `defaults`. Throws invalid_argument for other keys, equal names, or weights
/// not above 0.
std::vector<MixEntry> parse_mix(const base::Json& json, const LoadOptions& defaults);

/// In which class each of `cards` consecutive requests is: shares as near to the weights as whole cards
/// allow, in an order drawn from the seed.
std::vector<size_t> shuffled_shares(const std::vector<double>& weights, size_t cards, uint64_t seed);

/// All entries' messages with Payload's classes and order filled. Asks the server for each model's metadata.
Payload make_mix(const std::vector<MixEntry>& entries, uint64_t seed);

/// The message of each arrival: the class that its model names, taking that class's variants in turn; without
/// a name, or without classes, the next one of the payload's order. Throws invalid_argument if classes exist
/// but none has the name.
std::vector<size_t> requests_of(const std::vector<Arrival>& arrivals, const Payload& payload);

}  // namespace trireme::load
