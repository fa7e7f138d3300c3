// libFuzzer entry: bytes that another server sends as pages give no page but those that were asked for, as
// their sender wrote them.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "engine/pages/handed_pages.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const trireme::fuzz::BoundedWork bounded(size);
  using namespace trireme::engine;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  constexpr int64_t kPage = 24;
  const std::vector<PageId> ids{{1, 2}, {3, 4}, {5, 6}};
  // As they come: whatever is taken is the record that its sender would have written.
  size_t at = 0, number = 0;
  for (const std::byte* page : page_records(bytes, ids, kPage)) {
    const std::string record = page_record(ids[number++], {page, kPage});
    if (page != bytes.data() + at + kPageHeadBytes ||
        std::memcmp(record.data(), data + at, record.size()) != 0)
      std::abort();
    at += record.size();
  }
  // Good records of the input's bytes, one of which is damaged: those before it are taken, and no other.
  std::string sent;
  for (size_t i = 0; i < ids.size() && (i + 1) * kPage <= size; ++i)
    sent += page_record(ids[i], bytes.subspan(i * kPage, kPage));
  const size_t record = kPageHeadBytes + kPage, whole = sent.size() / record;
  if (whole == 0) return 0;
  if (page_records(std::as_bytes(std::span(sent)), ids, kPage).size() != whole) std::abort();
  const size_t place = (size_t{data[0]} << 8 | data[1]) % sent.size();
  sent[place] = static_cast<char>(sent[place] ^ 1 << data[2] % 8);
  if (page_records(std::as_bytes(std::span(sent)), ids, kPage).size() != place / record) std::abort();
  return 0;
}
