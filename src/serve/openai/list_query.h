// What the query of a list says in the OpenAI API: how many objects, behind which, in which order.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "http/message.h"

namespace trireme::serve {

/// The value of a word of the query; empty: it is not there.
inline std::string query_value(std::string_view query, std::string_view key) {
  while (!query.empty()) {
    const size_t end = query.find('&');
    const std::string_view one = query.substr(0, end);
    const size_t equals = one.find('=');
    if (one.substr(0, equals) == key && equals != std::string_view::npos)
      return http::percent_decode(one.substr(equals + 1));
    query.remove_prefix(end == std::string_view::npos ? query.size() : end + 1);
  }
  return {};
}

/// `limit`: 20 where it is not given, 100 at most. Throws invalid_argument for what is no such number.
inline int64_t page_of(std::string_view query) {
  constexpr int64_t kUsualPage = 20, kMostPage = 100;
  const std::string text = query_value(query, "limit");
  if (text.empty()) return kUsualPage;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  base::require(error == std::errc() && end == text.data() + text.size() && value >= 1, "limit: '",
                text.substr(0, 40), "' is no number of objects");
  return std::min(value, kMostPage);
}

}  // namespace trireme::serve
