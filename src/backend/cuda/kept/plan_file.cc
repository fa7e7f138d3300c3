// The file format of one stored plan: its key and its bytes, with a checksum.
#include "backend/cuda/kept/plan_file.h"

#include <array>
#include <cstdio>

#include "base/crc32c.h"

namespace trireme::cuda {
namespace {

constexpr std::string_view kMagic = "TRPLAN1\n";
constexpr size_t kChecked = kMagic.size() + 4;  // the checksum covers what begins here
constexpr size_t kHeader = kChecked + 4 + 8;

void put(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i & 0xff);
}

uint64_t take(std::string_view bytes, size_t at, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i)
    value |= uint64_t{static_cast<unsigned char>(bytes[at + static_cast<size_t>(i)])} << 8 * i;
  return value;
}

}  // namespace

std::string plan_file(std::string_view key, std::string_view body) {
  std::string covered;
  put(covered, key.size(), 4);
  put(covered, body.size(), 8);
  covered += key;
  covered += body;
  std::string file(kMagic);
  put(file, base::crc32c(covered), 4);
  return file + covered;
}

PlanFile read_plan_file(std::string_view file, std::string_view key) {
  if (!file.starts_with(kMagic)) return {{}, "is no file of plans, or one of another version"};
  if (file.size() < kHeader) return {{}, "is cut short"};
  const uint64_t key_bytes = take(file, kChecked, 4), body_bytes = take(file, kChecked + 4, 8);
  const uint64_t behind = file.size() - kHeader;
  if (key_bytes > behind || body_bytes > behind - key_bytes) return {{}, "is cut short"};
  if (key_bytes + body_bytes != behind) return {{}, "is longer than it says"};
  if (take(file, kMagic.size(), 4) != base::crc32c(file.substr(kChecked)))
    return {{}, "does not match its checksum"};
  if (file.substr(kHeader, key_bytes) != key) return {{}, "is of another key"};
  return {file.substr(kHeader + key_bytes), {}};
}

/// FNV-1a, computed twice with different initial values.
std::string digest_of(std::string_view text) {
  std::string out;
  for (uint64_t h : {uint64_t{0xcbf29ce484222325}, uint64_t{0x84222325cbf29ce4}}) {
    for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    std::array<char, 17> digits{};
    std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(h));
    out += digits.data();
  }
  return out;
}

}  // namespace trireme::cuda
