// Chooses the reader for a file by its name, and implements what readers share.
#include "data/rows/row_file.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "data/rows/partitions.h"
#include "data/rows/row_formats.h"
#include "data/store/object_store.h"

namespace trireme::data {

using base::require;

namespace {

std::string lower_name(const std::string& path) {
  const bool is_url = path.find("://") != std::string::npos && !path.starts_with("file://");
  std::string name = is_url ? parse_object_url(path).key : path;
  while (name.ends_with('/')) name.pop_back();
  name = name.substr(name.rfind('/') + 1);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  for (const std::string_view packed : {".gz", ".zst"}) {
    if (name.ends_with(packed)) name.resize(name.size() - packed.size());
  }
  return name;
}

std::string format_of_name(const std::string& path) {
  struct Ending {
    std::string_view ending, format;
  };
  static constexpr std::array<Ending, 14> kEndings = {{{".parquet", "parquet"},
                                                       {".pq", "parquet"},
                                                       {".arrow", "arrow"},
                                                       {".feather", "arrow"},
                                                       {".ipc", "arrow"},
                                                       {".jsonl", "jsonl"},
                                                       {".ndjson", "jsonl"},
                                                       {".csv", "csv"},
                                                       {".tsv", "csv"},
                                                       {".tfrecord", "tfrecord"},
                                                       {".tfrecords", "tfrecord"},
                                                       {".tar", "webdataset"},
                                                       {".tgz", "webdataset"},
                                                       {".npy", "npy"}}};
  const std::string name = lower_name(path);
  for (const Ending& e : kEndings) {
    if (name.ends_with(e.ending)) return std::string(e.format);
  }
  if (name.find("tfrecord") != std::string::npos) return "tfrecord";
  for (const std::string_view picture : {".jpg", ".jpeg", ".png", ".bmp"}) {
    if (name.ends_with(picture))
      base::fail_invalid("'", path,
                         "' is a picture, and pictures are rows of their directory: give that, and the ",
                         "format images");
  }
  base::fail_invalid(
      "cannot tell the format of '", path,
      "' by its name; say which: parquet, arrow, jsonl, csv, tfrecord, webdataset, npy, images, "
      "openai");
}

std::unique_ptr<RowFile> open_format(const std::string& format, RowSource source) {
  if (format == "parquet") return open_parquet_rows(std::move(source));
  if (format == "arrow") return open_arrow_rows(std::move(source));
  if (format == "jsonl") return open_jsonl_rows(std::move(source), false);
  if (format == "openai") return open_jsonl_rows(std::move(source), true);
  if (format == "csv") return open_csv_rows(std::move(source));
  if (format == "tfrecord") return open_tfrecord_rows(std::move(source));
  if (format == "webdataset") return open_webdataset_rows(std::move(source));
  if (format == "npy") return open_npy_rows(std::move(source));
  if (format == "images") return open_image_rows(std::move(source));
  base::fail_unsupported("no files of rows of format '", format, "'");
}

}  // namespace

std::unique_ptr<RowFile> open_row_file(std::shared_ptr<const Store> store, const std::string& path,
                                       const RowFileOptions& options) {
  RowSource source{std::move(store), path, nullptr, options};
  std::string format = options.format;
  if (format.empty() && source.store->is_directory(path)) format = "images";
  if (format.empty()) format = format_of_name(path);
  if (lower_name(path).ends_with(".tsv") && options.csv_delimiter == ',') source.options.csv_delimiter = '\t';
  try {
    if (format != "images") source.file = source.store->open(path);
    return with_partitions(open_format(format, std::move(source)), path, options.partitions);
  } catch (const base::Error& e) {
    const bool is_named = e.message().find(path) != std::string::npos;
    throw is_named ? e : e.with("'" + path + "'");
  }
}

ColumnChoice choose_columns(const std::vector<Field>& fields, const std::vector<std::string>& columns) {
  ColumnChoice choice;
  choice.place_of.assign(fields.size(), kNoPlace);
  if (columns.empty()) {
    choice.fields = fields;
    for (size_t i = 0; i < fields.size(); ++i) choice.place_of[i] = i;
    return choice;
  }
  for (const std::string& name : columns) {
    const auto at =
        std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.name == name; });
    if (at == fields.end()) {
      std::string there;
      for (const Field& f : fields) there += (there.empty() ? "" : ", ") + f.name;
      base::fail(base::ErrorCode::not_found, "no column '", name, "'; there are ", there);
    }
    size_t& place = choice.place_of[static_cast<size_t>(at - fields.begin())];
    require(place == kNoPlace, "column is asked for twice: '", name, "'");
    place = choice.fields.size();
    choice.fields.push_back(*at);
  }
  return choice;
}

void cut_evenly(int64_t total, int64_t rows, const std::function<void(const RowSpan&)>& take) {
  require(rows > 0, "rows of a span must be positive: ", rows);
  for (int64_t first = 0; first < total; first += rows) {
    const int64_t count = std::min(rows, total - first);
    take({.first_row = first, .rows = count, .begin = first, .end = first + count});
  }
}

void check_row_count(int64_t rows, int64_t file_bytes) {
  require(rows / kMostRowsOfByte <= file_bytes, "file of ", file_bytes, " bytes states ", rows,
          " rows, more than ", kMostRowsOfByte, " for each of its bytes");
}

void check_span(const RowSpan& span, int64_t total) {
  require(
      span.first_row >= 0 && span.rows >= 0 && span.first_row <= total && span.rows <= total - span.first_row,
      "span is outside of the file: rows ", span.first_row, " and ", span.rows, " more, the file has ",
      total);
}

}  // namespace trireme::data
