// Keeps web pages from using a server that their reader can reach: foreign origins and rebound names.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/message.h"
#include "serve/access/access.h"

namespace trireme::serve {

/// A browser sends requests to any address for any page. What such a request says of itself is looked at
/// before anything is done: the name it was sent to, the page's origin, the form of its body.
class BrowserGuard {
 public:
  /// `names` besides addresses, names without a dot (which nobody can register) and this machine's own:
  /// `*.example.com` is all below, `*` any. Throws invalid_argument for what is no name.
  explicit BrowserGuard(std::vector<std::string> names);

  /// The answer to a request that is not let in; none: it is.
  std::optional<http::Response> refusal(const http::Request& request, Category category) const;
  /// Whether clients may call this server so; with or without a port.
  bool is_own_name(std::string_view host) const;

 private:
  std::vector<std::string> names_;
};

}  // namespace trireme::serve
