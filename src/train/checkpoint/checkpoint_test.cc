// Tests checkpoints: round trips, chunks in any layout, corruption, and failure or death in every file call.
#include "train/checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "base/files/file.h"
#include "train/checkpoint/checkpoint_reader.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/files/test_files.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using tensor::Tensor;

Checkpoint example(int64_t step) {
  const auto x = static_cast<float>(step);
  return {step,
          base::Json::object({{"samples", step * 64}, {"rate", 0.1}, {"nothing", std::nan("")}}),
          {{"b.bias", Tensor::from<float>({3}, {x, 2 * x, -x})},
           {"count", Tensor::scalar<int64_t>(step)},
           {"w", Tensor::from<float>({2, 3}, {x, 1, 2, 3, 4, 5})},
           {"z.flags", Tensor::from<uint8_t>({5}, {1, 2, 3, 4, 5})}}};
}

void expect_same(const Checkpoint& a, const Checkpoint& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.meta.at("samples"), b.meta.at("samples"));
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_EQ(a.tensors[i].first, b.tensors[i].first);
    EXPECT_TRUE(a.tensors[i].second.same_as(b.tensors[i].second)) << a.tensors[i].first;
  }
}

WriteResult write(FileOps& files, const std::string& root, const Checkpoint& checkpoint,
                  int64_t shard_bytes = int64_t{1} << 30) {
  return write_checkpoint(files, root, checkpoint, whole_pieces(checkpoint.tensors), shard_bytes);
}

std::optional<CheckpointOutcome> save_whole(CheckpointWriter& writer, const Checkpoint& checkpoint,
                                            double score = NAN) {
  return writer.save(checkpoint, whole_pieces(checkpoint.tensors), score);
}

TEST(Checkpoint, RoundTripInOneAndInManyShards) {
  PosixFiles files;
  const std::string root = fresh("round");
  for (const int64_t shard_bytes : {int64_t{1} << 30, int64_t{1}, int64_t{24}}) {
    write(files, root, example(12), shard_bytes);  // the second write replaces the first
    expect_same(load_checkpoint(root + "/step-00000012"), example(12));
  }
  EXPECT_EQ(find_checkpoint(root), root + "/step-00000012");
  EXPECT_EQ(load_checkpoint_meta(root + "/step-00000012").meta.at("rate").as_double(), 0.1);
  write(files, root, example(123456789));
  write(files, root, example(13));
  EXPECT_EQ(list_checkpoints(root),
            (std::vector<std::string>{"step-00000012", "step-00000013", "step-123456789"}));
  EXPECT_THROW(find_checkpoint(root + "/nowhere"), base::Error);
  // Only the checkpoints and the pointer remain.
  EXPECT_EQ(std::distance(fs::directory_iterator(root), fs::directory_iterator()), 4);
}

TEST(Checkpoint, FilesAreSafetensors) {
  PosixFiles files;
  const std::string root = fresh("safetensors");
  const WriteResult written = write(files, root, example(3));
  const auto file = model::Safetensors::open(written.path + "/tensors-00000.safetensors");
  EXPECT_TRUE(file.need("w").same_as(example(3).tensors[2].second));
}

/// An index of these tensors over a file `data`, written by hand with a valid checksum.
std::string indexed(const std::string& name, const std::string& tensors,
                    const std::string& data = std::string("\0\1\2\3\4\5", 6)) {
  const std::string directory = fresh(name);
  std::ofstream(directory + "/data", std::ios::binary) << data;
  base::Json index = base::parse_json(
      R"({"format":"trireme-checkpoint","version":1,"step":5,"meta":{},"tensors":[)" + tensors + "]}");
  std::string crc(8, '0');
  std::snprintf(crc.data(), 9, "%08x", base::crc32c(index.dump()));
  index.set("index_crc32c", crc);
  std::ofstream(directory + "/index.json") << index.dump();
  return directory;
}

/// A [2, 3] tensor in the given chunks, with 1 byte per element.
std::string chunked(const std::string& name, const std::string& chunks) {
  return indexed(name, R"({"name":"t","dtype":"u8","shape":[2,3],"chunks":[)" + chunks + "]}");
}

