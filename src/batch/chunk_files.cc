// Writing a chunk: rows through the writer of the format, failures as lines of JSON, names at the end.
#include "batch/chunk_files.h"

#include <cmath>
#include <utility>

#include "base/crc32c.h"
#include "base/text/json.h"
#include "base/text/shortened.h"
#include "base/utf8.h"
#include "batch/state/posix_file.h"
#include "data/rows/row_file.h"

namespace trireme::batch {

/// Passes bytes on and adds up their checksum.
class PendingFile::Counted : public data::StoreWriter {
 public:
  explicit Counted(data::StoreWriter& to) : to_(to) {}
  void write(std::string_view bytes) override {
    to_.write(bytes);
    crc_ = base::crc32c(bytes, crc_);
    bytes_ += static_cast<int64_t>(bytes.size());
  }
  int64_t written_bytes() const override { return bytes_; }
  void commit() override { base::check(false, "a chunk's file is committed by whoever opened it"); }
  uint32_t crc() const { return crc_; }

 private:
  data::StoreWriter& to_;
  int64_t bytes_ = 0;
  uint32_t crc_ = 0;
};

PendingFile::PendingFile(const OutputForm& form, std::string path) : form_(form), path_(std::move(path)) {
  if (form_.store->is_local()) {
    std::string name = path_.substr(form_.directory.output.size() + 1);
    for (char& c : name) c = c == '/' ? '-' : c;
    temporary_ = form_.temporary + "/" + name;
  }
  file_ = form_.store->create(temporary_.empty() ? path_ : temporary_);
  counted_ = std::make_unique<Counted>(*file_);
}

PendingFile::~PendingFile() {
  file_.reset();
  if (temporary_.empty() || !is_sealed_) return;
  try {
    remove_file(temporary_);  // there is none where it was published
  } catch (const base::Error&) {
    // It lies in this worker's directory, which goes with the worker.
  }
}

data::StoreWriter& PendingFile::writer() { return *counted_; }
int64_t PendingFile::bytes() const { return counted_->written_bytes(); }
uint32_t PendingFile::crc() const { return counted_->crc(); }

void PendingFile::seal() {
  if (temporary_.empty()) return;
  is_sealed_ = true;
  file_->commit();
}

void PendingFile::publish() {
  if (temporary_.empty()) {
    file_->commit();
  } else {
    rename_file(temporary_, path_);
  }
}

std::vector<data::Field> written_fields(const OutputForm& form, const std::vector<data::Field>& input) {
  std::vector<data::Field> fields;
  for (const std::string& name : form.keep) {
    for (const data::Field& f : input) {
      if (f.name == name) fields.push_back(f);
    }
  }
  fields.insert(fields.end(), form.outputs.begin(), form.outputs.end());
  return fields;
}

ChunkFiles::ChunkFiles(const OutputForm& form, int64_t chunk, std::string input)
    : form_(form), chunk_(chunk), input_(std::move(input)) {}

void ChunkFiles::open(const data::Rows* carried, const std::vector<data::Field>& input) {
  data::RowWriterOptions options = form_.writer;
  options.carried = carried;
  part_ = std::make_unique<PendingFile>(form_, form_.directory.part(chunk_));
  rows_ = data::make_row_writer(part_->writer(), written_fields(form_, input), options);
}

void ChunkFiles::write(const Piece& piece) {
  if (rows_ == nullptr) {
    std::vector<data::Field> kept;
    for (const data::Column& c : piece.kept().columns) kept.push_back(c.field);
    open(&piece.kept(), kept);
  }
  if (!piece.failures().empty()) write_failures(piece);
  const int64_t good = piece.rows() - static_cast<int64_t>(piece.failures().size());
  if (good > 0) rows_->write(piece.result(form_.outputs));
  result_.rows += good;
}

/// A value as JSON: text, numbers and short lists of them; null for a number that JSON has not; nothing for
/// what is missing, larger, or no text.
static std::optional<base::Json> json_of(const data::Column& column, int64_t row) {
  constexpr size_t kMostText = 4096;
  constexpr int64_t kMostNumbers = 64;
  if (column.is_missing_at(row)) return std::nullopt;
  if (column.field.kind != data::FieldKind::tensor) {
    const std::string& text = column.strings.at(static_cast<size_t>(row));
    if (text.size() > kMostText || !base::is_utf8(text)) return std::nullopt;
    return base::Json(text);
  }
  const tensor::Tensor value = column.tensor_at(row);
  if (value.elements() > kMostNumbers) return std::nullopt;
  base::Json list = base::Json::array();
  if (tensor::is_float(value.dtype())) {
    for (const double v : value.to_doubles()) list.push_back(std::isfinite(v) ? base::Json(v) : base::Json());
  } else if (value.dtype() == tensor::DType::u64) {
    for (const uint64_t v : value.data<uint64_t>()) list.push_back(v);
  } else {
    for (const int64_t v : value.to_ints()) list.push_back(v);
  }
  return value.rank() == 0 ? list.at(0) : list;
}

void ChunkFiles::write_failures(const Piece& piece) {
  if (error_part_ == nullptr) {
    error_part_ = std::make_unique<PendingFile>(form_, form_.directory.error_part(chunk_));
  }
  for (const Piece::Failure& failure : piece.failures()) {
    base::Json line = base::Json::object({{"file", input_},
                                          {"row", piece.first_row() + failure.row},
                                          {"code", base::to_string(failure.error.code())},
                                          {"error", base::shortened(failure.error.message())}});
    base::Json kept = base::Json::object();
    for (const data::Column& c : piece.kept().columns) {
      if (std::optional<base::Json> value = json_of(c, failure.row))
        kept.set(c.field.name, std::move(*value));
    }
    if (kept.size() > 0) line.set("kept", std::move(kept));
    error_part_->writer().write(line.dump() + "\n");
  }
  result_.errors += static_cast<int64_t>(piece.failures().size());
}

ChunkResult ChunkFiles::seal(const data::RowFile& input) {
  if (rows_ == nullptr) open(nullptr, input.fields());
  rows_->finish();
  part_->seal();
  result_.bytes = part_->bytes();
  result_.crc = part_->crc();
  if (error_part_ != nullptr) {
    error_part_->seal();
    result_.error_bytes = error_part_->bytes();
    result_.error_crc = error_part_->crc();
  }
  return result_;
}

void ChunkFiles::publish() {
  const bool is_local = form_.store->is_local();
  if (error_part_ != nullptr) {
    if (is_local) make_directories(form_.directory.errors());
    error_part_->publish();
    if (is_local) sync_directory(form_.directory.errors());
  } else {
    form_.store->remove(form_.directory.error_part(chunk_));
  }
  part_->publish();
  if (is_local) sync_directory(form_.directory.output);
}

}  // namespace trireme::batch
