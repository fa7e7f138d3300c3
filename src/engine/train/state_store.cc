// The states that a training run keeps between steps, by name.
#include "engine/train/state_store.h"

#include <cstring>

namespace trireme::engine {

using tensor::Tensor;

void StateStore::live_on(tensor::Device& device, tensor::Stream& stream, runtime::Staging& staging) {
  base::check(held_.empty(), "states move to a device before there are any");
  device_ = &device;
  stream_ = &stream;
  staging_ = &staging;
}

void StateStore::hold(const std::string& name, Tensor host) {
  Held held{.host = std::move(host)};
  if (device_ != nullptr) {
    held.memory = device_->allocate(held.host.bytes());
    held.newer = Held::Newer::host;
    staging_->reserve(held.host.bytes(), 0);
  }
  held_.emplace(name, std::move(held));
  names_.push_back(name);
}

void StateStore::add(const std::string& name, const Tensor& initial) {
  base::check(initial.defined(), "state '", name, "' has no content");
  base::check(!has(name), "there are two states called '", name, "'");
  hold(name, initial.clone());
}

void StateStore::need_zeros(const std::string& name, const tensor::TensorType& type) {
  if (has(name)) {
    base::check(this->type(name) == tensor::TensorType{type.dtype, type.shape}, "state '", name, "' is ",
                this->type(name).to_string(), ", a program wants ", type.to_string());
    return;
  }
  hold(name, Tensor::zeros(type.dtype, type.shape.to_dims()));
}

StateStore::Held& StateStore::find(const std::string& name) const {
  const auto found = held_.find(name);
  if (found == held_.end()) base::fail(base::ErrorCode::not_found, "there is no state '", name, "'");
  return found->second;
}

void StateStore::download(Held& held) const {
  if (held.newer != Held::Newer::device) return;
  const runtime::StagedPart whole{held.host.mutable_raw(), 0, held.host.bytes()};
  const auto* memory = static_cast<const std::byte*>(held.memory.get());
  stream_->synchronize();
  staging_->fetch(memory, whole.bytes, *stream_);
  stream_->synchronize();
  staging_->deliver(memory, {&whole, 1}, whole.bytes);
  held.newer = Held::Newer::both;
}

void StateStore::send(Held& held) {
  const runtime::StagedPart whole{held.host.mutable_raw(), 0, held.host.bytes()};
  staging_->upload(static_cast<std::byte*>(held.memory.get()), {&whole, 1}, whole.bytes, *stream_);
  stream_->synchronize();
  held.newer = Held::Newer::both;
}

void* StateStore::address(const std::string& name) {
  Held& held = find(name);
  return held.memory != nullptr ? held.memory.get() : held.host.mutable_raw();
}

void StateStore::upload() {
  if (device_ == nullptr) return;
  for (auto& [name, held] : held_) {
    if (held.newer == Held::Newer::host) send(held);
  }
}

void StateStore::was_written(const std::string& name) {
  if (device_ != nullptr) find(name).newer = Held::Newer::device;
}

Tensor& StateStore::at(const std::string& name) {
  Held& held = find(name);
  download(held);
  if (device_ != nullptr) held.newer = Held::Newer::host;
  return held.host;
}

const Tensor& StateStore::at(const std::string& name) const {
  Held& held = find(name);
  download(held);
  return held.host;
}

StatePlace StateStore::place(const std::string& name) const {
  const auto found = places_.find(name);
  return found != places_.end() ? found->second : StatePlace{find(name).host.dims(), {}};
}

void StateStore::set_place(const std::string& name, StatePlace place) {
  base::check(has(name), "there is no state '", name, "'");
  places_[name] = std::move(place);
}

void StateStore::replace(const std::string& name, const Tensor& content, StatePlace place) {
  Held& held = find(name);
  held.host = content.clone();
  if (device_ != nullptr) {
    held.memory = device_->allocate(content.bytes());
    held.newer = Held::Newer::host;
    staging_->reserve(content.bytes(), 0);
  }
  set_place(name, std::move(place));
}

void StateStore::erase(const std::string& name) {
  base::check(held_.erase(name) == 1, "there is no state '", name, "'");
  places_.erase(name);
  std::erase(names_, name);
}

void StateStore::set(const std::string& name, const Tensor& content) {
  Held& held = find(name);
  Tensor& mine = held.host;
  base::require(mine.type() == content.type(), "state '", name, "' is ", mine.type().to_string(), ", not ",
                content.type().to_string());
  if (mine.bytes() > 0) std::memcpy(mine.mutable_raw(), content.raw(), static_cast<size_t>(mine.bytes()));
  if (device_ != nullptr) held.newer = Held::Newer::host;
}

int64_t StateStore::bytes() const {
  int64_t total = 0;
  for (const auto& [name, held] : held_) total += held.host.bytes();
  return total;
}

}  // namespace trireme::engine
