// Tests images against Pillow (tools/oracles/image_vectors.py) and with damaged files.
#include "data/image/image.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdlib>
#include <ctime>
#include <random>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json.h"
#include "tests/test_data.h"

namespace trireme::data {
namespace {

using base::Json;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

const Json& vectors() {
  static const Json json =
      base::parse_json(base::read_file(tests::source_dir() / "src/data/testdata/image_vectors.json"));
  return json;
}

/// The largest difference of two pictures, in levels; 256 if their sizes differ.
int distance(const Image& image, const Json& expected) {
  const std::string rgb = from_hex(expected.at("rgb").as_string());
  if (image.height != expected.at("height").as_int() || image.width != expected.at("width").as_int())
    return 256;
  if (image.rgb.size() != rgb.size()) return 256;
  int worst = 0;
  for (size_t i = 0; i < rgb.size(); ++i) {
    worst = std::max(worst, std::abs(image.rgb[i] - static_cast<uint8_t>(rgb[i])));
  }
  return worst;
}

TEST(Image, DecodesLikePillow) {
  for (const base::JsonMember& file : vectors().at("files").as_object()) {
    const Image image = decode_image(from_hex(file.value.at("file").as_string()));
    // Releases of libjpeg differ by up to one level; the other formats are exact.
    EXPECT_LE(distance(image, file.value), file.key.starts_with("jpeg") ? 1 : 0) << file.key;
  }
}

TEST(Image, ResizesExactlyLikePillow) {
  const Image image = decode_image(from_hex(vectors().at("files").at("png_rgb").at("file").as_string()));
  for (const Json& row : vectors().at("resize").as_array()) {
    const Resample filter =
        row.at("filter").as_string() == "bilinear" ? Resample::bilinear : Resample::bicubic;
    EXPECT_EQ(distance(resize(image, row.at("height").as_int(), row.at("width").as_int(), filter), row), 0)
        << row.at("filter").as_string() << ' ' << row.at("height").dump() << 'x' << row.at("width").dump();
  }
}

TEST(Image, ShorterSideCropAndPlanes) {
  Image image{5, 8, std::vector<uint8_t>(5 * 8 * 3)};
  for (size_t i = 0; i < image.rgb.size(); ++i) image.rgb[i] = static_cast<uint8_t>(i);
  const Image small = resize_shorter_side(image, 3);
  EXPECT_EQ(small.height, 3);
  EXPECT_EQ(small.width, 4);  // 3 * 8 / 5, rounded down
  const Image crop = crop_center(image, 2, 3);
  // (5-2)/2 = 1.5 and (8-3)/2 = 2.5 both go to 2.
  EXPECT_EQ(crop.rgb[0], (2 * 8 + 2) * 3);
  EXPECT_EQ(crop.rgb[9], (3 * 8 + 2) * 3);
  EXPECT_THROW(crop_center(image, 6, 1), base::Error);
  std::vector<float> planes(18);
  to_planes(crop, {.divisor = 2, .mean = {1, 2, 3}, .deviation = {1, 2, 4}, .bgr = true}, planes);
  EXPECT_EQ(planes[0], (54 + 2) / 2.f - 1);
  EXPECT_EQ(planes[6], ((54 + 1) / 2.f - 2) / 2);
  EXPECT_EQ(planes[17], ((78 + 6) / 2.f - 3) / 4);
}

TEST(Image, RefusesWhatIsBrokenOrTooLarge) {
  EXPECT_THROW(decode_image(""), base::Error);
  EXPECT_THROW(decode_image("GIF89a"), base::Error);
  for (const base::JsonMember& row : vectors().at("files").as_object()) {
    const std::string file = from_hex(row.value.at("file").as_string());
    EXPECT_THROW(decode_image(file, {.max_pixels = 23 * 17 - 1}), base::Error) << row.key;
    EXPECT_NO_THROW(decode_image(file, {.max_pixels = 23 * 17})) << row.key;
    for (const size_t size : {size_t{2}, size_t{20}, file.size() / 2, file.size() - 30}) {
      EXPECT_THROW(decode_image(file.substr(0, size)), base::Error) << row.key << " cut to " << size;
    }
  }
}

/// A segment of a JPEG file: its marker, its length, its content.
std::string segment(char marker, const std::string& content) {
  const size_t length = content.size() + 2;
  return std::string("\xff") + marker + static_cast<char>(length >> 8) + static_cast<char>(length & 255) +
         content;
}

/// A grey progressive JPEG of side x side pixels (a multiple of 8) whose scans after the first are empty: 14
/// bytes each, for up to 16384 blocks.
std::string progressive_jpeg(int side, int scans) {
  const std::string extent = {static_cast<char>(side >> 8), static_cast<char>(side & 255)};
  std::string file("\xff\xd8", 2);
  file += segment('\xdb', std::string(1, '\0') + std::string(64, '\1'));
  file += segment('\xc2', "\x08" + extent + extent + std::string("\1\1\x11\0", 4));
  const auto table = [](char id, char symbol) {  // one code of one bit
    return segment('\xc4', id + (std::string("\1") + std::string(15, '\0')) + symbol);
  };
  file += table('\x00', '\x00') + table('\x10', '\xe0');
  const int blocks = side / 8 * (side / 8);
  file += segment('\xda', std::string("\1\1\0\0\0\0", 6)) +
          std::string(static_cast<size_t>(blocks + 7) / 8, '\0');
  for (int i = 1; i < scans; ++i) {
    const int runs = (blocks + 16383) / 16384;
    file += segment('\xda', std::string("\1\1\0\1\x3f\0", 6)) +
            std::string(static_cast<size_t>(runs * 15 + 7) / 8, '\0');
  }
  return file + "\xff\xd9";
}

std::string error_of(const std::string& file, const ImageLimits& limits = {}) {
  try {
    decode_image(file, limits);
  } catch (const base::Error& e) {
    return e.message();
  }
  return "decoded";
}

TEST(Image, ScansOfAProgressiveJpegAreBounded) {
  EXPECT_EQ(error_of(progressive_jpeg(128, 1)), "decoded");
  EXPECT_EQ(error_of(progressive_jpeg(128, 100)), "decoded");
  EXPECT_NE(error_of(progressive_jpeg(128, 101)).find("more than 100 scans"), std::string::npos);
  EXPECT_NE(error_of(progressive_jpeg(128, 495)).find("scans"), std::string::npos);
  // The cost of ten scans of a large picture is acceptable; that of sixty is not, whatever the file's size.
  EXPECT_EQ(error_of(progressive_jpeg(2048, 10)), "decoded");
  EXPECT_NE(error_of(progressive_jpeg(2048, 60)).find("scans of a picture of this size"), std::string::npos);
  EXPECT_NE(
      error_of(progressive_jpeg(512, 11), {.max_scanned_pixels = 512 * 512 * 10}).find("more than 10 scans"),
      std::string::npos);
}

// The work for a file is bounded by its bytes: a file that claims more pixels than its bytes can hold is
// refused before memory is allocated, and decoding stops where a file ends early.
TEST(Image, PixelsAreBoundedByTheBytesThatHoldThem) {
  std::string jpeg = progressive_jpeg(128, 1);
  const size_t extent = jpeg.find("\xff\xc2") + 5;
  jpeg.replace(extent, 4, "\x1b\x58\x1b\x58", 4);  // 7000 x 7000
  EXPECT_NE(error_of(jpeg).find("7000x7000 in"), std::string::npos);
  std::string png = from_hex(vectors().at("files").at("png_rgb").at("file").as_string());
  png.replace(16, 8, std::string("\0\0\x1b\x58\0\0\x1b\x58", 8));
  EXPECT_NE(error_of(png), "decoded");
  EXPECT_NE(error_of(std::string("\x89PNG")), "decoded");
}

// Compressed texts and profiles of a PNG may expand a thousandfold; they are skipped, not unpacked.
TEST(Image, TextsOfAPngAreNotUnpacked) {
  const std::string plain = from_hex(vectors().at("files").at("png_rgb").at("file").as_string());
  std::string swelling(size_t{64} << 20, 'a');
  uLongf packed_bytes = compressBound(swelling.size());
  std::string packed(packed_bytes, '\0');
  ASSERT_EQ(compress(reinterpret_cast<Bytef*>(packed.data()), &packed_bytes,
                     reinterpret_cast<const Bytef*>(swelling.data()), swelling.size()),
            Z_OK);
  packed.resize(packed_bytes);
  const auto big_endian = [](uint64_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 255);
    return bytes;
  };
  for (const char* type : {"zTXt", "iCCP"}) {
    const std::string body = type + std::string("name\0\0", 6) + packed;
    const std::string chunk =
        big_endian(body.size() - 4) + body +
        big_endian(crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size())));
    std::string file = plain;
    for (int i = 0; i < 200; ++i) file.insert(33, chunk);  // after the header
    const std::clock_t start = std::clock();
    EXPECT_EQ(decode_image(file).rgb, decode_image(plain).rgb) << type;
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 2)
        << type;  // unpacking would take 10 s or more
  }
}

