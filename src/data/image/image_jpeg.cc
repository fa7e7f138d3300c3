// Decodes JPEG with libjpeg-turbo, which reports errors with longjmp: no object with a destructor may be
// alive where one passes.
#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <string>

// jpeglib.h needs FILE and size_t to be declared before it.
#include <jpeglib.h>
// Defines the names of the library's messages.
#include <jerror.h>

#include "base/error.h"
#include "data/image/image.h"

namespace trireme::data {
namespace {

// An arithmetic coder spends almost nothing on a flat block, and a Huffman coder one bit on 64 samples. A
// file that claims more pixels per byte than this was not written by an encoder.
constexpr int64_t kJpegPixelsPerByte = 4096;
constexpr int64_t kScannedPixelsPerByte = 8192, kFreeScannedPixels = 16 << 20;
constexpr int64_t kFreePixels = 1 << 20;  // 9 MiB with the coefficients: what any file may ask for

struct JpegReader {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX] = "";
  int64_t max_scans = 0;  // most scans for a picture of this size

  JpegReader() = default;
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
  ~JpegReader() { jpeg_destroy_decompress(&jpeg); }  // does nothing to a struct that is still zero
};

JpegReader& reader_of(j_common_ptr jpeg) { return *static_cast<JpegReader*>(jpeg->client_data); }

extern "C" {
void on_error(j_common_ptr jpeg) {
  JpegReader& reader = reader_of(jpeg);
  (*jpeg->err->format_message)(jpeg, reader.message);
  std::longjmp(reader.jump, 1);
}
void on_message(j_common_ptr jpeg, int level) {
  // Damage inside the picture is tolerated, as elsewhere. A missing end is not, and stops decoding at once,
  // because the library would fill in the rest of the picture, scan after scan.
  if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF) {
    std::snprintf(reader_of(jpeg).message, JMSG_LENGTH_MAX, "the file is cut off");
    std::longjmp(reader_of(jpeg).jump, 1);
  }
}
void on_progress(j_common_ptr jpeg) {
  if (!jpeg->is_decompressor) return;
  JpegReader& reader = reader_of(jpeg);
  // The first scan is always allowed.
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= std::max<int64_t>(1, reader.max_scans))
    return;
  std::snprintf(reader.message, JMSG_LENGTH_MAX, "more than %d scans of a picture of this size",
                static_cast<int>(reader.max_scans));
  std::longjmp(reader.jump, 1);
}
}

/// Reads the header and chooses the output colours. False: `message` says why.
bool open_jpeg(JpegReader& r, std::string_view file) {
  if (setjmp(r.jump) != 0) return false;
  jpeg_create_decompress(&r.jpeg);
  r.jpeg.client_data = &r;  // jpeg_create_decompress() keeps it; set again for clarity
  r.jpeg.progress = &r.progress;
  jpeg_mem_src(&r.jpeg, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&r.jpeg, TRUE);
  const bool four = r.jpeg.jpeg_color_space == JCS_CMYK || r.jpeg.jpeg_color_space == JCS_YCCK;
  r.jpeg.out_color_space = four ? JCS_CMYK : JCS_RGB;
  return true;
}

/// Decodes all rows into `out` [height, width, 3 or 4]. False: `message` says why.
bool read_jpeg_rows(JpegReader& r, uint8_t* out) {
  if (setjmp(r.jump) != 0) return false;
  jpeg_start_decompress(&r.jpeg);
  const size_t row_bytes =
      static_cast<size_t>(r.jpeg.output_width) * static_cast<size_t>(r.jpeg.output_components);
  while (r.jpeg.output_scanline < r.jpeg.output_height) {
    JSAMPROW row = out + r.jpeg.output_scanline * row_bytes;
    jpeg_read_scanlines(&r.jpeg, &row, 1);
  }
  jpeg_finish_decompress(&r.jpeg);
  return true;
}

/// a * b / 255, rounded.
int multiply_255(int a, int b) {
  const int t = a * b + 128;
  return ((t >> 8) + t) >> 8;
}

/// Adobe stores CMYK inverted. Red is then the white that black leaves, less its share of cyan.
std::vector<uint8_t> from_inverted_cmyk(const std::vector<uint8_t>& cmyk) {
  std::vector<uint8_t> rgb(cmyk.size() / 4 * 3);
  for (size_t i = 0; i < cmyk.size() / 4; ++i) {
    const int white = cmyk[4 * i + 3];
    for (size_t c = 0; c < 3; ++c) {
      rgb[3 * i + c] = static_cast<uint8_t>(white - multiply_255(255 - cmyk[4 * i + c], white));
    }
  }
  return rgb;
}

}  // namespace

Image decode_jpeg(std::string_view file, const ImageLimits& limits) {
  JpegReader r;
  r.jpeg.err = jpeg_std_error(&r.errors);
  r.jpeg.client_data = &r;
  r.errors.error_exit = on_error;
  r.errors.emit_message = on_message;
  r.progress.progress_monitor = on_progress;
  base::require(open_jpeg(r, file), "JPEG is broken: ", r.message);
  Image image{r.jpeg.image_height, r.jpeg.image_width, {}};
  // Both sides are below 2^16, so the product does not overflow.
  base::require(image.height * image.width <= limits.max_pixels, "image is too large: ", image.height, "x",
                image.width, ", limit ", limits.max_pixels, " pixels");
  const int64_t pixels = image.height * image.width;
  base::require(pixels <= kFreePixels + pixels_in(file.size(), kJpegPixelsPerByte),
                "JPEG is cut off: ", image.height, "x", image.width, " in ", file.size(), " bytes");
  // An empty scan costs the file a few bytes, but decoding it costs a pass over the whole picture.
  const int64_t work =
      std::min(limits.max_scanned_pixels, kFreeScannedPixels + pixels_in(file.size(), kScannedPixelsPerByte));
  r.max_scans = std::min<int64_t>(limits.max_scans, work / std::max<int64_t>(1, pixels));
  const bool four = r.jpeg.out_color_space == JCS_CMYK;
  image.rgb.resize(static_cast<size_t>(image.height * image.width * (four ? 4 : 3)));
  base::require(read_jpeg_rows(r, image.rgb.data()), "JPEG is broken: ", r.message);
  if (four) image.rgb = from_inverted_cmyk(image.rgb);
  return image;
}

}  // namespace trireme::data
