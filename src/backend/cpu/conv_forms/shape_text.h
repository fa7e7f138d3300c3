// For tests: a convolution's shape as text, for messages.
#pragma once

#include <string>

#include "backend/cpu/conv/conv_nhwc.h"

namespace trireme::cpu {

inline std::string text_of(const ConvShape& s) {
  const auto pair = [](int64_t a, int64_t b) { return std::to_string(a) + "x" + std::to_string(b) + " "; };
  return pair(s.h, s.w) + pair(s.c, s.oc) + "groups " + std::to_string(s.groups) + " kernel " +
         pair(s.kh, s.kw) + "stride " + pair(s.stride_h, s.stride_w) + "dilation " +
         pair(s.dilation_h, s.dilation_w) + "pads " + pair(s.pad_top, s.pad_left) +
         pair(s.pad_bottom, s.pad_right);
}

}  // namespace trireme::cpu
