// Packed weights: made once a model, when there is content; their memory lies together, on huge pages.
#pragma once

#include "base/memory/shared_cache.h"
#include "base/memory/slab.h"
#include "base/threads/thread_pool.h"
#include "ir/kernel.h"
#include "tensor/absent.h"

namespace trireme::ops {

/// The slab of the model whose packs these are. Ask before SharedCache::get, not inside what it calls.
inline std::shared_ptr<const base::Slab> pack_slab(base::SharedCache& packs) {
  return packs.get<base::Slab>("slab of packed weights", [] { return std::make_shared<const base::Slab>(); });
}

/// A piece of it that keeps the slab in use by other packs.
struct PackMemory {
  PackMemory(std::shared_ptr<const base::Slab> from, size_t bytes)
      : slab(std::move(from)), data(slab->allocate(bytes)) {}
  std::shared_ptr<const base::Slab> slab;
  std::shared_ptr<char> data;
};

/// Who packs: the team that a kernel is prepared with, or the caller alone where there is none, or where a
/// weight is so small that meeting takes longer than packing.
class Packers {
 public:
  Packers(const ir::KernelInit& init, const tensor::Tensor& weight)
      : pool_(init.team == nullptr || weight.bytes() < kWorthMeeting ? alone_ : *init.team) {}
  operator base::ThreadPool&() { return pool_; }

 private:
  static constexpr int64_t kWorthMeeting = 64 << 10;
  base::ThreadPool alone_{1};
  base::ThreadPool& pool_;
};

/// What `make` packs of a constant, once for all programs of a model that ask for this format. Null while the
/// constant has no content: the kernel then leaves BoundKernel::run empty, says how large its workspace will
/// be and what it will not read, and is prepared again when the program is bound.
template <class T, class Make>
std::shared_ptr<const T> pack_once(base::SharedCache& packs, const tensor::Tensor& weight,
                                   const std::string& format, const Make& make) {
  if (tensor::is_absent(weight)) return nullptr;
  return packs.get<T>(ir::pack_key(weight, format), make);
}

}  // namespace trireme::ops
