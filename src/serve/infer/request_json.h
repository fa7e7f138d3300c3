// JSON of requests as values, bounded in what it costs: a value takes forty times the memory of a digit.
#pragma once

#include <string_view>

#include "base/text/json.h"

namespace trireme::serve {

/// Throws invalid_argument for text that is no JSON, or that has more than a million values.
base::Json request_json(std::string_view body, base::JsonLimits limits = {});
/// The same as events, which cost nothing and so have no limit of values.
void parse_request_json(std::string_view body, base::JsonHandler& handler, base::JsonLimits limits);

}  // namespace trireme::serve
