// Tests checkpoints of several ranks: written under one layout and read under any other, and failure or death
// of any rank in every file call.
#include "train/checkpoint/rank_states.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/files/file.h"
#include "comm/local.h"
#include "passes/strategy.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/files/test_files.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using tensor::Dims;
using tensor::DType;
using tensor::Placement;
using tensor::Tensor;

constexpr int kLayers = 8;     // in tests of layouts
constexpr int kFewLayers = 1;  // in tests that fail every call of a save

struct Layout {
  int dp, tp, pp;
  tensor::MeshShape mesh() const { return passes::Strategy{.dp = dp, .tp = tp, .pp = pp}.mesh(); }
  std::string text() const { return base::concat("dp", dp, "_tp", tp, "_pp", pp); }
};

const std::vector<Layout> kLayouts{{2, 2, 2}, {1, 4, 1}, {4, 1, 2}, {8, 1, 1},
                                   {1, 1, 8}, {1, 1, 1}, {2, 4, 1}};

/// A state of the synthetic model: on which stages it exists and how it is split.
struct Spec {
  std::string name;
  Dims dims;
  std::vector<int> layers;       // it is held by the stages of these layers
  int tp_dim = -1, dp_dim = -1;  // dimensions along which it is split
  int sections = 1;              // of the dimension that is split over tp
  DType dtype = DType::f32;
};

/// Column and row splits, packed sections, ZeRO's split of moments over dp (uneven if the extent does not
/// divide), an embedding shared by the first and last stage, and a scalar.
std::vector<Spec> model(int layers) {
  const std::vector<int> ends{0, layers - 1};
  std::vector<Spec> all{{.name = "embed", .dims = {12, 6}, .layers = ends, .tp_dim = 0},
                        {.name = "embed.adam_m", .dims = {12, 6}, .layers = ends, .tp_dim = 0, .dp_dim = 0},
                        {.name = "head.steps", .dims = {}, .layers = {layers - 1}, .dtype = DType::i64}};
  for (int i = 0; i < layers; ++i) {
    const std::string layer = base::concat("l", i);
    all.push_back({.name = layer + ".w", .dims = {8, 4, 3}, .layers = {i}, .tp_dim = 1});
    all.push_back({.name = layer + ".w.adam_m", .dims = {8, 4, 3}, .layers = {i}, .tp_dim = 1, .dp_dim = 0});
    all.push_back({.name = layer + ".qkv", .dims = {5, 24}, .layers = {i}, .tp_dim = 1, .sections = 3});
    all.push_back({.name = layer + ".norm", .dims = {7}, .layers = {i}});
    all.push_back({.name = layer + ".norm.adam_m", .dims = {7}, .layers = {i}, .dp_dim = 0});
  }
  return all;
}

/// The whole tensor; its content depends on `step`, so that checkpoints differ.
Tensor whole(const Spec& s, int64_t step) {
  if (s.dtype == DType::i64) return Tensor::scalar<int64_t>(step);
  Tensor t = Tensor::empty(DType::f32, s.dims);
  const auto begin = static_cast<float>(std::hash<std::string>{}(s.name) % 1000 + static_cast<size_t>(step));
  const auto values = t.mutable_data<float>();
  std::iota(values.begin(), values.end(), begin);
  return t;
}

/// Selects element by element: the oracle for what a rank holds.
Tensor local_part(const Tensor& whole, const std::vector<tensor::Box>& boxes, const Dims& dims) {
  Tensor local = Tensor::empty(whole.dtype(), dims);
  if (whole.rank() == 0) return whole;
  std::vector<std::pair<Dims, float>> found;  // the local order equals the global order of the elements held
  Dims at(whole.rank(), 0);
  size_t filled = 0;
  for (const float value : whole.data<float>()) {
    const bool held = std::any_of(boxes.begin(), boxes.end(), [&](const tensor::Box& b) {
      for (size_t d = 0; d < at.size(); ++d) {
        if (at[d] < b.offset[d] || at[d] >= b.offset[d] + b.size[d]) return false;
      }
      return true;
    });
    if (held) local.mutable_data<float>()[filled++] = value;
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < whole.dims()[d]) break;
      at[d] = 0;
    }
  }
  EXPECT_EQ(filled, local.data<float>().size());
  return local;
}

