// The names in a directory.
#pragma once

#include <string>
#include <system_error>
#include <vector>

namespace trireme::base {

/// Sorted, without "." and "..". What cannot be read sets `error` and ends the list. Unlike
/// std::filesystem's iterators, whose steps are noexcept inside libstdc++, this throws where there is no
/// memory for a name.
std::vector<std::string> names_in(const std::string& path, std::error_code& error);

}  // namespace trireme::base
