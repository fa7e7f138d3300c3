// Prepares pictures for a batch: geometry selects a window of the bytes, then one pass mirrors, pads and
// scales it.
#include "data/loader/augment.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "data/image/image.h"

namespace trireme::data {
namespace {

using base::require;
using tensor::DType;
using tensor::Tensor;

// Each random part draws from a stream of its own, so that enabling one leaves the others unchanged.
enum class Part : uint32_t { crop = 1, flip = 2 };

base::Rng rng_for(const SampleKey& key, Part part) {
  const base::PhiloxBlock block = base::philox_block(
      key.seed ^ 0x617567'6d656e74, static_cast<uint64_t>(key.epoch), static_cast<uint64_t>(key.index));
  const auto salt = static_cast<uint64_t>(part);
  return base::Rng(uint64_t{block[0]} << 32 | block[1], (uint64_t{block[2]} << 32 | block[3]) ^ salt);
}

/// A part of an image: out(y, x) = pixel(top + y, left + x), black outside.
struct Window {
  int64_t top = 0, left = 0;
  int64_t height = 0, width = 0;
  bool mirrored = false;
};

/// The bytes of an image: the original's own, or resized ones.
struct Picture {
  std::span<const uint8_t> bytes;  // [height, width, channels]
  int64_t height = 0, width = 0, channels = 0;
  Image resized = {};  // keeps `bytes` alive if they were made here
};

/// Rows of RGB as data/image/image.h expects them; grey is passed through three equal channels and back.
Image to_rgb(const Picture& p, const Window& w) {
  Image image{w.height, w.width, std::vector<uint8_t>(static_cast<size_t>(w.height * w.width * 3))};
  uint8_t* to = image.rgb.data();
  for (int64_t y = 0; y < w.height; ++y, to += 3 * w.width) {
    const uint8_t* from = p.bytes.data() + ((w.top + y) * p.width + w.left) * p.channels;
    if (p.channels == 3) {
      std::copy_n(from, 3 * w.width, to);
    } else {
      for (int64_t x = 0; x < w.width; ++x) std::fill_n(to + 3 * x, 3, from[x]);
    }
  }
  return image;
}

Picture from_rgb(Image image, int64_t channels) {
  if (channels == 1) {
    for (size_t i = 0; i < image.rgb.size() / 3; ++i) image.rgb[i] = image.rgb[3 * i];
    image.rgb.resize(image.rgb.size() / 3);
  }
  Picture p{.height = image.height, .width = image.width, .channels = channels, .resized = std::move(image)};
  p.bytes = p.resized.rgb;
  return p;
}

Picture resize_window(const Picture& p, const Window& w, int64_t height, int64_t width) {
  return from_rgb(resize(to_rgb(p, w), height, width), p.channels);
}

Picture resize_to_shorter_side(const Picture& p, int64_t side) {
  return from_rgb(resize_shorter_side(to_rgb(p, {0, 0, p.height, p.width}), side), p.channels);
}

/// Szegedy et al. 2015: ten tries at a random area and aspect, then the largest allowed central part.
Window random_area(const Picture& p, double smallest_share, base::Rng& rng) {
  const auto area = static_cast<double>(p.height * p.width);
  constexpr double kWidest = 4.0 / 3;
  for (int tries = 0; tries < 10; ++tries) {
    const double share = area * (smallest_share + (1 - smallest_share) * rng.uniform());
    const double aspect = std::exp(std::log(kWidest) * (2 * rng.uniform() - 1));  // width / height
    const int64_t width = std::llround(std::sqrt(share * aspect));
    const int64_t height = std::llround(std::sqrt(share / aspect));
    if (width < 1 || height < 1 || width > p.width || height > p.height) continue;
    const auto top = static_cast<int64_t>(rng.below(static_cast<uint64_t>(p.height - height + 1)));
    const auto left = static_cast<int64_t>(rng.below(static_cast<uint64_t>(p.width - width + 1)));
    return {top, left, height, width};
  }
  const int64_t height = std::min<int64_t>(p.height, std::llround(static_cast<double>(p.width) * kWidest));
  const int64_t width = std::min<int64_t>(p.width, std::llround(static_cast<double>(p.height) * kWidest));
  return {(p.height - height) / 2, (p.width - width) / 2, height, width};
}

/// n / 2 with halves rounded to even: the rule of torchvision and of crop_center.
int64_t half_to_even(int64_t n) { return n / 2 + (n % 2 == 1 && n / 2 % 2 == 1 ? 1 : 0); }

class ImageTransform {
 public:
  explicit ImageTransform(const AugmentOptions& options) : o_(options) {
    const Normalization n = parse_normalization(o_.normalize);
    const float unit = o_.normalize == "none" ? 1.0f : 255.0f;
    for (size_t c = 0; c < 3; ++c) {
      for (size_t byte = 0; byte < 256; ++byte) {
        levels_[c][byte] = (static_cast<float>(byte) / unit - n.mean[c]) / n.deviation[c];
      }
    }
    require(o_.crop > 0 || (!o_.random_crop && o_.random_resized_crop <= 0),
            "a random crop needs the option crop: its side");
    require(o_.padding == 0 || o_.random_crop, "padding belongs to random_crop");
    require(o_.random_resized_crop <= 0 || (!o_.random_crop && o_.resize == 0),
            "random_resized_crop excludes resize and random_crop");
    require(o_.random_resized_crop <= 1,
            "random_resized_crop is a share of the image's area: ", o_.random_resized_crop);
  }

  void operator()(Sample& sample, const SampleKey& key) const {
    const Tensor& image = sample.tensor("image");
    require(image.dtype() == DType::u8 && image.rank() == 3 && (image.dims()[2] == 1 || image.dims()[2] == 3),
            "image is not u8 [height, width, 1 or 3]: ", tensor::name_of(image.dtype()), " ",
            tensor::to_string(image.dims()));
    const tensor::Dims& d = image.dims();
    Picture picture{.bytes = image.data<uint8_t>(), .height = d[0], .width = d[1], .channels = d[2]};
    require(picture.height > 0 && picture.width > 0, "image is empty");
    Window window = choose(picture, key);
    if (o_.flip) window.mirrored = (rng_for(key, Part::flip)() & 1) != 0;
    sample.set("image", write(picture, window));
  }

 private:
  /// Resizes the picture if the options say so, and finds the part of it to keep.
  Window choose(Picture& picture, const SampleKey& key) const {
    if (o_.random_resized_crop > 0) {
      base::Rng rng = rng_for(key, Part::crop);
      const Window area = random_area(picture, o_.random_resized_crop, rng);
      picture = resize_window(picture, area, o_.crop, o_.crop);
      return {0, 0, o_.crop, o_.crop};
    }
    if (o_.resize > 0) picture = resize_to_shorter_side(picture, o_.resize);
    if (o_.crop == 0) return {0, 0, picture.height, picture.width};
    const int64_t spare_y = picture.height + 2 * o_.padding - o_.crop;
    const int64_t spare_x = picture.width + 2 * o_.padding - o_.crop;
    require(spare_y >= 0 && spare_x >= 0, "image is smaller than the crop: ", picture.height, "x",
            picture.width, ", crop ", o_.crop);
    if (!o_.random_crop) return {half_to_even(spare_y), half_to_even(spare_x), o_.crop, o_.crop};
    base::Rng rng = rng_for(key, Part::crop);
    const auto top = static_cast<int64_t>(rng.below(static_cast<uint64_t>(spare_y + 1)));
    const auto left = static_cast<int64_t>(rng.below(static_cast<uint64_t>(spare_x + 1)));
    return {top - o_.padding, left - o_.padding, o_.crop, o_.crop};
  }

  Tensor write(const Picture& p, const Window& w) const {
    Tensor out = Tensor::empty(DType::f32, {p.channels, w.height, w.width});
    float* to = out.mutable_data<float>().data();
    // Columns of the window that lie inside the picture; the rest is border.
    const int64_t begin = std::clamp<int64_t>(-w.left, 0, w.width);
    const int64_t end = std::clamp<int64_t>(p.width - w.left, begin, w.width);
    for (int64_t c = 0; c < p.channels; ++c) {
      const std::array<float, 256>& level = levels_[static_cast<size_t>(c)];
      for (int64_t y = 0; y < w.height; ++y, to += w.width) {
        const int64_t row = w.top + y;
        if (row < 0 || row >= p.height) {
          std::fill_n(to, w.width, level[0]);
          continue;
        }
        const uint8_t* from = p.bytes.data() + row * p.width * p.channels + c;
        std::fill_n(to, begin, level[0]);
        for (int64_t x = begin; x < end; ++x) to[x] = level[from[(w.left + x) * p.channels]];
        std::fill_n(to + end, w.width - end, level[0]);
        if (w.mirrored) std::reverse(to, to + w.width);
      }
    }
    return out;
  }

  AugmentOptions o_;
  std::array<std::array<float, 256>, 3> levels_{};  // the value of each byte, by channel
};

std::vector<float> parse_numbers(const std::string& whole, std::string_view text) {
  std::vector<float> numbers;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    float value = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, value);
    require(error == std::errc() && stop == text.data() + end,
            "normalize is not none, unit, imagenet, cifar10, mnist, fashion-mnist or means/deviations: '",
            whole, "'");
    numbers.push_back(value);
    begin = end + 1;
  }
  require(numbers.size() == 1 || numbers.size() == 3, "normalize needs one number or three: '", whole, "'");
  return numbers;
}

}  // namespace

