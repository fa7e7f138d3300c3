// Data sets of text lines: JSON objects and CSV rows, found by an index of offsets and parsed when read.
#include <algorithm>

#include "base/error.h"
#include "base/text/json.h"
#include "data/readers/csv_cells.h"
#include "data/readers/field_index.h"
#include "data/readers/json_fields.h"
#include "data/readers/readers.h"

namespace trireme::data {
namespace {

using base::Json;
using base::require;
using tensor::DType;
using tensor::Tensor;

constexpr int64_t kLearnedRows = 64;  // read to learn the fields

/// Where a row lies in the file.
struct Row {
  uint64_t offset, size;
};

/// Where the text begins: behind its byte order mark.
size_t text_begin(std::string_view text) { return text.starts_with("\xef\xbb\xbf") ? 3 : 0; }

std::string_view trim_end(std::string_view line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t'))
    line.remove_suffix(1);
  return line;
}

Value value_of(const Field& field, const Json& value) {
  if (field.kind == FieldKind::text) return {field.name, {}, {json_text(value)}};
  return {field.name, json_tensor(field, value), {}};
}

class Jsonl : public Dataset {
 public:
  explicit Jsonl(SourceFile source) : source_(std::move(source)) {
    const std::string_view text = source_.bytes;
    for (size_t at = text_begin(text); at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      const std::string_view line = trim_end(text.substr(at, end - at));
      if (!line.empty()) rows_.push_back({at, line.size()});
      at = end + 1;
    }
    info_.format = "jsonl";
    info_.shards = {{source_.path, size(), source_.file_bytes}};
    learn();
  }

  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  const DatasetInfo& info() const override { return info_; }
  Sample read(int64_t index) const override {
    const Json row = parse(index);
    Sample sample;
    for (const base::JsonMember& member : row.as_object()) {
      const Field* field = index_.find(info_.fields, member.key);
      // A null, or a member that the first rows lack, counts as absent.
      if (field == nullptr || member.value.is_null()) continue;
      sample.values.push_back(value_of(*field, member.value));
    }
    return sample;
  }

 private:
  Json parse(int64_t index) const {
    const Row row = rows_[static_cast<size_t>(index)];
    Json json = base::parse_json(source_.bytes.substr(row.offset, row.size));
    require(json.is_object(), "line is not a JSON object but ", json.type_name());
    return json;
  }

  void learn() {
    for (int64_t i = 0; i < std::min(size(), kLearnedRows); ++i) {
      Json row;
      try {
        row = parse(i);
      } catch (const base::Error& e) {
        throw e.with(base::concat("row ", i));
      }
      for (const base::JsonMember& member : row.as_object()) {
        if (member.value.is_null()) continue;
        const Field field = json_field(member.key, member.value, TextNumbers::narrow);
        const auto [place, is_new] = index_.add(info_.fields, field);
        if (!is_new) widen(info_.fields[place], field);
      }
    }
  }

  SourceFile source_;
  std::vector<Row> rows_;
  DatasetInfo info_;
  FieldIndex index_;
};

class Csv : public Dataset {
 public:
  Csv(SourceFile source, const CsvOptions& options) : source_(std::move(source)), options_(options) {
    index_rows();
    info_.format = "csv";
    require(!rows_.empty(), "CSV file is empty: '", source_.path, "'");
    check_line_ends(text_of(rows_[0]));
    std::vector<std::string> names = csv_cells(text_of(rows_[0]), options_.delimiter);
    for (size_t c = 0; !options_.header && c < names.size(); ++c) names[c] = std::to_string(c);
    if (options_.header) rows_.erase(rows_.begin());
    info_.shards = {{source_.path, size(), source_.file_bytes}};
    learn(names);
  }

  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  const DatasetInfo& info() const override { return info_; }
  Sample read(int64_t index) const override {
    std::vector<std::string> cells =
        csv_cells(text_of(rows_[static_cast<size_t>(index)]), options_.delimiter);
    check_cell_count(cells.size(), info_.fields.size());
    Sample sample;
    for (size_t c = 0; c < cells.size(); ++c) {
      const Field& field = info_.fields[c];
      if (field.kind == FieldKind::text) {
        sample.values.push_back({field.name, {}, {std::move(cells[c])}});
      } else if (!cells[c].empty()) {  // in a column of numbers, an empty cell is absent
        sample.values.push_back({field.name, number_of(field, cells[c]), {}});
      }
    }
    return sample;
  }

 private:
  void index_rows() {
    const std::string_view text = source_.bytes;
    CsvRowScan scan(options_.delimiter);
    size_t start = text_begin(text);
    while (start < text.size()) {
      const size_t end = std::min(scan.find_end(text.substr(start)), text.size() - start);
      std::string_view row = text.substr(start, end);
      if (row.ends_with('\n')) row.remove_suffix(1);
      if (row.ends_with('\r')) row.remove_suffix(1);
      if (!row.empty()) rows_.push_back({start, row.size()});
      start += end;
    }
  }

  std::string_view text_of(Row row) const { return source_.bytes.substr(row.offset, row.size); }

  static Tensor number_of(const Field& field, const std::string& cell) {
    if (field.dtype == DType::i64) return Tensor::scalar(csv_number<int64_t>(field, cell));
    return Tensor::scalar(csv_number<float>(field, cell));
  }

  void learn(const std::vector<std::string>& names) {
    CsvFields fields(names, TextNumbers::narrow);
    for (int64_t i = 0; i < std::min(size(), kLearnedRows); ++i) {
      try {
        fields.learn(csv_cells(text_of(rows_[static_cast<size_t>(i)]), options_.delimiter));
      } catch (const base::Error& e) {
        throw e.with(base::concat("row ", i));
      }
    }
    info_.fields = fields.fields();
  }

  SourceFile source_;
  CsvOptions options_;
  std::vector<Row> rows_;
  DatasetInfo info_;
};

template <class Make>
DatasetPtr open_named(const std::string& path, int64_t limit_bytes, const Make& make) {
  SourceFile source = open_source(path, limit_bytes);
  try {
    return make(std::move(source));
  } catch (const base::Error& e) {
    throw e.with("'" + path + "'");
  }
}

}  // namespace

DatasetPtr open_jsonl(const std::string& path, int64_t limit_bytes) {
  return open_named(path, limit_bytes, [](SourceFile s) { return std::make_shared<Jsonl>(std::move(s)); });
}

DatasetPtr open_csv(const std::string& path, const CsvOptions& options, int64_t limit_bytes) {
  return open_named(path, limit_bytes,
                    [&](SourceFile s) { return std::make_shared<Csv>(std::move(s), options); });
}

}  // namespace trireme::data
