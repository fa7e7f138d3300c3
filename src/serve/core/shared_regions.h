// System shared memory that clients put their tensors in: regions by name, open while registered or in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/guarded.h"
#include "base/text/json.h"
#include "serve/infer/infer_request.h"

namespace trireme::serve {

/// Any thread. Bytes are copied by the kernel (pread, pwrite) and never mapped: a client that changes or
/// truncates its object while it is used can neither change a checked value nor kill the server.
class SharedRegions {
 public:
  /// `is_allowed`: false refuses all but looking, since a region lets a client name the machine's memory.
  explicit SharedRegions(bool is_allowed) : is_allowed_(is_allowed) {}
  void require_allowed() const;

  /// Opens `bytes` of the POSIX object `key` from `offset`. Throws invalid_argument where the name is taken
  /// or the object is missing or smaller.
  void add(const std::string& name, const std::string& key, uint64_t offset, uint64_t bytes);
  /// Forgets a region, or all for an empty name; an unknown name is no error.
  void remove(const std::string& name);
  /// `[{"name","key","offset","byte_size"}]`; of one region or, for an empty name, of all. Throws not_found.
  base::Json status(const std::string& name) const;

  /// `tensor` (name, type, dims) with the values that lie at `span`. Throws invalid_argument for an unknown
  /// region, a place outside of it, or a size that does not fit.
  WireTensor read(WireTensor tensor, const RegionSpan& span, std::string_view model = {}) const;
  /// Writes an output's bytes; throws where they do not fit, naming both sizes.
  void write(const RegionSpan& span, std::string_view bytes) const;

 private:
  struct Region {
    std::string key;
    uint64_t offset = 0, bytes = 0;
    std::shared_ptr<const int> object;  ///< file descriptor, closed with the last user
  };
  Region find(const RegionSpan& span) const;

  const bool is_allowed_;
  base::Guarded<std::map<std::string, Region>> regions_;
};

/// The regions of each tenant, which no other one can name. Any thread.
class TenantRegions {
 public:
  explicit TenantRegions(bool is_allowed) : is_allowed_(is_allowed), shared_(is_allowed) {}
  /// Stays where it is. Tenants beyond a bound share what those share who are not told apart.
  SharedRegions& of(const std::string& tenant);

 private:
  static constexpr size_t kMostTenants = 4096;
  const bool is_allowed_;
  SharedRegions shared_;
  base::Guarded<std::map<std::string, std::unique_ptr<SharedRegions>>> by_tenant_;
};

}  // namespace trireme::serve
