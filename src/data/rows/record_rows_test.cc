// Records, archives, arrays and image folders as rows; damage at random bytes of files of every format.
#include <gtest/gtest.h>
#include <zlib.h>

#include <atomic>
#include <cstring>
#include <filesystem>

#include "base/crc32c.h"
#include "data/rows/row_formats.h"
#include "data/rows/row_trial.h"
#include "tensor/npy_header.h"
#include "tests/test_data.h"

namespace trireme::data {
namespace {

using namespace trial;  // NOLINT: this file's own vocabulary
using Lines = std::vector<std::string>;

std::string length_delimited(int field, const std::string& bytes) {
  EXPECT_LT(bytes.size(), 128u);
  return std::string(1, static_cast<char>(field << 3 | 2)) + static_cast<char>(bytes.size()) + bytes;
}
std::string feature(const std::string& name, int kind, const std::string& list) {
  return length_delimited(1, length_delimited(1, name) + length_delimited(2, length_delimited(kind, list)));
}
std::string example(const std::string& text, int number) {
  const std::string value(1, static_cast<char>(number));
  return length_delimited(1, feature("text", 1, length_delimited(1, text)) + feature("n", 3, "\x08" + value));
}
std::string framed(const std::string& record) {
  const std::string length = little_endian(uint64_t{record.size()});
  return length + little_endian(base::masked_crc32c(base::crc32c(length))) + record +
         little_endian(base::masked_crc32c(base::crc32c(record)));
}

TEST(TfRecordRows, ADamagedRecordIsAnErrorOfItsRow) {
  const TestDirectory dir;
  Dice dice(1);
  std::string all;
  for (int i = 0; i < 100; ++i) all += framed(example("t" + std::to_string(i), i));
  const std::string path = dir.write("x.tfrecord", all);
  const Lines lines = read_lines(*open_rows(path), 7, dice, 5);
  ASSERT_EQ(lines.size(), 100u);
  EXPECT_EQ(lines[42], "n=i64[] 42; text='t42'; ");
  std::string damaged = all;
  damaged[all.find("t42") + 1] = '9';
  const Lines other = read_lines(*open_rows(dir.write("y.tfrecord", damaged)), 7, dice, 5);
  ASSERT_EQ(other.size(), 100u);
  EXPECT_TRUE(other[42].starts_with("error: row 42: TFRecord is damaged")) << other[42];
  EXPECT_EQ(other[43], lines[43]);
  const auto cut_off = open_rows(dir.write("z.tfrecord", all.substr(0, all.size() - 3)));
  EXPECT_THROW(spans_of(*cut_off, 7), base::Error);
}

TEST(TfRecordRows, ListsOfTextsAreJson) {
  const TestDirectory dir;
  Dice dice(2);
  const auto texts = [](const std::string& name, const std::vector<std::string>& values) {
    std::string list;
    for (const std::string& v : values) list += length_delimited(1, v);
    return feature(name, 1, list);
  };
  const auto record = [&](const std::vector<std::string>& labels, const std::vector<std::string>& raw) {
    return framed(length_delimited(1, texts("one", {"x"}) + texts("labels", labels) + texts("raw", raw)));
  };
  const std::string path = dir.write("x.tfrecord", record({"a \"b\"", "c"}, {"\xff", "d"}) +
                                                       record({}, {"e", "f"}) + record({"g"}, {"h", "i"}));
  const auto file = open_rows(path);
  EXPECT_EQ(read_lines(*file, 7, dice, 5),
            (Lines{R"(labels='["a \"b\"","c"]'; one='x'; raw='["/w==","d"]'; )",
                   R"(labels=missing; one='x'; raw='["e","f"]'; )",
                   R"(labels='["g"]'; one='x'; raw='["h","i"]'; )"}));
  EXPECT_TRUE(file->fields()[0].is_json && !file->fields()[1].is_json && file->fields()[2].is_json);
}

TEST(ImageRows, APictureAloneSaysWhereItBelongs) {
  const TestDirectory dir;
  try {
    open_rows(dir.write("x.png", "\x89PNG"));
    ADD_FAILURE();
  } catch (const base::Error& e) {
    EXPECT_NE(e.message().find("format images"), std::string::npos) << e.message();
  }
}

std::string tar_member(const std::string& name, const std::string& content, char type = '0') {
  std::string out(512, '\0');
  out.replace(0, name.size(), name);
  char octal[32];
  std::snprintf(octal, sizeof(octal), "%011zo", content.size());
  out.replace(124, 11, octal);
  out[156] = type;
  out.replace(257, 5, "ustar");
  out.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char c : out) sum += static_cast<uint8_t>(c);
  std::snprintf(octal, sizeof(octal), "%06o", sum);
  out.replace(148, 6, octal);
  out[154] = '\0';
  out += content;
  out.resize((out.size() + 511) / 512 * 512);
  return out;
}

