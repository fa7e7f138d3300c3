// Fuzzes token files: any bytes are ids of two or four bytes, with a header or without, or the characters of
// a text, cut into windows that lie inside, or give a clear error in bounded work.
#include "data/readers/fuzz_file.h"
#include "data/readers/readers.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace trireme;
  constexpr int64_t kLimit = 1 << 20;  // of unpacked gzip
  static const data::FuzzFile kFile("tokens");
  if (size < 4) return 0;
  kFile.write({reinterpret_cast<const char*>(bytes) + 4, size - 4});
  const data::TokenWindows windows{.context = 1 + bytes[1] % 16,
                                   .stride = bytes[2] % 32,
                                   .hold_out = bytes[3] % 4 == 0 ? 0.25 : 0,
                                   .split = bytes[3] % 8 == 4 ? "validation" : "train"};
  // Windows overlap: an id may occur in as many windows as a window has ids.
  const fuzz::BoundedWork bounded(
      size, {.fixed_peak_bytes = size_t{16} << 20, .peak_per_byte = 1024, .total_per_byte = 64 << 10});
  const int64_t vocabulary = bytes[0] % 4 < 2 ? 0 : 1000;
  data::read_all([&] {
    if (bytes[0] % 3 == 2) return data::open_characters(kFile.path(), windows, kLimit);
    const auto type = bytes[0] % 3 == 0 ? data::TokenType::u16 : data::TokenType::u32;
    return data::open_tokens(kFile.path(), type, vocabulary, windows, kLimit);
  });
  return 0;
}
