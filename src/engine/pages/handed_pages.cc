// The form in which pages travel from one process to another.
#include "engine/pages/handed_pages.h"

namespace trireme::engine {

std::string page_record(const PageId& id, std::span<const std::byte> content) {
  const auto head = page_head(id, content);
  std::string record;
  record.reserve(head.size() + content.size());
  record.append(reinterpret_cast<const char*>(head.data()), head.size());
  record.append(reinterpret_cast<const char*>(content.data()), content.size());
  return record;
}

std::vector<const std::byte*> page_records(std::span<const std::byte> bytes, std::span<const PageId> ids,
                                           int64_t page_bytes) {
  const size_t size = kPageHeadBytes + static_cast<size_t>(page_bytes);
  std::vector<const std::byte*> pages;
  for (const PageId& id : ids) {
    if (bytes.size() < size) break;
    const std::span<const std::byte> content = page_content(bytes.first(size), id);
    if (content.empty()) break;
    pages.push_back(content.data());
    bytes = bytes.subspan(size);
  }
  return pages;
}

}  // namespace trireme::engine