std::string chunk(const std::string& offset, const std::string& size, int64_t at, std::string_view bytes) {
  char crc[9];
  std::snprintf(crc, sizeof crc, "%08x", base::crc32c(bytes));
  return base::concat(R"({"offset":)", offset, R"(,"size":)", size, R"(,"file":"data","byte_offset":)", at,
                      R"(,"bytes":)", bytes.size(), R"(,"crc32c":")", crc, R"("})");
}

TEST(Checkpoint, ChunksOfAnyLayoutAreAssembled) {
  using namespace std::string_view_literals;
  // Columns 0-1 of both rows, then column 2 of both rows.
  const std::string whole =
      chunk("[0,0]", "[2,2]", 0, "\0\1\2\3"sv) + "," + chunk("[0,2]", "[2,1]", 4, "\4\5"sv);
  const Checkpoint read = load_checkpoint(chunked("columns", whole));
  EXPECT_EQ(read.tensors[0].second.to_ints(), (std::vector<int64_t>{0, 1, 4, 2, 3, 5}));
  const std::string hole = chunk("[0,0]", "[2,2]", 0, "\0\1\2\3"sv);
  EXPECT_NE(error_of([&] { load_checkpoint(chunked("hole", hole)); }).find("4 of 6"), std::string::npos);
  const std::string twice = hole + "," + chunk("[1,1]", "[1,2]", 4, "\4\5"sv);
  EXPECT_NE(error_of([&] { load_checkpoint(chunked("twice", twice)); }).find("overlap"), std::string::npos);
  const std::string outside = hole + "," + chunk("[0,3]", "[2,1]", 4, "\4\5"sv);
  EXPECT_NE(error_of([&] { load_checkpoint(chunked("outside", outside)); }).find("outside"),
            std::string::npos);
}

// Every element type at every small count, with the bytes that it packs into. Types whose elements share
// bytes are refused, and the others return the stored bytes. A packed tensor read element by element would
// access memory beyond its end.
TEST(Checkpoint, EveryElementTypeIsReadWholeOrRefused) {
  const std::string data("\0\1\2\3\4\5", 6);
  for (int type = 0; type < tensor::kDTypeCount; ++type) {
    const auto dtype = static_cast<tensor::DType>(type);
    for (int64_t count = 0; count <= 24; ++count) {
      const auto bytes = static_cast<size_t>(tensor::bytes_of(dtype, count));
      if (bytes > data.size()) break;
      const std::string shape = base::concat("[", count, "]");
      const std::string directory = indexed(
          "types", base::concat(R"({"name":"t","dtype":")", tensor::name_of(dtype), R"(","shape":)", shape,
                                R"(,"chunks":[)", chunk("[0]", shape, 0, data.substr(0, bytes)), "]}"));
      if (tensor::bits_of(dtype) < 8) {
        EXPECT_NE(error_of([&] { load_checkpoint(directory); }).find("share bytes"), std::string::npos)
            << count;
        continue;
      }
      const Tensor read = load_checkpoint(directory).tensors[0].second;
      ASSERT_EQ(read.bytes(), static_cast<int64_t>(bytes));
      EXPECT_EQ(std::memcmp(read.raw(), data.data(), bytes), 0);
    }
  }
}

TEST(Checkpoint, ReadRefusesATensorThatDoesNotFit) {
  using namespace std::string_view_literals;
  const CheckpointReader reader(chunked("fit", chunk("[0,0]", "[2,3]", 0, "\0\1\2\3\4\5"sv)));
  const StoredTensor& t = reader.tensors()[0];
  const std::vector<tensor::Box> whole{{{0, 0}, {2, 3}}};
  for (const tensor::TensorType& type :
       {tensor::TensorType{tensor::DType::u8, {1, 3}}, tensor::TensorType{tensor::DType::u8, {2, 2}},
        tensor::TensorType{tensor::DType::u8, {6}}, tensor::TensorType{tensor::DType::boolean, {2, 3}}}) {
    Tensor local = Tensor::zeros(type.dtype, type.shape.to_dims());
    EXPECT_NE(error_of([&] { reader.read(t, whole, local); }).find("does not fit"), std::string::npos)
        << type.to_string();
  }
}

