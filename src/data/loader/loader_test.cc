// Tests the loader: order, resuming, ranks, padding, errors, overlap; also permutation and augmentation.
#include "data/loader/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <set>
#include <thread>

#include "base/error.h"
#include "data/loader/augment.h"
#include "data/dataset/permutation.h"

namespace trireme::data {
namespace {

using base::Error;
using tensor::DType;
using tensor::Tensor;

/// Sample i: "x" f32 [2] = {i, -i}, "label" i64 = i % 10, "id" text. Reading `bad` fails; reads are counted.
class Counting : public Dataset {
 public:
  explicit Counting(int64_t size, int64_t bad = -1) : size_(size), bad_(bad) {
    info_.format = "counting";
    info_.fields = {{"x", FieldKind::tensor, DType::f32, {2}, false},
                    {"label", FieldKind::tensor, DType::u8, {}, true},
                    {"id", FieldKind::text}};
    info_.shards = {{"/anywhere/counting.bin", size, size}};
  }
  int64_t size() const override { return size_; }
  const DatasetInfo& info() const override { return info_; }
  Sample read(int64_t i) const override {
    ++reads_;
    base::require(i != bad_, "this sample is broken");
    Sample s;
    s.set("x", Tensor::from<float>({2}, {static_cast<float>(i), -static_cast<float>(i)}));
    s.set("label", Tensor::scalar(static_cast<int32_t>(i % 10)));
    s.set("id", "#" + std::to_string(i));
    return s;
  }
  int64_t reads() const { return reads_; }

 private:
  int64_t size_, bad_;
  mutable std::atomic<int64_t> reads_{0};
  DatasetInfo info_;
};

std::shared_ptr<Counting> counting(int64_t size, int64_t bad = -1) {
  return std::make_shared<Counting>(size, bad);
}

struct Reading {
  explicit Reading(DatasetPtr dataset, LoaderOptions options, Transform transform = {})
      : loader(std::move(dataset), std::move(options), std::move(transform), clock) {}
  base::SystemClock clock;
  Loader loader;
};

/// The samples of a batch, by "x"; -1 for rows that are not valid.
std::vector<int64_t> samples_of(const Batch& batch) {
  std::vector<int64_t> list;
  const auto x = batch.tensor("x").data<float>();
  const auto valid = batch.valid.data<float>();
  for (size_t row = 0; row < valid.size(); ++row) {
    list.push_back(valid[row] == 1 ? static_cast<int64_t>(x[2 * row]) : -1);
    if (valid[row] != 1) continue;
    EXPECT_EQ(x[2 * row + 1], -x[2 * row]);
    EXPECT_EQ(batch.tensor("label").data<int64_t>()[row], list.back() % 10);
    EXPECT_EQ(batch.texts("id")[row], "#" + std::to_string(list.back()));
  }
  return list;
}

std::vector<int64_t> take(Loader& loader, int batches) {
  std::vector<int64_t> all;
  for (int i = 0; i < batches; ++i) {
    const std::optional<Batch> batch = loader.next();
    if (!batch) break;
    const std::vector<int64_t> part = samples_of(*batch);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST(Permutation, IsABijectionOfEverySize) {
  for (const int64_t size : {1,   2,   3,   4,   5,   7,   8,    31,   32,   33,   63,    64,    65,
                             100, 127, 128, 129, 255, 257, 1000, 4095, 4096, 4097, 65535, 65537, 100003}) {
    for (const uint64_t epoch : {uint64_t{0}, uint64_t{1}, uint64_t{77}}) {
      const Permutation p(42, epoch, size);
      std::vector<bool> seen(static_cast<size_t>(size));
      for (int64_t i = 0; i < size; ++i) {
        const int64_t at = p(i);
        ASSERT_GE(at, 0);
        ASSERT_LT(at, size);
        ASSERT_FALSE(seen[static_cast<size_t>(at)]) << "size " << size << " position " << i;
        seen[static_cast<size_t>(at)] = true;
      }
    }
  }
}

TEST(Permutation, ReachesHugeSizesInNoTime) {
  const int64_t size = (int64_t{1} << 40) + 12345;
  const Permutation p(1, 2, size);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 10000; ++i) seen.insert(p(size - 1 - i));
  EXPECT_EQ(seen.size(), 10000u);
  EXPECT_GE(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), size);
}

TEST(Permutation, EpochsAndSeedsGiveOtherOrders) {
  const int64_t size = 1000;
  const Permutation a(1, 0, size), b(1, 1, size), c(2, 0, size);
  int same_epoch = 0, same_seed = 0;
  for (int64_t i = 0; i < size; ++i) {
    same_epoch += a(i) == b(i);
    same_seed += a(i) == c(i);
  }
  // The number of fixed points of a random permutation is Poisson with mean 1.
  EXPECT_LT(same_epoch, 10);
  EXPECT_LT(same_seed, 10);
}

TEST(Permutation, EveryPlaceIsEquallyLikely) {
  // 10 samples, 4000 epochs: each pair of position i and sample j should occur 400 times. Chi-square with 81
  // degrees of freedom: 99.99 % lies below 137.
  constexpr int64_t kSize = 10, kEpochs = 4000;
  std::vector<int> count(kSize * kSize);
  for (int64_t e = 0; e < kEpochs; ++e) {
    const Permutation p(7, static_cast<uint64_t>(e), kSize);
    for (int64_t i = 0; i < kSize; ++i) ++count[static_cast<size_t>(i * kSize + p(i))];
  }
  const double expected = static_cast<double>(kEpochs) / kSize;
  double chi_square = 0;
  for (const int n : count) chi_square += (n - expected) * (n - expected) / expected;
  EXPECT_LT(chi_square, 137);
}

TEST(Permutation, NeighboursPartFar) {
  constexpr int64_t kSize = 50000;
  const Permutation p(3, 0, kSize);
  double sum = 0;
  for (int64_t i = 1; i < kSize; ++i) sum += std::abs(static_cast<double>(p(i) - p(i - 1)));
  EXPECT_NEAR(sum / kSize, kSize / 3.0, kSize * 0.01);  // mean distance of two random places is n / 3
}

TEST(Loader, AnEpochTakesEverySampleOnce) {
  Reading run(counting(100), {.batch = 10, .epochs = 1});
  std::vector<int64_t> all = take(run.loader, 100);
  ASSERT_EQ(all.size(), 100u);
  EXPECT_FALSE(std::is_sorted(all.begin(), all.end()));
  std::sort(all.begin(), all.end());
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], i);
  EXPECT_FALSE(run.loader.next().has_value());
}

