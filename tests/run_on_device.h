// Runs every CUDA kernel of an op that accepts a node, to hold it against the CPU's kernels: on a GPU in
// builds with the toolkit, on the emulated device in others.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/device/cuda_device.h"
#include "ops/table.h"

namespace trireme::tests {

/// The device under test, or null with the reason in `why`.
inline std::unique_ptr<tensor::Device> open_test_device(std::string& why) {
  try {
    return cuda::has_toolkit() ? cuda::open_gpu(0) : cuda::open_emulated();
  } catch (const base::Error& e) {
    why = e.message();
    return nullptr;
  }
}

/// The device under test. Where there is none the test that asks is skipped, and says why; it goes on, so
/// what it expects of the device must be under `if (device != nullptr)` or behind testing::Test::IsSkipped().
inline std::unique_ptr<tensor::Device> device_or_skip(
    std::unique_ptr<tensor::Device> (*open)(std::string&) = open_test_device) {
  std::string why;
  std::unique_ptr<tensor::Device> device = open(why);
  if (device == nullptr) [&] { GTEST_SKIP() << why; }();
  return device;
}

struct DeviceTrial {
  std::string op;
  std::vector<tensor::Tensor> in;  ///< an undefined tensor is an absent operand
  ir::Attrs attrs = {};
  size_t out_count = 1;
  double relative = 1e-5, absolute = 1e-5;
  std::vector<size_t> fed = {};        ///< operands whose values are not known when kernels bind
  std::optional<size_t> kernels = {};  ///< how many take it; else at least one
  /// Result 0 in f64, and how far device and CPU may each be from that: who is right is then decided by
  /// neither. Empty: the device is held against the CPU.
  std::vector<double> exact = {}, cpu_within = {}, device_within = {};
};

/// One run's memory on the device, guarded: bytes behind every buffer are checked after the run.
class DeviceBuffers {
 public:
  DeviceBuffers(tensor::Device& device, tensor::Stream& stream) : device_(device), stream_(stream) {}
  /// A copy of `content`, or poisoned room of `bytes` bytes where content is null.
  void* add(int64_t bytes, const void* content) {
    std::vector<std::byte> image(static_cast<size_t>(bytes + kGuard), std::byte{0xa5});
    if (content != nullptr && bytes > 0) std::memcpy(image.data(), content, static_cast<size_t>(bytes));
    memory_.push_back(device_.allocate(bytes + kGuard));
    stream_.upload(memory_.back().get(), image.data(), bytes + kGuard);
    stream_.synchronize();
    sizes_.push_back(bytes);
    return memory_.back().get();
  }
  void expect_guards(const std::string& what) {
    for (size_t i = 0; i < memory_.size(); ++i) {
      std::byte guard[kGuard];
      stream_.download(guard, static_cast<std::byte*>(memory_[i].get()) + sizes_[i], kGuard);
      stream_.synchronize();
      for (std::byte b : guard) ASSERT_EQ(b, std::byte{0xa5}) << what << " writes behind buffer " << i;
    }
  }

 private:
  static constexpr int64_t kGuard = 64;
  tensor::Device& device_;
  tensor::Stream& stream_;
  std::vector<std::shared_ptr<void>> memory_;
  std::vector<int64_t> sizes_;
};

inline void expect_same_values(const tensor::Tensor& got, const tensor::Tensor& want,
                               const DeviceTrial& trial, const std::string& what) {
  if (tensor::is_float(got.dtype()) && tensor::bits_of(got.dtype()) <= 8) {
    ASSERT_TRUE(got.same_as(want)) << what << ": other codes";
    return;
  }
  const std::vector<double> a = got.to_doubles(), b = want.to_doubles();
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (a[i] == b[i]) continue;
    ASSERT_LE(std::abs(a[i] - b[i]), trial.absolute + trial.relative * std::abs(b[i]))
        << what << " at " << i << ": got " << a[i] << ", want " << b[i];
  }
}

/// Holds a result against what f64 says.
inline void expect_near_exact(const tensor::Tensor& got, const DeviceTrial& trial,
                              const std::vector<double>& within, const std::string& what) {
  const std::vector<double> values = got.to_doubles();
  ASSERT_EQ(values.size(), trial.exact.size()) << what;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(trial.exact[i]) && std::isnan(values[i])) continue;
    ASSERT_LE(std::abs(values[i] - trial.exact[i]), within[i])
        << what << " at " << i << ": got " << values[i] << ", in f64 " << trial.exact[i];
  }
}

