// The strategy file of a training as the ranks of an inference read it.
#include "engine/ranks/inference_ranks.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/files/file.h"

namespace trireme::engine {
namespace {

/// What is read of a strategy file with this text; `pp`: as given on the command line, 0 for nothing.
passes::Strategy read(const std::string& text, int pp = 0) {
  std::string root = (std::filesystem::temp_directory_path() / "trireme-ranks-XXXXXX").string();
  EXPECT_NE(mkdtemp(root.data()), nullptr);
  base::write_file_atomic(root + "/strategy.yaml", text);
  InferenceRanks ranks;
  ranks.pp = pp;
  ranks.strategy = root + "/strategy.yaml";
  passes::Strategy strategy = ranks.read();
  std::filesystem::remove_all(root);
  strategy.check(passes::Purpose::inference);
  strategy.check(passes::Purpose::decoding);
  return strategy;
}

using Names = std::vector<std::string>;

TEST(InferenceRanks, TakeWhatConcernsOneCopyOfTheModel) {
  const passes::Strategy s =
      read("dp: 4\ntp: 2\npp: 2\nzero: 3\nsequence: true\nschedule: gpipe\ncuts: [h.3]\n");
  EXPECT_EQ(s.world(), 4);
  EXPECT_EQ(s.zero, 0);
  EXPECT_FALSE(s.sequence);
  EXPECT_EQ(s.cuts, Names{"h.3"});
}

TEST(InferenceRanks, JoinThePartsOfAnInterleavedSchedule) {
  const std::string two = "pp: 2\nschedule: interleaved\nchunks: 2\ncuts: [h.1, h.2, h.3]\n";
  EXPECT_EQ(read(two).cuts, Names{"h.2"});
  EXPECT_EQ(read(two).chunks, 1);
  EXPECT_EQ(read("pp: 3\nschedule: interleaved\nchunks: 2\ncuts: [a, b, c, d, e]\n").cuts, (Names{"b", "d"}));
  EXPECT_EQ(read("pp: 2\nschedule: interleaved\nchunks: 3\n").cuts, Names{});
  EXPECT_EQ(read(two, 4).cuts, (Names{"h.1", "h.2", "h.3"}));  // as many stages as the file has parts
}

}  // namespace
}  // namespace trireme::engine
