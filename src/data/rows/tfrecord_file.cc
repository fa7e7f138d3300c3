// TFRecord files of tf.Example messages as rows.
#include "base/error.h"
#include "data/readers/field_index.h"
#include "data/readers/tfrecord.h"
#include "data/rows/framed_file.h"

namespace trireme::data {
namespace {

using base::require;

/// Every length has its own checksum, so the start of the next record is known; a wrong checksum of the
/// content damages only its row.
class RecordWalk : public RowWalk {
 public:
  RecordWalk(std::unique_ptr<ByteStream> bytes, int64_t most_row_bytes)
      : RowWalk(std::move(bytes)), most_row_bytes_(static_cast<uint64_t>(most_row_bytes)) {}

  bool next(RowFrame& frame, bool with_content) override {
    frame.begin = bytes_->at();
    frame.damage.reset();
    frame.content = {};
    const std::string_view head = bytes_->peek(kRecordHead);
    if (head.empty()) return false;
    require(head.size() >= kRecordHead, "TFRecord file is cut off in a header at byte ", frame.begin);
    const uint64_t size = record_size(head.substr(0, kRecordHead), frame.begin);
    require(size <= INT64_MAX - kRecordHead - kRecordTail, "TFRecord file is damaged: record of ", size,
            " bytes at byte ", frame.begin);
    const uint64_t whole = kRecordHead + size + kRecordTail;
    if (size > most_row_bytes_) {
      frame.damage.emplace(base::ErrorCode::invalid_argument,
                           base::concat("record of ", size, " bytes at byte ", frame.begin,
                                        " is longer than the limit of ", most_row_bytes_));
    } else if (with_content) {
      take_content(frame, static_cast<size_t>(size));
    }
    bytes_->skip(whole);
    frame.end = bytes_->at();
    require(frame.end - frame.begin == whole, "TFRecord file is cut off: record of ", size, " bytes at byte ",
            frame.begin);
    return true;
  }

 private:
  void take_content(RowFrame& frame, size_t size) {
    const std::string_view all = bytes_->peek(kRecordHead + size + kRecordTail);
    if (all.size() < kRecordHead + size + kRecordTail) return;  // cut off; the caller notices
    frame.content = all.substr(kRecordHead, size);
    try {
      check_record(frame.content, all.substr(kRecordHead + size, kRecordTail), frame.begin + kRecordHead);
    } catch (const base::Error& e) {
      frame.damage = e;
    }
  }

  uint64_t most_row_bytes_;
};

class ExampleDecoder : public RowDecoder {
 public:
  ExampleDecoder(const FieldIndex& index, const std::vector<Field>& fields, ColumnChoice choice)
      : index_(index), fields_(fields), choice_(std::move(choice)) {}

  void decode(const RowFrame& frame, RowsBuilder& rows) override {
    for (const Feature& feature : parse_example(frame.content)) {
      const Field* field = index_.find(fields_, feature.name);
      if (feature.size() == 0 || field == nullptr) continue;
      const size_t place = choice_.place_of[static_cast<size_t>(field - fields_.data())];
      if (place != kNoPlace) add(feature, rows.column(place));
    }
  }

 private:
  static void add(const Feature& feature, ColumnBuilder& column) {
    const Field& field = column.field();
    if (field.kind == FieldKind::tensor) {
      require(feature.bytes.empty(), "feature is not ", tensor::name_of(field.dtype),
              " as in the records before: '", field.name, "'");
      column.add(feature_tensor(feature, field.shape));
      return;
    }
    if (field.is_json && feature.bytes.size() == feature.size()) return column.add(feature_json(feature));
    require(feature.bytes.size() == 1, "feature is not one text: '", field.name, "', ", feature.bytes.size(),
            " texts, ", feature.size(), " values");
    column.add(std::string(feature.bytes[0]));
  }

  const FieldIndex& index_;
  const std::vector<Field>& fields_;
  ColumnChoice choice_;
};

class TfRecordFile : public FramedFile {
 public:
  explicit TfRecordFile(RowSource source) : FramedFile("tfrecord", std::move(source)) {
    const std::unique_ptr<RowWalk> walk = walk_from(0);
    ExampleFields learned;
    RowFrame frame;
    for (int64_t row = 0; row < kLearnedRows && walk->next(frame, true); ++row) {
      if (frame.damage) continue;  // reported when it is read
      try {
        learned.learn(parse_example(frame.content));
      } catch (const base::Error&) {
        continue;
      }
    }
    fields_ = learned.row_fields();
    index_.assign(fields_);
  }

  std::unique_ptr<RowWalk> walk(std::unique_ptr<ByteStream> bytes) const override {
    return std::make_unique<RecordWalk>(std::move(bytes), source().options.most_row_bytes);
  }
  std::unique_ptr<RowDecoder> decoder(ColumnChoice choice) const override {
    return std::make_unique<ExampleDecoder>(index_, fields_, std::move(choice));
  }

 private:
  FieldIndex index_;
};

}  // namespace

std::unique_ptr<RowFile> open_tfrecord_rows(RowSource source) {
  return std::make_unique<TfRecordFile>(std::move(source));
}

}  // namespace trireme::data
