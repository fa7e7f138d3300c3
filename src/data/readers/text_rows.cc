// Data sets of text lines: JSON objects and CSV rows, found by an index of offsets and parsed when read.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/text/json.h"
#include "data/readers/field_index.h"
#include "data/readers/readers.h"

namespace trireme::data {
namespace {

using base::Json;
using base::require;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

constexpr int64_t kLearnedRows = 64;  // read to learn the fields

/// Where a row lies in the file.
struct Row {
  uint64_t offset, size;
};

std::string_view trim_end(std::string_view line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t'))
    line.remove_suffix(1);
  return line;
}

/// True for integers that an i64 holds.
bool is_i64(const Json& value) {
  return value.is_integer() && (value.as_double() < 0 || value.as_uint() <= INT64_MAX);
}

/// Collects the numbers of nested arrays and their extents. False: not rectangular, or not numbers alone.
bool collect(const Json& value, size_t depth, Dims& dims, std::vector<const Json*>& out) {
  if (value.is_number()) {
    if (depth != dims.size()) return false;
    out.push_back(&value);
    return true;
  }
  if (!value.is_array()) return false;
  const auto count = static_cast<int64_t>(value.size());
  if (depth == dims.size()) {
    if (!out.empty()) return false;  // deeper than the items before
    dims.push_back(count);
  }
  if (dims[depth] != count) return false;
  return std::all_of(value.as_array().begin(), value.as_array().end(),
                     [&](const Json& item) { return collect(item, depth + 1, dims, out); });
}

/// The array as a tensor of `dtype`; undefined if it is not a full array of numbers. f64 stands for "as
/// found".
Tensor array_tensor(const Json& value, DType dtype) {
  Dims dims;
  std::vector<const Json*> numbers;
  if (!collect(value, 0, dims, numbers)) return {};
  if (tensor::element_count(dims) != static_cast<int64_t>(numbers.size())) return {};
  const bool all_integers =
      std::all_of(numbers.begin(), numbers.end(), [](const Json* n) { return is_i64(*n); });
  const bool integers = dtype == DType::f64 ? all_integers : dtype == DType::i64;
  if (integers && !all_integers) return {};
  Tensor t = Tensor::empty(integers ? DType::i64 : DType::f32, dims);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (integers) {
      t.mutable_data<int64_t>()[i] = numbers[i]->as_int();
    } else {
      t.mutable_data<float>()[i] = static_cast<float>(numbers[i]->as_double());
    }
  }
  return t;
}

/// What one JSON value says about its field.
Field field_of(const std::string& name, const Json& value) {
  Field field{name};
  if (value.is_number()) {
    field.dtype = is_i64(value) ? DType::i64 : DType::f32;
  } else if (value.is_bool()) {
    field.dtype = DType::boolean;
  } else if (const Tensor t = value.is_array() ? array_tensor(value, DType::f64) : Tensor{}; t.defined()) {
    field.dtype = t.dtype();
    field.shape = tensor::Shape::of(t.dims());
  } else {
    field.kind = FieldKind::text;
  }
  return field;
}

/// Widens `into` until it holds what `other` says too: i64 to f32, extents to unknown, anything to text.
void widen(Field& into, const Field& other) {
  if (into.kind != other.kind) {
    into = {into.name, FieldKind::text};
    return;
  }
  if (into.dtype != other.dtype) {
    const bool numbers = into.dtype != DType::boolean && other.dtype != DType::boolean;
    if (!numbers) {
      into = {into.name, FieldKind::text};
      return;
    }
    into.dtype = DType::f32;
  }
  if (into.shape.rank() != other.shape.rank()) {
    into = {into.name, FieldKind::text};
    return;
  }
  for (size_t d = 0; d < into.shape.rank(); ++d) {
    if (!(into.shape[d] == other.shape[d])) into.shape[d] = tensor::Dim::unknown();
  }
}

Value value_of(const Field& field, const Json& value) {
  if (field.kind == FieldKind::text)
    return {field.name, {}, {value.is_string() ? value.as_string() : value.dump()}};
  Tensor t;
  if (field.dtype == DType::boolean && value.is_bool()) t = Tensor::scalar(value.as_bool());
  if (field.dtype == DType::i64 && is_i64(value)) t = Tensor::scalar(value.as_int());
  if (field.dtype == DType::f32 && value.is_number())
    t = Tensor::scalar(static_cast<float>(value.as_double()));
  if (value.is_array()) t = array_tensor(value, field.dtype);
  require(t.defined(), "member is not ", tensor::name_of(field.dtype), " as in the rows before: '",
          field.name, "'");
  return {field.name, std::move(t), {}};
}

class Jsonl : public Dataset {
 public:
  explicit Jsonl(SourceFile source) : source_(std::move(source)) {
    const std::string_view text = source_.bytes;
    for (size_t at = 0; at < text.size();) {
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
      // A null and a member that the first rows lack are absent.
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
        const Field field = field_of(member.key, member.value);
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

/// Reads the cell at `at` and moves past it and its delimiter. Returns true at the end of the row.
bool next_cell(std::string_view row, size_t& at, char delimiter, std::string& cell) {
  cell.clear();
  if (at < row.size() && row[at] == '"') {
    for (++at;; ++at) {
      const size_t quote = row.find('"', at);
      require(quote != std::string_view::npos, "CSV quote is not closed");
      cell += row.substr(at, quote - at);
      at = quote + 1;
      if (at >= row.size() || row[at] != '"') break;
      cell += '"';
    }
    require(at == row.size() || row[at] == delimiter, "CSV cell goes on after its quote");
  } else {
    const size_t end = std::min(row.find(delimiter, at), row.size());
    cell = row.substr(at, end - at);
    at = end;
  }
  return at++ >= row.size();
}

std::vector<std::string> cells_of(std::string_view row, char delimiter) {
  std::vector<std::string> cells;
  std::string cell;
  for (size_t at = 0;;) {
    const bool last = next_cell(row, at, delimiter, cell);
    cells.push_back(cell);
    if (last) return cells;
  }
}

template <class T>
bool parse_whole(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end;
}

class Csv : public Dataset {
 public:
  Csv(SourceFile source, const CsvOptions& options) : source_(std::move(source)), options_(options) {
    index_rows();
    info_.format = "csv";
    require(!rows_.empty(), "CSV file is empty: '", source_.path, "'");
    const std::vector<std::string> names = cells_of(text_of(rows_[0]), options_.delimiter);
    for (size_t c = 0; c < names.size(); ++c) {
      info_.fields.push_back({options_.header ? names[c] : std::to_string(c), FieldKind::tensor, DType::i64});
    }
    if (options_.header) rows_.erase(rows_.begin());
    info_.shards = {{source_.path, size(), source_.file_bytes}};
    learn();
  }

  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  const DatasetInfo& info() const override { return info_; }
  Sample read(int64_t index) const override {
    std::vector<std::string> cells = cells_at(index);
    Sample sample;
    for (size_t c = 0; c < cells.size(); ++c) {
      sample.values.push_back(value_of_cell(info_.fields[c], std::move(cells[c])));
    }
    return sample;
  }

 private:
  /// Rows end at line breaks outside of quotes.
  void index_rows() {
    const std::string_view text = source_.bytes;
    size_t start = text.starts_with("\xef\xbb\xbf") ? 3 : 0;  // byte order mark
    bool quoted = false;
    for (size_t at = text.find_first_of("\"\n", start);; at = text.find_first_of("\"\n", at + 1)) {
      const bool end = at == std::string_view::npos;
      if (!end && text[at] == '"') quoted = !quoted;
      if (!end && (text[at] == '"' || quoted)) continue;
      const size_t stop = end ? text.size() : at;
      const size_t carriage = stop > start && text[stop - 1] == '\r' ? 1 : 0;
      if (stop - carriage > start) rows_.push_back({start, stop - carriage - start});
      start = stop + 1;
      if (end) return;
    }
  }

  std::string_view text_of(Row row) const { return source_.bytes.substr(row.offset, row.size); }

  std::vector<std::string> cells_at(int64_t index) const {
    std::vector<std::string> cells = cells_of(text_of(rows_[static_cast<size_t>(index)]), options_.delimiter);
    require(cells.size() == info_.fields.size(), "CSV row has ", cells.size(), " cells, the first row ",
            info_.fields.size());
    return cells;
  }

  static Value value_of_cell(const Field& field, std::string cell) {
    if (field.kind == FieldKind::text) return {field.name, {}, {std::move(cell)}};
    int64_t integer = 0;
    float real = 0;
    if (field.dtype == DType::i64) {
      require(parse_whole(cell, integer), "CSV cell is not an integer as in the rows before: '", field.name,
              "', '", cell, "'");
      return {field.name, Tensor::scalar(integer), {}};
    }
    require(parse_whole(cell, real), "CSV cell is not a number as in the rows before: '", field.name, "', '",
            cell, "'");
    return {field.name, Tensor::scalar(real), {}};
  }

  void learn() {
    for (int64_t i = 0; i < std::min(size(), kLearnedRows); ++i) {
      std::vector<std::string> cells;
      try {
        cells = cells_at(i);
      } catch (const base::Error& e) {
        throw e.with(base::concat("row ", i));
      }
      for (size_t c = 0; c < cells.size(); ++c) narrow(info_.fields[c], cells[c]);
    }
  }

  /// Starts from integers; a cell that is none makes the column f32, then text.
  static void narrow(Field& field, const std::string& cell) {
    int64_t integer = 0;
    float real = 0;
    if (field.kind == FieldKind::text) return;
    if (field.dtype == DType::i64 && !parse_whole(cell, integer)) field.dtype = DType::f32;
    if (field.dtype == DType::f32 && !parse_whole(cell, real)) field = {field.name, FieldKind::text};
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