TEST(Image, DamagedFilesNeverCrash) {
  std::mt19937 rng(11);
  for (const base::JsonMember& row : vectors().at("files").as_object()) {
    const std::string file = from_hex(row.value.at("file").as_string());
    for (int round = 0; round < 500; ++round) {
      std::string bad = file;
      for (int k = 0; k < 4; ++k) bad[2 + rng() % (bad.size() - 2)] = static_cast<char>(rng());
      try {
        const Image image = decode_image(bad, {.max_pixels = 1 << 20});
        ASSERT_EQ(image.rgb.size(), static_cast<size_t>(image.height * image.width * 3));
      } catch (const base::Error& e) {
        ASSERT_NE(e.code(), base::ErrorCode::internal) << e.message();
      }
    }
  }
}

TEST(Image, RealPicturesDecode) {
  for (const char* name :
       {"grace_hopper.bmp", "sunflower.bmp", "owl.jpg", "bald_eagle.jpeg", "cat_720p.jpg"}) {
    const auto path = tests::shared_data(std::string("images/") + name);
    if (!path) GTEST_SKIP() << tests::kNoSharedData;
    const Image image = decode_image(base::read_file(*path));
    EXPECT_GT(image.height * image.width, 10000) << name;
    EXPECT_EQ(crop_center(resize_shorter_side(image, 272), 244, 244).rgb.size(), 244u * 244 * 3) << name;
  }
}

}  // namespace
}  // namespace trireme::data
