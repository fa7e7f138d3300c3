// Decoders of the block formats of 256 weights.
#pragma once

#include <cstdint>

namespace trireme::tensor::blocks {

/// `n` blocks -> [n, 256].
void decode_q2_k(const uint8_t* b, int64_t n, float* out);
void decode_q3_k(const uint8_t* b, int64_t n, float* out);
void decode_q4_k(const uint8_t* b, int64_t n, float* out);
void decode_q5_k(const uint8_t* b, int64_t n, float* out);
void decode_q6_k(const uint8_t* b, int64_t n, float* out);

}  // namespace trireme::tensor::blocks
