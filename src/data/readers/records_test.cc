// Tests readers of variable-size records: tar, TFRecord, JSON lines, CSV; synthetic, damaged and real files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "data/loader/open_dataset.h"
#include "data/readers/readers.h"
#include "data/readers/tar.h"
#include "data/readers/test_files.h"
#include "data/readers/tfrecord.h"
#include "tests/test_data.h"
#include "tests/work_growth.h"

namespace trireme::data {
namespace {

using base::Error;
using tensor::Dims;
using tensor::DType;

std::string refusal_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_NE(e.code(), base::ErrorCode::internal) << e.message();
    return e.message();
  }
  return "no error";
}

#define EXPECT_REFUSED(words, body)                             \
  do {                                                          \
    const std::string said = refusal_of([&] { (void)(body); }); \
    EXPECT_NE(said.find(words), std::string::npos) << said;     \
  } while (false)

void put(std::string& header, size_t at, const std::string& text) { header.replace(at, text.size(), text); }

std::string tar_header(const std::string& name, size_t size, char type = '0') {
  std::string h(512, '\0');
  put(h, 0, name.substr(0, 100));
  char octal[32];
  std::snprintf(octal, sizeof(octal), "%011zo", size);
  put(h, 124, octal);
  h[156] = type;
  put(h, 257,
      std::string("ustar\0"
                  "00",
                  8));
  put(h, 148, "        ");
  unsigned sum = 0;
  for (const char c : h) sum += static_cast<uint8_t>(c);
  std::snprintf(octal, sizeof(octal), "%06o", sum);
  put(h, 148, std::string(octal) + '\0');
  return h;
}

std::string tar_member(const std::string& name, const std::string& content, char type = '0') {
  std::string out = tar_header(name, content.size(), type) + content;
  out.resize((out.size() + 511) / 512 * 512);
  return out;
}

TEST(Tar, ReadsEveryKindOfHeader) {
  const std::string long_name(150, 'n');
  const std::string pax = "21 path=pax/name.txt\n";
  const std::string archive = tar_member("dir/", "", '5') + tar_member("dir/a.txt", "first") +
                              tar_member("link", "", '2') +
                              tar_member("././@LongLink", long_name + '\0', 'L') +
                              tar_member("short", "second") + tar_member("x", pax, 'x') +
                              tar_member("y", "third") + std::string(1024, '\0') + "rubbish after the end";
  const std::vector<TarMember> members = list_tar(archive);
  ASSERT_EQ(members.size(), 3u);
  EXPECT_EQ(members[0].name, "dir/a.txt");
  EXPECT_EQ(archive.substr(members[0].offset, members[0].size), "first");
  EXPECT_EQ(members[1].name, long_name);
  EXPECT_EQ(archive.substr(members[1].offset, members[1].size), "second");
  EXPECT_EQ(members[2].name, "pax/name.txt");
}

TEST(Tar, RefusesDamage) {
  const std::string archive = tar_member("a.txt", std::string(700, 'x'));
  EXPECT_EQ(list_tar(archive).size(), 1u);
  EXPECT_EQ(list_tar(archive.substr(0, 512 + 700)).size(), 1u);  // padding may be missing
  EXPECT_TRUE(list_tar("").empty());
  EXPECT_REFUSED("cut off", list_tar(archive.substr(0, 1000)));
  EXPECT_REFUSED("cut off", list_tar(archive.substr(0, 100)));
  std::string damaged = archive;
  damaged[3] = 'X';
  EXPECT_REFUSED("byte 0: not a tar header", list_tar(damaged));
  EXPECT_REFUSED("pax header is damaged", list_tar(tar_member("x", "99 path=a\n", 'x')));
}

TEST(WebDataset, GroupsNeighboursByKey) {
  const TestDirectory dir;
  const std::string shard = tar_member("d/0001.txt", "one") + tar_member("d/0001.cls", "7\n") +
                            tar_member("d/0001.meta.json", "{}") + tar_member("__index__", "?") +
                            tar_member("d/0002.cls", "3") + tar_member("d/0002.txt", "two");
  const DatasetPtr set = open_dataset({.path = {dir.write("s-000.tar", shard)}});
  ASSERT_EQ(set->size(), 2);
  EXPECT_EQ(set->name_of(1), "s-000.tar: d/0002");
  EXPECT_EQ(set->read(0).text("text"), "one");
  EXPECT_EQ(set->read(0).text("meta.json"), "{}");
  EXPECT_EQ(set->read(1).tensor("label").data<int64_t>()[0], 3);
  EXPECT_EQ(set->info().fields.size(), 3u);
  const std::string twice = tar_member("a.cls", "1") + tar_member("a.cls", "2");
  EXPECT_REFUSED("same field", open_dataset({.path = {dir.write("t.tar", twice)}}));
  const DatasetPtr bad = open_dataset({.path = {dir.write("u.tar", tar_member("a.cls", "x"))}});
  EXPECT_REFUSED("member .cls: not an integer", bad->read(0));
}

