// Thrift's compact protocol as far as finding the row groups of a footer needs it.
#include "data/rows/arrow/parquet_footer.h"

#include <optional>
#include <utility>

#include "base/error.h"

namespace trireme::data {
namespace {

using base::require;

// Fields of FileMetaData and RowGroup in parquet.thrift.
constexpr int64_t kRowGroups = 4, kRowsOfGroup = 3;
constexpr int kMostDepth = 32;  // parquet.thrift needs 6

enum Wire : uint8_t {
  kStop = 0,
  kTrue = 1,
  kFalse = 2,
  kByte = 3,
  kI16 = 4,
  kI32 = 5,
  kI64 = 6,
  kDouble = 7,
  kBinary = 8,
  kList = 9,
  kSet = 10,
  kMap = 11,
  kStruct = 12,
  kUuid = 13
};

class Walk {
 public:
  explicit Walk(std::string_view bytes) : bytes_(bytes) {}

  size_t at() const { return at_; }
  uint8_t byte() {
    need(1);
    return static_cast<uint8_t>(bytes_[at_++]);
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t b = byte();
      value |= uint64_t{b & 0x7fU} << shift;
      if (b < 0x80) return value;
    }
    base::fail_invalid("Parquet file is damaged: its footer has a number of more than 64 bits at byte ", at_);
  }
  int64_t integer() {
    const uint64_t value = varint();
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  }
  /// The head of a list or set: the type of its elements, and how many there are.
  std::pair<Wire, uint64_t> list_head() {
    constexpr uint8_t kLong = 15;
    const uint8_t head = byte();
    const uint64_t count = head >> 4 == kLong ? varint() : head >> 4;
    require(count <= bytes_.size() - at_, "Parquet file is damaged: its footer has a list of ", count,
            " elements in ", bytes_.size() - at_, " bytes");
    return {static_cast<Wire>(head & 0x0f), count};
  }
  /// `take(id, type)` reads the value of a field, or returns false without reading.
  template <class Take>
  void fields(int depth, const Take& take) {
    require(depth < kMostDepth, "Parquet file is damaged: its footer has structures inside of ", kMostDepth,
            " others");
    for (int64_t id = 0;;) {
      const uint8_t head = byte();
      const Wire type = static_cast<Wire>(head & 0x0f);
      if (type == kStop) return;
      id = head >> 4 == 0 ? integer() : id + (head >> 4);
      if (!take(id, type)) skip(type, depth);
    }
  }
  void skip(Wire type, int depth) {
    switch (type) {
      case kTrue:
      case kFalse: return;  // the type of a field is its value
      case kByte: return pass(1);
      case kI16:
      case kI32:
      case kI64: return static_cast<void>(varint());
      case kDouble: return pass(8);
      case kUuid: return pass(16);
      case kBinary: return pass(varint());
      case kList:
      case kSet: {
        const auto [element, count] = list_head();
        for (uint64_t i = 0; i < count; ++i) skip_element(element, depth + 1);
        return;
      }
      case kMap: return skip_map(depth);
      case kStruct: return fields(depth + 1, [](int64_t, Wire) { return false; });
      case kStop: break;
    }
    base::fail_invalid("Parquet file is damaged: its footer has a value of unknown type ", int{type},
                       " at byte ", at_);
  }

 private:
  void need(uint64_t bytes) const {
    require(bytes <= bytes_.size() - at_, "Parquet file is damaged: its footer ends inside of a value");
  }
  void pass(uint64_t bytes) {
    need(bytes);
    at_ += static_cast<size_t>(bytes);
  }
  void skip_element(Wire type, int depth) {
    require(depth < kMostDepth, "Parquet file is damaged: its footer has lists inside of ", kMostDepth,
            " others");
    type == kTrue || type == kFalse ? pass(1) : skip(type, depth);
  }
  void skip_map(int depth) {
    const uint64_t count = varint();
    if (count == 0) return;
    const uint8_t types = byte();
    require(count <= bytes_.size() - at_, "Parquet file is damaged: its footer has a map of ", count,
            " values in ", bytes_.size() - at_, " bytes");
    for (uint64_t i = 0; i < count; ++i) {
      skip_element(static_cast<Wire>(types >> 4), depth + 1);
      skip_element(static_cast<Wire>(types & 0x0f), depth + 1);
    }
  }

  std::string_view bytes_;
  size_t at_ = 0;
};

ParquetFooter::Group read_group(Walk& walk) {
  const size_t begin = walk.at();
  std::optional<int64_t> rows;
  walk.fields(1, [&](int64_t id, Wire type) {
    if (id != kRowsOfGroup || type != kI64) return false;
    rows = walk.integer();
    return true;
  });
  require(rows.has_value(), "Parquet file is damaged: a row group does not say its rows");
  return {.begin = static_cast<uint32_t>(begin),
          .bytes = static_cast<uint32_t>(walk.at() - begin),
          .rows = *rows};
}

/// The head of a list of structures.
std::string list_head(size_t count) {
  constexpr size_t kMostShort = 14;
  std::string head;
  if (count <= kMostShort) {
    head.push_back(static_cast<char>(count << 4 | kStruct));
    return head;
  }
  head.push_back(static_cast<char>(0xf0 | kStruct));
  for (; count >= 0x80; count >>= 7) head.push_back(static_cast<char>(0x80 | (count & 0x7f)));
  head.push_back(static_cast<char>(count));
  return head;
}

}  // namespace

ParquetFooter::ParquetFooter(std::string bytes) : bytes_(std::move(bytes)) {
  require(bytes_.size() <= UINT32_MAX, "Parquet file is damaged: its footer has ", bytes_.size(), " bytes");
  Walk walk(bytes_);
  walk.fields(0, [&](int64_t id, Wire type) {
    if (id != kRowGroups) return false;
    require(type == kList && list_end_ == 0, "Parquet file is damaged: its row groups are no list");
    list_begin_ = walk.at();
    const auto [element, count] = walk.list_head();
    require(element == kStruct || count == 0, "Parquet file is damaged: its row groups are no structures");
    for (uint64_t i = 0; i < count; ++i) groups_.push_back(read_group(walk));
    list_end_ = walk.at();
    return true;
  });
  require(list_end_ != 0, "Parquet file is damaged: it has no list of row groups");
  bytes_.resize(walk.at());
  groups_.shrink_to_fit();
}

std::string ParquetFooter::with_groups(size_t first, size_t last) const {
  base::check(first <= last && last <= groups_.size(), "row groups ", first, " to ", last, " of ",
              groups_.size());
  const std::string_view all = bytes_;
  std::string made(all.substr(0, list_begin_));
  made += list_head(last - first);
  if (first < last) {
    // They stand one behind another.
    const Group &begin = groups_[first], &end = groups_[last - 1];
    made += all.substr(begin.begin, end.begin + end.bytes - begin.begin);
  }
  made += all.substr(list_end_);
  return made;
}

}  // namespace trireme::data
