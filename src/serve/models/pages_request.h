// What one server asks another one for whose pages of a prompt it wants: the body of POST
// /v2/models/NAME/pages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"

namespace trireme::serve {

/// `{"tokens": [1, 2, ...], "first": 0, "key": "32 hexadecimal digits", "salt": "hexadecimal digits",
/// "adapter": "polite", "priority": 0}`; tokens and key are needed.
struct PagesRequest {
  static constexpr size_t kMostSalt = 1024;  ///< bytes

  std::vector<int64_t> tokens = {};  ///< a prompt's beginning, whole pages
  int64_t first = 0;                 ///< the number of the first page that is wanted
  /// Drawn for this request: pages are named under it, so those of another request, or of a server that is no
  /// more, are none of its.
  base::KeyedHash::Key key{};
  std::string salt = {};     ///< of any bytes
  std::string adapter = {};  ///< empty: the model alone
  int64_t priority = 0;      ///< as the other server's scheduler has it; lower goes first
};

std::string to_json(const PagesRequest& request);
/// Throws invalid_argument for what is no such object.
PagesRequest pages_request(std::string_view body);

}  // namespace trireme::serve