TEST(WebDataset, NamesBetweenUnderscoresBelongToNoSample) {
  const TestDirectory dir;
  const std::string shard = tar_member("__a.txt", "one") + tar_member("__meta__/b.txt", "of nobody") +
                            tar_member("__c__", "of nobody") + tar_member("d/__e__.txt", "two") +
                            tar_member("____/f.txt", "of nobody") + tar_member("___/g.txt", "three");
  const DatasetPtr set = open_dataset({.path = {dir.write("s.tar", shard)}});
  ASSERT_EQ(set->size(), 3);
  EXPECT_EQ(set->name_of(0), "s.tar: __a");
  EXPECT_EQ(set->name_of(1), "s.tar: d/__e__");
  EXPECT_EQ(set->read(2).text("text"), "three");
}

TEST(WebDataset, ReadsTheRealShards) {
  const auto path = tests::shared_data("webdataset");
  if (!path) GTEST_SKIP() << tests::kNoSharedData;
  const DatasetPtr captions = open_dataset({.path = {(*path / "cc12m-train-0000.tar").string()}});
  ASSERT_GT(captions->size(), 10);
  EXPECT_EQ(captions->name_of(0), "cc12m-train-0000.tar: 000000003");
  EXPECT_EQ(captions->read(0).tensor("image").rank(), 3u);
  EXPECT_FALSE(captions->read(0).text("text").empty());
  const DatasetPtr digits = open_dataset({.path = {(*path / "sample.tgz").string()}});
  const Sample first = digits->read(0);
  EXPECT_EQ(first.tensor("image").dims(), (Dims{28, 28, 3}));
  EXPECT_LT(first.tensor("label").data<int64_t>()[0], 10);
  const DatasetPtr packed = open_dataset({.path = {(*path / "compressed.tar").string()}});
  ASSERT_EQ(packed->size(), 3);
  EXPECT_FALSE(packed->read(2).text("text").empty());
  EXPECT_EQ(open_dataset({.path = {(*path / "mpdata.tar").string()}})->info().fields[0].kind,
            FieldKind::bytes);
}

std::string length_delimited(int field, const std::string& bytes) {
  EXPECT_LT(bytes.size(), 128u);
  return std::string(1, static_cast<char>(field << 3 | 2)) + static_cast<char>(bytes.size()) + bytes;
}
std::string feature(const std::string& name, int kind, const std::string& list) {
  return length_delimited(1, length_delimited(1, name) + length_delimited(2, length_delimited(kind, list)));
}
std::string framed(const std::string& record) {
  const std::string length = little_endian(uint64_t{record.size()});
  return length + little_endian(base::masked_crc32c(base::crc32c(length))) + record +
         little_endian(base::masked_crc32c(base::crc32c(record)));
}

