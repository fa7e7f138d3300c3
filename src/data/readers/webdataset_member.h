// Members of WebDataset shards: what their names say of sample and field, and what their bytes become.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "data/dataset/dataset.h"

namespace trireme::data {

enum class Decoding : uint8_t { image, integer, text, bytes };

/// How the content of an extension becomes a field.
struct MemberKind {
  std::string name;   // lower case, ".gz" taken off: "jpg", "seg.png"
  std::string field;  // "image", "label", "text", or the extension
  Decoding decoding = Decoding::bytes;
  bool is_gzip = false;

  Field as_field() const;
};

MemberKind parse_extension(std::string text);

/// "dir/0001.seg.png" -> "dir/0001" and "seg.png": the key ends at the first dot of the base name. Empty
/// extension: the member belongs to no sample, as those of "__index__" and of directories with such a name
/// (as in the webdataset library).
std::pair<std::string_view, std::string_view> split_member_name(std::string_view name);

/// The member's value; gzip is unpacked up to `limit_bytes`. Throws invalid_argument for damage.
Value decode_member(const MemberKind& kind, std::string_view content, int64_t limit_bytes);

}  // namespace trireme::data
