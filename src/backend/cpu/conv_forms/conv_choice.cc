// Measured limits between the forms of a convolution.
#include "backend/cpu/conv_forms/conv_choice.h"

#include <algorithm>

#include "backend/cpu/conv/conv_inside.h"
#include "backend/cpu/conv/grouped_nhwc.h"
#include "backend/cpu/conv_forms/depthwise_lines.h"
#include "backend/cpu/conv_forms/depthwise_thin.h"
#include "backend/cpu/conv_forms/narrow_nhwc.h"
#include "backend/cpu/conv_forms/winograd_groups.h"
#include "backend/cpu/conv_forms/winograd_lines.h"
#include "backend/cpu/conv/winograd_nhwc.h"
#include "backend/cpu/device/round_up.h"

namespace trireme::cpu {

namespace {

/// Multiply-adds of a channel pair in the tiles of all phases of a dilated image.
int64_t winograd_products(const ConvShape& s) {
  const int64_t out = static_cast<int64_t>(winograd_tile(s)), side = out + 2;
  const auto tiles = [&](int64_t extent, int dilation) {
    return dilation * divide_up(divide_up(extent, dilation), out);
  };
  return tiles(s.out_h(), s.dilation_h) * tiles(s.out_w(), s.dilation_w) * side * side;
}

}  // namespace

bool depthwise_lines_pays(const ConvShape& s) {
  if (!depthwise_lines_fits(s) || s.kh * s.kw == 1) return false;
  if (depthwise_thin_fits(s)) return true;
  const bool in_registers = s.kh == s.kw && (s.kw == 3 || s.kw == 5) && s.stride_h == s.stride_w &&
                            s.stride_w <= 2 && s.dilation_h == 1 && s.dilation_w == 1;
  return !in_registers;
}

bool winograd_pays(const ConvShape& s) {
  if (!winograd_fits(s) || s.c < 16 || s.oc < 16) return false;
  if (s.out_h() < 4 || s.out_w() < 4 || s.out_h() * s.out_w() < 49) return false;
  // The larger tile's weights come from memory in four times the bytes, which 64 pixels pay for.
  if (s.dilation_h == 1 && s.dilation_w == 1)
    return winograd_tile(s) == WinogradTile::two || s.out_h() * s.out_w() >= 64;
  // Phases that leave tiles half empty compete with products that leave out the padding.
  return 10 * winograd_products(s) <= 9 * conv_inside_taps(s);
}

bool winograd_groups_pays(const ConvShape& s) {
  constexpr int64_t kLeastChannels = 32;  // of a group: transforms of fewer cost more than they save
  ConvShape group = s;
  group.c /= s.groups, group.oc /= s.groups, group.groups = 1;
  return winograd_groups_fits(s) && group.c >= kLeastChannels && group.oc >= kLeastChannels &&
         winograd_pays(group);
}

bool winograd_lines_pays(const ConvShape& s) {
  constexpr int64_t kLeastOutputs = 32, kLeastInputs = 16,
                    kLeastDepth = 32;  // fewer do not pay for transforms
  constexpr int64_t kLeastPixels =
      49;  // nor fewer of an image for reading about twice the weights from memory
  if (s.out_h() * s.out_w() < kLeastPixels) return false;
  if (!winograd_lines_fits(s) || s.c < kLeastInputs || s.oc < kLeastOutputs) return false;
  if (s.c * std::min(s.kh, s.kw) < kLeastDepth) return false;
  return 10 * winograd_lines_products(s) <= 8 * s.out_h() * s.out_w() * s.kh * s.kw;
}

bool narrow_pays(const ConvShape& s) { return narrow_fits(s); }

bool grouped_pays(const ConvShape& s) {
  constexpr int64_t kMostOutputs = 96, kMostOfOneTap = 8;
  const int64_t outputs = s.oc / s.groups;
  if (!grouped_fits(s) || outputs > kMostOutputs) return false;  // groups that fill the tiles of products
  // A single tap pays for copying the lines only where products would leave most lanes empty.
  return s.kh * s.kw > 1 || (outputs <= kMostOfOneTap && s.stride_h == 1 && s.stride_w == 1);
}

ConvForm conv_form(const ConvShape& s, ImageLayout x_layout) {
  if (x_layout == ImageLayout::nchw) return ConvForm::implicit;
  if (depthwise_lines_pays(s)) return ConvForm::depthwise_lines;
  if (conv_is_depthwise(s)) return ConvForm::depthwise;
  if (winograd_pays(s)) return ConvForm::winograd;
  if (winograd_groups_pays(s)) return ConvForm::winograd_groups;
  if (winograd_lines_pays(s)) return ConvForm::winograd_lines;
  if (narrow_pays(s)) return ConvForm::narrow;
  return grouped_pays(s) ? ConvForm::grouped : ConvForm::implicit;
}

}  // namespace trireme::cpu
