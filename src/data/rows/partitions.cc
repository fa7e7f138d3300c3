// Partition columns: names and values from a path, and a file of rows that carries them.
#include "data/rows/partitions.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "data/rows/row_formats.h"
#include "data/store/object_store.h"

namespace trireme::data {
namespace {

using tensor::DType;
using tensor::Tensor;

constexpr std::string_view kMissing = "__HIVE_DEFAULT_PARTITION__";

/// "a%2Fb" -> "a/b". Invalid escapes stay as they are.
std::string unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* digits = text.data() + i + 1;
    const bool is_escape = text[i] == '%' && i + 2 < text.size() &&
                           std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2;
    if (is_escape) i += 2;
    out += is_escape ? static_cast<char>(value) : text[i];
  }
  return out;
}

std::optional<int64_t> whole_number(const std::string& text) {
  int64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

/// A column that has the same value in each of `rows` rows.
Column constant_column(const Field& field, const std::string& value, int64_t rows) {
  Column column{.field = field};
  const bool is_missing = value == kMissing;
  if (field.kind == FieldKind::text) {
    column.strings.assign(static_cast<size_t>(rows), is_missing ? "" : value);
  } else {
    column.numbers = Tensor::empty(DType::i64, {rows});
    std::ranges::fill(column.numbers.mutable_data<int64_t>(), is_missing ? 0 : whole_number(value).value());
  }
  if (is_missing) column.is_missing.assign(static_cast<size_t>(rows), true);
  return column;
}

/// The origin of a wanted column.
struct Source {
  bool is_own = true;
  size_t place = 0;  ///< among the columns of the file's stream, or among the partitions
};

struct Partition {
  Field field;
  std::string value;
};

class PartitionStream : public RowStream {
 public:
  PartitionStream(std::unique_ptr<RowStream> stream, std::vector<Source> sources,
                  const std::vector<Partition>& partitions)
      : stream_(std::move(stream)), sources_(std::move(sources)), partitions_(partitions) {}

  bool next(int64_t most, Rows& out) override {
    Rows read;
    if (!stream_->next(most, read)) return false;
    out = {};
    out.count = read.count;
    out.errors = std::move(read.errors);
    for (const Source& from : sources_) {
      const Partition* partition = from.is_own ? nullptr : &partitions_[from.place];
      out.columns.push_back(partition == nullptr
                                ? std::move(read.columns[from.place])
                                : constant_column(partition->field, partition->value, read.count));
    }
    return true;
  }

 private:
  std::unique_ptr<RowStream> stream_;
  std::vector<Source> sources_;  // by column of the result
  const std::vector<Partition>& partitions_;
};

class PartitionedFile : public RowFile {
 public:
  PartitionedFile(std::unique_ptr<RowFile> file, std::vector<Partition> partitions)
      : file_(std::move(file)), partitions_(std::move(partitions)), fields_(file_->fields()) {
    for (const Partition& p : partitions_) fields_.push_back(p.field);
  }

  std::string_view format() const override { return file_->format(); }
  const std::vector<Field>& fields() const override { return fields_; }
  uint64_t content_id() const override { return file_->content_id(); }
  void cut(int64_t rows, const std::function<void(const RowSpan&)>& take) const override {
    file_->cut(rows, take);
  }

  std::unique_ptr<RowStream> open(const RowSpan& span,
                                  const std::vector<std::string>& columns) const override {
    std::vector<std::string> own;
    std::vector<Source> sources;
    for (const Field& field : choose_columns(fields_, columns).fields) {
      const auto partition =
          std::ranges::find_if(partitions_, [&](const Partition& p) { return p.field.name == field.name; });
      if (partition == partitions_.end()) {
        sources.push_back({.is_own = true, .place = own.size()});
        own.push_back(field.name);
      } else {
        sources.push_back({.is_own = false, .place = static_cast<size_t>(partition - partitions_.begin())});
      }
    }
    // At least one column is read to count the rows; an empty list would mean all columns.
    if (own.empty() && !file_->fields().empty()) own.push_back(file_->fields().front().name);
    return std::make_unique<PartitionStream>(file_->open(span, own), std::move(sources), partitions_);
  }

 private:
  std::unique_ptr<RowFile> file_;
  std::vector<Partition> partitions_;
  std::vector<Field> fields_;  // the file's, then the partitions'
};

}  // namespace

std::vector<std::pair<std::string, std::string>> partitions_of(const std::string& path) {
  const bool is_url = path.find("://") != std::string::npos && !path.starts_with("file://");
  const std::string key = is_url ? parse_object_url(path).key : path;
  std::vector<std::pair<std::string, std::string>> out;
  for (size_t at = 0, end = 0; (end = key.find('/', at)) != std::string::npos; at = end + 1) {
    const std::string_view part = std::string_view(key).substr(at, end - at);
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    std::string name = unescaped(part.substr(0, equals));
    const bool is_new = std::ranges::none_of(out, [&](const auto& known) { return known.first == name; });
    base::require(is_new, "'", path, "': two directories name the column '", name, "'");
    out.emplace_back(std::move(name), unescaped(part.substr(equals + 1)));
  }
  return out;
}

std::vector<Field> partition_fields(const std::vector<std::string>& paths) {
  std::vector<Field> fields;
  std::map<std::string, size_t> places;
  std::string_view last;  // consecutive files are mostly of one directory
  for (const std::string& path : paths) {
    const std::string_view directory = std::string_view(path).substr(0, path.rfind('/') + 1);
    if (directory == last && !last.empty()) continue;
    last = directory;
    for (auto& [name, value] : partitions_of(path)) {
      const auto [at, is_new] = places.try_emplace(name, fields.size());
      if (is_new) fields.push_back({.name = name, .kind = FieldKind::tensor, .dtype = DType::i64});
      if (value != kMissing && !whole_number(value)) fields[at->second].kind = FieldKind::text;
    }
  }
  for (Field& field : fields) {
    if (field.kind == FieldKind::text) field.dtype = Field{}.dtype;
  }
  return fields;
}

std::unique_ptr<RowFile> with_partitions(std::unique_ptr<RowFile> file, const std::string& path,
                                         const std::vector<Field>& fields) {
  if (fields.empty()) return file;
  std::vector<Partition> partitions;
  for (auto& [name, value] : partitions_of(path)) {
    const auto is_named = [&, n = name](const Field& f) { return f.name == n; };
    const auto field = std::ranges::find_if(fields, is_named);
    if (field == fields.end() || std::ranges::any_of(file->fields(), is_named)) continue;
    base::require(field->kind == FieldKind::text || value == kMissing || whole_number(value), "'", path,
                  "': the directory '", name, "=", value, "' is no whole number, as those of the others are");
    partitions.push_back({.field = *field, .value = std::move(value)});
  }
  if (partitions.empty()) return file;
  return std::make_unique<PartitionedFile>(std::move(file), std::move(partitions));
}

}  // namespace trireme::data
