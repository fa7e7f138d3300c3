// .npz files: the zip directory, and stored and deflated members.
#include <cstring>
#include <zlib.h>

#include "base/files/file.h"
#include "model/npy.h"

namespace trireme::model {
namespace {

constexpr uint32_t kEndSignature = 0x06054b50, kEntrySignature = 0x02014b50, kLocalSignature = 0x04034b50;
constexpr uint32_t kEnd64Signature = 0x06064b50, kLocatorSignature = 0x07064b50;
constexpr size_t kEndSize = 22, kLocatorSize = 20, kEntrySize = 46, kLocalSize = 30, kMaxComment = 65535;

uint64_t field(std::string_view bytes, size_t at, size_t size) {
  base::require(at <= bytes.size() && size <= bytes.size() - at, "zip file is truncated");
  uint64_t value = 0;
  for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

struct Entry {
  std::string_view name;
  uint64_t method = 0, crc = 0, packed_bytes = 0, bytes = 0, offset = 0;
};

/// Sizes and the offset that do not fit 32 bits are in the ZIP64 extra field, in this order.
void read_zip64(std::string_view extra, Entry& entry) {
  for (size_t at = 0; at + 4 <= extra.size();) {
    const uint64_t id = field(extra, at, 2), size = field(extra, at + 2, 2);
    at += 4;
    if (id == 1) {
      for (uint64_t* value : {&entry.bytes, &entry.packed_bytes, &entry.offset}) {
        if (*value != 0xffffffff) continue;
        *value = field(extra, at, 8);
        at += 8;
      }
      return;
    }
    at += size;
  }
}

size_t find_end(std::string_view file) {
  base::require(file.size() >= kEndSize, "not a zip file");
  const size_t first = file.size() - std::min(file.size(), kEndSize + kMaxComment);
  for (size_t at = file.size() - kEndSize + 1; at-- > first;) {
    if (field(file, at, 4) == kEndSignature) return at;
  }
  base::fail_invalid("not a zip file: it has no end record");
}

struct Directory {
  uint64_t count = 0, offset = 0;  ///< of its entries
};

/// A count or an offset that does not fit the end record is in that of ZIP64, to which a locator points that
/// lies between the two.
Directory find_directory(std::string_view file) {
  const size_t end = find_end(file);
  Directory found{.count = field(file, end + 10, 2), .offset = field(file, end + 16, 4)};
  if (found.count != 0xffff && found.offset != 0xffffffff) return found;
  if (end < kLocatorSize || field(file, end - kLocatorSize, 4) != kLocatorSignature) return found;
  const uint64_t end64 = field(file, end - kLocatorSize + 8, 8);
  base::require(field(file, end64, 4) == kEnd64Signature, "zip directory is damaged");
  return {.count = field(file, end64 + 32, 8), .offset = field(file, end64 + 48, 8)};
}

std::vector<Entry> read_directory(std::string_view file) {
  const Directory directory = find_directory(file);
  uint64_t at = directory.offset;
  std::vector<Entry> entries;
  for (uint64_t i = 0; i < directory.count; ++i) {
    base::require(field(file, at, 4) == kEntrySignature, "zip directory is damaged");
    Entry e{.method = field(file, at + 10, 2),
            .crc = field(file, at + 16, 4),
            .packed_bytes = field(file, at + 20, 4),
            .bytes = field(file, at + 24, 4),
            .offset = field(file, at + 42, 4)};
    const uint64_t name = field(file, at + 28, 2), extra = field(file, at + 30, 2),
                   comment = field(file, at + 32, 2);
    field(file, at + kEntrySize, 0);
    base::require(name + extra <= file.size() - at - kEntrySize, "zip directory is truncated");
    e.name = file.substr(at + kEntrySize, name);
    read_zip64(file.substr(at + kEntrySize + name, extra), e);
    entries.push_back(e);
    at += kEntrySize + name + extra + comment;
  }
  return entries;
}

std::shared_ptr<std::string> inflate_raw(std::string_view packed, uint64_t bytes) {
  // Deflate cannot compress data by more than 1032 times. A larger claim is false, and is refused before
  // memory is allocated.
  base::require(bytes <= packed.size() * 1032 + 64, "zip member claims an impossible size");
  auto out = std::make_shared<std::string>(bytes, '\0');
  z_stream z{};
  base::check(inflateInit2(&z, -15) == Z_OK, "zlib does not start");
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  z.next_out = reinterpret_cast<Bytef*>(out->data());
  uint64_t in_left = packed.size(), out_left = bytes;
  int status = Z_OK;
  while (status == Z_OK) {
    z.avail_in = static_cast<uInt>(std::min<uint64_t>(in_left, 1u << 30));
    z.avail_out = static_cast<uInt>(std::min<uint64_t>(out_left, 1u << 30));
    const uInt in_before = z.avail_in, out_before = z.avail_out;
    status = inflate(&z, Z_NO_FLUSH);
    in_left -= in_before - z.avail_in;
    out_left -= out_before - z.avail_out;
    if (in_before == z.avail_in && out_before == z.avail_out)
      break;  // no progress: the input ended or the output is full
  }
  inflateEnd(&z);
  base::require(status == Z_STREAM_END && out_left == 0, "zip member is damaged");
  return out;
}

tensor::Tensor read_member(std::string_view file, const Entry& entry,
                           const std::shared_ptr<const void>& owner) {
  base::require(field(file, entry.offset, 4) == kLocalSignature, "zip member is damaged");
  const uint64_t start =
      entry.offset + kLocalSize + field(file, entry.offset + 26, 2) + field(file, entry.offset + 28, 2);
  base::require(start <= file.size() && entry.packed_bytes <= file.size() - start, "zip member is truncated");
  const std::string_view packed = file.substr(start, entry.packed_bytes);
  if (entry.method == 0) return parse_npy(packed, owner);
  if (entry.method != 8) base::fail_unsupported("zip compression method ", entry.method, " is not supported");
  const auto data = inflate_raw(packed, entry.bytes);
  const uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(data->data()), data->size());
  base::require(crc == entry.crc, "zip member fails its checksum");
  return parse_npy(*data, data);
}

}  // namespace

std::vector<std::pair<std::string, tensor::Tensor>> parse_npz(std::string_view bytes,
                                                              const std::shared_ptr<const void>& owner) {
  std::vector<std::pair<std::string, tensor::Tensor>> arrays;
  uint64_t left = bytes.size();  // for further members, as members that share bytes are an attack
  for (const Entry& entry : read_directory(bytes)) {
    base::require(entry.packed_bytes <= left, "zip members overlap");
    left -= entry.packed_bytes;
    std::string name(entry.name);
    if (!name.ends_with(".npy")) continue;
    name.resize(name.size() - 4);
    try {
      arrays.emplace_back(name, read_member(bytes, entry, owner));
    } catch (const base::Error& e) {
      throw e.with(base::concat("array '", name, "'"));
    }
  }
  return arrays;
}

std::vector<std::pair<std::string, tensor::Tensor>> read_npz(const std::string& path) {
  const auto file = base::MappedFile::open(path);
  try {
    return parse_npz(file->text(), file);
  } catch (const base::Error& e) {
    throw e.with(base::concat("file '", path, "'"));
  }
}

}  // namespace trireme::model
