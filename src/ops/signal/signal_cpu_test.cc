// dft and stft on CPU: scratch in proportion to the lanes. Windows of one sample.
#include <gtest/gtest.h>

#include "ops/test_eval.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;

constexpr int64_t kPrime = 4093;  // its transform takes 320 KiB of scratch

TEST(SignalMemory, OneLaneTakesScratchForOneLane) {
  base::ThreadPool pool(3);
  const HostRun on{pool, int64_t{1} << 20};
  const Tensor x = testing::random_tensor(tensor::DType::f32, {1, kPrime, 1}, -1, 1);
  const Tensor y = evaluate(table().need("dft"), {}, {x}, 1, on)[0];
  EXPECT_EQ(y.dims(), (tensor::Dims{1, kPrime, 2}));
  const Tensor frame = evaluate(table().need("stft"), {{"onesided", int64_t{0}}},
                                {x, Tensor::scalar<int64_t>(1), Tensor(), Tensor::scalar(kPrime)}, 1, on)[0];
  EXPECT_EQ(frame.dims(), (tensor::Dims{1, 1, kPrime, 2}));
  for (size_t i = 0; i < static_cast<size_t>(2 * kPrime); ++i)
    ASSERT_EQ(y.data<float>()[i], frame.data<float>()[i]) << i;
}

/// The length is a value that a request may give: its tables would take 100 GB.
TEST(SignalMemory, LengthsAreBoundedByTheOperand) {
  base::ThreadPool pool(1);
  const Tensor x = testing::random_tensor(tensor::DType::f32, {1, 8, 1}, -1, 1);
  const Tensor length = Tensor::scalar(int64_t{1} << 30);
  try {
    evaluate(table().need("dft"), {}, {x, length}, 1, HostRun{pool});
    FAIL() << "tables of a length that nothing bounds";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::exhausted);
    // Not for want of memory, which another machine may have.
    EXPECT_NE(e.message().find("at most"), std::string::npos) << e.message();
  }
}

TEST(SignalMemory, NoLanesTakeNoScratch) {
  const Tensor x = Tensor::empty(tensor::DType::f32, {0, 6, 1});
  EXPECT_EQ(testing::run("dft", {x})[0].dims(), (tensor::Dims{0, 6, 2}));
}

TEST(Windows, OneSampleThatIsNotPeriodicIsOne) {
  const Tensor one = Tensor::scalar<int64_t>(1), two = Tensor::scalar<int64_t>(2);
  for (const char* window : {"hann_window", "hamming_window", "blackman_window"})
    EXPECT_EQ(testing::run(window, {one}, {{"periodic", int64_t{0}}})[0].to_doubles(),
              std::vector<double>{1});
  EXPECT_EQ(testing::run("hann_window", {one})[0].to_doubles(), std::vector<double>{0});
  EXPECT_EQ(testing::run("hann_window", {two}, {{"periodic", int64_t{0}}})[0].to_doubles(),
            (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace trireme::ops
