// Communication of a rank of a pipeline stage with the stages before and after it.
#include "engine/decode/stage_links.h"

#include <algorithm>

namespace trireme::engine {
namespace {

constexpr int kFrom = 0, kTo = 1;  // ranks of a link
constexpr const char* kWhat = "activations between stages";

}  // namespace

void CrossingPlaces::add(int64_t value_bytes) {
  constexpr int64_t kAlign = 64;
  begins.push_back(bytes);
  bytes += (value_bytes + kAlign - 1) / kAlign * kAlign;
}

StageLinks::StageLinks(comm::Mesh& mesh, tensor::Device& device, const runtime::DeviceBinding& on)
    : links_(mesh.axis("pp"), false, on.device, on.ranks.get()),
      is_host_(device.kind() == tensor::DeviceKind::cpu),
      in_(device),
      out_(device) {
  // Programs open their groups when they are made; for several axes this is collective over all ranks. Stages
  // have different programs, so the group is opened here.
  if (mesh.shape().extent("tpr") > 1 && mesh.shape().extent("tp") > 1) mesh.open("tpr,tp");
}

const std::byte* StageLinks::arrive(int64_t bytes) {
  if (links_.activation_in == nullptr) return nullptr;
  auto* to = static_cast<std::byte*>(in_.reserve(bytes));
  links_.activation_in->recv({to, static_cast<size_t>(bytes)}, kFrom, kWhat);
  links_.settle(links_.activation_in.get());
  return to;
}

void StageLinks::leave(int64_t bytes, tensor::Stream& stream) {
  stream.synchronize();
  links_.activation_out->send({leaving(bytes), static_cast<size_t>(bytes)}, kTo, kWhat);
  links_.settle(links_.activation_out.get());
}

std::vector<int64_t> StageLinks::hear(size_t count) {
  std::vector<int64_t> numbers(count);
  if (!is_first())
    links_.stages.recv(comm::as_bytes(std::span(numbers)), links_.stages.rank() - 1, "how values cross");
  return numbers;
}

void StageLinks::tell(std::vector<int64_t> numbers) {
  if (!is_last())
    links_.stages.send(comm::as_bytes(std::span(numbers)), links_.stages.rank() + 1, "how values cross");
}

void StageLinks::return_results(comm::Bytes results, std::string_view what) {
  comm::Communicator& stages = links_.stages;
  if (is_last()) stages.send(results, 0, what);
  if (is_first()) stages.recv(results, stages.size() - 1, what);
}

void StageLinks::return_drawn(runtime::LateResults& drawn, size_t slot, int64_t bytes,
                              tensor::Stream& stream) {
  if (!is_first() && !is_last()) return;
  const auto size = static_cast<size_t>(bytes);
  if (is_host_) return return_results({drawn.there(slot), size}, "drawn tokens");
  returned_.resize(size);
  if (is_last()) std::copy_n(drawn.fetch(slot), size, returned_.data());
  return_results(returned_, "drawn tokens");
  if (!is_first()) return;
  stream.upload(drawn.there(slot), returned_.data(), bytes);
  drawn.mark(slot, stream);
  stream.synchronize();
}

}  // namespace trireme::engine
