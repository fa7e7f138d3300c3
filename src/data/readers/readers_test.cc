// Tests readers of arrays, fixed-size records, image folders and token files, with synthetic files, damaged
// ones, and the real sets.
#include "data/readers/readers.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "base/files/file.h"
#include "data/loader/open_dataset.h"
#include "data/readers/test_files.h"
#include "tests/test_data.h"
#include "tests/work_growth.h"

namespace trireme::data {
namespace {

using base::Error;
using base::ErrorCode;
using tensor::Dims;
using tensor::DType;

constexpr int64_t kLimit = kMaxUnpackedBytes;

std::string gzip(std::string_view plain) {
  z_stream z{};
  deflateInit2(&z, Z_BEST_SPEED, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, plain.size()) + 32, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  z.avail_in = static_cast<uInt>(plain.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

template <class Body>
std::string message_of(ErrorCode code, const Body& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.message();
    return e.message();
  }
  ADD_FAILURE() << "no error";
  return {};
}

#define EXPECT_SAYS(code, words, body)                                           \
  do {                                                                           \
    const std::string said = message_of(ErrorCode::code, [&] { (void)(body); }); \
    EXPECT_NE(said.find(words), std::string::npos) << said;                      \
  } while (false)

/// 3 images of 2 x 4 with bytes 0, 1, …, 23.
std::string idx_images() {
  std::string file("\0\0\x08\x03", 4);
  for (const uint32_t extent : {3u, 2u, 4u}) file += big_endian(extent);
  for (int i = 0; i < 24; ++i) file.push_back(static_cast<char>(i));
  return file;
}
std::string idx_labels(uint32_t count = 3) {
  std::string file = std::string("\0\0\x08\x01", 4) + big_endian(count);
  for (uint32_t i = 0; i < count; ++i) file.push_back(static_cast<char>(9 - i));
  return file;
}

TEST(SourceFile, UnpacksMembersAndRefusesDamage) {
  const std::string text(100000, 'x'), packed = gzip(text) + gzip("second") + std::string(512, '\0');
  EXPECT_EQ(gunzip(packed, kLimit), text + "second");
  EXPECT_EQ(gunzip(gzip(""), kLimit), "");
  EXPECT_SAYS(exhausted, "limit of 99999", gunzip(packed, 99999));
  EXPECT_SAYS(invalid_argument, "cut off", gunzip(packed.substr(0, 60), kLimit));
  EXPECT_SAYS(invalid_argument, "followed by other bytes", gunzip(gzip("a") + "junk", kLimit));
  std::string damaged = packed;
  damaged[40] = static_cast<char>(damaged[40] ^ 0x55);
  EXPECT_THROW(gunzip(damaged, kLimit), Error);
  EXPECT_SAYS(not_found, "no-such-file", open_source("/no-such-file"));
}

// Members of twenty bytes: the work for each must follow its own bytes, not the size of the whole file.
TEST(SourceFile, ManyMembersCostWhatTheirBytesAreWorth) {
  const std::string one = gzip("a"), none = gzip("");
  const auto unpack = [&](int64_t members) {
    std::string packed;
    for (int64_t i = 0; i < members / 2; ++i) packed += one + none;
    EXPECT_EQ(gunzip(packed, kLimit), std::string(static_cast<size_t>(members / 2), 'a'));
    EXPECT_SAYS(exhausted, "exceeds the limit", gunzip(packed, members / 2 - 1));  // members form one body
  };
  EXPECT_LT(tests::growth_over_eight(2'000, unpack), tests::kMostLinearGrowth);
}

TEST(Idx, PairsImagesAndLabels) {
  const TestDirectory dir;
  dir.write("train-images-idx3-ubyte", idx_images());
  dir.write("train-labels-idx1-ubyte.gz", gzip(idx_labels()));
  dir.write("t10k-images-idx3-ubyte.gz", gzip(idx_images()));
  for (const std::string& path : {dir.path(), dir.path() + "/train-images-idx3-ubyte"}) {
    const DatasetPtr set = open_dataset({.path = {path}});
    ASSERT_EQ(set->size(), 3);
    const Sample s = set->read(1);
    EXPECT_EQ(s.tensor("image").dims(), (Dims{2, 4, 1}));
    EXPECT_EQ(s.tensor("image").data<uint8_t>()[0], 8);
    EXPECT_EQ(s.tensor("image").data<uint8_t>()[7], 15);
    EXPECT_EQ(s.tensor("label").data<int64_t>()[0], 8);
    EXPECT_TRUE(set->info().find("label")->is_target);
  }
  const DatasetPtr test = open_dataset({.path = {dir.path()}, .split = "test"});
  EXPECT_EQ(test->size(), 3);
  EXPECT_EQ(test->info().find("label"), nullptr);  // the file of its labels is missing
}

TEST(Idx, ReadsBigEndianElements) {
  const TestDirectory dir;
  std::string file = std::string("\0\0\x0B\x02", 4) + big_endian(2u) + big_endian(3u);
  for (const int v : {1, -2, 300, -400, 5, 32767}) file += big_endian(static_cast<uint16_t>(v));
  const DatasetPtr set = open_idx(dir.write("x.idx", file), "", kLimit);
  EXPECT_EQ(set->info().fields[0].name, "data");
  const auto row = set->read(1);
  EXPECT_EQ(row.tensor("data").data<int16_t>()[0], -400);
  EXPECT_EQ(row.tensor("data").data<int16_t>()[2], 32767);
}

TEST(Idx, RefusesDamage) {
  const TestDirectory dir;
  const std::string good = idx_images();
  for (size_t size = 0; size < good.size(); ++size) EXPECT_THROW(parse_idx(good.substr(0, size)), Error);
  EXPECT_THROW(parse_idx(good + "x"), Error);
  std::string hostile = good;
  for (size_t i = 4; i < 16; ++i) hostile[i] = '\xff';  // 2^96 bytes
  EXPECT_THROW(parse_idx(hostile), Error);
  const std::string images = dir.write("a", good), labels = dir.write("b", idx_labels(4));
  EXPECT_SAYS(invalid_argument, "differ in their counts", open_idx(images, labels, kLimit));
  EXPECT_SAYS(invalid_argument, "not a list of bytes", open_idx(images, images, kLimit));
}

TEST(Idx, ReadsMnist) {
  const auto path = tests::shared_data("mnist");
  if (!path) GTEST_SKIP() << tests::kNoSharedData;
  const DatasetPtr train = open_dataset({.path = {path->string()}});
  const DatasetPtr test = open_dataset({.path = {path->string()}, .split = "test"});
  EXPECT_EQ(train->size(), 60000);
  ASSERT_EQ(test->size(), 10000);
  // The first test digits are well known: 7 2 1 0 4 1 4 9 5 9.
  for (int64_t i = 0; const int64_t label : {7, 2, 1, 0, 4, 1, 4, 9, 5, 9}) {
    EXPECT_EQ(test->read(i++).tensor("label").data<int64_t>()[0], label);
  }
  const Sample first = train->read(0);
  const auto pixels = first.tensor("image").data<uint8_t>();
  EXPECT_EQ(std::accumulate(pixels.begin(), pixels.end(), 0), 27525);  // the sum according to NumPy
}

TEST(Cifar10, TurnsPlanesIntoPixels) {
  const TestDirectory dir;
  std::string record(1, '\x03');
  for (int i = 0; i < 3072; ++i) record.push_back(static_cast<char>(i / 1024 * 100 + i % 7));
  std::string other = record;
  other[0] = 9;
  dir.write("c/data_batch_1.bin", record + record);
  dir.write("c/data_batch_2.bin.gz", gzip(other));
  dir.write("c/test_batch.bin", other);
  const DatasetPtr set = open_dataset({.path = {dir.path() + "/c"}});
  ASSERT_EQ(set->size(), 3);
  EXPECT_EQ(set->info().shards.size(), 2u);
  const Sample s = set->read(1);
  const auto pixels = s.tensor("image").data<uint8_t>();
  EXPECT_EQ(s.tensor("image").dims(), (Dims{32, 32, 3}));
  for (size_t p = 0; p < 1024; ++p) {
    ASSERT_EQ(pixels[3 * p], p % 7);
    ASSERT_EQ(pixels[3 * p + 1], 100 + (p + 1024) % 7);
    ASSERT_EQ(pixels[3 * p + 2], 200 + (p + 2048) % 7);
  }
  EXPECT_EQ(set->read(2).tensor("label").data<int64_t>()[0], 9);
  EXPECT_EQ(set->name_of(2), "data_batch_2.bin.gz: sample 0");
  EXPECT_EQ(set->info().class_names.at(9), "truck");
  EXPECT_EQ(open_dataset({.path = {dir.path() + "/c"}, .split = "test"})->size(), 1);
  EXPECT_SAYS(invalid_argument, "whole number of records",
              open_cifar10(dir.write("x.bin", record + "1"), kLimit));
  record[0] = 10;
  EXPECT_SAYS(invalid_argument, "label is not below 10",
              open_cifar10(dir.write("x.bin", record), kLimit)->read(0));
}

TEST(Cifar10, ReadsTheRealFiles) {
  const auto path = tests::shared_data("cifar10");
  if (!path) GTEST_SKIP() << tests::kNoSharedData;
  const DatasetPtr train = open_dataset({.path = {path->string()}});
  EXPECT_EQ(train->size(), 10000);
  // frog, truck, truck, deer, automobile: the first images of data_batch_1.
  for (int64_t i = 0; const int64_t label : {6, 9, 9, 4, 1}) {
    EXPECT_EQ(train->read(i++).tensor("label").data<int64_t>()[0], label);
  }
  EXPECT_EQ(open_dataset({.path = {path->string()}, .split = "test"})->size(), 1000);
}

TEST(FashionMnist, OpensByNameOrSaysWhatToInstall) {
  try {
    const DatasetPtr set = open_dataset({.path = {"fashion-mnist"}, .split = "test"});
    ASSERT_EQ(set->size(), 10000);
    EXPECT_EQ(set->read(0).tensor("label").data<int64_t>()[0], 9);  // an ankle boot comes first
    EXPECT_EQ(set->info().class_names.at(9), "ankle boot");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::not_found);
    EXPECT_NE(e.message().find("apt install dataset-fashion-mnist"), std::string::npos) << e.message();
  }
}

std::string u16_tokens(int from, int to) {
  std::string bytes;
  for (int i = from; i < to; ++i) bytes += little_endian(static_cast<uint16_t>(i));
  return bytes;
}

std::vector<int64_t> ints(const Sample& s, std::string_view field) {
  const auto span = s.tensor(field).data<int64_t>();
  return {span.begin(), span.end()};
}

TEST(Tokens, CutsWindowsWithTheirTargets) {
  const TestDirectory dir;
  const std::string path = dir.write("corpus.bin", u16_tokens(0, 11));
  const DatasetPtr apart = open_dataset({.path = {path}, .context = 5});
  ASSERT_EQ(apart->size(), 2);
  EXPECT_EQ(ints(apart->read(1), "input"), (std::vector<int64_t>{5, 6, 7, 8, 9}));
  EXPECT_EQ(ints(apart->read(1), "target"), (std::vector<int64_t>{6, 7, 8, 9, 10}));
  const DatasetPtr sliding = open_dataset({.path = {path}, .context = 5, .stride = 1});
  ASSERT_EQ(sliding->size(), 6);
  EXPECT_EQ(ints(sliding->read(5), "target"), (std::vector<int64_t>{6, 7, 8, 9, 10}));
  EXPECT_SAYS(invalid_argument, "too few tokens", open_dataset({.path = {path}, .context = 11}));
  EXPECT_SAYS(invalid_argument, "option context", open_dataset({.path = {path}}));
  const DatasetPtr small = open_dataset({.path = {path}, .context = 5, .vocabulary_size = 10});
  EXPECT_EQ(ints(small->read(0), "input")[4], 4);
  EXPECT_SAYS(invalid_argument, "outside of the vocabulary: 10", small->read(1));
}

TEST(Tokens, HoldsOutTheTail) {
  const TestDirectory dir;
  const std::string path = dir.write("corpus.u16", u16_tokens(0, 100));
  const DatasetPtr train = open_dataset({.path = {path}, .hold_out = 0.1, .context = 4, .stride = 1});
  const DatasetPtr held =
      open_dataset({.path = {path}, .split = "validation", .hold_out = 0.1, .context = 4, .stride = 1});
  EXPECT_EQ(train->size(), 86);
  EXPECT_EQ(ints(train->read(85), "target").back(), 89);
  EXPECT_EQ(held->size(), 6);
  EXPECT_EQ(ints(held->read(0), "input").front(), 90);
  EXPECT_EQ(ints(held->read(5), "target").back(), 99);
}

TEST(Tokens, ReadsWideIdsAndLlmHeaders) {
  const TestDirectory dir;
  std::string wide;
  for (const uint32_t id : {70000u, 1u, 128255u}) wide += little_endian(id);
  const DatasetPtr set = open_dataset({.path = {dir.write("a.u32", wide)}, .context = 2});
  EXPECT_EQ(ints(set->read(0), "target"), (std::vector<int64_t>{1, 128255}));
  std::string header = little_endian(20240520u) + little_endian(1u) + little_endian(3u);
  header.resize(1024);
  const std::string headed = dir.write("b.bin", header + u16_tokens(5, 8));
  EXPECT_EQ(ints(open_dataset({.path = {headed}, .context = 2})->read(0), "input"),
            (std::vector<int64_t>{5, 6}));
  const std::string cut = dir.write("c.bin", header + u16_tokens(5, 7));
  EXPECT_SAYS(invalid_argument, "promises 3 tokens", open_dataset({.path = {cut}, .context = 1}));
  const std::string odd = dir.write("d.bin", "abc");
  EXPECT_SAYS(invalid_argument, "whole number of ids", open_dataset({.path = {odd}, .context = 1}));
}

TEST(Characters, ReadsTinyShakespeareAsNanoGptDoes) {
  const auto path = tests::shared_data("text/tinyshakespeare.txt");
  if (!path) GTEST_SKIP() << tests::kNoSharedData;
  DatasetSpec spec{.path = {path->string()}, .hold_out = 0.1, .context = 64, .stride = 1};
  const DatasetPtr train = open_dataset(spec);
  EXPECT_EQ(train->info().vocabulary_size, 65);
  EXPECT_EQ(train->size(), 1003854 - 64);              // nanoGPT's train.bin has 1,003,854 tokens
  EXPECT_EQ(ints(train->read(0), "input").at(0), 18);  // "First Citizen": nanoGPT's id of F is 18
  EXPECT_EQ(train->info().vocabulary.at(18), "F");
  spec.split = "validation";
  EXPECT_EQ(open_dataset(spec)->size(), 111540 - 64);
}

TEST(Characters, CountsCodePoints) {
  const TestDirectory dir;
  const DatasetPtr set = open_dataset({.path = {dir.write("x.txt", "aé€a")}, .context = 3});
  EXPECT_EQ(set->info().vocabulary, (std::vector<std::string>{"a", "é", "€"}));
  EXPECT_EQ(ints(set->read(0), "target"), (std::vector<int64_t>{1, 2, 0}));
  EXPECT_SAYS(invalid_argument, "not UTF-8",
              open_dataset({.path = {dir.write("y.txt", "a\xff")}, .context = 1}));
}

TEST(ImageFolder, ClassesAreDirectories) {
  const auto images = tests::shared_data("images");
  if (!images) GTEST_SKIP() << tests::kNoSharedData;
  const TestDirectory dir;
  const auto put = [&](const std::string& name, const std::string& from) {
    dir.write(name, base::read_file((*images / from).string()));
  };
  put("train/cat/b.jpg", "cat_720p.jpg");
  put("train/cat/a.bmp", "sunflower.bmp");
  put("train/bird/deep/1.jpeg", "bald_eagle.jpeg");
  dir.write("train/cat/notes.txt", "x");
  dir.write("val/cat/broken.jpg", "\xff\xd8\xff no picture");
  const DatasetPtr set = open_dataset({.path = {dir.path()}});
  ASSERT_EQ(set->size(), 3);
  EXPECT_EQ(set->info().class_names, (std::vector<std::string>{"bird", "cat"}));
  const Sample cat = set->read(2);
  EXPECT_EQ(set->name_of(2), "cat/b.jpg");
  EXPECT_EQ(cat.tensor("label").data<int64_t>()[0], 1);
  EXPECT_EQ(cat.tensor("image").dims().at(2), 3);
  EXPECT_EQ(cat.tensor("image").dims().at(0), 720);
  const DatasetPtr broken = open_dataset({.path = {dir.path()}, .split = "validation"});
  EXPECT_SAYS(invalid_argument, "JPEG", broken->read(0));
}

TEST(OpenDataset, NamesWhatItDoesNotKnow) {
  const TestDirectory dir;
  const std::string path = dir.write("x.unknown", "x");
  EXPECT_SAYS(invalid_argument, "nearest is 'tokens'", open_dataset({.path = {path}, .format = "token"}));
  EXPECT_SAYS(invalid_argument, "cannot tell the data format", open_dataset({.path = {path}}));
  EXPECT_SAYS(not_found, "no-such", open_dataset({.path = {"/no-such.bin"}, .context = 2}));
  EXPECT_SAYS(invalid_argument, "idx has no option 'context'",
              open_dataset({.path = {path}, .format = "idx", .context = 3}));
  EXPECT_SAYS(invalid_argument, "no path", open_dataset({}));
  dir.write("some/train-images-idx3-ubyte", idx_images());
  EXPECT_SAYS(not_found, "no files of split 'validation'; found train",
              open_dataset({.path = {dir.path() + "/some"}, .split = "validation"}));
  DatasetSpec spec;
  base::OptionList list(spec);
  EXPECT_SAYS(invalid_argument, "nearest is 'context'",
              list.parse_json(base::parse_json(R"({"contxt": 3})")));
}

TEST(OpenDataset, WildcardsAndHoldOut) {
  const TestDirectory dir;
  dir.write("a-1.idx", idx_images());
  dir.write("a-2.idx", idx_images());
  dir.write("b.idx", idx_images());
  const DatasetPtr two = open_dataset({.path = {dir.path() + "/a-*.idx"}});
  EXPECT_EQ(two->size(), 6);
  EXPECT_SAYS(not_found, "no data files", open_dataset({.path = {dir.path() + "/c*.idx"}, .format = "idx"}));
  const DatasetPtr train = open_dataset({.path = {dir.path() + "/a-*.idx"}, .hold_out = 0.5});
  const DatasetPtr held =
      open_dataset({.path = {dir.path() + "/a-*.idx"}, .split = "validation", .hold_out = 0.5});
  EXPECT_EQ(train->size(), 3);
  EXPECT_EQ(held->size(), 3);
  std::vector<std::string> names;
  for (int64_t i = 0; i < 3; ++i) {
    names.push_back(train->name_of(i));
    names.push_back(held->name_of(i));
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

TEST(Wrappers, ComposeByIndex) {
  const TestDirectory dir;
  const DatasetPtr one = open_idx(dir.write("x", idx_images()), "", kLimit);
  const DatasetPtr chain = subset(concat({take(one, 1, 3), take(one, 0, 0), one}), {4, 0, 1});
  EXPECT_EQ(chain->size(), 3);
  EXPECT_EQ(chain->read(0).tensor("image").data<uint8_t>()[0], 16);
  EXPECT_EQ(chain->read(1).tensor("image").data<uint8_t>()[0], 8);
  EXPECT_EQ(chain->read(2).tensor("image").data<uint8_t>()[0], 16);
  EXPECT_SAYS(invalid_argument, "outside of the data set", subset(one, {3}));
  EXPECT_SAYS(invalid_argument, "outside of the data set", take(one, 2, 4));
  EXPECT_SAYS(invalid_argument, "outside of the data set", read_checked(*one, 3));
  EXPECT_SAYS(not_found, "it has image", one->read(0).tensor("label"));
}

}  // namespace
}  // namespace trireme::data
