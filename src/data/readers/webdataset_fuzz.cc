// Fuzzes WebDataset shards: any archive is a list of samples whose members decode, or gives a clear error in
// bounded work. Header checksums are repaired after mutation; otherwise few inputs would pass the check.
#include <algorithm>
#include <cstdio>
#include <string>

#include "data/readers/fuzz_file.h"
#include "data/readers/readers.h"
#include "tests/fuzz_bounds.h"

namespace {

constexpr size_t kBlock = 512, kSum = 148, kSumBytes = 8;

/// Stores in every block that could be a header the sum of its bytes.
std::string with_sums(std::string archive) {
  for (size_t at = 0; at + kBlock <= archive.size(); at += kBlock) {
    if (archive.compare(at + 257, 5, "ustar") != 0) continue;
    std::fill_n(archive.begin() + static_cast<ptrdiff_t>(at + kSum), kSumBytes, ' ');
    unsigned sum = 0;
    for (size_t i = 0; i < kBlock; ++i) sum += static_cast<uint8_t>(archive[at + i]);
    std::snprintf(archive.data() + at + kSum, kSumBytes - 1, "%06o", sum);
  }
  return archive;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace trireme;
  constexpr int64_t kLimit = 1 << 20;  // of unpacked gzip, of the archive and of each member
  static const data::FuzzFile kFile("shard.tar");
  kFile.write(with_sums({reinterpret_cast<const char*>(bytes), size}));
  // One byte of a PNG may encode 8256 pixels of three bytes.
  const fuzz::BoundedWork bounded(size, {.fixed_s = 1,
                                         .s_per_byte = 200e-6,
                                         .fixed_peak_bytes = size_t{32} << 20,
                                         .peak_per_byte = 32 << 10,
                                         .total_per_byte = 64 << 10});
  data::read_all([&] { return data::open_webdataset(kFile.path(), kLimit); });
  return 0;
}
