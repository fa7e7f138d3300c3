// Stands in for the Parquet reader in builds without Arrow.
#if !TRIREME_ARROW
#include "base/error.h"
#include "data/readers/readers.h"

namespace trireme::data {

DatasetPtr open_parquet(const std::string& path, const std::vector<std::string>&, int64_t) {
  base::fail_unsupported("this build reads no Parquet: '", path,
                         "'; build with Arrow C++ (./dev setup installs it), or convert to JSON lines");
}

}  // namespace trireme::data
#endif
