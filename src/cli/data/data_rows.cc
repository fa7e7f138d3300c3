// trireme data rows: shows files of rows as a batch job sees them: fields, spans, content and rows that
// cannot be read; or writes their rows to a file of another format.
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <iostream>
#include <optional>

#include "base/error.h"
#include "cli/data/field_type.h"
#include "cli/verb.h"
#include "data/rows/row_file.h"
#include "data/rows/row_writer.h"

namespace trireme::cli {
namespace {

using base::Json;

struct RowsOptions {
  std::vector<std::string> path;
  std::string format = "auto";
  bool header = true;
  std::string delimiter = ",";
  std::vector<std::string> columns;
  int64_t span_rows = 100000;
  int64_t samples = 3;
  bool check = false;
  std::string write;
  std::string write_format = "auto";
  std::string compression;
  bool json = false;

  void fields(base::OptionList& f) {
    f.add("path", &path,
          "files, directories with all below them, patterns with *, ?, [..] and **; also s3:// and gs://")
        .positional()
        .required();
    f.add("format", &format,
          "one of auto, parquet, arrow, jsonl, openai, csv, tfrecord, webdataset, npy, images; auto: by the "
          "name");
    f.add("header", &header, "csv: the first row names the columns");
    f.add("delimiter", &delimiter, "csv: one character, or tab");
    f.add("columns", &columns, "the columns to read; none given: all");
    f.add("span_rows", &span_rows, "rows of a span").at_least(1);
    f.add("samples", &samples, "how many rows to show").at_least(0).at_most(1000);
    f.add("check", &check, "read every row, and count those that cannot be read");
    f.add("write", &write, "file to write all rows to; those that cannot be read are left out");
    f.add("write_format", &write_format, "one of auto, parquet, arrow, jsonl, csv, npy; auto: by the name");
    f.add("compression", &compression,
          "of parquet: zstd, snappy, gzip, lz4; of arrow: zstd, lz4; of jsonl and csv: gzip");
    f.add("json", &json, "print one JSON object");
  }
};

std::string hex(uint64_t number) {
  char text[24];
  std::snprintf(text, sizeof(text), "%016" PRIx64, number);
  return text;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A short text of one value.
std::string value_preview(const data::Column& column, int64_t row) {
  constexpr size_t kShown = 72;
  constexpr int64_t kNumbers = 8;
  if (column.is_missing_at(row)) return "missing";
  if (column.field.kind == data::FieldKind::tensor) {
    const tensor::Tensor t = column.tensor_at(row);
    std::string text = std::string(tensor::name_of(t.dtype())) + tensor::to_string(t.dims());
    if (t.elements() > kNumbers) return text;
    for (const double value : t.to_doubles()) text += base::concat(" ", value);
    return text;
  }
  const std::string& text = column.strings[static_cast<size_t>(row)];
  if (column.field.kind == data::FieldKind::bytes) return std::to_string(text.size()) + " bytes";
  std::string shown;
  base::append_json(shown, text);
  return shown.size() <= kShown ? shown : base::concat(text.size(), " bytes of text");
}

/// The file that all rows are written to; it is created when the first rows show their types.
class Output {
 public:
  explicit Output(const RowsOptions& options) : path_(options.write) {
    options_.format = options.write_format;
    options_.compression = options.compression;
    if (options_.format != "auto") return;
    std::string name = path_.ends_with(".gz") ? path_.substr(0, path_.size() - 3) : path_;
    if (path_.ends_with(".gz") && options_.compression.empty()) options_.compression = "gzip";
    options_.format = name.substr(name.rfind('.') + 1);
  }

  void write(const std::vector<data::Field>& fields, const data::Rows& rows) {
    if (!writer_) open(fields, &rows);
    const bool same = std::equal(
        fields.begin(), fields.end(), fields_.begin(), fields_.end(), [](const auto& a, const auto& b) {
          return a.name == b.name &&
                 type_text(a) == type_text(b);  // shapes of unknown extents never compare as equal
        });
    base::require(same, "files of one output differ in their columns");
    for (int64_t begin = 0; begin < rows.count;) {
      int64_t end = begin;
      while (end < rows.count && rows.error_at(end) == nullptr) ++end;
      if (end > begin) writer_->write(data::slice(rows, begin, end - begin));
      rows_ += end - begin;
      begin = end + 1;
    }
  }
  void finish(const std::vector<data::Field>& fields) {
    if (!writer_) open(fields, nullptr);
    writer_->finish();
    file_->commit();
  }
  int64_t rows() const { return rows_; }
  int64_t bytes() const { return file_->written_bytes(); }

 private:
  void open(const std::vector<data::Field>& fields, const data::Rows* carried) {
    fields_ = fields;
    options_.carried = carried;
    file_ = data::store_of(path_)->create(path_);
    writer_ = data::make_row_writer(*file_, fields_, options_);
  }

  std::string path_;
  data::RowWriterOptions options_;
  std::vector<data::Field> fields_;
  std::unique_ptr<data::StoreWriter> file_;
  std::unique_ptr<data::RowWriter> writer_;
  int64_t rows_ = 0;
};

/// What was found in one file.
struct Seen {
  std::string path, format, content_id;
  std::vector<data::Field> fields;
  std::vector<data::RowSpan> spans;
  int64_t rows = 0, failed = 0;
  double cut_s = 0, read_s = 0;
  std::vector<std::string> samples, errors;
};

std::vector<data::Field> chosen(const std::vector<data::Field>& fields,
                                const std::vector<std::string>& columns) {
  std::vector<data::Field> wanted;
  for (const std::string& name : columns) {
    for (const data::Field& f : fields) {
      if (f.name == name) wanted.push_back(f);
    }
  }
  return columns.empty() ? fields : wanted;
}

void look_at_rows(const data::Rows& rows, const RowsOptions& options, Seen& seen) {
  constexpr size_t kShownErrors = 10;
  for (int64_t i = 0; i < rows.count; ++i) {
    const base::Error* error = rows.error_at(i);
    seen.failed += error == nullptr ? 0 : 1;
    if (error != nullptr && seen.errors.size() < kShownErrors) seen.errors.push_back(error->message());
    if (static_cast<int64_t>(seen.samples.size()) >= options.samples) continue;
    std::string text = error == nullptr ? "" : "broken: " + error->message();
    for (size_t c = 0; error == nullptr && c < rows.columns.size(); ++c)
      text += (c == 0 ? "" : "  ") + rows.columns[c].field.name + "=" + value_preview(rows.columns[c], i);
    seen.samples.push_back(std::move(text));
  }
}

Seen look(const std::string& path, const RowsOptions& options, std::optional<Output>& output) {
  data::RowFileOptions file_options{.format = options.format == "auto" ? "" : options.format,
                                    .csv_header = options.header};
  base::require(options.delimiter.size() == 1 || options.delimiter == "tab",
                "delimiter is one character, or tab: '", options.delimiter, "'");
  file_options.csv_delimiter = options.delimiter == "tab" ? '\t' : options.delimiter[0];
  const auto file = data::open_row_file(data::store_of(path), path, file_options);
  Seen seen{.path = path, .format = std::string(file->format()), .content_id = hex(file->content_id())};
  seen.fields = chosen(file->fields(), options.columns);
  auto start = std::chrono::steady_clock::now();
  file->cut(options.span_rows, [&](const data::RowSpan& span) {
    seen.spans.push_back(span);
    seen.rows += span.rows;
  });
  seen.cut_s = seconds_since(start);
  start = std::chrono::steady_clock::now();
  const bool reads_all = options.check || output;
  for (const data::RowSpan& span : seen.spans) {
    if (!reads_all && static_cast<int64_t>(seen.samples.size()) >= options.samples) break;
    const auto stream = file->open(span, options.columns);
    constexpr int64_t kPiece = 4096;
    for (data::Rows rows; stream->next(reads_all ? kPiece : options.samples, rows);) {
      look_at_rows(rows, options, seen);
      if (output) output->write(seen.fields, rows);
      if (!reads_all && static_cast<int64_t>(seen.samples.size()) >= options.samples) break;
    }
  }
  seen.read_s = seconds_since(start);
  return seen;
}

Json to_json(const Seen& seen, bool reads_all) {
  Json fields = Json::array(), spans = Json::array(), samples = Json::array(), errors = Json::array();
  for (const data::Field& f : seen.fields)
    fields.push_back(Json::object({{"name", f.name}, {"type", type_text(f)}}));
  for (const data::RowSpan& s : seen.spans) {
    spans.push_back(Json::object(
        {{"first_row", s.first_row}, {"rows", s.rows}, {"begin", s.begin}, {"end", s.end}, {"crc", s.crc}}));
  }
  for (const std::string& text : seen.samples) samples.push_back(text);
  for (const std::string& text : seen.errors) errors.push_back(text);
  Json all = Json::object({{"path", seen.path},
                           {"format", seen.format},
                           {"content_id", seen.content_id},
                           {"rows", seen.rows},
                           {"fields", std::move(fields)},
                           {"spans", std::move(spans)},
                           {"cut_s", seen.cut_s},
                           {"first", std::move(samples)}});
  if (!reads_all) return all;
  all.set("failed", seen.failed);
  all.set("errors", std::move(errors));
  all.set("read_s", seen.read_s);
  return all;
}

double rate(int64_t rows, double seconds) { return static_cast<double>(rows) / std::max(seconds, 1e-9); }

void print(const Seen& seen, bool reads_all) {
  std::printf("%s\n  format      %s\n  content     %s\n", seen.path.c_str(), seen.format.c_str(),
              seen.content_id.c_str());
  std::printf("  rows        %" PRId64 " in %zu spans, cut at %.3g rows/s\n", seen.rows, seen.spans.size(),
              rate(seen.rows, seen.cut_s));
  if (reads_all) {
    std::printf("  read        %" PRId64 " cannot be read, %.3g rows/s\n", seen.failed,
                rate(seen.rows, seen.read_s));
  }
  for (const data::Field& f : seen.fields)
    std::printf("    %-24s %s\n", f.name.c_str(), type_text(f).c_str());
  for (size_t i = 0; i < seen.samples.size(); ++i) std::printf("  %zu  %s\n", i, seen.samples[i].c_str());
  for (const std::string& error : seen.errors) std::printf("  broken: %s\n", error.c_str());
}

}  // namespace

int data_rows_main(std::span<const std::string> words) {
  RowsOptions options;
  if (!parse(options, words, "data rows")) return 0;
  std::optional<Output> output;
  if (!options.write.empty()) output.emplace(options);
  const bool reads_all = options.check || output;
  std::vector<std::string> paths = options.path;
  if (options.format != "images") paths = data::expand_paths(options.path);
  Json files = Json::array();
  int64_t failed = 0;
  std::vector<data::Field> fields;
  for (const std::string& path : paths) {
    const Seen seen = look(path, options, output);
    failed += seen.failed;
    fields = seen.fields;
    if (options.json) {
      files.push_back(to_json(seen, reads_all));
    } else {
      print(seen, reads_all);
    }
  }
  if (output) output->finish(fields);
  if (options.json) {
    Json all = Json::object({{"files", std::move(files)}});
    if (output) all.set("written", Json::object({{"rows", output->rows()}, {"bytes", output->bytes()}}));
    std::cout << all.dump({.indent = 2}) << "\n";
  } else if (output) {
    std::printf("wrote %" PRId64 " rows, %" PRId64 " bytes to %s\n", output->rows(), output->bytes(),
                options.write.c_str());
  }
  return failed == 0 ? 0 : 1;
}

std::string data_rows_markdown() { return options_markdown<RowsOptions>(); }

}  // namespace trireme::cli
