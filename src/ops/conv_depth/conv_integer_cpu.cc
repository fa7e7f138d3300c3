// conv_integer by the 8-bit kernels: small groups read planes of bytes in place; else weights are packed once
// and blocks of images are copied with their channels last.
#include <algorithm>

#include "backend/cpu/conv/conv_quantized.h"
#include "backend/cpu/conv_forms/integer_planes.h"
#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/device/round_up.h"
#include "backend/cpu/move/transpose_copy.h"
#include "ops/conv/conv_kernels_cpu.h"
#include "ops/conv/window.h"
#include "ops/kernel_forms.h"
#include "tensor/absent.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

/// A convolution of three spatial axes, of which depth may be of one slice.
struct IntegerConv {
  Window window;
  int64_t batch, channels, filters, groups;
  bool x_signed, w_signed, has_x_zero, has_w_zero, zero_per_filter;

  const WindowAxis& depth() const { return window[0]; }
  bool is_flat() const { return depth().in == 1 && depth().kernel == 1 && depth().out == 1; }
};

IntegerConv integer_conv(const ir::NodeView& node) {
  const Dims x = node.in_dims(0), w = node.in_dims(1);
  return {.window = make_window(node.attrs, {w.begin() + 2, w.end()}, {x.begin() + 2, x.end()}),
          .batch = x[0],
          .channels = x[1],
          .filters = w[0],
          .groups = node.attrs.get_int("group", 1),
          .x_signed = node.in[0].dtype == DType::i8,
          .w_signed = node.in[1].dtype == DType::i8,
          .has_x_zero = node.present(2),
          .has_w_zero = node.present(3),
          .zero_per_filter = node.present(3) && node.in[3].shape.elements().value_or(1) > 1};
}

/// Slices of the result as images, whose channels are those of every tap in depth: in each group one tap's
/// after another's.
cpu::ConvShape slice_shape(const IntegerConv& p, int64_t images) {
  const WindowAxis &a = p.window[1], &b = p.window[2];
  auto narrow = [](int64_t v) { return static_cast<int>(v); };  // window attributes are below 2^24
  return {.n = images,
          .h = a.in,
          .w = b.in,
          .c = p.channels * p.depth().kernel,
          .oc = p.filters,
          .kh = narrow(a.kernel),
          .kw = narrow(b.kernel),
          .stride_h = narrow(a.stride),
          .stride_w = narrow(b.stride),
          .dilation_h = narrow(a.dilation),
          .dilation_w = narrow(b.dilation),
          .pad_top = narrow(a.pad_begin),
          .pad_left = narrow(b.pad_begin),
          .pad_bottom = narrow(a.pad_end),
          .pad_right = narrow(b.pad_end),
          .groups = p.groups};
}

ir::Refusal refuse_integer_images(const ir::NodeView& node) {
  for (size_t i : {0, 1}) {
    if (auto why = refuse_dtype(node, i, {DType::i8, DType::u8})) return why;
  }
  if (auto why = refuse_empty(node)) return why;
  const IntegerConv p = integer_conv(node);
  for (const WindowAxis* a : {&p.window[1], &p.window[2]}) {
    if (std::min(a->pad_begin, a->pad_end) < 0) return "padding is negative";
  }
  return std::nullopt;
}

int32_t zero_of(const void* zeros, bool is_signed, int64_t i) {
  if (zeros == nullptr) return 0;
  return is_signed ? static_cast<const int8_t*>(zeros)[i] : static_cast<const uint8_t*>(zeros)[i];
}

cpu::QuantInput input_of(const IntegerConv& p, const ir::RunArgs& args) {
  return {.is_signed = p.x_signed, .zero = zero_of(p.has_x_zero ? args.in[2] : nullptr, p.x_signed, 0)};
}

