// libFuzzer entry: bytes are either refused as a page file, or are exactly the file of one page.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "engine/pages/page_files.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const trireme::fuzz::BoundedWork bounded(size);
  using namespace trireme::engine;
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const PageId id{1, 2};
  // Takes the input as a file, and as the content of a file.
  const std::span<const std::byte> found = page_content(file, id);
  if (!found.empty()) {
    const auto head = page_head(id, found);
    if (found.size() + head.size() != size || std::memcmp(head.data(), data, head.size()) != 0) std::abort();
  }
  if (size == 0) return 0;
  std::vector<std::byte> made;
  const auto head = page_head(id, file);
  made.assign(head.begin(), head.end());
  made.insert(made.end(), file.begin(), file.end());
  const std::span<const std::byte> again = page_content(made, id);
  if (again.size() != size || std::memcmp(again.data(), data, size) != 0) std::abort();
  if (!page_content(made, {1, 3}).empty()) std::abort();
  made[data[0] % made.size()] ^= std::byte{1};
  if (!page_content(made, id).empty()) std::abort();
  return 0;
}