/// Fills the states of one rank under a layout with the content of `step`.
void fill(engine::StateStore& states, const comm::Mesh& mesh, int layers, int64_t step) {
  const tensor::MeshShape& shape = mesh.shape();
  const std::vector<int> at = mesh.coordinates();
  const int stage = at[shape.index_of("pp")], stages = shape.extent("pp");
  for (const Spec& s : model(layers)) {
    const bool is_here = std::any_of(s.layers.begin(), s.layers.end(),
                                     [&](int layer) { return layer * stages / layers == stage; });
    if (!is_here) continue;
    tensor::Shard shard;
    if (s.tp_dim >= 0) shard.set(shape.index_of("tp"), Placement::split(s.tp_dim, s.sections));
    if (s.dp_dim >= 0) shard.set(shape.index_of("dp"), Placement::split(s.dp_dim));
    const auto boxes = tensor::local_boxes(s.dims, shard, shape, at);
    states.add(s.name, local_part(whole(s, step), boxes, tensor::local_dims(s.dims, shard, shape, at)));
    states.set_place(s.name, {s.dims, shard});
  }
}

/// One rank of a run that saves checkpoints.
struct Saver {
  comm::Mesh mesh;
  Ranks ranks{&mesh};
  engine::StateStore states;
  std::unique_ptr<RankStates> parts;

  Saver(comm::Communicator& world, const Layout& layout, int layers, int64_t step)
      : mesh(world, layout.mesh()) {
    fill(states, mesh, layers, step);
    parts = std::make_unique<RankStates>(states, ranks);
  }
  CheckpointOutcome save(const std::string& root, FileOps& files, int64_t step) const {
    CheckpointWriter writer({.root = root, .keep = 2}, files, ranks);
    writer.save({step, base::Json::object({{"step", step}}), {}}, parts->pieces());
    return *writer.wait();
  }
};

void save_on_ranks(const Layout& layout, const std::string& root, int layers, int64_t step) {
  PosixFiles files;
  comm::LocalWorld world(layout.mesh().size());
  world.run([&](comm::Communicator& c) {
    const Saver saver(c, layout, layers, step);
    const CheckpointOutcome outcome = saver.save(root, files, step);
    EXPECT_TRUE(outcome.committed && !outcome.error);
    EXPECT_EQ(outcome.written.path, root + "/" + checkpoint_name(step));
  });
}

/// Checks that every rank of a layout loads its parts, bit for bit.
void expect_loads(const Layout& layout, const std::string& directory, int layers) {
  const int64_t step = CheckpointReader(directory).step();
  comm::LocalWorld world(layout.mesh().size());
  world.run([&](comm::Communicator& c) {
    Saver loader(c, layout, layers, step + 1000);  // with different content
    const CheckpointReader reader(directory);
    reader.verify(c.rank(), c.size());
    loader.parts->check(reader);
    loader.parts->load(reader);
    engine::StateStore expected;
    fill(expected, loader.mesh, layers, step);
    for (const std::string& name : expected.names()) {
      EXPECT_TRUE(loader.states.at(name).same_as(expected.at(name))) << layout.text() << " " << name;
    }
  });
}

TEST(RankStates, SavedUnderAnyLayoutLoadsUnderAnyOther) {
  for (const Layout& from : kLayouts) {
    const std::string root = fresh(from.text());
    save_on_ranks(from, root, kLayers, 3);
    const std::string directory = find_checkpoint(root);
    for (const Layout& to : kLayouts) expect_loads(to, directory, kLayers);
    const Checkpoint all = load_checkpoint(directory);
    for (const Spec& s : model(kLayers)) EXPECT_TRUE(all.find(s.name)->same_as(whole(s, 3))) << s.name;
    EXPECT_EQ(all.tensors.size(), model(kLayers).size());
  }
}

