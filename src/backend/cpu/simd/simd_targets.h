// Limits the instruction sets each kernel file is compiled for; included before any Highway header.
#pragma once

// Portable baseline, AVX2+FMA and AVX-512: the steps between them (SSSE3, SSE4) cost compile time and serve
// no machine that runs models.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#endif
