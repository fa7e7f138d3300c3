// Memory for packed weights: those of one model share a slab on huge pages.
#pragma once

#include "base/memory/shared_cache.h"
#include "base/memory/slab.h"

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

}  // namespace trireme::ops
