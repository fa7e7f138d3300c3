// Fuzzes shared memory regions: whatever offsets and sizes clients register and ask for, reads and writes
// reach exactly those bytes, and everything else is refused in bounded work.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "serve/core/shared_regions.h"
#include "tests/fuzz_bounds.h"

namespace {

using namespace trireme;

constexpr uint64_t kObjectBytes = 4096;

/// A shared memory object whose byte i is i % 251.
struct Object {
  std::string key = "/trireme_fuzz." + std::to_string(getpid());
  std::string content;
  Object() {
    for (uint64_t i = 0; i < kObjectBytes; ++i) content += static_cast<char>(i % 251);
    const int fd = shm_open(key.c_str(), O_CREAT | O_RDWR, 0600);
    if (fd < 0 || pwrite(fd, content.data(), kObjectBytes, 0) != static_cast<ssize_t>(kObjectBytes))
      std::abort();
    close(fd);
  }
  ~Object() { shm_unlink(key.c_str()); }
};

/// Numbers from the input: small ones, and ones near the limits of 64 bits.
class Numbers {
 public:
  Numbers(const uint8_t* bytes, size_t size) : at_(bytes), end_(bytes + size) {}
  bool empty() const { return at_ == end_; }
  uint8_t byte() { return at_ == end_ ? uint8_t{0} : *at_++; }
  uint64_t number() {
    const uint8_t kind = byte();
    uint64_t value = byte();
    value = value << 8 | byte();
    if (kind % 4 == 1) return uint64_t{0} - value;
    if (kind % 4 == 2) return (uint64_t{1} << kind % 63) + value;
    return kind % 4 == 3 ? kObjectBytes - value : value;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

template <class Body>
bool is_done(const Body& body) {
  try {
    body();
    return true;
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) std::abort();
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const Object kObject;
  const fuzz::BoundedWork bounded(size, {.s_per_byte = 1e-3, .total_per_byte = size_t{64} << 10});
  Numbers in(bytes, size);
  serve::SharedRegions regions(true);
  const uint64_t base = in.number(), whole = in.number();
  const bool is_inside = whole > 0 && base <= kObjectBytes && whole <= kObjectBytes - base;
  if (is_done([&] { regions.add("r", kObject.key, base, whole); }) != is_inside) std::abort();
  std::string now = kObject.content;
  while (!in.empty()) {
    const auto dtype = static_cast<tensor::DType>(in.byte() % 13);  // up to boolean: the types of requests
    const serve::RegionSpan span{.region = "r", .offset = in.number(), .bytes = in.number()};
    const bool fits = is_inside && span.offset <= whole && span.bytes <= whole - span.offset;
    if (in.byte() % 2 == 0) {
      serve::WireTensor t{
          .name = "x", .type = dtype, .dims = {static_cast<int64_t>(in.number()), in.byte() % 4}};
      is_done([&] {
        const serve::WireTensor read = regions.read(std::move(t), span);
        if (!fits || read.values.bytes() != static_cast<int64_t>(span.bytes)) std::abort();
        const bool is_same = std::memcmp(read.values.raw(), now.data() + base + span.offset, span.bytes) == 0;
        if (!is_same && dtype != tensor::DType::boolean) std::abort();
      });
    } else {
      const std::string text(in.number() % 64, static_cast<char>(in.byte()));
      if (is_done([&] { regions.write(span, text); }) != (fits && text.size() <= span.bytes)) std::abort();
      if (fits && text.size() <= span.bytes) now.replace(base + span.offset, text.size(), text);
    }
  }
  if (is_inside)
    regions.write({.region = "r", .offset = 0, .bytes = whole}, kObject.content.substr(base, whole));
  return 0;
}
