// Writes JSON lines and CSV, plain or gzip.
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/text/base64.h"
#include "base/text/json.h"
#include "data/rows/original.h"
#include "data/rows/writers.h"
#include "tensor/half.h"

namespace trireme::data {
namespace {

using base::require;
using tensor::DType;
using tensor::Tensor;

constexpr size_t kBlock = size_t{256} << 10;

/// Output text in blocks of a fixed size, so that compressed bytes do not depend on how the text arrives.
class LineOutput {
 public:
  LineOutput(StoreWriter& to, bool is_gzip) : to_(to), is_gzip_(is_gzip) {
    constexpr int kGzipWindow = 15 + 16, kMemoryLevel = 8;
    if (!is_gzip_) return;
    const int rc =
        deflateInit2(&z_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipWindow, kMemoryLevel, Z_DEFAULT_STRATEGY);
    base::check(rc == Z_OK, "zlib cannot start");
  }
  ~LineOutput() {
    if (is_gzip_) deflateEnd(&z_);
  }
  LineOutput(const LineOutput&) = delete;
  LineOutput& operator=(const LineOutput&) = delete;

  /// The text to append to; call flush_blocks() from time to time.
  std::string& text() { return text_; }
  void flush_blocks() {
    size_t done = 0;
    for (; text_.size() - done >= kBlock; done += kBlock)
      put(std::string_view(text_).substr(done, kBlock), false);
    text_.erase(0, done);
  }
  void finish() {
    flush_blocks();
    put(text_, true);
    text_.clear();
  }

 private:
  void put(std::string_view block, bool last) {
    if (!is_gzip_) return to_.write(block);
    z_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(block.data()));
    z_.avail_in = static_cast<uInt>(block.size());
    int rc = Z_OK;
    do {
      char out[size_t{64} << 10];
      z_.next_out = reinterpret_cast<Bytef*>(out);
      z_.avail_out = sizeof out;
      rc = deflate(&z_, last ? Z_FINISH : Z_NO_FLUSH);
      base::check(rc == Z_OK || rc == Z_STREAM_END || rc == Z_BUF_ERROR, "zlib cannot pack");
      to_.write({out, sizeof out - z_.avail_out});
    } while (z_.avail_in > 0 || z_.avail_out == 0 || (last && rc != Z_STREAM_END));
  }

  StoreWriter& to_;
  bool is_gzip_;
  z_stream z_{};
  std::string text_;
};

/// What stands in the place of NaN and infinity.
enum class NonFinite {
  null,  ///< JSON has no such numbers
  name,  ///< in the spelling that most readers of CSV take for a number
};

template <class T>
void append_real(std::string& out, T value, NonFinite as) {
  if (std::isfinite(value)) {
    base::append_json(out, value);
  } else if (as == NonFinite::null) {
    out += "null";
  } else {
    out += std::isnan(value) ? "NaN" : value > 0 ? "Inf" : "-Inf";
  }
}

/// Appends a number in the form of JSON and CSV.
template <class T>
void append_number(std::string& out, T value, NonFinite as) {
  if constexpr (std::is_same_v<T, bool>) {
    out += value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
    append_real(out, value, as);
  } else if constexpr (std::is_same_v<T, tensor::Half> || std::is_same_v<T, tensor::BFloat16>) {
    append_real(out, static_cast<float>(value), as);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    base::append_json(out, value);
  } else {
    base::append_json(out, static_cast<int64_t>(value));
  }
}

/// Appends the elements of one row, from `at` on, as nested lists.
template <class T>
void append_elements(std::string& out, const T*& at, std::span<const int64_t> dims, NonFinite as) {
  if (dims.empty()) return append_number(out, *at++, as);
  out += '[';
  for (int64_t i = 0; i < dims[0]; ++i) {
    if (i > 0) out += ',';
    append_elements(out, at, dims.subspan(1), as);
  }
  out += ']';
}

/// Appends the elements of one row from where they are stored, without creating a tensor.
void append_row(std::string& out, const Column& column, int64_t row, NonFinite as) {
  const bool is_even = column.numbers.defined();
  const Tensor& tensor = is_even ? column.numbers : column.ragged[static_cast<size_t>(row)];
  const std::span<const int64_t> dims = std::span(tensor.dims()).subspan(is_even ? 1 : 0);
  tensor::visit_dtype(tensor.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* at = tensor.data<T>().data();
    if (is_even && tensor.dims()[0] > 0) at += row * (tensor.elements() / tensor.dims()[0]);
    append_elements(out, at, dims, as);
  });
}

/// A value that is no tensor of its column.
std::string json_of_original(const Column& column, int64_t row) {
  if (column.original == nullptr) throw column.error_at(row)->with("'" + column.field.name + "'");
  return original_json(column.original, row);
}

