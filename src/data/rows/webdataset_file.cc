// WebDataset shards as rows: adjacent archive members with the same key form one row.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "data/readers/field_index.h"
#include "data/readers/tar.h"
#include "data/readers/webdataset_member.h"
#include "data/rows/framed_file.h"

namespace trireme::data {
namespace {

using base::require;

constexpr const char* kKey = "__key__";  // the webdataset library's name for it
constexpr int64_t kMostUnpackedBytes = int64_t{1} << 30;

/// A sample ends where a member with another key begins; that header is read again for the next sample.
class SampleWalk : public RowWalk {
 public:
  SampleWalk(std::unique_ptr<ByteStream> bytes, int64_t archive_bytes, int64_t most_row_bytes)
      : RowWalk(std::move(bytes)),
        most_row_bytes_(static_cast<uint64_t>(most_row_bytes)),
        scan_([this](uint64_t offset, size_t size) { return read(offset, size); }, bytes_->at(),
              static_cast<uint64_t>(archive_bytes)) {}

  bool next(RowFrame& frame, bool with_content) override {
    frame.parts.clear();
    frame.damage.reset();
    std::string key;
    uint64_t size = 0;
    bool any = false;
    while (has_member_ || (scan_.at() < end_ && scan_.next(member_))) {
      has_member_ = true;
      const auto [member_key, extension] = split_member_name(member_.name);
      if (!extension.empty()) {
        if (any && member_key != key) break;
        if (!any) frame.begin = member_.header;
        any = true;
        key = member_key;
        size += member_.size;
        if (with_content) take_part(frame, std::string(extension), size);
      }
      has_member_ = false;
      if (!extension.empty()) frame.end = scan_.at();
    }
    if (!any) return false;
    frame.key = std::move(key);
    return true;
  }

 private:
  std::string_view read(uint64_t offset, size_t size) {
    base::check(offset >= bytes_->at(), "archive is read backwards at byte ", offset);
    bytes_->skip(offset - bytes_->at());
    if (bytes_->at() < offset) return {};
    return bytes_->peek(size).substr(0, size);
  }

  void take_part(RowFrame& frame, std::string extension, uint64_t sample_bytes) {
    if (sample_bytes > most_row_bytes_) {
      frame.damage.emplace(base::ErrorCode::invalid_argument,
                           base::concat("sample of more than ", most_row_bytes_, " bytes at byte ",
                                        frame.begin, " is longer than the limit"));
      return;
    }
    const auto size = static_cast<size_t>(member_.size);
    const std::string_view content = read(member_.offset, size);
    require(content.size() == size, "archive is cut off in a member at byte ", member_.offset);
    frame.parts.push_back({std::move(extension), std::string(content)});
  }

  uint64_t most_row_bytes_;
  TarScan scan_;
  TarMember member_;
  bool has_member_ = false;  // `member_` belongs to the next sample
};

class SampleDecoder : public RowDecoder {
 public:
  SampleDecoder(const FieldIndex& index, const std::vector<Field>& fields, ColumnChoice choice)
      : index_(index), fields_(fields), choice_(std::move(choice)) {}

  void decode(const RowFrame& frame, RowsBuilder& rows) override {
    if (const size_t place = place_of(kKey); place != kNoPlace) rows.column(place).add(frame.key);
    for (const FramePart& part : frame.parts) {
      const MemberKind& kind = kind_of(part.name);
      const size_t place = place_of(kind.field);
      if (place == kNoPlace) continue;
      try {
        add(decode_member(kind, part.content, kMostUnpackedBytes), rows.column(place));
      } catch (const base::Error& e) {
        throw e.with("'" + frame.key + "', member ." + kind.name);
      }
    }
  }

 private:
  static void add(Value value, ColumnBuilder& column) {
    if (value.tensor.defined()) {
      column.add(value.tensor);
    } else {
      column.add(std::move(value.strings.at(0)));
    }
  }

  size_t place_of(std::string_view name) const {
    const Field* field = index_.find(fields_, name);
    return field == nullptr ? kNoPlace : choice_.place_of[static_cast<size_t>(field - fields_.data())];
  }

  const MemberKind& kind_of(const std::string& extension) {
    // An archive may contain any number of extensions, so the cache is cleared when it grows large.
    if (kinds_.size() > 1000) kinds_.clear();
    const auto [at, is_new] = kinds_.try_emplace(extension);
    if (is_new) at->second = parse_extension(extension);
    return at->second;
  }

  const FieldIndex& index_;
  const std::vector<Field>& fields_;
  ColumnChoice choice_;
  std::map<std::string, MemberKind> kinds_;
};

class WebDatasetFile : public FramedFile {
 public:
  explicit WebDatasetFile(RowSource source) : FramedFile("webdataset", std::move(source)) {
    FieldIndex index;
    const std::unique_ptr<RowWalk> walk = walk_from(0);
    RowFrame frame;
    for (int64_t row = 0; row < kLearnedRows && walk->next(frame, true); ++row) {
      for (const FramePart& part : frame.parts) index.add(fields_, parse_extension(part.name).as_field());
    }
    std::sort(fields_.begin(), fields_.end(), [](const Field& a, const Field& b) { return a.name < b.name; });
    std::erase_if(fields_, [](const Field& f) { return f.name == kKey; });
    fields_.insert(fields_.begin(), {kKey, FieldKind::text});
    index_.assign(fields_);
  }

  std::unique_ptr<RowWalk> walk(std::unique_ptr<ByteStream> bytes) const override {
    return std::make_unique<SampleWalk>(std::move(bytes), is_packed() ? INT64_MAX : source().file->size(),
                                        source().options.most_row_bytes);
  }
  std::unique_ptr<RowDecoder> decoder(ColumnChoice choice) const override {
    return std::make_unique<SampleDecoder>(index_, fields_, std::move(choice));
  }

 private:
  FieldIndex index_;
};

}  // namespace

std::unique_ptr<RowFile> open_webdataset_rows(RowSource source) {
  return std::make_unique<WebDatasetFile>(std::move(source));
}

}  // namespace trireme::data
