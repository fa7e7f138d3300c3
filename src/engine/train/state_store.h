// What a training run keeps between steps, by name: weights, optimizer moments, running statistics.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/staging.h"
#include "tensor/shard.h"
#include "tensor/tensor.h"

namespace trireme::engine {

/// Which part of a logical tensor a rank's state is.
struct StatePlace {
  tensor::Dims dims;    ///< of the whole tensor
  tensor::Shard shard;  ///< over the mesh of the session
};

/// Named tensors that update ops write in place. Addresses are fixed from add() on. One owner thread. On a
/// device the content lives there, and comes to the host when it is read: at() downloads what programs wrote
/// since, upload() sends what the host wrote.
class StateStore {
 public:
  /// Before the first add(): programs find the states in this device's memory. `stream` and `staging` serve
  /// the transfers. All outlive the store's last use.
  void live_on(tensor::Device& device, tensor::Stream& stream, runtime::Staging& staging);
  /// Where programs find the state: memory of the device, or of the host where there is none.
  void* address(const std::string& name);
  /// The device's memory of a state; null where there is none. Kept alive by its holders, written by steps.
  std::shared_ptr<const void> memory(const std::string& name) const { return find(name).memory; }
  /// Before programs run: what the host wrote reaches the device.
  void upload();
  /// After a run: programs may have written this state.
  void was_written(const std::string& name);

  /// Adds a state with the content of `initial`, which is copied. Throws internal if the name is taken.
  void add(const std::string& name, const tensor::Tensor& initial);
  /// Adds a state of zeros unless there is one; throws internal if its type differs.
  void need_zeros(const std::string& name, const tensor::TensorType& type);
  bool has(const std::string& name) const { return held_.contains(name); }
  /// The content, which later steps change; write to it before the next step. Throws not_found.
  tensor::Tensor& at(const std::string& name);
  const tensor::Tensor& at(const std::string& name) const;
  /// Type and extents, without a look at the content. Throws not_found.
  tensor::TensorType type(const std::string& name) const { return find(name).host.type(); }
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
  /// A state's two copies; without a device there is one and `newer` stays both.
  struct Held {
    enum class Newer : uint8_t { both, host, device };
    tensor::Tensor host;
    std::shared_ptr<void> memory = nullptr;
    Newer newer = Newer::both;
  };
  Held& find(const std::string& name) const;
  void hold(const std::string& name, tensor::Tensor host);
  void download(Held& held) const;
  void send(Held& held);

  tensor::Device* device_ = nullptr;
  tensor::Stream* stream_ = nullptr;
  runtime::Staging* staging_ = nullptr;
  std::vector<std::string> names_;
  mutable std::map<std::string, Held, std::less<>> held_;  // reading fetches from the device
  std::map<std::string, StatePlace, std::less<>> places_;
};

}  // namespace trireme::engine
