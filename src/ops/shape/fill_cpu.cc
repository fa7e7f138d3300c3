// CPU kernels of shape, size, constant_of_shape, range, eye_like, trilu, one_hot.
#include <cstring>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/shape/fill_ops.h"
#include "ops/shape/strided_copy.h"

namespace trireme::ops {
namespace {

using tensor::Tensor;

ir::Kernel fill_kernel(std::function<ir::BoundKernel(const ir::NodeView&)> bind,
                       std::function<ir::Refusal(const ir::NodeView&)> refuse = {}) {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.refuse = std::move(refuse);
  k.prepare = [bind = std::move(bind)](const ir::KernelInit& init) { return bind(init.node); };
  return k;
}

/// Packed elements are refused, because several share a byte.
ir::Refusal refuse_packed_result(const ir::NodeView& n) {
  if (tensor::bits_of(n.out[0].dtype) < 8)
    return base::concat("elements of ", name_of(n.out[0].dtype), " are packed");
  return std::nullopt;
}

/// A kernel that writes numbers which are fixed at compile time.
ir::BoundKernel write_ints(std::vector<int64_t> values) {
  return {[values = std::move(values)](const ir::RunArgs& args) {
    std::copy(values.begin(), values.end(), static_cast<int64_t*>(args.out[0]));
  }};
}

/// Repeats the first `unit` bytes of y through all `bytes` of it, doubling the filled part each time.
void repeat_front(std::byte* y, int64_t unit, int64_t bytes) {
  for (int64_t done = unit; done < bytes; done += std::min(done, bytes - done)) {
    std::memcpy(y + done, y, static_cast<size_t>(std::min(done, bytes - done)));
  }
}

ir::BoundKernel bind_constant(const ir::NodeView& n) {
  Tensor value = n.attrs.get_tensor("value");
  if (!value.defined()) value = Tensor::zeros(tensor::DType::f32, {});
  const int64_t bytes = tensor::bytes_of(n.out[0]);
  const int bits = tensor::bits_of(value.dtype());
  std::vector<std::byte> pattern(value.raw(), value.raw() + value.bytes());
  if (bits < 8) {  // repeats the element through a byte
    unsigned code = static_cast<unsigned>(pattern[0]) & ((1u << bits) - 1), byte = 0;
    for (int at = 0; at < 8; at += bits) byte |= code << at;
    pattern = {static_cast<std::byte>(byte)};
  }
  return {[pattern, bytes](const ir::RunArgs& args) {
    std::byte* y = static_cast<std::byte*>(args.out[0]);
    if (bytes == 0) return;
    std::memcpy(y, pattern.data(), pattern.size());
    repeat_front(y, static_cast<int64_t>(pattern.size()), bytes);
  }};
}

ir::BoundKernel bind_range(const ir::NodeView& n) {
  const int64_t count = n.out_dims(0)[0];
  return tensor::visit_dtype(n.out[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    using C = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
    return {[count](const ir::RunArgs& args) {
      const C start = static_cast<C>(*static_cast<const T*>(args.in[0]));
      const C delta = static_cast<C>(*static_cast<const T*>(args.in[2]));
      for (int64_t i = 0; i < count; ++i)
        static_cast<T*>(args.out[0])[i] = static_cast<T>(start + static_cast<C>(i) * delta);
    }};
  });
}

ir::BoundKernel bind_eye(const ir::NodeView& n) {
  const tensor::Dims dims = n.out_dims(0);
  const int64_t k = n.attrs.get_int("k", 0);
  const int64_t bytes = tensor::bytes_of(n.out[0]);
  return tensor::visit_dtype(n.out[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    return {[dims, k, bytes](const ir::RunArgs& args) {
      T* y = static_cast<T*>(args.out[0]);
      std::memset(args.out[0], 0, static_cast<size_t>(bytes));
      if (k <= -dims[0] || k >= dims[1]) return;  // no element is on the diagonal
      for (int64_t i = std::max<int64_t>(0, -k); i < dims[0] && i + k < dims[1]; ++i)
        y[i * dims[1] + i + k] = static_cast<T>(1);
    }};
  });
}

ir::BoundKernel bind_trilu(const ir::NodeView& n) {
  const tensor::Dims dims = n.in_dims(0);
  base::require(dims.size() >= 2, "trilu takes matrices");
  const int64_t rows = dims[dims.size() - 2], columns = dims.back();
  const int64_t count = tensor::element_count(dims);
  const int64_t matrices = count == 0 ? 0 : count / (rows * columns);
  const bool is_upper = n.attrs.get_int("upper", 1) != 0;
  const size_t size = static_cast<size_t>(element_bytes_of(n.in[0].dtype));
  const bool has_k = n.present(1);
  return {[=](const ir::RunArgs& args) {
    const int64_t k = !has_k ? 0 : *static_cast<const int64_t*>(args.in[1]);
    cpu::pool_of(args.stream).for_range(matrices * rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const std::byte* x =
            static_cast<const std::byte*>(args.in[0]) + static_cast<size_t>(r * columns) * size;
        std::byte* y = static_cast<std::byte*>(args.out[0]) + static_cast<size_t>(r * columns) * size;
        // Diagonal k is where the upper part of a row begins and (inclusive) the lower part ends.
        const int64_t i = r % rows;
        const int64_t cut = k <= -rows     ? 0
                            : k >= columns ? columns
                                           : std::clamp<int64_t>(i + k + (is_upper ? 0 : 1), 0, columns);
        const size_t head = static_cast<size_t>(cut) * size, tail = static_cast<size_t>(columns - cut) * size;
        std::memcpy(y + (is_upper ? head : 0), x + (is_upper ? head : 0), is_upper ? tail : head);
        std::memset(y + (is_upper ? 0 : head), 0, is_upper ? head : tail);
      }
    });
  }};
}