// planes_8_bit
ir::Refusal refuse_integer_planes(const ir::NodeView& node) {
  if (auto why = refuse_integer_images(node)) return why;
  const IntegerConv p = integer_conv(node);
  if (!p.is_flat()) return "the window has depth";
  if (!cpu::integer_planes_fits(slice_shape(p, p.batch))) return "groups are not small";
  return std::nullopt;
}

ir::BoundKernel prepare_integer_planes(const ir::KernelInit& init) {
  const IntegerConv p = integer_conv(init.node);
  const cpu::ConvShape shape = slice_shape(p, p.batch);
  auto run = [p, shape](const ir::RunArgs& args) {
    const cpu::IntegerPlanes call{.shape = shape,
                                  .x = args.in[0],
                                  .input = input_of(p, args),
                                  .w = args.in[1],
                                  .w_is_signed = p.w_signed,
                                  .w_zero = p.has_w_zero ? args.in[3] : nullptr,
                                  .zero_per_filter = p.zero_per_filter,
                                  .y = out_ptr<int32_t>(args, 0)};
    cpu::integer_planes(call, args.workspace, cpu::pool_of(args.stream));
  };
  return {run, static_cast<int64_t>(cpu::integer_planes_workspace_bytes(shape, init.threads))};
}

// packed_8_bit
struct PackedFilters {
  tensor::Tensor memory;
  std::vector<cpu::PackedQuantMatrix> groups;
};

struct PackedIntegerConv {
  IntegerConv conv;
  int64_t images = 0, block = 0;  // slices of the result, and how many are computed at a time
  bool reads_planes = false;      // x is read where it is
  int64_t copy_bytes = 0, result_bytes = 0, filter_bytes = 0, product_bytes = 0;
  std::shared_ptr<const PackedFilters> filters;

  int64_t workspace_bytes() const {
    return copy_bytes + result_bytes + 3 * filter_bytes + product_bytes + 64;
  }
};

/// Copies and results of a block stay in the cache between the steps, while images are small.
constexpr int64_t kCopiedBytes = 1 << 20;

PackedIntegerConv plan_packed_integer(const ir::KernelInit& init) {
  PackedIntegerConv p{.conv = integer_conv(init.node)};
  const cpu::ConvShape one = slice_shape(p.conv, 1);
  p.images = p.conv.batch * p.conv.depth().out;
  p.reads_planes = p.conv.is_flat() && cpu::quant_conv_reads_planes(one);
  const int64_t copy = p.reads_planes ? 0 : one.h * one.w * one.c,
                result = one.out_h() * one.out_w() * one.oc * 4;
  p.block = std::clamp<int64_t>(kCopiedBytes / (copy + result), 1, p.images);
  p.copy_bytes = align_up(copy * p.block);
  p.result_bytes = align_up(result * p.block);
  p.filter_bytes = align_up(one.oc * 4);
  for (int64_t images : {p.block, p.images % p.block}) {
    if (images == 0) continue;
    const size_t bytes = cpu::quant_conv2d_workspace_bytes(slice_shape(p.conv, images), init.threads);
    p.product_bytes = std::max(p.product_bytes, static_cast<int64_t>(bytes));
  }
  return p;
}

/// Weights [filters, channels of a group, depth, taps] with depth before channels.
std::vector<char> depth_first(const IntegerConv& p, const char* w) {
  const int64_t channels = p.channels / p.groups, depth = p.depth().kernel;
  const int64_t taps = p.window[1].kernel * p.window[2].kernel;
  std::vector<char> out(static_cast<size_t>(p.filters * channels * depth * taps));
  char* to = out.data();
  for (int64_t o = 0; o < p.filters; ++o) {
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t c = 0; c < channels; ++c, to += taps)
        std::copy_n(w + ((o * channels + c) * depth + k) * taps, taps, to);
    }
  }
  return out;
}

