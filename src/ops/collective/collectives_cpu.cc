// Collectives on the CPU: threads of the stream's pool pack the bytes.
#include <cstring>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/collective/talks.h"

namespace trireme::ops {
namespace {

class CpuMover final : public Mover {
 public:
  void copy(tensor::Stream&, std::byte* to, const std::byte* from, int64_t bytes) const override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void zero(tensor::Stream&, std::byte* to, int64_t bytes) const override {
    std::memset(to, 0, static_cast<size_t>(bytes));
  }
  void pack(tensor::Stream& stream, const PieceCut& cut, const Rows& r) const override {
    cut.pack(r.whole, r.part, r.rank, cpu::pool_of(stream), r.rows);
  }
  void unpack(tensor::Stream& stream, const PieceCut& cut, const Rows& r) const override {
    cut.unpack(r.part, r.whole, r.rank, cpu::pool_of(stream), r.rows);
  }
  bool wants_chunks() const override { return true; }
};

const CpuMover kCpuMover;

}  // namespace

std::vector<ir::Kernel> all_reduce_cpu_kernels() { return {all_reduce_kernel(kCpuMover)}; }
std::vector<ir::Kernel> all_gather_cpu_kernels() { return {all_gather_kernel(kCpuMover)}; }
std::vector<ir::Kernel> reduce_scatter_cpu_kernels() { return {reduce_scatter_kernel(kCpuMover)}; }
std::vector<ir::Kernel> all_to_all_cpu_kernels() { return {all_to_all_kernel(kCpuMover)}; }
std::vector<ir::Kernel> shard_slice_cpu_kernels() { return {shard_slice_kernel(kCpuMover)}; }
std::vector<ir::Kernel> gather_into_cpu_kernels() { return {gather_into_kernel(kCpuMover)}; }

}  // namespace trireme::ops
