// What the options of networks may ask for at most: far more than any network has, and few enough that a
// graph is built in seconds and no product of extents overflows. A checkpoint states these options too.
#pragma once

#include <cstdint>

namespace trireme::model::zoo {

inline constexpr int64_t kMostLayers = 4096;
inline constexpr int64_t kMostChannels = int64_t{1} << 20;  ///< widths, heads, channels of images and points
inline constexpr int64_t kMostInner = int64_t{1} << 22;     ///< width of a feed-forward layer
inline constexpr int64_t kMostTokens = int64_t{1} << 28;    ///< rows of an embedding
inline constexpr int64_t kMostClasses = int64_t{1} << 20;   ///< config.json names each
inline constexpr int64_t kMostPixels = int64_t{1} << 16;    ///< height and width of an image
inline constexpr int64_t kMostSequence = int64_t{1} << 24;  ///< rows of learned positions

}  // namespace trireme::model::zoo