/// The node of a trial, whose types are inferred from its operands.
inline ir::NodeView node_of(const ir::OpDef& def, const DeviceTrial& trial) {
  ir::NodeView node{.attrs = trial.attrs,
                    .in = {},
                    .out = {},
                    .known = {},
                    .is_present = {},
                    .out_count = trial.out_count,
                    .name = trial.op};
  for (const tensor::Tensor& t : trial.in) {
    node.is_present.push_back(t.defined());
    node.in.push_back(t.defined() ? t.type() : tensor::TensorType{});
    node.known.push_back(t.defined() ? &t : nullptr);
  }
  node.out = ir::infer_types(def.schema, node);
  for (size_t i : trial.fed) node.known[i] = nullptr;
  return node;
}

/// One kernel's run of a trial, its memory guarded.
inline std::vector<tensor::Tensor> run_kernel(tensor::Device& device, const ir::Kernel& kernel,
                                              const ir::NodeView& node, const DeviceTrial& trial) {
  base::ThreadPool pool(1);
  const std::unique_ptr<tensor::Stream> stream = device.open_stream(pool);
  const std::string what = trial.op + " by " + kernel.name;
  base::SharedCache packs;
  const ir::BoundKernel bound = kernel.prepare({node, packs, 1, &device});
  DeviceBuffers buffers(device, *stream);
  std::vector<const void*> in;
  std::vector<void*> out;
  std::vector<tensor::Tensor> results;
  for (const tensor::Tensor& t : trial.in)
    in.push_back(t.defined() ? buffers.add(t.bytes(), t.raw()) : nullptr);
  for (size_t i = 0; i < trial.out_count; ++i) {
    results.push_back(tensor::Tensor::empty(node.out[i].dtype, node.out_dims(i)));
    out.push_back(buffers.add(results[i].bytes(), nullptr));
  }
  void* workspace = buffers.add(bound.workspace_bytes, nullptr);
  const std::shared_ptr<void> fault = device.allocate_host(2 * sizeof(int64_t));
  auto* words = static_cast<int64_t*>(std::memset(fault.get(), 0, 2 * sizeof(int64_t)));
  bound.run({.in = in.data(), .out = out.data(), .workspace = workspace, .stream = *stream, .fault = words});
  stream->synchronize();
  EXPECT_EQ(words[0], 0) << what << " reports bad data: " << words[1];
  for (size_t i = 0; i < trial.out_count; ++i)
    stream->download(results[i].mutable_raw(), out[i], results[i].bytes());
  stream->synchronize();
  buffers.expect_guards(what);
  return results;
}

/// Results of the first CUDA kernel that takes a trial. Fails the test if none does.
inline std::vector<tensor::Tensor> run_on(tensor::Device& device, const DeviceTrial& trial) {
  const ir::OpDef& def = ops::table().need(trial.op);
  const ir::NodeView node = node_of(def, trial);
  const ir::Kernel* kernel = ops::choose_kernel(def, node, tensor::DeviceKind::cuda);
  base::check(kernel != nullptr, "no CUDA kernel of ", trial.op, " takes the node");
  return run_kernel(device, *kernel, node, trial);
}

/// Runs each accepting CUDA kernel against the CPU; returns how many there were. Fails the test if none
/// accepts (unless `may_refuse`), if a result differs, or if a kernel writes past its results. Skips it, and
/// returns 0, where there is no device.
inline size_t expect_as_cpu(const DeviceTrial& trial, bool may_refuse = false) {
  const std::unique_ptr<tensor::Device> device = device_or_skip();
  if (device == nullptr) return 0;
  const ir::OpDef& def = ops::table().need(trial.op);
  base::ThreadPool pool(1);
  const std::vector<tensor::Tensor> want = ops::evaluate(def, trial.attrs, trial.in, trial.out_count, pool);
  const ir::NodeView node = node_of(def, trial);
  const bool is_judged = !trial.exact.empty();
  if (is_judged) expect_near_exact(want[0], trial, trial.cpu_within, trial.op + " on the CPU");
  size_t ran = 0;
  for (const ir::Kernel& kernel : def.kernels) {
    if (kernel.on != tensor::DeviceKind::cuda || (kernel.refuse && kernel.refuse(node))) continue;
    const std::string what = trial.op + " by " + kernel.name;
    const std::vector<tensor::Tensor> got = run_kernel(*device, kernel, node, trial);
    if (is_judged) expect_near_exact(got[0], trial, trial.device_within, what);
    for (size_t i = is_judged ? 1 : 0; i < want.size(); ++i)
      expect_same_values(got[i], want[i], trial, what + ", result " + std::to_string(i));
    ++ran;
  }
  if (trial.kernels) {
    EXPECT_EQ(ran, *trial.kernels) << trial.op;
  } else if (!may_refuse) {
    EXPECT_GT(ran, 0u) << "no CUDA kernel of " << trial.op << " takes the node";
  }
  return ran;
}

}  // namespace trireme::tests
