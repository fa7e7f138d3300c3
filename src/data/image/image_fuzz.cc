// Fuzzes the image decoders: any bytes decode to a picture of the stated size or are refused, and their size
// bounds the work.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "data/image/image.h"
#include "tests/fuzz_bounds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace trireme;
  // One byte of a PNG may encode 8256 pixels of three bytes; one of a JPEG, a scan over 8192 pixels.
  const fuzz::BoundedWork bounded(size, {.fixed_s = 1.5,
                                         .s_per_byte = 300e-6,
                                         .fixed_peak_bytes = size_t{32} << 20,
                                         .peak_per_byte = 32 << 10,
                                         .total_per_byte = 64 << 10});
  try {
    const data::Image image = data::decode_image(std::string_view(reinterpret_cast<const char*>(bytes), size),
                                                 {.max_pixels = 1 << 22});
    if (image.rgb.size() != static_cast<size_t>(image.height * image.width * 3)) std::abort();
    if (image.rgb.empty()) std::abort();
    data::resize(image, 7, 9, data::Resample::bicubic);
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) std::abort();
  }
  return 0;
}
