// Fuzzes the image decoders: any bytes decode to a picture of the stated size or are refused.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "data/image.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace trireme;
  try {
    const data::Image image = data::decode_image(std::string_view(reinterpret_cast<const char*>(bytes), size),
                                                 {.max_pixels = 1 << 18});
    if (image.rgb.size() != static_cast<size_t>(image.height * image.width * 3)) std::abort();
    if (image.rgb.empty()) std::abort();
    data::resize(image, 7, 9, data::Resample::bicubic);
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) std::abort();
  }
  return 0;
}
