// Names of classes from JSON and from lines of text.
#include "batch/models/class_names.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error.h"
#include "base/files/file.h"

namespace trireme::batch {
namespace {

constexpr const char* kKey = "id2label";
constexpr size_t kMostBytes = size_t{64} << 20;

/// {"0": "cat", "1": "dog"} in any order.
std::vector<std::string> names_by_number(const base::Json& mapping) {
  std::vector<std::string> names(mapping.size());
  std::vector<bool> is_named(names.size(), false);
  for (const base::JsonMember& m : mapping.as_object()) {
    size_t label = 0;
    const char* end = m.key.data() + m.key.size();
    const auto read = std::from_chars(m.key.data(), end, label);
    const bool fits = read.ec == std::errc() && read.ptr == end && label < names.size() && !is_named[label];
    base::require(fits, "names of classes: '", m.key, "' is none of 0 to ", names.size() - 1,
                  ", each of which is to be named once");
    is_named[label] = true;
    names[label] = m.value.as_string();
  }
  return names;
}

std::vector<std::string> names_in(const base::Json& json) {
  if (json.is_object()) return json.contains(kKey) ? class_names_of(json) : names_by_number(json);
  std::vector<std::string> names;
  for (const base::Json& name : json.as_array()) names.push_back(name.as_string());
  return names;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.emplace_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  while (!lines.empty() && lines.back().empty()) lines.pop_back();  // the file's end
  return lines;
}

}  // namespace

std::vector<std::string> class_names_of(const base::Json& config) {
  const base::Json* names = config.is_object() ? config.find(kKey) : nullptr;
  if (names == nullptr || names->is_null()) return {};
  base::require(names->is_object(), kKey, " is no mapping of classes to names");
  return names_by_number(*names);
}

std::vector<std::string> read_class_names(const std::string& path) {
  const std::string text = base::read_file(path, kMostBytes);
  try {
    const size_t first = text.find_first_not_of(" \t\r\n");
    const bool is_json = first != std::string::npos && (text[first] == '{' || text[first] == '[');
    std::vector<std::string> names = is_json ? names_in(base::parse_json(text)) : lines_of(text);
    base::require(!names.empty(), "it names no classes");
    return names;
  } catch (const base::Error& e) {
    throw e.with(base::concat("labels '", path, "'"));
  }
}

}  // namespace trireme::batch