std::shared_ptr<const PackedFilters> pack_filters(const ir::KernelInit& init, const IntegerConv& p) {
  const tensor::Tensor& w = *init.node.value(1);
  const cpu::ConvShape shape = slice_shape(p, 1);
  const std::string format = base::concat("integer conv ", cpu::to_string(cpu::best_isa()), " group ",
                                          p.groups, cpu::quant_conv_reads_planes(shape) ? " lines" : " taps");
  return init.packs.get<PackedFilters>(ir::pack_key(w, format), [&] {
    auto made = std::make_shared<PackedFilters>();
    const char* bytes = static_cast<const char*>(static_cast<const void*>(w.raw()));
    std::vector<char> turned;
    if (p.depth().kernel > 1) turned = depth_first(p, bytes);
    const cpu::QuantConvWeights weights{turned.empty() ? bytes : turned.data(), p.w_signed};
    made->memory =
        tensor::Tensor::empty(DType::u8, {static_cast<int64_t>(cpu::packed_quant_conv_bytes(shape))});
    for (int64_t g = 0; g < p.groups; ++g)
      made->groups.push_back(cpu::pack_quant_conv(shape, weights, g, made->memory.mutable_raw()));
    return made;
  });
}

/// Copies what one tap in depth reads for slice `image` of the result to its channels of a channels-last
/// copy.
void copy_slice(const IntegerConv& p, const ir::RunArgs& args, int64_t image, int64_t k, char* to) {
  const WindowAxis& depth = p.depth();
  const int64_t points = p.window[1].in * p.window[2].in, each = p.channels / p.groups;
  const int64_t slice = image % depth.out * depth.stride - depth.pad_begin + k * depth.dilation;
  const bool is_inside = slice >= 0 && slice < depth.in;
  const char zero = static_cast<char>(input_of(p, args).zero);
  const int64_t plane = depth.in * points;
  const char* from =
      static_cast<const char*>(args.in[0]) + image / depth.out * p.channels * plane + slice * points;
  const std::array<int64_t, 3> shape{p.groups, each, points},
      x_strides{is_inside ? each * plane : 0, is_inside ? plane : 0, is_inside ? 1 : 0},
      y_strides{each * depth.kernel, 1, p.channels * depth.kernel};
  cpu::copy_strided({is_inside ? from : &zero, to + k * each, shape, x_strides, y_strides, 1},
                    cpu::pool_of(args.stream));
}

/// `count` images from `first` with their channels last.
void copy_images(const IntegerConv& p, const ir::RunArgs& args, int64_t first, int64_t count, char* to) {
  const int64_t points = p.window[1].in * p.window[2].in, image = points * p.channels * p.depth().kernel;
  if (!p.is_flat()) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t k = 0; k < p.depth().kernel; ++k) copy_slice(p, args, first + i, k, to + i * image);
    }
    return;
  }
  const std::array<int64_t, 3> shape{count, p.channels, points};
  const std::array<int, 3> order{0, 2, 1};
  cpu::permute({static_cast<const char*>(args.in[0]) + first * image, to, shape, order, 1},
               cpu::pool_of(args.stream));
}

/// Results [slices, points, filters] to [batch, filters, depth, points].
void to_result_planes(const IntegerConv& p, const int32_t* from, int64_t first, int64_t count,
                      const ir::RunArgs& args) {
  const int64_t points = p.window[1].out * p.window[2].out, depth = p.depth().out;
  for (int64_t i = first, end; i < first + count; i = end) {
    // Slices of one sample, or whole samples of one slice each.
    end = depth == 1 ? first + count : std::min(first + count, (i / depth + 1) * depth);
    const std::array<int64_t, 3> shape{end - i, p.filters, points},
        x_strides{points * p.filters, 1, p.filters},
        y_strides{depth == 1 ? p.filters * points : points, depth * points, 1};
    int32_t* y = out_ptr<int32_t>(args, 0) + (i / depth * p.filters * depth + i % depth) * points;
    cpu::copy_strided({from + (i - first) * points * p.filters, y, shape, x_strides, y_strides, 4},
                      cpu::pool_of(args.stream));
  }
}