TEST(RankStates, EveryByteIsWrittenOnceByItsOwnRank) {
  const std::string root = fresh("once");
  save_on_ranks({2, 2, 2}, root, kLayers, 1);
  const CheckpointReader reader(find_checkpoint(root));
  int64_t bytes = 0;
  std::set<std::string> files;
  for (const StoredTensor& t : reader.tensors()) {
    for (const StoredTensor::Chunk& c : t.chunks) bytes += c.bytes, files.insert(c.file);
  }
  int64_t expected = 0;
  for (const Spec& s : model(kLayers)) expected += whole(s, 1).bytes();
  EXPECT_EQ(bytes, expected);  // although most ranks hold copies
  EXPECT_EQ(files.size(), 8u);
  EXPECT_TRUE(files.contains("tensors-r00005-00000.safetensors"));
  const auto file = model::Safetensors::open(reader.directory() + "/tensors-r00001-00000.safetensors");
  EXPECT_NE(file.find("embed[6:12, 0:6]"), nullptr);
}

TEST(RankStates, ACheckpointOfAnotherModelIsRefused) {
  const std::string root = fresh("another");
  save_on_ranks({2, 1, 2}, root, kLayers, 1);
  comm::LocalWorld world(2);
  world.run([&](comm::Communicator& c) {
    Saver loader(c, {1, 2, 1}, kLayers, 1);
    loader.states.add("more", Tensor::zeros(DType::f32, {2}));
    const RankStates more(loader.states, loader.ranks);
    const CheckpointReader reader(find_checkpoint(root));
    EXPECT_NE(error_of([&] { more.check(reader); }).find("has no 'more'"), std::string::npos);
    engine::StateStore fewer;
    fewer.add("l0.norm", Tensor::zeros(DType::f32, {7}));
    const RankStates part(fewer, loader.ranks);
    EXPECT_NE(error_of([&] { part.check(reader); }).find("is not of this model"), std::string::npos);
  });
}

TEST(RankStates, TheLeaderAloneWritesFrozenParameters) {
  comm::LocalWorld world(2);
  world.run([&](comm::Communicator& c) {
    Saver saver(c, {1, 2, 1}, kLayers, 1);
    const model::NamedTensors frozen{{"backbone", Tensor::zeros(DType::f32, {3})},
                                     {"l0.norm", Tensor::zeros(DType::f32, {7})}};  // a state: not frozen
    const RankStates with(saver.states, saver.ranks, frozen, true);
    const RankStates without(saver.states, saver.ranks, frozen);
    const auto count = [](const RankStates& of, const std::string& name) {
      const std::vector<CheckpointPiece> pieces = of.pieces();
      return std::count_if(pieces.begin(), pieces.end(),
                           [&](const CheckpointPiece& p) { return p.name == name; });
    };
    EXPECT_EQ(count(with, "backbone"), c.rank() == 0 ? 1 : 0);
    EXPECT_EQ(count(without, "backbone"), 0);
    EXPECT_EQ(count(with, "l0.norm"), count(without, "l0.norm"));
    EXPECT_EQ(with.bytes() - without.bytes(), c.rank() == 0 ? 12 : 0);
  });
}

TEST(RankStates, TruncatedAndChangedFilesAreSeen) {
  const std::string root = fresh("truncated");
  save_on_ranks({2, 2, 2}, root, kLayers, 1);
  const std::string directory = find_checkpoint(root);
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string path = entry.path().string();
    if (!path.ends_with(".safetensors")) continue;
    const std::string good = base::read_file(path);
    base::write_file_atomic(path, std::string_view(good).substr(0, good.size() - 3));
    EXPECT_NE(error_of([&] { CheckpointReader{directory}; }).find("truncated"), std::string::npos);
    std::string bad = good;
    bad[good.size() - 3] = static_cast<char>(bad[good.size() - 3] ^ 4);
    base::write_file_atomic(path, bad);
    const CheckpointReader reader(directory);
    int found = 0;  // the ranks divide the checksums, so exactly one of them sees the damage
    for (int part = 0; part < 4; ++part) {
      found += error_of([&] { reader.verify(part, 4); }).find("corrupt") != std::string::npos;
    }
    EXPECT_EQ(found, 1);
    base::write_file_atomic(path, good);
  }
}