TEST(Checkpoint, ChunksThatTileAreTold) {
  using namespace std::string_view_literals;
  const auto error_with = [&](const std::string& chunks) {
    return error_of([&] { CheckpointReader(chunked("tile", chunks)); });
  };
  // The right volume, all inside, and yet one place is covered twice and another never.
  const std::string left = chunk("[0,0]", "[2,1]", 0, "\0\1"sv),
                    middle = chunk("[0,1]", "[2,1]", 2, "\2\3"sv),
                    right = chunk("[0,2]", "[2,1]", 4, "\4\5"sv), none = chunk("[1,1]", "[0,1]", 0, ""sv);
  EXPECT_EQ(error_with(left + "," + none + "," + right + "," + middle), "no error");
  EXPECT_NE(error_with(left + "," + middle + "," + chunk("[0,1]", "[2,1]", 4, "\4\5"sv)).find("overlap"),
            std::string::npos);
  EXPECT_NE(error_with(chunk("[0,0]", "[1,3]", 0, "\0\1\2"sv) + "," + chunk("[0,0]", "[1,2]", 3, "\3\4"sv) +
                       "," + chunk("[1,2]", "[1,1]", 5, "\5"sv))
                .find("overlap"),
            std::string::npos);
  // No two chunks may use the same bytes of a file.
  EXPECT_NE(error_of([&] {
              CheckpointReader(indexed("share", R"({"name":"a","dtype":"u8","shape":[4],"chunks":[)" +
                                                    chunk("[0]", "[4]", 0, "\0\1\2\3"sv) +
                                                    R"(]},{"name":"b","dtype":"u8","shape":[4],"chunks":[)" +
                                                    chunk("[0]", "[4]", 2, "\2\3\4\5"sv) + "]}"));
            }).find("share bytes"),
            std::string::npos);
}

// Comparing all pairs would take minutes.
TEST(Checkpoint, ManyChunksAreCheckedInOnePass) {
  constexpr int64_t kRows = 50'000;
  std::string chunks;
  for (int64_t i = 0; i < kRows; ++i) {
    chunks += base::concat(i == 0 ? "" : ",", R"({"offset":[)", i, R"(,0],"size":[1,1],"file":"data",)",
                           R"("byte_offset":)", i, R"(,"bytes":1,"crc32c":"00000000"})");
  }
  const base::SystemClock clock;
  const int64_t start_ns = clock.now_ns();
  const std::string directory = indexed(
      "many", base::concat(R"({"name":"t","dtype":"u8","shape":[)", kRows, R"(,1],"chunks":[)", chunks, "]}"),
      std::string(kRows, 'x'));
  EXPECT_EQ(CheckpointReader(directory).tensors()[0].chunks.size(), static_cast<size_t>(kRows));
  EXPECT_LT(clock.now_ns() - start_ns, 30 * base::kNsPerSecond);
}

TEST(Checkpoint, FilesOfChunksLieInItsDirectory) {
  const std::string elsewhere = fresh("elsewhere");
  std::ofstream(elsewhere + "/data") << "secret";
  for (const std::string file : {"../checkpoint_x/data", "/etc/hostname", "link", "sub/../../data", ""}) {
    std::string one = chunk("[0]", "[6]", 0, "secret");
    one.replace(one.find("\"data\""), 6, "\"" + file + "\"");
    const std::string directory =
        indexed("inside", R"({"name":"t","dtype":"u8","shape":[6],"chunks":[)" + one + "]}");
    fs::create_symlink(elsewhere + "/data", directory + "/link");
    EXPECT_NE(error_of([&] { CheckpointReader{directory}; }).find("path"), std::string::npos) << file;
  }
}

