// What a training run keeps between steps, by name.
#include "engine/state_store.h"

#include <cstring>

namespace trireme::engine {

using tensor::Tensor;

void StateStore::add(const std::string& name, const Tensor& initial) {
  base::check(initial.defined(), "state '", name, "' has no content");
  base::check(tensors_.emplace(name, initial.clone()).second, "there are two states called '", name, "'");
  names_.push_back(name);
}

void StateStore::need_zeros(const std::string& name, const tensor::TensorType& type) {
  if (const auto at = tensors_.find(name); at != tensors_.end()) {
    base::check(at->second.type() == tensor::TensorType{type.dtype, type.shape}, "state '", name, "' is ",
                at->second.type().to_string(), ", a program wants ", type.to_string());
    return;
  }
  tensors_.emplace(name, Tensor::zeros(type.dtype, type.shape.to_dims()));
  names_.push_back(name);
}

Tensor& StateStore::at(const std::string& name) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) base::fail(base::ErrorCode::not_found, "there is no state '", name, "'");
  return found->second;
}

const Tensor& StateStore::at(const std::string& name) const {
  return const_cast<StateStore*>(this)->at(name);
}

StatePlace StateStore::place(const std::string& name) const {
  const auto found = places_.find(name);
  return found != places_.end() ? found->second : StatePlace{at(name).dims(), {}};
}

void StateStore::set_place(const std::string& name, StatePlace place) {
  base::check(has(name), "there is no state '", name, "'");
  places_[name] = std::move(place);
}

void StateStore::replace(const std::string& name, const Tensor& content, StatePlace place) {
  at(name) = content.clone();
  set_place(name, std::move(place));
}

void StateStore::erase(const std::string& name) {
  base::check(tensors_.erase(name) == 1, "there is no state '", name, "'");
  places_.erase(name);
  std::erase(names_, name);
}

void StateStore::set(const std::string& name, const Tensor& content) {
  Tensor& mine = at(name);
  base::require(mine.type() == content.type(), "state '", name, "' is ", mine.type().to_string(), ", not ",
                content.type().to_string());
  if (mine.bytes() > 0) std::memcpy(mine.mutable_raw(), content.raw(), static_cast<size_t>(mine.bytes()));
}

int64_t StateStore::bytes() const {
  int64_t total = 0;
  for (const auto& [name, t] : tensors_) total += t.bytes();
  return total;
}

}  // namespace trireme::engine
