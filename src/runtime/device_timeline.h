// When the parts of one run on a device began and ended.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/executor.h"
#include "tensor/device.h"

namespace trireme::runtime {

/// Events around what is launched on the streams; read once all have passed.
class DeviceTimeline {
 public:
  explicit DeviceTimeline(tensor::Stream& stream) : origin_(stream.record_event()) {}

  void begin(tensor::Stream& stream) { from_ = stream.record_event(); }
  void end(tensor::Stream& stream, Lane lane, int step, const char* what = "") {
    entries_.push_back({{.lane = lane, .step = step, .what = what}, std::move(from_), stream.record_event()});
  }
  std::vector<Span> spans() const {
    std::vector<Span> all;
    for (const Entry& e : entries_) {
      all.push_back(e.span);
      all.back().begin_ns = e.from->ns_since(*origin_);
      all.back().end_ns = e.to->ns_since(*origin_);
    }
    return all;
  }

 private:
  using Time = std::unique_ptr<tensor::Event>;
  struct Entry {
    Span span;
    Time from, to;
  };
  Time origin_, from_;
  std::vector<Entry> entries_;
};

}  // namespace trireme::runtime
