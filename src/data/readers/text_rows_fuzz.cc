// Fuzzes files of rows: any bytes are JSON lines, or CSV of any delimiter, or give a clear error in bounded
// work. The first byte chooses: 'j' JSON lines, 'h' CSV with a header, others CSV without one.
#include "data/readers/fuzz_file.h"
#include "data/readers/readers.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace trireme;
  constexpr int64_t kLimit = 1 << 20;  // of unpacked gzip
  static const data::FuzzFile kFile("rows");
  if (size < 2) return 0;
  kFile.write({reinterpret_cast<const char*>(bytes) + 2, size - 2});
  // A one-byte cell becomes a tensor of its own.
  const fuzz::BoundedWork bounded(size, {.fixed_peak_bytes = size_t{16} << 20, .peak_per_byte = 2048});
  if (bytes[0] == 'j') {
    data::read_all([&] { return data::open_jsonl(kFile.path(), kLimit); });
  } else {
    const data::CsvOptions options{.header = bytes[0] == 'h', .delimiter = static_cast<char>(bytes[1])};
    data::read_all([&] { return data::open_csv(kFile.path(), options, kLimit); });
  }
  return 0;
}
