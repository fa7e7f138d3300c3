// Header fields of HTTP/2 as they are passed around.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::http {

using Http2Field = std::pair<std::string_view, std::string_view>;
using Http2Fields = std::vector<std::pair<std::string, std::string>>;

}  // namespace trireme::http