TEST(Loader, WithoutShuffleTheOrderIsTheFiles) {
  Reading run(counting(10), {.batch = 5, .shuffle = false, .epochs = 2});
  EXPECT_EQ(take(run.loader, 9),
            (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(Loader, WorkersAndPrefetchChangeNothing) {
  std::vector<int64_t> expected;
  for (const int workers : {0, 1, 2, 3, 8}) {
    for (const int prefetch : {0, 1, 16}) {
      Reading run(counting(57), {.batch = 8, .seed = 5, .workers = workers, .prefetch = prefetch});
      const std::vector<int64_t> got = take(run.loader, 20);
      if (expected.empty()) expected = got;
      EXPECT_EQ(got, expected) << workers << " workers, prefetch " << prefetch;
    }
  }
  EXPECT_EQ(expected.size(), 160u);
}

TEST(Loader, ResumesAnywhereAsIfNeverStopped) {
  const LoaderOptions options{.batch = 4, .seed = 9, .workers = 2};
  Reading whole(counting(30), options);
  std::vector<std::vector<int64_t>> batches;
  std::vector<Position> positions;
  for (int i = 0; i < 20; ++i) {
    positions.push_back(whole.loader.position());
    const Batch batch = *whole.loader.next();
    EXPECT_EQ(batch.begin, positions.back());
    EXPECT_EQ(batch.end, whole.loader.position());
    batches.push_back(samples_of(batch));
  }
  EXPECT_EQ(positions[7], (Position{1, 0}));  // 30 samples hold 7 batches of 4
  for (size_t i = 0; i < positions.size(); ++i) {
    Reading resumed(counting(30), options);
    resumed.loader.seek(positions[i]);
    EXPECT_EQ(samples_of(*resumed.loader.next()), batches[i]) << i;
  }
  whole.loader.seek(positions[3]);  // also backwards, while the loader runs
  EXPECT_EQ(samples_of(*whole.loader.next()), batches[3]);
  whole.loader.seek({0, 28});  // the end of an epoch equals the start of the next
  EXPECT_EQ(samples_of(*whole.loader.next()), batches[7]);
  EXPECT_THROW(whole.loader.seek({0, 3}), Error);
  EXPECT_THROW(whole.loader.seek({0, 64}), Error);
  EXPECT_THROW(whole.loader.seek({-1, 0}), Error);
}

TEST(Loader, ResumeIsNotAReplay) {
  Reading run(counting(int64_t{1} << 40), {.batch = 16, .seed = 1});
  run.loader.seek({3, int64_t{1} << 39});
  const Batch batch = *run.loader.next();
  EXPECT_EQ(batch.first, int64_t{1} << 39);
  EXPECT_EQ(batch.begin.epoch, 3);
}

TEST(Loader, RanksTakeContiguousPartsOfTheSameSteps) {
  // A step of 24 samples: 1 rank x 6 batches, 2 x 3, 3 x 2 or 6 x 1, of 4 rows each. Joined in the order of
  // ranks, all give the same samples.
  constexpr int64_t kBatch = 4, kGlobal = 24, kSteps = 5;
  std::vector<int64_t> expected;
  for (const int64_t world : {1, 2, 3, 6}) {
    std::vector<std::vector<int64_t>> of_rank;
    const int per_step = static_cast<int>(kGlobal / (kBatch * world));
    std::vector<int64_t> all(static_cast<size_t>(kGlobal * kSteps));
    for (int64_t rank = 0; rank < world; ++rank) {
      LoaderOptions options{
          .batch = kBatch, .global_batch = kGlobal, .rank = rank, .world = world, .seed = 3};
      Reading run(counting(61), options);  // two steps an epoch
      EXPECT_EQ(run.loader.steps_per_epoch(), 2);
      for (int64_t step = 0; step < kSteps; ++step) {
        const std::vector<int64_t> part = take(run.loader, per_step);
        std::copy(part.begin(), part.end(),
                  all.begin() + step * kGlobal + rank * static_cast<int64_t>(part.size()));
      }
      EXPECT_EQ(run.loader.position(), (Position{2, kGlobal}));
    }
    if (expected.empty()) expected = all;
    EXPECT_EQ(all, expected) << world << " ranks";
  }
}

TEST(Loader, InterleavedRanksTakeTheBatchesOfAStepInTurn) {
  Reading alone(counting(61), {.batch = 4, .global_batch = 24, .seed = 3});
  const std::vector<int64_t> expected = take(alone.loader, 12);
  std::vector<int64_t> all(expected.size());
  for (int64_t rank = 0; rank < 3; ++rank) {
    Reading run(counting(61),
                {.batch = 4, .global_batch = 24, .rank = rank, .world = 3, .interleave = true, .seed = 3});
    for (int64_t b = 0; b < 4; ++b) {
      const std::vector<int64_t> rows = take(run.loader, 1);
      std::copy(rows.begin(), rows.end(), all.begin() + (b * 3 + rank) * 4);
    }
    EXPECT_EQ(run.loader.position(), (Position{1, 0}));
  }
  EXPECT_EQ(all, expected);
}

TEST(Loader, APaddedLastBatchIsMarked) {
  LoaderOptions options{.batch = 4, .shuffle = false, .last = LastBatch::pad, .epochs = 1};
  Reading run(counting(10), options);
  EXPECT_EQ(run.loader.batches_per_epoch(), 3);
  EXPECT_EQ(run.loader.samples_per_epoch(), 10);
  take(run.loader, 2);
  const Batch last = *run.loader.next();
  EXPECT_EQ(last.valid_rows, 2);
  EXPECT_EQ(samples_of(last), (std::vector<int64_t>{8, 9, -1, -1}));
  EXPECT_EQ(last.tensor("label").data<int64_t>()[2], -100);
  EXPECT_EQ(last.tensor("x").data<float>()[4], 0);
  EXPECT_EQ(last.texts("id")[3], "");
  EXPECT_FALSE(run.loader.next().has_value());
  // A rank whose whole part is padding still delivers it, so that all ranks make the same number of steps.
  options.world = 3;
  options.rank = 2;
  Reading third(counting(5), options);
  EXPECT_EQ(third.loader.next()->valid_rows, 0);
}

TEST(Loader, ASetSmallerThanAStepIsAnError) {
  EXPECT_THROW(Reading(counting(5), {.batch = 8}), Error);
  EXPECT_THROW(Reading(counting(5), {.batch = 0}), Error);
  EXPECT_THROW(Reading(counting(50), {.batch = 8, .global_batch = 12}), Error);
  EXPECT_THROW(Reading(counting(50), {.batch = 8, .fields = {"labels"}}), Error);
}

TEST(Loader, ABrokenSampleIsAnErrorWithItsName) {
  for (const int workers : {0, 1, 3}) {
    Reading run(counting(40, 21), {.batch = 4, .shuffle = false, .workers = workers});
    EXPECT_EQ(take(run.loader, 5).size(), 20u);
    for (int again = 0; again < 2; ++again) {
      try {
        run.loader.next();
        ADD_FAILURE() << "no error";
      } catch (const Error& e) {
        EXPECT_NE(e.message().find("sample 21 (counting.bin: sample 21): this sample is broken"),
                  std::string::npos)
            << e.message();
      }
    }
    run.loader.seek({0, 24});  // past the broken batch
    EXPECT_EQ(take(run.loader, 1), (std::vector<int64_t>{24, 25, 26, 27}));
  }
}

TEST(Loader, StopsAtOnceWithFullAndWithEmptyQueues) {
  const Transform slow = [](Sample&, const SampleKey&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  for (int i = 0; i < 20; ++i) {
    Reading run(counting(1000), {.batch = 2, .workers = 4, .prefetch = 2}, i % 2 == 0 ? Transform() : slow);
    if (i % 3 != 0) take(run.loader, i % 5);
  }
}

TEST(Loader, SamplesOfDifferentShapesDoNotMix) {
  const DatasetPtr uneven = map(counting(8), {}, [](Sample& s) {
    const auto n = static_cast<int64_t>(s.tensor("x").data<float>()[0]);
    s.set("x", Tensor::zeros(DType::f32, {n == 5 ? 3 : 2}));
  });
  Reading run(uneven, {.batch = 8, .shuffle = false});
  try {
    run.loader.next();
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("sample 5"), std::string::npos) << e.message();
    EXPECT_NE(e.message().find("resize or crop"), std::string::npos) << e.message();
  }
}

// While the consumer computes and asks for nothing, workers read ahead as many batches as `prefetch` allows.
// Without workers, the consumer itself reads what it asks for, and no more.
TEST(Loader, DecodingOverlapsComputing) {
  constexpr int kBatch = 2, kPrefetch = 4;
  const auto ahead = counting(1000), alone = counting(1000);
  Reading run(ahead, {.batch = kBatch, .workers = 2, .prefetch = kPrefetch});
  for (int taken = 1; taken <= 5; ++taken) {
    ASSERT_TRUE(run.loader.next());
    for (int i = 0; i < 6000 && ahead->reads() < kBatch * (taken + kPrefetch); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_GE(ahead->reads(), kBatch * (taken + kPrefetch));
  }
  Reading waits(alone, {.batch = kBatch, .workers = 0});
  const int64_t before = alone->reads();
  for (int taken = 1; taken <= 5; ++taken) {
    EXPECT_GT(waits.loader.next()->wait_ns, 0);
    EXPECT_EQ(alone->reads() - before, kBatch * taken);
  }
}

TEST(Loader, TransformsDependOnTheSampleAlone) {
  const Transform noise = [](Sample& s, const SampleKey& key) {
    s.set("x", Tensor::from<float>({1}, {static_cast<float>(rng_of(key).uniform())}));
  };
  std::vector<float> expected;
  for (const int workers : {0, 1, 4}) {
    Reading run(counting(32), {.batch = 8, .seed = 11, .workers = workers, .fields = {"x"}}, noise);
    std::vector<float> got;
    for (int i = 0; i < 8; ++i) {
      const Batch batch = *run.loader.next();
      const auto x = batch.tensor("x").data<float>();
      got.insert(got.end(), x.begin(), x.end());
    }
    if (expected.empty()) expected = got;
    EXPECT_EQ(got, expected);
  }
  EXPECT_EQ(std::set<float>(expected.begin(), expected.end()).size(), 64u);  // all differ, in both epochs
}

TEST(Fingerprint, TellsDataSetsApart) {
  EXPECT_EQ(fingerprint(*counting(10)), fingerprint(*counting(10)));
  EXPECT_NE(fingerprint(*counting(10)), fingerprint(*counting(11)));
}

}  // namespace
}  // namespace trireme::data
