// Changes of pictures while they are loaded: crops, flips, sizes and scaling, by random numbers of the sample
// alone.
#pragma once

#include <array>
#include <string>

#include "base/text/options.h"
#include "base/rng.h"
#include "data/loader/loader.h"

namespace trireme::data {

/// Random numbers of one sample: a function of (seed, epoch, place in the epoch), whoever asks first.
base::Rng rng_of(const SampleKey& key);

/// What happens to the field "image", in this order; `fields` makes it a part of a run's configuration.
struct AugmentOptions {
  int64_t resize = 0;              ///< shorter side, with antialiasing; 0: as it is
  int64_t crop = 0;                ///< then a square of this side: the middle, or at random
  bool random_crop = false;        ///< the square lies anywhere, `padding` included
  int64_t padding = 0;             ///< black border around the image before a random crop
  double random_resized_crop = 0;  ///< in place of resize and crop: an area from this share to all of the
                                   ///< image, aspect 3/4 to 4/3, resized to crop x crop (Inception's)
  bool flip = false;               ///< mirrored left to right, one time in two
  std::string normalize = "unit";

  void fields(base::OptionList& f);
};

/// value = (byte / 255 - mean[c]) / deviation[c]
struct Normalization {
  std::array<float, 3> mean = {0, 0, 0};
  std::array<float, 3> deviation = {1, 1, 1};
};

/// Reads "none" (bytes as f32, 0 to 255), "unit" (0 to 1), "imagenet", "cifar10", "mnist", "fashion-mnist",
/// or numbers: "0.5,0.5,0.5/0.25,0.25,0.25" = means / deviations, one for all channels or one each. Throws
/// invalid_argument with the list for others.
Normalization parse_normalization(const std::string& text);

/// Makes the transform that turns "image" u8 [h, w, c] into f32 [c, h', w']; other fields stay. A random part
/// is drawn only if its option is set, so adding one changes no other. Throws invalid_argument for options
/// that do not fit each other; the transform throws it for images smaller than the crop.
Transform image_transform(const AugmentOptions& options);

}  // namespace trireme::data
