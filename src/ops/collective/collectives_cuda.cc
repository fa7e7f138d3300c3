// Collectives on NVIDIA GPUs: copies on the stream of the communicator pack the bytes.
#include "backend/cuda/index/copy.h"
#include "ops/collective/talks.h"
#include "ops/cuda_kernels.h"

namespace trireme::ops {
namespace {

class DeviceMover final : public Mover {
 public:
  void copy(tensor::Stream& stream, std::byte* to, const std::byte* from, int64_t bytes) const override {
    stream.copy(to, from, bytes);
  }
  void zero(tensor::Stream& stream, std::byte* to, int64_t bytes) const override {
    cuda::fill_zero(stream, to, bytes);
  }
  void pack(tensor::Stream& stream, const PieceCut& cut, const Rows& r) const override {
    const cuda::StridedCopy c = walk_of(cut, r);
    if (c.extent[0] == 0 || c.extent[1] == 0) return;
    cuda::copy_strided(stream, cuda::widened(c), r.whole, r.part);
  }
  void unpack(tensor::Stream& stream, const PieceCut& cut, const Rows& r) const override {
    cuda::StridedCopy c = walk_of(cut, r);
    if (c.extent[0] == 0 || c.extent[1] == 0) return;
    std::swap(c.x_steps, c.y_steps);
    std::swap(c.x_base, c.y_base);
    cuda::copy_strided(stream, cuda::widened(c), r.part, r.whole);
  }
  bool wants_chunks() const override { return false; }

 private:
  /// The copy from the whole to a part, in bytes; both begin at multiples of 16.
  static cuda::StridedCopy walk_of(const PieceCut& cut, const Rows& r) {
    const int64_t last = r.rows.last < 0 ? cut.rows() : r.rows.last, row = cut.row_bytes(r.rank);
    return {.extent = {last - r.rows.first, row},
            .x_steps = {cut.section_bytes(), 1},
            .y_steps = {row, 1},
            .x_base = r.rows.first * cut.section_bytes() + cut.begin_bytes(r.rank),
            .unit_bytes = 1};
  }
};

const DeviceMover kDeviceMover;

}  // namespace

std::vector<CudaKernels> collectives_cuda_kernels() {
  return {{"all_reduce", {all_reduce_kernel(kDeviceMover)}},
          {"all_gather", {all_gather_kernel(kDeviceMover)}},
          {"reduce_scatter", {reduce_scatter_kernel(kDeviceMover)}},
          {"all_to_all", {all_to_all_kernel(kDeviceMover)}},
          {"shard_slice", {shard_slice_kernel(kDeviceMover)}},
          {"gather_into", {gather_into_kernel(kDeviceMover)}}};
}

}  // namespace trireme::ops
