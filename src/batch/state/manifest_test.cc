// The manifest: comes back whole, every changed byte is seen, and differences are named.
#include "batch/state/manifest.h"

#include <gtest/gtest.h>

#include "base/files/file.h"
#include "batch/state/job_directory.h"
#include "batch/state/test_directory.h"

namespace trireme::batch {
namespace {

Manifest sample() {
  Manifest m;
  m.job = 0xfedcba9876543210;
  m.wall_ns = 12345;
  m.identity = base::Json::object({{"file", "m.onnx"}, {"precision", "f32"}});
  m.result = base::Json::object({{"chunk_rows", 8}});
  m.options = base::Json::object({{"threads", 2}});
  m.partitions = {{.name = "year", .dtype = tensor::DType::i64},
                  {.name = "country", .kind = data::FieldKind::text}};
  m.files = {{.path = "a.jsonl", .content_id = 1}, {.path = "b.jsonl", .content_id = UINT64_MAX}};
  m.chunks = {{.file = 0, .span = {.first_row = 0, .rows = 8, .begin = 0, .end = 99, .crc = 5}},
              {.file = 1, .span = {.first_row = 8, .rows = 3, .begin = 99, .end = 140, .crc = 0xffffffff}}};
  return m;
}

TEST(Manifest, ComesBackWhole) {
  const std::string path = fresh("manifest") + "/manifest";
  const Manifest m = sample();
  write_manifest(path, m);
  const Manifest back = read_manifest(path);
  EXPECT_EQ(back.job, m.job);
  EXPECT_EQ(back.wall_ns, m.wall_ns);
  EXPECT_EQ(back.identity, m.identity);
  EXPECT_EQ(back.result, m.result);
  EXPECT_EQ(back.options, m.options);
  EXPECT_EQ(back.partitions, m.partitions);
  ASSERT_EQ(back.files.size(), 2U);
  EXPECT_EQ(back.files[1].path, "b.jsonl");
  EXPECT_EQ(back.files[1].content_id, UINT64_MAX);
  ASSERT_EQ(back.chunks.size(), 2U);
  EXPECT_EQ(back.chunks[0].span, m.chunks[0].span);
  EXPECT_EQ(back.chunks[1].span, m.chunks[1].span);
  EXPECT_EQ(back.chunks[1].file, 1U);
  EXPECT_EQ(back.rows(), 11);
}

TEST(Manifest, EveryChangedByteAndEveryCutIsRefused) {
  const std::string path = fresh("manifest_damage") + "/manifest";
  write_manifest(path, sample());
  const std::string bytes = base::read_file(path);
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string wrong = bytes;
    wrong[at] = static_cast<char>(wrong[at] ^ 1);
    overwrite(path, wrong);
    EXPECT_NE(error_of([&] { read_manifest(path); }), "no error") << at;
    overwrite(path, bytes.substr(0, at));
    EXPECT_NE(error_of([&] { read_manifest(path); }), "no error") << "cut at " << at;
  }
  std::string other = bytes;
  other[7] = 9;
  overwrite(path, other);
  EXPECT_NE(error_of([&] { read_manifest(path); }).find("version is 9"), std::string::npos);
}

TEST(Manifest, DifferencesAreNamed) {
  const base::Json then = base::Json::object(
      {{"file", "m.onnx"}, {"sampling", base::Json::object({{"seed", 1}, {"top_p", 0.5}})}});
  base::Json now = then;
  EXPECT_TRUE(differences(then, now).empty());
  now["sampling"].set("seed", 2);
  now.set("precision", "bf16");
  EXPECT_EQ(differences(then, now),
            (std::vector<std::string>{"sampling.seed: 1 then, 2 now", "precision: null then, bf16 now"}));
}

TEST(JobDirectory, NamesSortAsChunksDo) {
  const JobDirectory few{.state = "s", .output = "o", .ending = ".jsonl", .chunks = 7};
  EXPECT_EQ(few.part(6), "o/part-00006.jsonl");
  EXPECT_EQ(few.chunk_of("part-00006.jsonl", ".jsonl"), 6);
  for (const char* other : {"part-00007.jsonl", "part-6.jsonl", "part-00006.json", "part-.jsonl", "x",
                            "part-00006.jsonl.tmp", "part--0001.jsonl"}) {
    EXPECT_EQ(few.chunk_of(other, ".jsonl"), -1) << other;
  }
  const JobDirectory bucket{
      .state = "s", .output = "s3://b/o", .ending = ".npy", .chunks = 1, .query = "?region=x"};
  EXPECT_EQ(bucket.part(0), "s3://b/o/part-00000.npy?region=x");
  EXPECT_EQ(bucket.error_part(0), "s3://b/o/errors/part-00000.jsonl?region=x");
  EXPECT_EQ(bucket.name_of("s3://b/o/part-00000.npy?region=x"), "part-00000.npy");
  EXPECT_EQ(few.name_of("o/what?.jsonl"), "what?.jsonl");
  const JobDirectory many{.state = "s", .output = "o", .ending = ".npy", .chunks = 1'000'001};
  EXPECT_EQ(many.part(5), "o/part-0000005.npy");
  EXPECT_EQ(many.error_part(1'000'000), "o/errors/part-1000000.jsonl");
}

}  // namespace
}  // namespace trireme::batch