base::Rng rng_of(const SampleKey& key) { return rng_for(key, Part{}); }

void AugmentOptions::fields(base::OptionList& f) {
  f.add("resize", &resize, "shorter side of images, with antialiasing; 0: as they are").at_least(0);
  f.add("crop", &crop, "side of the square that is cut out, in the middle or at random; 0: none").at_least(0);
  f.add("random_crop", &random_crop, "cut anywhere, border included");
  f.add("padding", &padding, "black border around images before a random crop").at_least(0);
  f.add("random_resized_crop", &random_resized_crop,
        "cut an area from this share of the image to all of it, resized to crop; 0: off")
      .at_least(0)
      .at_most(1);
  f.add("flip", &flip, "mirror left to right, one time in two");
  f.add("normalize", &normalize,
        "none (0 to 255), unit (0 to 1), imagenet, cifar10, mnist, fashion-mnist, or means/deviations");
}

Normalization parse_normalization(const std::string& text) {
  // Means and standard deviations of the training images, in the range 0 to 1.
  if (text == "none" || text == "unit") return {};
  if (text == "imagenet") return {kImageNetScaling.mean, kImageNetScaling.deviation};
  if (text == "cifar10") return {{0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}};
  if (text == "mnist") return {{0.1307f, 0.1307f, 0.1307f}, {0.3081f, 0.3081f, 0.3081f}};
  if (text == "fashion-mnist") return {{0.2860f, 0.2860f, 0.2860f}, {0.3530f, 0.3530f, 0.3530f}};
  const size_t slash = std::min(text.find('/'), text.size());
  const std::vector<float> means = parse_numbers(text, std::string_view(text).substr(0, slash));
  const std::vector<float> deviations =
      slash < text.size() ? parse_numbers(text, std::string_view(text).substr(slash + 1)) : std::vector{1.0f};
  Normalization n;
  for (size_t c = 0; c < 3; ++c) {
    n.mean[c] = means[c % means.size()];
    n.deviation[c] = deviations[c % deviations.size()];
    require(n.deviation[c] > 0, "normalize has a deviation that is not above 0: '", text, "'");
  }
  return n;
}

Transform image_transform(const AugmentOptions& options) { return ImageTransform(options); }

}  // namespace trireme::data