TEST(Checkpoint, EveryFlippedByteAndEveryTruncationIsSeen) {
  PosixFiles files;
  const std::string root = fresh("corrupt");
  const std::string directory = write(files, root, example(7)).path;
  for (const std::string name : {"/tensors-00000.safetensors", "/index.json"}) {
    const std::string path = directory + name;
    const std::string good = base::read_file(path);
    // Only the data of the tensor file is read; its header is for other programs.
    const size_t first = name == "/index.json" ? 0 : good.size() - static_cast<size_t>(example(7).bytes());
    for (size_t at = first; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 0x20);
      if (name == "/index.json" && std::isspace(static_cast<unsigned char>(good[at]))) continue;
      std::ofstream(path, std::ios::binary) << bad;
      EXPECT_NE(error_of([&] { load_checkpoint(directory); }), "no error") << name << " byte " << at;
    }
    for (size_t size = 0; size + 1 < good.size(); size += 1 + size / 8) {
      std::ofstream(path, std::ios::binary) << good.substr(0, size);
      EXPECT_NE(error_of([&] { load_checkpoint(directory); }), "no error") << name << " cut at " << size;
    }
    std::ofstream(path, std::ios::binary) << good;
  }
  expect_same(load_checkpoint(directory), example(7));
  fs::resize_file(directory + "/tensors-00000.safetensors", 300);
  EXPECT_NE(error_of([&] { load_checkpoint(directory); }).find("truncated"), std::string::npos);
}

TEST(Checkpoint, FailureAtEveryCallLeavesTheOneBefore) {
  int64_t call = 0;
  for (bool done = false; !done; ++call) {
    PosixFiles good;
    const std::string root = fresh("fail");
    write(good, root, example(1));
    TroubledFiles bad(call, TroubledFiles::How::fail);
    try {
      write(bad, root, example(2), 1);
      done = !bad.happened();
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::exhausted);
    }
    const Checkpoint found = load_checkpoint(find_checkpoint(root));
    expect_same(found, example(found.step));
    EXPECT_TRUE(found.step == 1 || done || call > 10);
  }
  EXPECT_GT(call, 30);  // four shards with several writes each, the index, directories and the pointer
}