template <class T>
int64_t index_at(const void* p, int64_t i) {
  return static_cast<int64_t>(static_cast<const T*>(p)[i]);
}
using IndexFn = int64_t (*)(const void*, int64_t);

/// Indices x [outer, inner] -> y [outer, depth, inner].
ir::BoundKernel bind_one_hot(const ir::NodeView& n) {
  const tensor::Dims out = n.out_dims(0);
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", -1), out.size());
  int64_t outer = 1, inner = 1;
  for (size_t d = 0; d < axis; ++d) outer *= out[d];
  for (size_t d = axis + 1; d < out.size(); ++d) inner *= out[d];
  const int64_t depth = out[axis], size = element_bytes_of(n.out[0].dtype);
  const IndexFn at =
      tensor::visit_dtype(n.in[0].dtype, [](auto zero) -> IndexFn { return &index_at<decltype(zero)>; });
  return {[=](const ir::RunArgs& args) {
    const std::byte* values = static_cast<const std::byte*>(args.in[2]);  // off, on
    std::byte* y = static_cast<std::byte*>(args.out[0]);
    if (outer * depth * inner == 0) return;
    std::memcpy(y, values, static_cast<size_t>(size));
    repeat_front(y, size, outer * depth * inner * size);
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < inner; ++i) {
        int64_t hot = at(args.in[0], o * inner + i);
        hot += hot < 0 ? depth : 0;
        if (hot < 0 || hot >= depth) continue;  // all are off by definition
        std::memcpy(y + ((o * depth + hot) * inner + i) * size, values + size, static_cast<size_t>(size));
      }
    }
  }};
}

}  // namespace

std::vector<ir::Kernel> shape_cpu_kernels() {
  return {fill_kernel([](const ir::NodeView& n) {
    const tensor::Dims dims = n.in_dims(0);
    const auto [from, to] = shape_range(n);
    return write_ints({dims.begin() + static_cast<int64_t>(from), dims.begin() + static_cast<int64_t>(to)});
  })};
}

std::vector<ir::Kernel> size_cpu_kernels() {
  return {
      fill_kernel([](const ir::NodeView& n) { return write_ints({tensor::element_count(n.in_dims(0))}); })};
}

std::vector<ir::Kernel> constant_of_shape_cpu_kernels() { return {fill_kernel(bind_constant)}; }

std::vector<ir::Kernel> range_cpu_kernels() {
  return {fill_kernel(bind_range, [](const ir::NodeView& n) -> ir::Refusal {
    if (!has_arithmetic(n.out[0].dtype)) return base::concat("no range of ", name_of(n.out[0].dtype));
    return std::nullopt;
  })};
}

std::vector<ir::Kernel> eye_like_cpu_kernels() { return {fill_kernel(bind_eye)}; }

std::vector<ir::Kernel> trilu_cpu_kernels() { return {fill_kernel(bind_trilu, refuse_packed_result)}; }
std::vector<ir::Kernel> one_hot_cpu_kernels() { return {fill_kernel(bind_one_hot, refuse_packed_result)}; }

}  // namespace trireme::ops
