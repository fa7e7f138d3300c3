// What a training run keeps between steps, by name: weights, optimizer moments, running statistics.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tensor/shard.h"
#include "tensor/tensor.h"

namespace trireme::engine {

/// Which part of a logical tensor a rank's state is.
struct StatePlace {
  tensor::Dims dims;    ///< of the whole tensor
  tensor::Shard shard;  ///< over the mesh of the session
};

/// Named tensors that update ops write in place. Addresses are fixed from add() on. One owner thread.
class StateStore {
 public:
  /// Adds a state with the content of `initial`, which is copied. Throws internal if the name is taken.
  void add(const std::string& name, const tensor::Tensor& initial);
  /// Adds a state of zeros unless there is one; throws internal if its type differs.
  void need_zeros(const std::string& name, const tensor::TensorType& type);
  bool has(const std::string& name) const { return tensors_.contains(name); }
  /// The content, which later steps change. Throws not_found.
  tensor::Tensor& at(const std::string& name);
  const tensor::Tensor& at(const std::string& name) const;
  /// How the state stands on the mesh; its own dims and no shard unless set_place() said otherwise.
  StatePlace place(const std::string& name) const;
  void set_place(const std::string& name, StatePlace place);
  /// Another content of another type in the place of one that no program holds yet.
  void replace(const std::string& name, const tensor::Tensor& content, StatePlace place);
  /// Forgets a state that no program holds.
  void erase(const std::string& name);
  /// Overwrites the content. Throws invalid_argument if the type differs, not_found for an unknown name.
  void set(const std::string& name, const tensor::Tensor& content);
  /// In the order they were added.
  const std::vector<std::string>& names() const { return names_; }
  int64_t bytes() const;

 private:
  std::vector<std::string> names_;
  std::map<std::string, tensor::Tensor, std::less<>> tensors_;
  std::map<std::string, StatePlace, std::less<>> places_;
};

}  // namespace trireme::engine