/// Offsets and row factors of every filter, for the zero points of this run.
cpu::QuantEpilogue exact_sums(const PackedIntegerConv& p, const ir::RunArgs& args, cpu::QuantInput input,
                              char* memory) {
  int32_t* offsets = reinterpret_cast<int32_t*>(memory);
  int32_t* row_factors = reinterpret_cast<int32_t*>(memory + p.filter_bytes);
  int32_t* zeros = reinterpret_cast<int32_t*>(memory + 2 * p.filter_bytes);
  const IntegerConv& c = p.conv;
  const void* w_zero = c.has_w_zero ? args.in[3] : nullptr;
  for (int64_t o = 0; o < c.filters; ++o) zeros[o] = zero_of(w_zero, c.w_signed, c.zero_per_filter ? o : 0);
  bool by_row = false;
  const int64_t each = c.filters / c.groups;
  for (int64_t g = 0; g < c.groups; ++g) {
    by_row |= cpu::quant_offsets(p.filters->groups[static_cast<size_t>(g)], input, nullptr, zeros + g * each,
                                 {offsets + g * each, row_factors + g * each});
  }
  return {.output = cpu::QuantOutput::s32, .offsets = offsets, .row_factors = by_row ? row_factors : nullptr};
}

void run_packed_integer_conv(const PackedIntegerConv& p, const ir::RunArgs& args) {
  char* copy = cpu::align64(args.workspace);
  int32_t* result = reinterpret_cast<int32_t*>(copy + p.copy_bytes);
  char* parameters = copy + p.copy_bytes + p.result_bytes;
  const cpu::QuantInput input = input_of(p.conv, args);
  const cpu::QuantEpilogue epilogue = exact_sums(p, args, input, parameters);
  for (int64_t first = 0; first < p.images; first += p.block) {
    const int64_t count = std::min(p.block, p.images - first);
    const cpu::ConvShape shape = slice_shape(p.conv, count);
    if (!p.reads_planes) copy_images(p.conv, args, first, count, copy);
    const char* planes = static_cast<const char*>(args.in[0]) + first * shape.c * shape.h * shape.w;
    const cpu::QuantConvArgs call{
        .shape = shape,
        .x = p.reads_planes ? planes : copy,
        .x_layout = p.reads_planes ? cpu::ImageLayout::nchw : cpu::ImageLayout::nhwc,
        .input = input,
        .groups = p.filters->groups.data(),
        .y = result,
        .epilogue = epilogue};
    cpu::quant_conv2d_nhwc(call, parameters + 3 * p.filter_bytes, cpu::pool_of(args.stream));
    to_result_planes(p.conv, result, first, count, args);
  }
}

ir::Refusal refuse_packed_integer_conv(const ir::NodeView& node) {
  if (auto why = refuse_integer_images(node)) return why;
  if (node.value(1) == nullptr) return "the weights are not constant";
  return std::nullopt;
}

ir::BoundKernel prepare_packed_integer_conv(const ir::KernelInit& init) {
  PackedIntegerConv plan = plan_packed_integer(init);
  ir::BoundKernel bound{.workspace_bytes = plan.workspace_bytes(), .unread_inputs = 1u << 1};
  if (tensor::is_absent(*init.node.value(1))) return bound;
  plan.filters = pack_filters(init, plan.conv);
  bound.run = [p = std::make_shared<const PackedIntegerConv>(std::move(plan))](const ir::RunArgs& args) {
    run_packed_integer_conv(*p, args);
  };
  return bound;
}

}  // namespace

std::vector<ir::Kernel> conv_integer_fast_kernels() {
  return {
      {.name = "planes_8_bit", .refuse = refuse_integer_planes, .prepare = prepare_integer_planes},
      {.name = "packed_8_bit", .refuse = refuse_packed_integer_conv, .prepare = prepare_packed_integer_conv}};
}

}  // namespace trireme::ops