class JsonlWriter : public RowWriter {
 public:
  JsonlWriter(StoreWriter& to, const std::vector<Field>& fields, const RowWriterOptions& options)
      : out_(to, options.compression == "gzip"), fields_(fields) {
    for (const Field& field : fields) {
      // For the OpenAI API's object fields, the column holds the JSON text of the object.
      const bool is_object = field.name == "response" || field.name == "error";
      is_json_.push_back((options.format == "openai" && is_object && field.kind == FieldKind::text) ||
                         field.is_json);
      std::string key;
      base::append_json(key, field.name);
      keys_.push_back((keys_.empty() ? "{" : ",") + key + ":");
    }
  }

  void write(const Rows& rows) override {
    check_rows(rows, fields_);
    for (int64_t row = 0; row < rows.count; ++row) {
      for (size_t c = 0; c < fields_.size(); ++c) {
        out_.text() += keys_[c];
        append(rows.columns[c], row, is_json_[c]);
      }
      out_.text() += "}\n";
      if (out_.text().size() >= kBlock) out_.flush_blocks();
    }
  }
  void finish() override { out_.finish(); }

 private:
  void append(const Column& column, int64_t row, bool is_json) {
    std::string& text = out_.text();
    if (column.error_at(row) != nullptr) {
      text += json_of_original(column, row);
    } else if (column.is_missing_at(row)) {
      text += "null";
    } else if (is_json) {
      text += column.strings[static_cast<size_t>(row)];
    } else if (column.field.kind == FieldKind::tensor) {
      append_row(text, column, row, NonFinite::null);
    } else if (column.field.kind == FieldKind::bytes) {
      base::append_json(text, base::encode_base64(column.strings[static_cast<size_t>(row)]));
    } else {
      base::append_json(text, column.strings[static_cast<size_t>(row)]);
    }
  }

  LineOutput out_;
  std::vector<Field> fields_;
  std::vector<std::string> keys_;  // with the punctuation around them
  std::vector<bool> is_json_;      // by column: its text is written as it is
};

class CsvWriter : public RowWriter {
 public:
  CsvWriter(StoreWriter& to, const std::vector<Field>& fields, bool is_gzip)
      : out_(to, is_gzip), fields_(fields) {
    for (size_t c = 0; c < fields.size(); ++c) {
      if (c > 0) out_.text() += ',';
      append_text(fields[c].name);
    }
    out_.text() += '\n';
  }

  void write(const Rows& rows) override {
    check_rows(rows, fields_);
    for (int64_t row = 0; row < rows.count; ++row) {
      for (size_t c = 0; c < fields_.size(); ++c) {
        if (c > 0) out_.text() += ',';
        append(rows.columns[c], row);
      }
      out_.text() += '\n';
      if (out_.text().size() >= kBlock) out_.flush_blocks();
    }
  }
  void finish() override { out_.finish(); }

 private:
  void append(const Column& column, int64_t row) {
    if (column.error_at(row) != nullptr) {
      append_text(json_of_original(column, row));
    } else if (column.is_missing_at(row)) {
      // A blank line would not count as a row.
      if (fields_.size() == 1) out_.text() += "\"\"";
    } else if (column.field.kind == FieldKind::tensor) {
      cell_.clear();
      append_row(cell_, column, row, NonFinite::name);
      append_text(cell_);
    } else if (column.field.kind == FieldKind::bytes) {
      out_.text() += base::encode_base64(column.strings[static_cast<size_t>(row)]);
    } else {
      append_text(column.strings[static_cast<size_t>(row)]);
    }
  }

  /// Quotes an empty text, so that readers can tell it from a missing one.
  void append_text(std::string_view cell) {
    std::string& out = out_.text();
    if (!cell.empty() && cell.find_first_of(",\"\r\n") == std::string_view::npos) {
      out += cell;
      return;
    }
    out += '"';
    for (const char c : cell) {
      if (c == '"') out += '"';
      out += c;
    }
    out += '"';
  }

  LineOutput out_;
  std::vector<Field> fields_;
  std::string cell_;
};

void check_types(const std::vector<Field>& fields) {
  for (const Field& field : fields) {
    if (field.kind == FieldKind::tensor) tensor::visit_dtype(field.dtype, [](auto) {});
  }
}

}  // namespace

std::unique_ptr<RowWriter> make_jsonl_writer(StoreWriter& to, const std::vector<Field>& fields,
                                             const RowWriterOptions& options) {
  check_types(fields);
  return std::make_unique<JsonlWriter>(to, fields, options);
}

std::unique_ptr<RowWriter> make_csv_writer(StoreWriter& to, const std::vector<Field>& fields,
                                           const RowWriterOptions& options) {
  check_types(fields);
  return std::make_unique<CsvWriter>(to, fields, options.compression == "gzip");
}

}  // namespace trireme::data