/// A picture of 24 bits per pixel, one row high.
std::string bmp(int width, char level) {
  const std::string pixels(static_cast<size_t>((width * 3 + 3) / 4 * 4), level);
  return "BM" + little_endian(static_cast<uint32_t>(54 + pixels.size())) + std::string(4, '\0') +
         little_endian(uint32_t{54}) + little_endian(uint32_t{40}) +
         little_endian(static_cast<uint32_t>(width)) + little_endian(uint32_t{1}) +
         little_endian(uint16_t{1}) + little_endian(uint16_t{24}) + std::string(24, '\0') + pixels;
}

std::string shard(int samples) {
  std::string all = tar_member("readme.d/", "");
  for (int i = 0; i < samples; ++i) {
    const std::string key = base::concat("d/", 1000 + i);
    all +=
        tar_member(key + ".bmp", i == 5 ? "BM" + std::string(60, 'x') : bmp(1 + i % 3, static_cast<char>(i)));
    all += tar_member(key + ".cls", std::to_string(i)) + tar_member(key + ".meta.json", "{}");
    if (i % 4 == 0) all += tar_member("__note__", "of nobody");
  }
  return all + std::string(1024, '\0');
}

TEST(WebDatasetRows, SamplesInSpansAndABrokenPicture) {
  const TestDirectory dir;
  Dice dice(2);
  const std::string archive = shard(40);
  const auto file = open_rows(dir.write("x.tar", archive));
  const Lines lines = read_lines(*file, 40, dice, 50);
  ASSERT_EQ(lines.size(), 40u);
  EXPECT_EQ(lines[1], "__key__='d/1001'; image=u8[1,2,3] 1 1 1 1 1 1; label=i64[] 1; meta.json='{}'; ");
  EXPECT_TRUE(lines[5].starts_with("error: row 5: 'd/1005', member .bmp: ")) << lines[5];
  for (const int64_t rows : {1, 3, 11}) EXPECT_EQ(read_lines(*file, rows, dice, 4), lines);
  const Rows labels = read_span(*file, spans_of(*file, 40).at(0), dice, 50, {"label"});
  EXPECT_EQ(labels.error_at(5), nullptr);  // no error if the picture is not asked for
  EXPECT_EQ(labels.columns[0].numbers.data<int64_t>()[5], 5);
  EXPECT_THROW(spans_of(*open_rows(dir.write("y.tar", archive.substr(0, 20'000))), 3), base::Error);
}

/// Counts the bytes that are read of it.
class CountedFile : public StoreFile {
 public:
  explicit CountedFile(std::string bytes) : bytes_(std::move(bytes)) {}
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  void read(int64_t offset, std::span<std::byte> out) const override {
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
    read_bytes_ += static_cast<int64_t>(out.size());
  }
  int64_t block_bytes() const override { return 1024; }
  int64_t read_bytes() const { return read_bytes_; }

 private:
  std::string bytes_;
  mutable std::atomic<int64_t> read_bytes_{0};
};

TEST(WebDatasetRows, PackedSpansWithLongNamesAreUnpackedOnce) {
  const TestDirectory dir;
  Dice dice(8);
  std::string archive;
  for (int i = 0; i < 200; ++i) {
    const std::string name = base::concat(std::string(120, 'd'), "/", 1000 + i, ".bin");
    const std::string record = "path=" + name + "\n";  // behind three digits, its length, and a space
    archive += i % 2 == 0 ? tar_member("pax", base::concat(record.size() + 4, " ", record), 'x')
                          : tar_member("long", name + std::string(1, '\0'), 'L');
    std::string content;
    for (int byte = 0; byte < 700; ++byte) content.push_back(static_cast<char>(dice.below(256)));
    archive += tar_member("short", content);
  }
  archive += std::string(1024, '\0');
  const Lines wanted = read_lines(*open_rows(dir.write("x.tar", archive)), 1000, dice, 100);
  ASSERT_EQ(wanted.size(), 200u);
  const std::string path = dir.path() + "/x.tar.gz";
  const gzFile to = gzopen(path.c_str(), "wb1");
  ASSERT_EQ(gzwrite(to, archive.data(), static_cast<unsigned>(archive.size())),
            static_cast<int>(archive.size()));
  ASSERT_EQ(gzclose(to), Z_OK);
  const auto packed = std::make_shared<const CountedFile>(base::read_file(path));
  const auto file = open_webdataset_rows({.store = nullptr, .path = path, .file = packed, .options = {}});
  const std::vector<RowSpan> spans = spans_of(*file, 10);
  ASSERT_EQ(spans.size(), 20u);
  const int64_t before = packed->read_bytes();
  Lines lines;
  for (const RowSpan& span : spans) {
    for (std::string& line : describe(read_span(*file, span, dice, 4))) lines.push_back(std::move(line));
  }
  EXPECT_EQ(lines, wanted);
  EXPECT_LT(packed->read_bytes() - before, 2 * packed->size()) << "spans are unpacked from the beginning";
}

TEST(NpyRows, FirstDimensionsAreRows) {
  const TestDirectory dir;
  Dice dice(3);
  std::string bytes = tensor::npy_header(DType::i32, {5, 2});
  for (int32_t i = 0; i < 10; ++i) bytes += little_endian(i);
  const auto file = open_rows(dir.write("x.npy", bytes));
  EXPECT_EQ(read_lines(*file, 2, dice, 3),
            (Lines{"array=i32[2] 0 1; ", "array=i32[2] 2 3; ", "array=i32[2] 4 5; ", "array=i32[2] 6 7; ",
                   "array=i32[2] 8 9; "}));
  EXPECT_THROW(open_rows(dir.write("y.npy", bytes.substr(0, bytes.size() - 1))), base::Error);
  EXPECT_THROW(open_rows(dir.write("z.npy", tensor::npy_header(DType::i32, {}) + "1234")), base::Error);
  const std::string empty_rows = tensor::npy_header(DType::i32, {1'000'000'000'000, 0});
  EXPECT_THROW(open_rows(dir.write("v.npy", empty_rows)), base::Error);  // they would take no bytes, but work
  std::string columns = bytes;
  columns.replace(columns.find("False"), 5, "True ");
  EXPECT_THROW(open_rows(dir.write("w.npy", columns)), base::Error);
}

TEST(ImageRows, FoldersOfClassesAndLoosePictures) {
  const TestDirectory dir;
  Dice dice(4);
  dir.write("set/dog/b.bmp", bmp(1, 2));
  dir.write("set/dog/deep/a.bmp", bmp(2, 1));
  dir.write("set/cat/z.bmp", "broken");
  dir.write("set/.hidden/c.bmp", bmp(1, 9));
  dir.write("set/empty/readme.txt", "no picture");
  const auto file = open_rows(dir.path() + "/set");
  const Lines lines = read_lines(*file, 2, dice, 2);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_TRUE(lines[0].starts_with("error: row 0: 'cat/z.bmp': ")) << lines[0];
  EXPECT_EQ(lines[1], "image=u8[1,1,3] 2 2 2; path='dog/b.bmp'; label=i64[] 1; ");
  EXPECT_EQ(lines[2], "image=u8[1,2,3] 1 1 1 1 1 1; path='dog/deep/a.bmp'; label=i64[] 1; ");
  const uint64_t id = file->content_id();
  dir.write("set/dog/b.bmp", bmp(1, 3));
  EXPECT_NE(open_rows(dir.path() + "/set")->content_id(), id);
  dir.write("loose/y.bmp", bmp(1, 1));
  dir.write("loose/x.bmp", bmp(1, 0));
  EXPECT_EQ(read_lines(*open_rows(dir.path() + "/loose"), 9, dice, 9),
            (Lines{"image=u8[1,1,3] 0 0 0; path='x.bmp'; ", "image=u8[1,1,3] 1 1 1; path='y.bmp'; "}));
  EXPECT_THROW(open_rows(dir.path() + "/set/empty"), base::Error);
}

TEST(RealRows, FilesOfOthersAreReadOrRefused) {
  const auto shared = tests::shared_data("parquet");
  if (!shared) GTEST_SKIP() << tests::kNoSharedData;
  if (!has_arrow()) GTEST_SKIP() << "a build without Arrow";
  Dice dice(7);
  int64_t files = 0, rows = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(*shared)) {
    // Some files hold a lot: one of them holds two gigabytes in four kilobytes.
    const bool is_large = !entry.is_regular_file() || entry.file_size() > 100'000 ||
                          entry.path().filename().string().starts_with("large_string");
    if (entry.path().extension() != ".parquet" || is_large) continue;
    SCOPED_TRACE(entry.path());
    try {
      const auto file = open_rows(entry.path().string());
      const std::vector<std::string> whole = read_lines(*file, int64_t{1} << 30, dice, 1000);
      EXPECT_EQ(read_lines(*file, static_cast<int64_t>(whole.size()) / 5 + 1, dice, 50), whole);
      rows += static_cast<int64_t>(whole.size());
      ++files;
    } catch (const base::Error& e) {
      EXPECT_NE(e.code(), base::ErrorCode::internal) << e.message();
    }
  }
  EXPECT_GT(files, 20);
  EXPECT_GT(rows, 100);
}

/// Writes small files of every format.
std::vector<std::string> write_files(const TestDirectory& dir, Dice& dice) {
  const std::vector<Field> fields = {{"text", FieldKind::text},
                                     {"n", FieldKind::tensor, DType::i64},
                                     {"v", FieldKind::tensor, DType::f32, {2}},
                                     {"ids", FieldKind::tensor, DType::i64, {tensor::Dim::unknown()}}};
  const std::vector<Field> flat = {fields[0], fields[1]},
                           array = {{"array", FieldKind::tensor, DType::f32, {2}}};
  std::vector<std::string> paths;
  const auto add = [&](const RowWriterOptions& options, const std::vector<Field>& columns) {
    paths.push_back(dir.path() + "/" + std::to_string(paths.size()) + file_ending(options));
    write_rows(paths.back(), random_rows(dice, columns, 120, 0), columns, options, dice, 50);
  };
  add({.format = "jsonl"}, fields);
  add({.format = "csv"}, flat);
  add({.format = "npy"}, array);
  std::string records;
  for (int i = 0; i < 30; ++i) records += framed(example("t" + std::to_string(i), i));
  paths.push_back(dir.write("r.tfrecord", records));
  paths.push_back(dir.write("s.tar", shard(12)));
  if (!has_arrow()) return paths;
  for (const char* packing : {"", "zstd"}) {
    add({.format = "parquet", .compression = packing}, fields);
    add({.format = "arrow", .compression = packing}, fields);
  }
  return paths;
}

/// Reads the spans of a file that may have changed since; spans that cannot be read are left empty.
std::vector<Lines> read_known_spans(const std::string& path, const std::vector<RowSpan>& spans) {
  Dice dice(5);
  std::vector<Lines> all;
  std::unique_ptr<RowFile> file;
  try {
    file = open_rows(path);
  } catch (const base::Error& e) {
    EXPECT_NE(e.code(), base::ErrorCode::internal) << e.message();
    return all;
  }
  for (const RowSpan& span : spans) {
    try {
      all.push_back(describe(read_span(*file, span, dice, 20)));
    } catch (const base::Error& e) {
      EXPECT_NE(e.code(), base::ErrorCode::internal) << e.message();
      all.emplace_back();
    }
  }
  return all;
}

bool has_columns(const std::string& path, const std::vector<Field>& fields) {
  try {
    const std::unique_ptr<RowFile> file = open_rows(path);
    return std::equal(fields.begin(), fields.end(), file->fields().begin(), file->fields().end(),
                      [](const Field& a, const Field& b) {
                        return a.name == b.name && a.kind == b.kind && a.dtype == b.dtype &&
                               a.shape.to_string() == b.shape.to_string();
                      });
  } catch (const base::Error&) {
    return false;
  }
}

TEST(DamagedRows, NoByteMakesSilentlyOtherRows) {
  const TestDirectory dir;
  Dice dice(6);
  for (const std::string& path : write_files(dir, dice)) {
    SCOPED_TRACE(path);
    const auto whole = open_rows(path);
    const std::vector<RowSpan> spans = spans_of(*whole, 25);
    const std::vector<Lines> wanted = read_known_spans(path, spans);
    const uint64_t id = whole->content_id();
    const std::string good = base::read_file(path);
    // Parquet's pages have checksums; its footer is covered by the content id.
    const bool is_parquet = whole->format() == "parquet";
    uint32_t footer = 0;
    if (is_parquet) std::memcpy(&footer, good.data() + good.size() - 8, 4);
    const bool is_summed =
        is_parquet || whole->format() == "jsonl" || whole->format() == "csv" || whole->format() == "tfrecord";
    for (int trial = 0; trial < 100; ++trial) {
      std::string bad = good;
      const auto at = static_cast<size_t>(dice.below(static_cast<int64_t>(bad.size())));
      if (trial % 4 == 0) bad.resize(at);
      if (at < bad.size()) bad[at] = static_cast<char>(bad[at] ^ (1 << dice.below(8)));
      dir.write(path.substr(dir.path().size() + 1), bad);
      const std::vector<Lines> lines = read_known_spans(path, spans);
      // Bytes without checksums are covered by the content id, which a job compares before it resumes.
      if (!is_summed || (is_parquet && at >= good.size() - 8 - footer)) {
        try {
          EXPECT_NE(open_rows(path)->content_id(), id) << at;
        } catch (const base::Error& e) {
          EXPECT_NE(e.code(), base::ErrorCode::internal) << e.message();
        }
        continue;
      }
      // Damage in the rows that define the columns may change these; the content id shows this too.
      if (!has_columns(path, whole->fields())) continue;
      for (size_t s = 0; s < lines.size(); ++s) {
        for (size_t i = 0; i < lines[s].size(); ++i) {
          const bool is_error = lines[s][i].starts_with("error: ");
          EXPECT_TRUE(is_error || lines[s][i] == wanted[s][i]) << "byte " << at << ": " << lines[s][i];
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme::data