TEST(RankStates, FailureOfAnyRankAtEveryCallCommitsNothing) {
  const Layout layout{2, 2, 1};
  for (const int troubled : {0, 3}) {
    int64_t call = 0;
    for (bool done = false; !done; ++call) {
      const std::string root = fresh("fail");
      save_on_ranks(layout, root, kFewLayers, 1);
      std::vector<std::optional<CheckpointOutcome>> outcomes(4);
      TroubledFiles bad(call, TroubledFiles::How::fail);
      PosixFiles good;
      comm::LocalWorld world(4);
      try {
        world.run([&](comm::Communicator& c) {
          const Saver saver(c, layout, kFewLayers, 2);
          FileOps& files = c.rank() == troubled ? static_cast<FileOps&>(bad) : good;
          outcomes[static_cast<size_t>(c.rank())] = saver.save(root, files, 2);
        });
      } catch (const base::Error& e) {
        EXPECT_EQ(e.code(), base::ErrorCode::exhausted);  // raised where the leader opens its directory
        EXPECT_EQ(troubled, 0);
      }
      done = !bad.happened();
      for (const auto& outcome : outcomes) {
        if (!outcome || !outcomes[0]) continue;
        EXPECT_EQ(outcome->committed, outcomes[0]->committed);
        // A pointer that failed once is written again, so that nothing is left to report.
        EXPECT_TRUE(done ? !outcome->error : outcome->error || outcome->committed);
        if (!outcome->error) continue;
        EXPECT_EQ(outcome->error->message(), outcomes[0]->error->message());
      }
      const std::string found = find_checkpoint(root);
      expect_loads({1, 1, 1}, found, kFewLayers);
      const bool committed = outcomes[0] && outcomes[0]->committed;
      EXPECT_TRUE(found.ends_with("2") || !committed) << "call " << call;  // the last flush may fail
      EXPECT_TRUE(committed || !done);
      for (const std::string& name : list_checkpoints(root)) load_checkpoint(root + "/" + name);
      save_on_ranks({4, 1, 1}, root, kFewLayers, 3);
      expect_loads(layout, find_checkpoint(root), kFewLayers);
    }
    EXPECT_GT(call, troubled == 0 ? 12 : 3);
  }
}

TEST(RankStates, DeathOfARankAtEveryCallLeavesACompleteCheckpoint) {
  const Layout layout{2, 2, 1};
  for (const int troubled : {0, 2}) {
    int64_t call = 0;
    for (bool done = false; !done; ++call) {
      const std::string root = fresh("die");
      save_on_ranks(layout, root, kFewLayers, 1);
      const pid_t child = ::fork();
      if (child == 0) {
        TroubledFiles bad(call, TroubledFiles::How::die);
        PosixFiles good;
        comm::LocalWorld world(4);
        world.run([&](comm::Communicator& c) {
          const Saver saver(c, layout, kFewLayers, 2);
          saver.save(root, c.rank() == troubled ? static_cast<FileOps&>(bad) : good, 2);
        });
        ::_exit(bad.happened() ? 1 : 0);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      ASSERT_TRUE(WIFEXITED(status));
      done = WEXITSTATUS(status) == 0;
      const std::string found = find_checkpoint(root);
      expect_loads({1, 4, 1}, found, kFewLayers);
      save_on_ranks({4, 1, 1}, root, kFewLayers,
                    3);  // the next start, with another layout, cleans up and continues
      expect_loads({2, 2, 1}, find_checkpoint(root), kFewLayers);
      for (const auto& entry : fs::directory_iterator(root)) {
        EXPECT_NE(entry.path().filename().string()[0], '.') << entry.path();
      }
    }
    EXPECT_GT(call, troubled == 0 ? 12 : 3);
  }
}

}  // namespace
}  // namespace trireme::train
