// Networks by name, with every choice an option: what `model: {source: zoo:NAME, config: {...}}` builds.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/model.h"
#include "model/params.h"

namespace trireme::model::zoo {

/// One row of the table of networks.
struct Entry {
  std::string name, meaning;
};

/// Every network that build() knows.
std::vector<Entry> entries();

/// Builds the network `name` with the options `assignments` ("layers=4"); every network has `seed`, on which
/// the weights depend. Throws invalid_argument for an unknown name or option, naming the nearest.
/// `params`: where the weights come from instead of the seed.
Model build(std::string_view name, std::span<const std::string> assignments = {},
            ParamSource* params = nullptr);

/// The options of a network with their present values, as build() would use them.
base::Json options_of(std::string_view name, std::span<const std::string> assignments = {});

/// A Markdown section for each network: its meaning and its options.
std::string markdown();

}  // namespace trireme::model::zoo
