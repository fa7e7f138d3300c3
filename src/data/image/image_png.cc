// Decodes PNG with libpng, which reports errors with longjmp: no object with a destructor may be alive there.
#include <png.h>

#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "data/image/image.h"

namespace trireme::data {
namespace {

// Deflate expands one byte to at most 1032, and a byte can hold eight pixels.
constexpr int64_t kPngPixelsPerByte = 1032 * 8;

struct PngReader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::string_view rest;
  char message[200] = "";

  PngReader() = default;
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
};

// Names of chunks, each with its closing zero, as libpng wants them.
constexpr std::array<png_byte, 10 * 5> kSkipped = [] {
  constexpr std::string_view kNames = "tEXtzTXtiTXtiCCPsPLTeXIfhISTpCALsCALtIME";
  std::array<png_byte, 10 * 5> bytes{};
  for (size_t i = 0; i < kNames.size(); ++i) bytes[i / 4 * 5 + i % 4] = static_cast<png_byte>(kNames[i]);
  return bytes;
}();

extern "C" {
void on_png_error(png_structp png, png_const_charp message) {
  PngReader& reader = *static_cast<PngReader*>(png_get_error_ptr(png));
  std::snprintf(reader.message, sizeof reader.message, "%s", message);
  png_longjmp(png, 1);
}
void on_png_warning(png_structp, png_const_charp) {}
void on_png_read(png_structp png, png_bytep to, png_size_t size) {
  PngReader& reader = *static_cast<PngReader*>(png_get_io_ptr(png));
  if (size > reader.rest.size()) png_error(png, "the file is cut off");
  std::memcpy(to, reader.rest.data(), size);
  reader.rest.remove_prefix(size);
}
}

/// Reads the header and asks for 8-bit RGB. False: `message` says why.
bool open_png(PngReader& r) {
  if (setjmp(png_jmpbuf(r.png)) != 0) return false;
  png_set_read_fn(r.png, &r, on_png_read);
  // Texts, profiles and the like are skipped: compressed ones expand, and nothing reads them.
  png_set_keep_unknown_chunks(r.png, PNG_HANDLE_CHUNK_NEVER, kSkipped.data(), kSkipped.size() / 5);
  png_set_chunk_cache_max(r.png, 16);
  png_set_chunk_malloc_max(r.png, 1 << 20);
  png_read_info(r.png, r.info);
  png_set_expand(r.png);
  png_set_strip_16(r.png);
  png_set_strip_alpha(r.png);
  png_set_gray_to_rgb(r.png);
  return true;
}

/// Decodes all rows, also interlaced ones, into `out` [height, width, 3]. False: `message` says why.
bool read_png_rows(PngReader& r, uint8_t* out, size_t height, size_t row_bytes) {
  if (setjmp(png_jmpbuf(r.png)) != 0) return false;
  const int passes = png_set_interlace_handling(r.png);
  png_read_update_info(r.png, r.info);
  if (png_get_rowbytes(r.png, r.info) != row_bytes) png_error(r.png, "the pixels are not RGB");
  for (int pass = 0; pass < passes; ++pass) {
    for (size_t y = 0; y < height; ++y) png_read_row(r.png, out + y * row_bytes, nullptr);
  }
  png_read_end(r.png, nullptr);
  return true;
}

}  // namespace

Image decode_png(std::string_view file, const ImageLimits& limits) {
  PngReader r;
  r.rest = file;
  r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_png_error, on_png_warning);
  base::check(r.png != nullptr, "libpng does not start");
  r.info = png_create_info_struct(r.png);
  base::check(r.info != nullptr, "libpng does not start");
  base::require(open_png(r), "PNG is broken: ", r.message);
  Image image{png_get_image_height(r.png, r.info), png_get_image_width(r.png, r.info), {}};
  base::require(image.height <= limits.max_pixels / image.width, "image is too large: ", image.height, "x",
                image.width, ", limit ", limits.max_pixels, " pixels");
  base::require(image.height * image.width <= pixels_in(file.size(), kPngPixelsPerByte),
                "PNG is cut off: ", image.height, "x", image.width, " in ", file.size(), " bytes");
  image.rgb.resize(static_cast<size_t>(image.height * image.width * 3));
  base::require(read_png_rows(r, image.rgb.data(), static_cast<size_t>(image.height),
                              static_cast<size_t>(image.width) * 3),
                "PNG is broken: ", r.message);
  return image;
}

}  // namespace trireme::data
