// Scans a tar archive: one 512-byte header per member; an extended header applies to the next member.
#include "data/readers/tar.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace trireme::data {
namespace {

using base::require;

constexpr size_t kBlock = 512;

// A field of a header: its offset and length.
struct Part {
  size_t offset, length;
};
constexpr Part kName{0, 100}, kSize{124, 12}, kChecksum{148, 8}, kMagic{257, 6}, kPrefix{345, 155};
constexpr size_t kType = 156;

std::string_view text_of(std::string_view header, Part part) {
  const std::string_view field = header.substr(part.offset, part.length);
  return field.substr(0, std::min(field.find('\0'), field.size()));
}

/// Octal digits between blanks, or GNU's base 256 with the top bit set. False if the field is neither.
bool parse_number(std::string_view field, uint64_t& value) {
  value = 0;
  if ((static_cast<uint8_t>(field[0]) & 0x80u) != 0) {
    if (static_cast<uint8_t>(field[0]) != 0x80) return false;  // negative, or over 88 bits
    for (const char c : field.substr(1)) {
      if (value >> 56 != 0) return false;
      value = value << 8 | static_cast<uint8_t>(c);
    }
    return true;
  }
  const std::string_view blanks(" \0", 2);
  const size_t begin = std::min(field.find_first_not_of(blanks), field.size());
  const size_t end = std::min(field.find_first_of(blanks, begin), field.size());
  const char* stop = field.data() + end;
  if (begin == end) return true;  // blank means 0
  const auto [at, error] = std::from_chars(field.data() + begin, stop, value, 8);
  return error == std::errc() && at == stop;
}

/// Checks the sum of the header's bytes, its checksum field taken as blanks; old writers summed signed bytes.
bool checksum_fits(std::string_view header) {
  uint64_t stated = 0;
  if (!parse_number(header.substr(kChecksum.offset, kChecksum.length), stated)) return false;
  int64_t plain = 0, with_sign = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    const bool blank = i >= kChecksum.offset && i < kChecksum.offset + kChecksum.length;
    plain += blank ? ' ' : static_cast<uint8_t>(header[i]);
    with_sign += blank ? ' ' : static_cast<signed char>(header[i]);
  }
  return static_cast<int64_t>(stated) == plain || static_cast<int64_t>(stated) == with_sign;
}

std::string name_of(std::string_view header) {
  const std::string_view name = text_of(header, kName);
  // GNU's magic "ustar " stores other data where POSIX's "ustar\0" has the prefix.
  const bool posix = header.substr(kMagic.offset, kMagic.length) == std::string_view("ustar\0", 6);
  const std::string_view prefix = posix ? text_of(header, kPrefix) : std::string_view{};
  return prefix.empty() ? std::string(name) : std::string(prefix) + "/" + std::string(name);
}

// Limit for names and pax records; a larger extended header is an attack, or damaged.
constexpr uint64_t kMostExtensionBytes = uint64_t{1} << 20;

}  // namespace

/// Pax records "LENGTH key=value\n"; LENGTH counts the whole record.
void TarScan::read_pax(std::string_view records, Extension& next) {
  while (!records.empty()) {
    size_t length = 0;
    const auto [at, error] = std::from_chars(records.data(), records.data() + records.size(), length);
    const auto digits = static_cast<size_t>(at - records.data());
    require(error == std::errc() && length > digits + 1 && length <= records.size() && *at == ' ',
            "pax header is damaged");
    const std::string_view record = records.substr(digits + 1, length - digits - 2);  // without "\n"
    records.remove_prefix(length);
    const size_t equals = record.find('=');
    require(equals != std::string_view::npos, "pax header is damaged");
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") next.name = value;
    if (key == "size") {
      const auto [stop, bad] = std::from_chars(value.data(), value.data() + value.size(), next.size);
      require(bad == std::errc() && stop == value.data() + value.size(), "pax size is no number: ", value);
      next.has_size = true;
    }
  }
}

/// Returns true if `member` is a regular file.
bool TarScan::take_header(std::string_view header, TarMember& member) {
  require(checksum_fits(header), "not a tar header, or a damaged one");
  uint64_t size = 0;
  require(parse_number(header.substr(kSize.offset, kSize.length), size), "size is no number");
  const char type = header[kType];
  const bool extends = type == 'x' || type == 'g' || type == 'L' || type == 'K';
  if (!extends && next_.has_size) size = next_.size;
  const uint64_t room = archive_bytes_ - at_ - kBlock;
  require(size <= room, "member is cut off: ", size, " bytes, ", room, " left");
  const bool is_file = (type == '0' || type == '\0' || type == '7') && !extends;
  if (is_file) {
    member.name = next_.name.empty() ? name_of(header) : next_.name;
    member.offset = at_ + kBlock;
    member.size = size;
    member.header = begin_;
  }
  if (type == 'x' || type == 'L') {
    require(size <= kMostExtensionBytes, "extended header has ", size, " bytes");
    const std::string_view content = read_(at_ + kBlock, static_cast<size_t>(size));  // invalidates `header`
    require(content.size() >= size, "extended header is cut off");
    if (type == 'x') read_pax(content.substr(0, size), next_);
    if (type == 'L') next_.name = content.substr(0, std::min<size_t>(content.find('\0'), size));
  }
  if (!extends) next_ = {};
  // The last member's padding may be missing.
  at_ += kBlock + std::min<uint64_t>((size + kBlock - 1) / kBlock * kBlock, room);
  if (!extends) begin_ = at_;
  return is_file && !member.name.ends_with('/');
}

bool TarScan::next(TarMember& member) {
  begin_ = at_;
  try {
    for (;;) {
      const std::string_view header = read_(at_, kBlock).substr(0, kBlock);
      if (header.empty()) return false;
      require(header.size() == kBlock, "archive is cut off");
      if (header.find_first_not_of('\0') == std::string_view::npos) return false;
      if (take_header(header, member)) return true;
    }
  } catch (const base::Error& e) {
    throw e.with(base::concat("tar header at byte ", at_));
  }
}

std::vector<TarMember> list_tar(std::string_view archive) {
  const auto read = [&](uint64_t offset, size_t size) {
    return archive.substr(std::min<uint64_t>(offset, archive.size()), size);
  };
  TarScan scan(read, 0, archive.size());
  std::vector<TarMember> members;
  for (TarMember member; scan.next(member);) members.push_back(member);
  return members;
}

}  // namespace trireme::data
