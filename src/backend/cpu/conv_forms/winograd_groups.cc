// Runs the Winograd form on the channels of one group after another.
#include "backend/cpu/conv_forms/winograd_groups.h"

#include "base/error.h"

namespace trireme::cpu {
namespace {

/// One group as a convolution of its own.
ConvShape group_of(ConvShape s) {
  s.c /= s.groups;
  s.oc /= s.groups;
  s.groups = 1;
  return s;
}

size_t group_bytes(const ConvShape& group) {
  return (packed_winograd_bytes(group, winograd_tile(group)) + 63) / 64 * 64;
}

}  // namespace

bool winograd_groups_fits(const ConvShape& s) { return s.groups > 1 && winograd_fits(group_of(s)); }

size_t packed_winograd_groups_bytes(const ConvShape& s) {
  return static_cast<size_t>(s.groups) * group_bytes(group_of(s));
}

std::vector<PackedWinograd> pack_winograd_groups(const ConvShape& s, const float* weights, void* memory) {
  const ConvShape group = group_of(s);
  std::vector<PackedWinograd> packed;
  for (int64_t g = 0; g < s.groups; ++g) {
    packed.push_back(pack_winograd(group, weights + g * group.oc * group.c * 9, winograd_tile(group),
                                   static_cast<char*>(memory) + static_cast<size_t>(g) * group_bytes(group)));
  }
  return packed;
}

size_t winograd_groups_workspace_bytes(const ConvShape& s, int threads) {
  const ConvShape group = group_of(s);
  return winograd_workspace_bytes(group, winograd_tile(group), threads);
}

void winograd_groups_nhwc(const WinogradGroupsArgs& args, void* workspace, base::ThreadPool& pool) {
  base::check(winograd_groups_fits(args.shape), "not a convolution in groups for the Winograd form");
  const ConvShape& s = args.shape;
  WinogradArgs a{.shape = group_of(s), .epilogue = args.epilogue, .x_pixel = s.c, .y_pixel = s.oc};
  for (int64_t g = 0; g < s.groups; ++g) {
    const int64_t first = g * a.shape.oc;
    a.x = args.x + g * a.shape.c;
    a.y = args.y + first;
    a.weights = args.weights[g];
    if (args.epilogue.bias) a.epilogue.bias = args.epilogue.bias + first;
    if (args.epilogue.residual) a.epilogue.residual = args.epilogue.residual + first;
    winograd_nhwc(a, workspace, pool);
  }
}

}  // namespace trireme::cpu
