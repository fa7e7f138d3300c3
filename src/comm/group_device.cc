// Collectives on device memory through the host's communicator: in stream order where host code can access
// the memory, otherwise through pinned memory.
#include <algorithm>
#include <functional>
#include <vector>

#include "backend/cuda/device/cuda_device.h"
#include "base/error.h"
#include "comm/device_group.h"

namespace trireme::comm {

std::string_view to_string(DeviceLink link) {
  return link == DeviceLink::calls ? "calls" : link == DeviceLink::nccl ? "nccl" : "staged";
}

void repeat(Communicator& on, const Call& call, ConstBytes in, Bytes out) {
  switch (call.what) {
    case Collective::all_reduce: return on.all_reduce(in, out, call.reduction, call.source);
    case Collective::reduce_scatter: return on.reduce_scatter(in, out, call.reduction, call.source);
    case Collective::all_gather: return on.all_gather(in, out, call.source);
    case Collective::broadcast: return on.broadcast(out, call.to, call.source);
    case Collective::all_to_all:
      if (call.in_sizes.empty()) return on.all_to_all(in, out, call.source);
      return on.all_to_all(in, out, {call.in_sizes, call.out_sizes}, call.source);
    case Collective::exchange:
      if (call.to < 0) return on.recv(out, call.from, call.source);
      if (call.from < 0) return on.send(in, call.to, call.source);
      return on.exchange(in, out, {call.to, call.from}, call.source);
    case Collective::barrier: return on.barrier(call.source);
    case Collective::split:
    case Collective::finish: return;
  }
}

namespace {

/// The common part of both kinds: a group of the host's ranks.
class HostGroup : public DeviceGroup {
 public:
  explicit HostGroup(std::unique_ptr<Communicator> host) : host_(std::move(host)) {}
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  int64_t deadline_ns() const override { return host_->deadline_ns(); }
  const FlightRecorder& flights() const override { return host_->flights(); }

 protected:
  std::unique_ptr<Communicator> host_;
};

class CallGroup final : public HostGroup {
 public:
  CallGroup(std::unique_ptr<Communicator> host, cuda::CudaStream& stream)
      : HostGroup(std::move(host)), stream_(stream) {
    if (!stream.has_calls()) base::fail_unsupported("host code does not reach the memory of this device");
  }
  bool can_record() const override { return true; }
  std::unique_ptr<Communicator> split(int color, int key) override {
    stream_.synchronize();
    return std::make_unique<CallGroup>(host_->split(color, key), stream_);
  }

 protected:
  void execute(const Call& call) override {
    stream_.call([kept = Kept(call), host = host_.get()] { kept.repeat_on(*host); });
    if (call.what == Collective::barrier) stream_.synchronize();
  }

 private:
  /// A call with copies of its source text and its sizes.
  struct Kept {
    explicit Kept(const Call& c)
        : call(c),
          source(c.source),
          in_sizes(c.in_sizes.begin(), c.in_sizes.end()),
          out_sizes(c.out_sizes.begin(), c.out_sizes.end()) {}
    void repeat_on(Communicator& host) const {
      Call mine = call;
      mine.source = source;
      mine.in_sizes = in_sizes;
      mine.out_sizes = out_sizes;
      repeat(host, mine, mine.in, mine.out);
    }
    Call call;
    std::string source;
    std::vector<int64_t> in_sizes, out_sizes;
  };
  cuda::CudaStream& stream_;
};

class StagedGroup final : public HostGroup {
 public:
  StagedGroup(std::unique_ptr<Communicator> host, tensor::Device& device, tensor::Stream& stream)
      : HostGroup(std::move(host)), device_(device), stream_(stream) {}
  bool can_record() const override { return false; }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<StagedGroup>(host_->split(color, key), device_, stream_);
  }

 protected:
  void execute(const Call& call) override {
    const bool is_apart = call.in.empty() || call.out.empty() || !overlap(call.in, call.out);
    const std::byte *from = call.in.data(), *to = call.out.data();
    const std::byte* begin = is_apart ? from : std::min(from, to, before());
    const size_t in_at = is_apart ? 0 : static_cast<size_t>(from - begin);
    const size_t out_at = is_apart ? call.in.size() : static_cast<size_t>(to - begin);
    std::byte* memory = room(std::max(in_at + call.in.size(), out_at + call.out.size()));
    const Bytes in(memory + in_at, call.in.size()), out(memory + out_at, call.out.size());
    stream_.download(in.data(), call.in.data(), static_cast<int64_t>(in.size()));
    stream_.synchronize();
    repeat(*host_, call, in, out);
    stream_.upload(call.out.data(), out.data(), static_cast<int64_t>(out.size()));
  }

 private:
  static std::less<const std::byte*> before() { return {}; }
  static bool overlap(ConstBytes a, ConstBytes b) {
    return before()(a.data(), b.data() + b.size()) && before()(b.data(), a.data() + a.size());
  }
  /// Grows the pinned buffer, after synchronizing the stream, which may still upload from the old one.
  std::byte* room(size_t bytes) {
    if (bytes > bytes_) {
      stream_.synchronize();
      memory_ = device_.allocate_host(static_cast<int64_t>(bytes));
      bytes_ = bytes;
    }
    return static_cast<std::byte*>(memory_.get());
  }

  tensor::Device& device_;
  tensor::Stream& stream_;
  std::shared_ptr<void> memory_;
  size_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<DeviceGroup> open_calls(Communicator& host, tensor::Stream& stream) {
  base::require(stream.kind() == tensor::DeviceKind::cuda, "calls take streams of devices");
  return std::make_unique<CallGroup>(host.split(0, host.rank()), cuda::cuda_stream(stream));
}

std::unique_ptr<DeviceGroup> open_staged(Communicator& host, tensor::Device& device, tensor::Stream& stream) {
  return std::make_unique<StagedGroup>(host.split(0, host.rank()), device, stream);
}

}  // namespace trireme::comm