TEST(Checkpoint, DeathAtEveryCallLeavesACompleteOne) {
  int64_t call = 0;
  for (bool done = false; !done; ++call) {
    PosixFiles good;
    const std::string root = fresh("die");
    write(good, root, example(1));
    const bool replace = call % 2 == 1;  // also replacing a checkpoint of the same step
    if (replace) write(good, root, example(2));
    const pid_t child = ::fork();
    if (child == 0) {
      TroubledFiles bad(call, TroubledFiles::How::die);
      write(bad, root, example(2), 1);
      ::_exit(bad.happened() ? 1 : 0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    done = WEXITSTATUS(status) == 0;
    const Checkpoint found = load_checkpoint(find_checkpoint(root));
    expect_same(found, example(found.step));
    for (const std::string& name : list_checkpoints(root)) load_checkpoint(root + "/" + name);
    // The next start cleans up and continues.
    {
      CheckpointWriter writer({.root = root, .keep = 1, .keep_best = 0}, good);
      save_whole(writer, example(3));
    }
    expect_same(load_checkpoint(find_checkpoint(root)), example(3));
    EXPECT_EQ(std::distance(fs::directory_iterator(root), fs::directory_iterator()), 2);
  }
  EXPECT_GT(call, 30);
}

TEST(CheckpointWriter, WritesACopyAndKeepsTheLastAndTheBest) {
  PosixFiles files;
  const std::string root = fresh("writer");
  {
    CheckpointWriter writer({.root = root, .keep = 2, .keep_best = 1}, files);
    for (int64_t step = 1; step <= 6; ++step) {
      Checkpoint live = example(step);
      const auto before = save_whole(writer, live, step == 2 ? 0.9 : 0.1 * static_cast<double>(step));
      EXPECT_EQ(before.has_value(), step > 1);
      for (float& v : live.tensors[2].second.mutable_data<float>()) v = -1;  // training continues
      if (step == 6) {
        const auto outcome = writer.wait();
        ASSERT_TRUE(outcome && outcome->committed);
        EXPECT_FALSE(outcome->error);
        EXPECT_FALSE(writer.poll());
      }
    }
  }
  EXPECT_EQ(list_checkpoints(root),
            (std::vector<std::string>{"step-00000002", "step-00000005", "step-00000006"}));
  expect_same(load_checkpoint(root + "/step-00000006"), example(6));
  EXPECT_EQ(base::read_file(root + "/best"), "step-00000002\n");
  EXPECT_EQ(base::read_file(root + "/latest"), "step-00000006\n");
  {  // Resuming from step 5: step 6 belongs to an abandoned run, 2 is still the best.
    CheckpointWriter writer({.root = root, .keep = 2, .keep_best = 1, .resumed_step = 5}, files);
    save_whole(writer, example(7), 0.3);
  }
  EXPECT_EQ(list_checkpoints(root),
            (std::vector<std::string>{"step-00000002", "step-00000005", "step-00000007"}));
}

/// Cannot remove what a name contains, as long as it is set.
class StickyFiles : public PosixFiles {
 public:
  std::string sticky;
  void remove_tree(const std::string& path) override {
    if (!sticky.empty() && path.find(sticky) != std::string::npos)
      base::fail(base::ErrorCode::unavailable, "cannot remove '", path, "': Directory not empty");
    PosixFiles::remove_tree(path);
  }
};

TEST(CheckpointWriter, PrunesOnAfterARemovalFailed) {
  StickyFiles files;
  const std::string root = fresh("sticky");
  CheckpointWriter writer({.root = root, .keep = 1, .keep_best = 0}, files);
  const auto save = [&](int64_t step) {
    save_whole(writer, example(step));
    const auto outcome = writer.wait();
    EXPECT_TRUE(outcome && outcome->committed);
    return outcome->error ? outcome->error->message() : std::string();
  };
  EXPECT_EQ(save(1), "");
  files.sticky = "step-00000001";
  EXPECT_NE(save(2).find("Directory not empty"), std::string::npos);
  EXPECT_NE(save(3).find("Directory not empty"), std::string::npos);
  EXPECT_EQ(list_checkpoints(root), (std::vector<std::string>{"step-00000003"}));
  files.sticky.clear();
  fs::remove_all(root + "/step-00000003");  // by hand
  EXPECT_EQ(save(4), "");
  EXPECT_EQ(save(5), "");
  EXPECT_EQ(list_checkpoints(root), (std::vector<std::string>{"step-00000005"}));
  EXPECT_FALSE(fs::exists(root + "/.trash-step-00000001"));
}

/// Cannot write the pointer `latest`, as long as it is told so.
class PointerlessFiles : public PosixFiles {
 public:
  int failures = 0;  // that are still to come
  std::unique_ptr<OutputFile> create(const std::string& path) override {
    if (path.ends_with("/.latest.tmp") && failures-- > 0)
      base::fail(base::ErrorCode::exhausted, "cannot create '", path, "': No space left on device");
    return PosixFiles::create(path);
  }
};

TEST(CheckpointWriter, ACheckpointWithoutItsPointerIsCommitted) {
  PointerlessFiles files;
  const std::string root = fresh("pointerless");
  CheckpointWriter writer({.root = root, .keep = 1, .keep_best = 0}, files);
  save_whole(writer, example(1));
  EXPECT_FALSE(writer.wait()->error);
  files.failures = 1;  // the second try succeeds
  save_whole(writer, example(2));
  auto outcome = writer.wait();
  EXPECT_TRUE(outcome->committed);
  EXPECT_FALSE(outcome->error);
  EXPECT_EQ(read_pointer(root, "latest"), "step-00000002");
  files.failures = 2;
  Checkpoint third = example(3);
  third.meta.set("previous", int64_t{2});
  save_whole(writer, third);
  outcome = writer.wait();
  EXPECT_TRUE(outcome->committed);
  ASSERT_TRUE(outcome->error);
  EXPECT_EQ(outcome->error->code(), base::ErrorCode::exhausted);
  // What the pointer names stays, and the run goes on from what continues it.
  expect_same(load_checkpoint(find_checkpoint(root)), example(2));
  EXPECT_EQ(newest_checkpoint(root), "step-00000003");
  files.failures = 0;
  save_whole(writer, example(4));
  EXPECT_FALSE(writer.wait()->error);
  EXPECT_EQ(list_checkpoints(root), (std::vector<std::string>{"step-00000004"}));
}

TEST(Checkpoint, LaterStepsOfAnAbandonedPastAreNotTheNewest) {
  PosixFiles files;
  const std::string root = fresh("newest"), run = root + "/run";
  EXPECT_EQ(newest_checkpoint(root), "");
  EXPECT_FALSE(has_checkpoint(run));
  const auto add = [&](int64_t step, int64_t previous) {
    Checkpoint c = example(step);
    if (previous > 0) c.meta.set("previous", previous);
    write(files, run + "/checkpoints", c);
  };
  add(1, 0);
  fs::remove(run + "/checkpoints/latest");  // as after a death between the commit and the pointer
  EXPECT_TRUE(has_checkpoint(run));
  EXPECT_EQ(find_checkpoint(run), run + "/checkpoints/step-00000001");
  EXPECT_EQ(newest_checkpoint(run + "/checkpoints"), "step-00000001");
  add(4, 1);
  add(6, 4);
  add(2, 1);  // another run went on from step 1
  EXPECT_EQ(newest_checkpoint(run + "/checkpoints"), "step-00000002");
  write_pointer(files, run + "/checkpoints", "latest", "step-00000004");
  EXPECT_EQ(newest_checkpoint(run + "/checkpoints"), "step-00000006");
  write_pointer(files, run + "/checkpoints", "latest", "step-00000009");
  EXPECT_EQ(newest_checkpoint(run + "/checkpoints"), "step-00000006");
}

TEST(Checkpoint, WhatContinuesAnAbandonedOneOfTheSameStepIsNotTheNewest) {
  PosixFiles files;
  const std::string root = fresh("branches");
  const auto add = [&](Checkpoint c, int64_t previous) {
    c.meta.set("previous", previous);
    write(files, root, c);
  };
  write(files, root, example(7));
  add(example(14), 7);
  add(example(21), 14);
  write_pointer(files, root, "latest", "step-00000014");
  EXPECT_EQ(newest_checkpoint(root), "step-00000021");
  Checkpoint other = example(14);  // of a run that went on from step 7 again, with other results
  other.meta.set("samples", int64_t{1});
  add(other, 7);
  EXPECT_EQ(read_pointer(root, "latest"), "step-00000014");
  EXPECT_EQ(newest_checkpoint(root), "step-00000014");
  Checkpoint next = example(21);
  next.meta.set("samples", int64_t{2});
  add(next, 14);
  write_pointer(files, root, "latest", "step-00000014");  // as after a death behind the commit
  EXPECT_EQ(newest_checkpoint(root), "step-00000021");
}

TEST(Checkpoint, ASuccessorWithoutTheIdentityOfItsPredecessorIsTheNewest) {
  PosixFiles files;
  const std::string root = fresh("no_identity");
  Checkpoint second = example(9);
  second.meta.set("previous", int64_t{5});
  write(files, root, second);  // before its predecessor is there: as older programs wrote it
  EXPECT_EQ(load_checkpoint_meta(root + "/step-00000009").meta.find("previous_crc32c"), nullptr);
  write(files, root, example(5));
  EXPECT_EQ(newest_checkpoint(root), "step-00000009");
}

TEST(CheckpointWriter, ReportsAFullDiskAndGoesOn) {
  const std::string root = fresh("full");
  PosixFiles good;
  write(good, root, example(1));
  TroubledFiles files(6, TroubledFiles::How::fail);
  CheckpointWriter writer({.root = root, .keep = 3}, files);
  save_whole(writer, example(2));
  const auto outcome = writer.wait();
  ASSERT_TRUE(outcome && outcome->error);
  EXPECT_FALSE(outcome->committed);
  EXPECT_EQ(outcome->error->code(), base::ErrorCode::exhausted);
  EXPECT_NE(outcome->error->message().find("checkpoint of step 2"), std::string::npos);
  expect_same(load_checkpoint(find_checkpoint(root)), example(1));
  save_whole(writer, example(3));
  EXPECT_TRUE(writer.wait()->committed);
  expect_same(load_checkpoint(find_checkpoint(root)), example(3));
}

}  // namespace
}  // namespace trireme::train
