// Chooses the store for a path.
#include "data/store/store.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "data/store/local_store.h"
#include "data/store/object_store.h"

namespace trireme::data {

std::string ObjectUrl::with_key(std::string_view other) const {
  return scheme + "://" + std::string(other) + (query.empty() ? "" : "?" + query);
}

ObjectUrl parse_object_url(const std::string& url) {
  static constexpr std::array<std::string_view, 4> kOptions = {
      "region=", "endpoint_override=", "scheme=", "anonymous="};
  const size_t colon = url.find("://");
  base::check(colon != std::string::npos, "not a URL: '", url, "'");
  ObjectUrl parts{url.substr(0, colon), url.substr(colon + 3), {}};
  for (size_t at = parts.key.find('?'); at != std::string::npos; at = parts.key.find('?', at + 1)) {
    const std::string_view rest = std::string_view(parts.key).substr(at + 1);
    const bool is_query = std::any_of(kOptions.begin(), kOptions.end(),
                                      [&](std::string_view option) { return rest.starts_with(option); });
    if (!is_query) continue;
    parts.query = std::string(rest);
    parts.key.resize(at);
    break;
  }
  const bool has_bucket = !parts.key.empty() && parts.key[0] != '/';
  base::require(has_bucket, "URL names no bucket: '", url, "'");
  return parts;
}

std::shared_ptr<const Store> store_of(const std::string& path) {
  const size_t colon = path.find("://");
  if (colon == std::string::npos || path.starts_with("file://")) return make_local_store();
  const std::string scheme = path.substr(0, colon);
  if (scheme != "s3" && scheme != "gs") {
    base::fail_unsupported("no store for the scheme '", scheme, "' of '", path,
                           "'; there are s3, gs, file and plain paths");
  }
  return object_store_of(parse_object_url(path));
}

}  // namespace trireme::data
