// System shared memory in which clients place their tensors.
#include "serve/core/shared_regions.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace trireme::serve {
namespace {

/// Opens a POSIX shared memory object.
std::shared_ptr<const int> open_object(const std::string& key) {
  const bool is_name = key.size() > 1 && key.find('\0') == std::string::npos &&
                       key.find('/', 1) == std::string::npos && key.find("..") == std::string::npos;
  base::require(is_name, "Unable to open shared memory region: '", key, "' is no name of an object");
  const int fd = shm_open(key.c_str(), O_RDWR, 0);
  base::require(fd >= 0, "Unable to open shared memory region: '", key, "': ", std::strerror(errno));
  return {new int(fd), [](const int* p) {
            close(*p);
            delete p;
          }};
}

uint64_t object_bytes(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) ? static_cast<uint64_t>(info.st_size) : 0;
}

/// Moves `bytes` bytes with pread or pwrite; throws if the object has become shorter.
template <class Move>
void move_all(uint64_t bytes, const Move& move) {
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t moved = move(done);
    if (moved < 0 && errno == EINTR) continue;
    base::require(moved > 0, "shared memory region ended after ", done, " of ", bytes, " bytes");
    done += static_cast<uint64_t>(moved);
  }
}

}  // namespace

void SharedRegions::require_allowed() const {
  if (!is_allowed_) base::fail_unsupported("shared memory is not served: start with --allow-client-shm");
}

void SharedRegions::add(const std::string& name, const std::string& key, uint64_t offset, uint64_t bytes) {
  require_allowed();
  base::require(!name.empty() && bytes > 0, "a shared memory region needs a name and a byte_size");
  const std::shared_ptr<const int> object = open_object(key);
  const uint64_t have = object_bytes(*object);
  base::require(offset <= have && bytes <= have - offset, "failed to register shared memory region '", name,
                "': invalid args: offset ", offset, " + byte_size ", bytes, " exceed the object's ", have);
  Region region{.key = key, .offset = offset, .bytes = bytes, .object = object};
  const bool is_new =
      regions_.with([&](auto& regions) { return regions.try_emplace(name, std::move(region)).second; });
  base::require(is_new, "shared memory region '", name, "' already in manager");
}

void SharedRegions::remove(const std::string& name) {
  std::map<std::string, Region> gone;  // closed outside the lock
  regions_.with([&](auto& regions) {
    if (name.empty()) return std::swap(gone, regions);
    const auto at = regions.find(name);
    if (at != regions.end()) gone.insert(regions.extract(at));
  });
}

base::Json SharedRegions::status(const std::string& name) const {
  base::Json list = base::Json::array();
  regions_.with([&](const auto& regions) {
    for (const auto& [key, region] : regions) {
      if (!name.empty() && key != name) continue;
      list.push_back(base::Json::object(
          {{"name", key}, {"key", region.key}, {"offset", region.offset}, {"byte_size", region.bytes}}));
    }
  });
  if (!name.empty() && list.size() == 0) {
    base::fail(base::ErrorCode::not_found, "Unable to find system shared memory region: '", name, "'");
  }
  return list;
}

SharedRegions::Region SharedRegions::find(const RegionSpan& span) const {
  require_allowed();
  return regions_.with([&](const auto& regions) {
    const auto at = regions.find(span.region);
    base::require(at != regions.end(), "Unable to find shared memory region: '", span.region, "'");
    const Region& r = at->second;
    base::require(span.offset <= r.bytes && span.bytes <= r.bytes - span.offset,
                  "Invalid offset + byte size for shared memory region: '", span.region, "': ", span.offset,
                  " + ", span.bytes, ", the region has ", r.bytes);
    return r;
  });
}

WireTensor SharedRegions::read(WireTensor tensor, const RegionSpan& span, std::string_view model) const {
  const Region region = find(span);
  if (tensor.type) {  // checked before anything is copied: an object may be larger than free memory
    const int64_t expected = tensor::bytes_of(*tensor.type, wire_elements(tensor.name, tensor.dims));
    base::require(static_cast<uint64_t>(expected) == span.bytes, "input byte size mismatch for input '",
                  tensor.name, "' in shared memory region '", span.region, "'. Expected ", expected, ", got ",
                  span.bytes);
  }
  tensor::Tensor bytes = tensor::Tensor::empty(tensor::DType::u8, {static_cast<int64_t>(span.bytes)});
  auto* to = reinterpret_cast<char*>(bytes.mutable_raw());
  const uint64_t from = region.offset + span.offset;
  move_all(span.bytes, [&](uint64_t done) {
    return pread(*region.object, to + done, span.bytes - done, static_cast<off_t>(from + done));
  });
  const WireBytes own{{to, span.bytes}, bytes.owner(), model};
  if (!tensor.type)
    return tensor_from_bytes(std::move(tensor.name), tensor.type, std::move(tensor.dims), own);
  view_or_copy(tensor, own);
  return tensor;
}

void SharedRegions::write(const RegionSpan& span, std::string_view bytes) const {
  const Region region = find(span);
  base::require(bytes.size() <= span.bytes, "shared memory size specified with the request for output is ",
                span.bytes, " bytes, should be at least ", bytes.size());
  const uint64_t to = region.offset + span.offset;
  move_all(bytes.size(), [&](uint64_t done) {
    return pwrite(*region.object, bytes.data() + done, bytes.size() - done, static_cast<off_t>(to + done));
  });
}

SharedRegions& TenantRegions::of(const std::string& tenant) {
  if (tenant.empty() || !is_allowed_) return shared_;
  return by_tenant_.with([&](auto& all) -> SharedRegions& {
    const auto at = all.find(tenant);
    if (at != all.end()) return *at->second;
    if (all.size() == kMostTenants) return shared_;
    return *all.emplace(tenant, std::make_unique<SharedRegions>(is_allowed_)).first->second;
  });
}

}  // namespace trireme::serve