TEST(TfRecord, SumsAreCastagnolis) {
  EXPECT_EQ(base::crc32c("123456789"), 0xE3069283u);            // the check value of the catalogue of CRCs
  EXPECT_EQ(base::crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(base::crc32c(std::string(32, '\xff')), 0x62A8AB43u);
}

TEST(TfRecord, ReadsExamples) {
  float values[2] = {1.5f, -2};
  std::string raw(8, '\0');
  std::memcpy(raw.data(), values, 8);
  const auto example = [&](int label) {
    return length_delimited(1, feature("name", 1, length_delimited(1, "cat")) +
                                   feature("x", 2, length_delimited(1, raw)) +
                                   feature("y", 3, std::string("\x08", 1) + static_cast<char>(label)));
  };
  const TestDirectory dir;
  const std::string file = framed(example(5)) + framed(example(6));
  const DatasetPtr set = open_dataset({.path = {dir.write("a.tfrecord", file)}, .label_field = "y"});
  ASSERT_EQ(set->size(), 2);
  const Sample s = set->read(1);
  EXPECT_EQ(s.text("name"), "cat");
  EXPECT_EQ(s.tensor("x").data<float>()[1], -2);
  EXPECT_EQ(s.tensor("label").data<int64_t>()[0], 6);
  EXPECT_TRUE(s.tensor("label").dims().empty());
  EXPECT_TRUE(set->info().find("label")->is_target);
  for (size_t size = 1; size < file.size(); ++size) {
    if (size == file.size() / 2) continue;  // the cut is between two records
    EXPECT_THROW(list_tfrecords(file.substr(0, size)), Error) << size;
  }
  for (size_t i = 0; i < file.size() / 2; ++i) {  // every byte is covered by a checksum
    std::string damaged = file;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_THROW(open_dataset({.path = {dir.write("b.tfrecord", damaged)}}), Error) << i;
  }
}

TEST(TfRecord, RefusesFieldsOfAnotherWireType) {
  // A feature whose list of floats claims to be a varint, and packed floats of five bytes.
  EXPECT_REFUSED("wire type",
                 parse_example(length_delimited(1, feature("x", 2, std::string("\x08\x05", 2)))));
  EXPECT_REFUSED("packed floats take 5 bytes",
                 parse_example(length_delimited(1, feature("x", 2, length_delimited(1, "12345")))));
  EXPECT_REFUSED("wire type", parse_example(std::string("\x08\x05", 2)));
}

TEST(TfRecord, ReadsTheRealFiles) {
  const auto path = tests::shared_data("tfrecord");
  if (!path) GTEST_SKIP() << tests::kNoSharedData;
  const DatasetPtr mnist =
      open_dataset({.path = {(*path / "mnist/mnist.tfrecord").string()}, .label_field = "image_class"});
  EXPECT_EQ(mnist->size(), 1000);
  EXPECT_EQ(mnist->read(0).tensor("image_floats").dims(), (Dims{784}));
  EXPECT_EQ(mnist->read(0).tensor("label").data<int64_t>()[0], 9);
  const DatasetPtr taxi = open_dataset({.path = {(*path / "chicago_taxi").string()}});
  EXPECT_EQ(taxi->info().shards.size(), 2u);
  EXPECT_EQ(taxi->read(0).text("company"), "Taxi Affiliation Services");
  EXPECT_EQ(taxi->read(0).tensor("trip_start_hour").data<int64_t>()[0], 12);
  EXPECT_EQ(taxi->read(0).find("pickup_census_tract"), nullptr);  // it has no value there
  const DatasetPtr sequence = open_dataset({.path = {(*path / "sequence").string()}});
  EXPECT_EQ(sequence->read(1).tensor("i").data<int64_t>()[0], 1);
}

TEST(Jsonl, LearnsTypesAndKeepsThem) {
  const TestDirectory dir;
  const std::string text =
      "{\"t\": \"a\", \"n\": 1, \"v\": [1, 2.5], \"m\": [[1,2],[3,4]], \"o\": {\"k\": 1}, \"b\": true}\r\n\n"
      "{\"t\": \"b\", \"n\": 2.5, \"v\": [3], \"m\": [[5,6],[7,8]], \"o\": null, \"new\": 1}";
  const DatasetPtr set = open_dataset({.path = {dir.write("a.jsonl", text)}});
  ASSERT_EQ(set->size(), 2);
  EXPECT_EQ(set->info().find("n")->dtype, DType::f32);
  EXPECT_EQ(set->info().find("v")->shape.to_string(), "[?]");
  EXPECT_EQ(set->info().find("m")->dtype, DType::i64);
  EXPECT_EQ(set->read(0).tensor("n").data<float>()[0], 1);
  EXPECT_EQ(set->read(1).tensor("m").data<int64_t>()[3], 8);
  EXPECT_EQ(set->read(0).text("o"), "{\"k\":1}");
  EXPECT_EQ(set->read(1).find("o"), nullptr);
  EXPECT_REFUSED("row 0", open_dataset({.path = {dir.write("b.jsonl", "{\"a\": 1")}}));
  EXPECT_REFUSED("not a JSON object", open_dataset({.path = {dir.write("c.jsonl", "[1]")}}));
  std::string late;
  for (int i = 0; i < 70; ++i) late += i == 69 ? "{\"a\": \"x\"}\n" : "{\"a\": 1}\n";
  EXPECT_REFUSED("member is not i64", open_dataset({.path = {dir.write("d.jsonl", late)}})->read(69));
  EXPECT_EQ(open_dataset({.path = {dir.write("e.jsonl", "")}})->size(), 0);
}

// Integers beyond 2^53 keep their value, in arrays too; those that do not fit i64 become f32.
TEST(Jsonl, LargeIntegersKeepTheirValue) {
  const TestDirectory dir;
  const DatasetPtr set =
      open_dataset({.path = {dir.write(
                        "a.jsonl", R"({"n": 9007199254740993, "v": [9007199254740993, -9223372036854775807],)"
                                   R"( "u": 18446744073709551615, "w": [18446744073709551615, 1]})")}});
  const Sample row = set->read(0);
  EXPECT_EQ(row.tensor("n").to_ints(), std::vector<int64_t>{9007199254740993});
  EXPECT_EQ(row.tensor("v").to_ints(), (std::vector<int64_t>{9007199254740993, -9223372036854775807}));
  EXPECT_EQ(row.tensor("u").dtype(), DType::f32);
  EXPECT_EQ(row.tensor("w").to_doubles(), (std::vector<double>{18446744073709551616.0, 1}));
}

// As many fields as the file has room for: a linear search for each of them would take minutes.
TEST(Readers, ManyFieldsCostWhatTheirBytesAreWorth) {
  const TestDirectory dir;
  const auto read = [&](const std::string& path, int64_t fields) {
    EXPECT_EQ(open_dataset({.path = {path}})->read(0).values.size(), static_cast<size_t>(fields));
  };
  const auto read_rows = [&](int64_t fields) {
    std::string line = "{";
    for (int64_t i = 0; i < fields; ++i) line += base::concat(i == 0 ? "" : ",", "\"member", i, "\":1");
    read(dir.write("a.jsonl", line + "}\n"), fields);
  };
  const auto read_shards = [&](int64_t fields) {
    std::string shard;
    for (int64_t i = 0; i < fields; ++i) shard += tar_member(base::concat("a.e", i), "");
    read(dir.write("a.tar", shard), fields);
  };
  EXPECT_LT(tests::growth_over_eight(5'000, read_rows), tests::kMostLinearGrowth);
  EXPECT_LT(tests::growth_over_eight(2'000, read_shards), tests::kMostLinearGrowth);
}

TEST(Jsonl, AByteOrderMarkIsPassedOver) {
  const TestDirectory dir;
  const DatasetPtr set =
      open_dataset({.path = {dir.write("a.jsonl", "\xef\xbb\xbf{\"n\": 1}\n{\"n\": 2}\n")}});
  ASSERT_EQ(set->size(), 2);
  EXPECT_EQ(set->read(0).tensor("n").to_ints(), std::vector<int64_t>{1});
  EXPECT_EQ(set->read(1).tensor("n").to_ints(), std::vector<int64_t>{2});
  EXPECT_EQ(open_dataset({.path = {dir.write("b.jsonl", "\xef\xbb\xbf")}})->size(), 0);
}

TEST(Jsonl, ReadsTheRealFiles) {
  const auto path = tests::shared_data("traces/mt_bench_question.jsonl");
  if (!path) GTEST_SKIP() << tests::kNoSharedData;
  const DatasetPtr set = open_dataset({.path = {path->string()}});
  EXPECT_EQ(set->size(), 80);
  EXPECT_EQ(set->read(79).tensor("question_id").data<int64_t>()[0], 160);
}

TEST(Csv, FollowsRfc4180) {
  const TestDirectory dir;
  const std::string text = "name,score,n\r\n\"a \"\"b\"\", c\",1.5,3\r\n\"two\nlines\",2,4\n";
  const DatasetPtr set = open_dataset({.path = {dir.write("a.csv", text)}, .label_field = "n"});
  ASSERT_EQ(set->size(), 2);
  EXPECT_EQ(set->read(0).text("name"), "a \"b\", c");
  EXPECT_EQ(set->read(1).text("name"), "two\nlines");
  EXPECT_EQ(set->read(1).tensor("score").data<float>()[0], 2);
  EXPECT_EQ(set->read(1).tensor("label").data<int64_t>()[0], 4);
  const DatasetPtr plain = open_dataset({.path = {dir.write("b.tsv", "x\t1\ny\t2")}, .header = false});
  EXPECT_EQ(plain->size(), 2);
  EXPECT_EQ(plain->read(1).text("0"), "y");
  EXPECT_REFUSED("row 1: CSV row has 1 cells", open_dataset({.path = {dir.write("c.csv", "a,b\n1,2\n3\n")}}));
  EXPECT_REFUSED("quote is not closed", open_dataset({.path = {dir.write("d.csv", "a,b\n1,\"2\n")}}));
}

TEST(Csv, ReadsSentencePairs) {
  const auto path = tests::shared_data("text/glue_like/stsb-en-dev.csv");
  if (!path) GTEST_SKIP() << tests::kNoSharedData;
  const DatasetPtr set = open_dataset({.path = {path->string()}, .header = false, .label_field = "2"});
  EXPECT_EQ(set->size(), 1500);
  EXPECT_EQ(set->read(1).text("0"), "A young child is riding a horse.");
  EXPECT_EQ(set->read(1).tensor("label").data<float>()[0], 4.75f);
}

/// Opens a file of the Parquet project's own test set. Returns null if this build has no Arrow, after
/// checking the message that says so.
DatasetPtr open_parquet_sample(const std::filesystem::path& path) {
  try {
    return open_dataset({.path = {path.string()}});
  } catch (const Error& e) {
    if (e.code() != base::ErrorCode::unsupported) throw;
    EXPECT_NE(e.message().find("this build reads no Parquet"), std::string::npos);
    return nullptr;
  }
}

TEST(Parquet, ReadsTheRealFiles) {
  const auto path = tests::shared_data("parquet");
  if (!path) GTEST_SKIP() << tests::kNoSharedData;
  const DatasetPtr plain = open_parquet_sample(*path / "parquet-testing/data/alltypes_plain.parquet");
  if (plain == nullptr) GTEST_SKIP() << "built without Arrow";
  // Values as given in the set's documentation: 8 rows, id 4 first, strings "0" and "1" in turn.
  ASSERT_EQ(plain->size(), 8);
  const Sample first = plain->read(0), second = plain->read(1);
  EXPECT_EQ(first.tensor("id").data<int32_t>()[0], 4);
  EXPECT_TRUE(first.tensor("bool_col").data<bool>()[0]);
  EXPECT_FALSE(second.tensor("bool_col").data<bool>()[0]);
  EXPECT_EQ(second.tensor("bigint_col").data<int64_t>()[0], 10);
  EXPECT_FLOAT_EQ(second.tensor("float_col").data<float>()[0], 1.1f);
  EXPECT_EQ(second.text("string_col"), "1");
  EXPECT_EQ(second.text("date_string_col"), "03/01/09");
  const DatasetPtr taxi = open_parquet_sample(*path / "chicago_taxi/data.parquet");
  EXPECT_EQ(taxi->size(), 10000);
  EXPECT_DOUBLE_EQ(taxi->read(0).tensor("fare").data<double>()[0], 5.85);
  EXPECT_EQ(taxi->read(0).find("pickup_census_tract"), nullptr);  // null
  const std::string file = (*path / "chicago_taxi/data.parquet").string();
  const DatasetPtr two =
      open_dataset({.path = {file}, .columns = {"fare", "company"}, .label_field = "fare"});
  EXPECT_EQ(two->info().fields.size(), 2u);
  EXPECT_EQ(two->read(0).values.size(), 2u);
  EXPECT_REFUSED("has no column 'fares'", open_dataset({.path = {file}, .columns = {"fares"}}));
  EXPECT_REFUSED("exceed the limit", open_dataset({.path = {file}, .max_unpacked = {1000}}));
}

/// 4 KB that hold 2 GiB of one string.
TEST(Parquet, BytesOfAFilePayForItsColumns) {
  const auto path = tests::shared_data("parquet/parquet-testing/data");
  if (!path) GTEST_SKIP() << tests::kNoSharedData;
  if (open_parquet_sample(*path / "alltypes_plain.parquet") == nullptr) GTEST_SKIP() << "built without Arrow";
  EXPECT_REFUSED("more memory than may be spent",
                 open_parquet_sample(*path / "large_string_map.brotli.parquet"));
}

TEST(Parquet, SurvivesDamagedFiles) {
  const auto path = tests::shared_data("parquet/parquet-testing");
  if (!path) GTEST_SKIP() << tests::kNoSharedData;
  int opened = 0;
  for (const char* folder : {"bad_data", "data"}) {
    for (const auto& file : std::filesystem::directory_iterator(*path / folder)) {
      if (file.path().extension() != ".parquet") continue;
      try {
        const DatasetPtr set = open_parquet_sample(file.path());
        if (set == nullptr) GTEST_SKIP() << "built without Arrow";
        for (int64_t i = 0; i < std::min<int64_t>(set->size(), 50); ++i) set->read(i);
        ++opened;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument) << file.path() << e.message();
      }
    }
  }
  EXPECT_GT(opened, 45);
}

}  // namespace
}  // namespace trireme::data
