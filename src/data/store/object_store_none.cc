// Stands in for object stores in builds without Arrow.
#if !TRIREME_ARROW
#include "base/error.h"
#include "data/store/object_store.h"

namespace trireme::data {

std::shared_ptr<const Store> object_store_of(const ObjectUrl& url) {
  base::fail_unsupported("this build reads no object stores: '", url.with_key(url.key),
                         "'; build with Arrow C++ (./dev setup installs it), or copy the files here");
}

}  // namespace trireme::data
#endif
