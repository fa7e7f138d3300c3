// What a rank of a pipeline stage exchanges with the stages beside it while texts are continued: activations
// of a step, and what the last stage made of it.
#pragma once

#include <vector>

#include "comm/mesh.h"
#include "compile/program.h"
#include "engine/arena.h"
#include "engine/ranks/pipeline.h"
#include "runtime/executor.h"
#include "runtime/late_results.h"

namespace trireme::engine {

/// Where the values of one program that cross lie in one message: both ends have the same types.
struct CrossingPlaces {
  std::vector<int64_t> begins;  ///< by value, in bytes
  int64_t bytes = 0;            ///< of all

  void add(int64_t value_bytes);
};

/// A step goes through the stages one after another, so there is one buffer on each side. One owner thread.
class StageLinks {
 public:
  /// Collective over the ranks of `mesh`, which outlives it, as do the device and `on`.
  StageLinks(comm::Mesh& mesh, tensor::Device& device, const runtime::DeviceBinding& on);

  bool is_first() const { return links_.stages.rank() == 0; }
  bool is_last() const { return links_.stages.rank() + 1 == links_.stages.size(); }

  /// Waits for so many bytes of the stage before; none on the first stage. Memory of the device, until the
  /// next step. Throws unavailable if a rank is gone.
  const std::byte* arrive(int64_t bytes);
  /// Memory of the device for so many bytes to the next stage.
  std::byte* leaving(int64_t bytes) { return static_cast<std::byte*>(out_.reserve(bytes)); }
  /// Waits until `stream` has written them, and until the next stage has them.
  void leave(int64_t bytes, tensor::Stream& stream);
  /// Numbers from the stage before this one, as many as are asked for, and to the next one.
  std::vector<int64_t> hear(size_t count);
  void tell(std::vector<int64_t> numbers);
  /// Host memory, from a rank of the last stage to the rank of the first one at its place; called on all.
  void return_results(comm::Bytes results, std::string_view what);
  /// The same of the result `slot`, which the last stage has marked: it is fetched there, and on the first
  /// stage in its memory of the device.
  void return_drawn(runtime::LateResults& drawn, size_t slot, int64_t bytes, tensor::Stream& stream);

 private:
  PipelineLinks links_;
  bool is_host_;                     ///< the device's memory is the host's
  std::vector<std::byte> returned_;  ///< on its way to or from a device
  Arena in_, out_;
};

}  // namespace trireme::engine
