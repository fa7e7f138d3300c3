// TensorBoard event files: scalars by step, readable by the tensorboard program while they grow.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "train/files/append_file.h"

namespace trireme::train {

struct Scalar {
  std::string_view tag;  ///< "loss", "time/forward_ms"
  double value = 0;
};

/// Writes TFRecord frames (length, masked CRC-32C, Event message, masked CRC-32C). One file per process: a
/// resumed run adds another, which tells TensorBoard to drop what the first has from the resumed step on.
class TensorboardWriter {
 public:
  /// Creates directory/events.out.tfevents.<seconds>.<host>.<process>. `first_step` > 0: a resumed run.
  TensorboardWriter(const std::string& directory, int64_t wall_ns, int64_t first_step);

  void write(int64_t step, int64_t wall_ns, std::span<const Scalar> scalars);
  void flush() { file_.flush(); }
  std::string error() { return file_.error(); }
  const std::string& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

/// One TFRecord frame around `message`.
std::string record_frame(std::string_view message);

}  // namespace trireme::train
