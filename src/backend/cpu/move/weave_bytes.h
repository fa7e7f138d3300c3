// Three planes of bytes woven into pixels: the layout change of colour images.
#pragma once

#include <cstdint>

namespace trireme::cpu {

/// y[3 i + c] = x[c * plane + i] for i < pixels, on the calling thread. 2 bytes per byte of y.
void weave_bytes3(const uint8_t* x, int64_t plane, uint8_t* y, int64_t pixels);

}  // namespace trireme::cpu
