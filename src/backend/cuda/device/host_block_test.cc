// Blocks on the host: barriers that not all threads reach, accesses past shared memory, blocks of different
// sizes in turn.
#include "backend/cuda/device/host_block.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "backend/cuda/device/host_grid.h"
#include "backend/cuda/device/scalar.h"

namespace trireme::cuda {
namespace {

/// A kernel made of a function; its threads may use all operations of a lane.
struct Any {
  std::function<void(const HostLane&)> body;
  void operator()(const HostLane& lane) const { body(lane); }
};

std::string error_of(HostGrid& grid, const Launch& launch, std::function<void(const HostLane&)> body) {
  try {
    grid.run(launch, Any{std::move(body)});
  } catch (const base::Error& e) {
    return e.message();
  }
  return "";
}

/// Sums the numbers of the threads of each block in shared memory; result [blocks].
void sum_blocks(HostGrid& grid, int threads, std::vector<int64_t>& sums) {
  grid.run({.blocks = static_cast<int64_t>(sums.size()), .threads = threads, .shared_bytes = 8 * threads},
           Any{[&](const HostLane& lane) {
             auto* mine = lane.shared<int64_t>();
             mine[lane.thread()] = lane.thread() + lane.block();
             lane.sync();
             for (int step = lane.threads() / 2; step > 0; step /= 2) {
               if (lane.thread() < step) mine[lane.thread()] += mine[lane.thread() + step];
               lane.sync();
             }
             if (lane.thread() == 0) sums[static_cast<size_t>(lane.block())] = mine[0];
           }});
}

TEST(HostBlock, FibersServeBlocksOfAnySizeOneAfterAnother) {
  base::ThreadPool pool(3);
  HostGrid alone, shared(&pool);
  for (HostGrid* grid : {&alone, &shared}) {
    for (const int threads : {32, 512, 64, 1024, 128}) {
      std::vector<int64_t> sums(7, -1);
      sum_blocks(*grid, threads, sums);
      for (size_t b = 0; b < sums.size(); ++b)
        EXPECT_EQ(sums[b], int64_t{threads} * (threads - 1) / 2 + threads * static_cast<int64_t>(b));
    }
  }
}

TEST(HostBlock, ShufflesOneAfterAnotherKeepTheirValues) {
  HostGrid grid;
  std::vector<int> sums(64);
  grid.run({.threads = 64}, Any{[&](const HostLane& lane) {
             int value = lane.thread();
             for (int mask = 16; mask > 0; mask /= 2) value += lane.shuffle_xor(value, mask);
             sums[static_cast<size_t>(lane.thread())] = value;
           }});
  for (int t = 0; t < 64; ++t) EXPECT_EQ(sums[static_cast<size_t>(t)], t < 32 ? 496 : 1520);
}

TEST(HostBlock, AMissedBarrierIsAnErrorAndTheNextBlockRuns) {
  HostGrid grid;
  const std::string error = error_of(grid, {.threads = 64}, [](const HostLane& lane) {
    if (lane.thread() != 40) lane.sync();
  });
  EXPECT_NE(error.find("not all threads"), std::string::npos) << error;
  std::vector<int64_t> sums(1);
  sum_blocks(grid, 64, sums);
  EXPECT_EQ(sums[0], 2016);
}

TEST(HostBlock, WhatAThreadThrowsArrives) {
  base::ThreadPool pool(2);
  HostGrid grid(&pool);
  const std::string error = error_of(grid, {.blocks = 4, .threads = 32}, [](const HostLane& lane) {
    lane.sync();
    base::check(lane.block() != 2 || lane.thread() != 5, "thread five");
  });
  EXPECT_NE(error.find("thread five"), std::string::npos) << error;
}

TEST(HostBlock, BytesPastTheSharedMemoryAreSeen) {
  HostGrid grid;
  const std::string error = error_of(grid, {.threads = 32, .shared_bytes = 32}, [](const HostLane& lane) {
    lane.shared<uint8_t>()[lane.thread() + 1] = 0;
  });
  EXPECT_NE(error.find("past its 32 bytes"), std::string::npos) << error;
}

/// Reads 16 bytes from `at` as kernels do.
struct ReadPack {
  const std::byte* at;
  template <class Lane>
  void operator()(const Lane&) const {
    float out[4];
    load_pack(reinterpret_cast<const float*>(at), 4, out);
  }
};

TEST(HostBlock, AccessesThatAGpuRefusesAreNamed) {
  if (!reports_misaligned_access()) GTEST_SKIP() << "the sanitizer of this build stops at the access";
  alignas(16) std::byte memory[64] = {};
  HostGrid grid;
  for (const int shift : {0, 4, 8, 16}) {
    std::string error;
    try {
      grid.run({.blocks = 1, .threads = 32}, ReadPack{memory + shift});
    } catch (const base::Error& e) {
      error = e.message();
    }
    const bool is_named =
        error.find("misaligned address") != std::string::npos &&
        error.find(std::to_string(shift) + " bytes past a multiple of 16") != std::string::npos;
    EXPECT_EQ(is_named, shift % 16 != 0) << shift << ": " << error;
  }
}

struct Apart {
  static constexpr bool kIndependent = true;
  std::vector<int>* out;
  bool meets = false;
  template <class Lane>
  void operator()(const Lane& lane) const {
    if (meets) lane.sync();
    (*out)[static_cast<size_t>(lane.block() * lane.threads() + lane.thread())] = lane.thread();
  }
};

TEST(HostBlock, IndependentThreadsRunAsALoopAndMustNotMeet) {
  HostGrid grid;
  std::vector<int> out(64, -1);
  grid.run({.blocks = 2, .threads = 32}, Apart{&out});
  for (int i = 0; i < 64; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], i % 32);
  EXPECT_THROW(grid.run({.blocks = 1, .threads = 32}, Apart{&out, true}), base::Error);
}

}  // namespace
}  // namespace trireme::cuda
