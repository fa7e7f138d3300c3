// Names of parts and back.
#include "batch/state/job_directory.h"

#include <algorithm>
#include <charconv>

namespace trireme::batch {
namespace {

constexpr std::string_view kPart = "part-";
constexpr size_t kLeastDigits = 5;

}  // namespace

std::string JobDirectory::at(const std::string& name) const {
  return output + (name.empty() ? "" : "/") + name + query;
}

std::string JobDirectory::name_of(const std::string& path) const {
  const std::string_view plain =
      std::string_view(path).substr(0, query.empty() ? path.size() : path.find('?'));
  return std::string(plain.substr(plain.rfind('/') + 1));
}

std::string JobDirectory::part_name(int64_t chunk) const {
  const size_t digits = std::max(kLeastDigits, std::to_string(std::max<int64_t>(chunks - 1, 0)).size());
  std::string number = std::to_string(chunk);
  number.insert(0, digits - std::min(digits, number.size()), '0');
  return std::string(kPart) + number;
}

int64_t JobDirectory::chunk_of(const std::string& name, const std::string& behind) const {
  if (!name.starts_with(kPart)) return -1;
  int64_t chunk = -1;
  const char* last = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + kPart.size(), last, chunk);
  if (error != std::errc() || chunk < 0 || chunk >= chunks || name != part_name(chunk) + behind) return -1;
  return chunk;
}

}  // namespace trireme::batch
