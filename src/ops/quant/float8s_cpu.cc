// Kernels of 8-bit floats on CPU: quantization by rows and columns, and the values of codes.
#include <algorithm>
#include <utility>
#include <vector>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/kernel_forms.h"
#include "ops/quant/float8s.h"
#include "tensor/float8.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Float8Form;

template <class F>
decltype(auto) visit_element(DType type, F&& f) {
  switch (type) {
    case DType::f16: return f(tensor::Half{});
    case DType::bf16: return f(tensor::BFloat16{});
    default: return f(float{});
  }
}

/// Calls f(form) with the form as a constant in the type, so that loops over codes have no branches.
template <bool kE5m2>
struct ConstantForm {
  static constexpr Float8Form value = Float8Form::of(kE5m2);
};
template <class F>
void by_form(bool e5m2, const F& f) {
  e5m2 ? f(ConstantForm<true>{}) : f(ConstantForm<false>{});
}

template <class Form, class T>
void quantize_row(const T* x, int64_t n, uint8_t* codes, float* scale) {
  constexpr Float8Form form = Form::value;
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, tensor::magnitude_bits(static_cast<float>(x[i])));
  *scale = tensor::float8_scale(most, form);
  const float inverse = tensor::float8_inverse(*scale);
  for (int64_t i = 0; i < n; ++i) codes[i] = tensor::float8_code(static_cast<float>(x[i]) * inverse, form);
}

/// Where the codes, scales and sums (or null) of columns are written.
struct ColumnResults {
  uint8_t* codes;
  float *scale, *sums;
};

/// Quantizes columns [first, last): rows are read contiguously, codes are written to the transposed result.
template <class Form, class T>
void quantize_columns(const T* x, const Float8Extents& e, std::pair<int64_t, int64_t> strip,
                      const ColumnResults& to) {
  constexpr Float8Form form = Form::value;
  const auto [first, last] = strip;
  const int64_t count = last - first, padded = e.padded();
  const T* from = x + first;
  std::vector<uint32_t> most(static_cast<size_t>(count));
  std::vector<float> inverse(static_cast<size_t>(count));
  std::vector<double> sum(static_cast<size_t>(to.sums == nullptr ? 0 : count));
  std::vector<uint8_t> row(static_cast<size_t>(count));
  for (int64_t r = 0; r < e.rows; ++r) {
    for (size_t i = 0; i < most.size(); ++i)
      most[i] = std::max(most[i], tensor::magnitude_bits(static_cast<float>(from[r * e.n + int64_t(i)])));
    for (size_t i = 0; i < sum.size(); ++i)
      sum[i] += static_cast<double>(static_cast<float>(from[r * e.n + int64_t(i)]));
  }
  for (size_t i = 0; i < sum.size(); ++i) to.sums[first + int64_t(i)] = static_cast<float>(sum[i]);
  for (size_t i = 0; i < most.size(); ++i) {
    const int64_t column = first + static_cast<int64_t>(i);
    to.scale[column] = tensor::float8_scale(most[i], form);
    inverse[i] = tensor::float8_inverse(to.scale[column]);
    std::fill(to.codes + column * padded + e.rows, to.codes + (column + 1) * padded, uint8_t{0});
  }
  for (int64_t r = 0; r < e.rows; ++r) {
    for (size_t i = 0; i < row.size(); ++i)
      row[i] = tensor::float8_code(static_cast<float>(from[r * e.n + int64_t(i)]) * inverse[i], form);
    for (int64_t i = 0; i < count; ++i) to.codes[(first + i) * padded + r] = row[static_cast<size_t>(i)];
  }
}

template <class T>
ir::BoundKernel bind_quantize(const ir::NodeView& node, Float8Results to) {
  const Float8Extents e = float8_extents(node);
  return {[e, to, has_sums = to.has_sums(node)](const ir::RunArgs& args) {
    const T* x = in_ptr<T>(args, 0);
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    if (to.rows >= 0) {
      auto* codes = out_ptr<uint8_t>(args, static_cast<size_t>(to.rows));
      auto* scale = out_ptr<float>(args, static_cast<size_t>(to.rows) + 1);
      pool.for_range(e.rows, grain_for(8.0 * static_cast<double>(e.n)), [&](int64_t first, int64_t last) {
        by_form(e.e5m2, [&](auto form) {
          for (int64_t r = first; r < last; ++r)
            quantize_row<decltype(form)>(x + r * e.n, e.n, codes + r * e.n, scale + r);
        });
      });
    }
    if (to.columns >= 0) {
      constexpr int64_t kStrip = 64;
      const auto at = static_cast<size_t>(to.columns);
      const ColumnResults out{out_ptr<uint8_t>(args, at), out_ptr<float>(args, at + 1),
                              has_sums ? out_ptr<float>(args, at + 2) : nullptr};
      pool.run((e.n + kStrip - 1) / kStrip, [&](int64_t strip) {
        const std::pair columns{strip * kStrip, std::min(e.n, (strip + 1) * kStrip)};
        by_form(e.e5m2, [&](auto form) { quantize_columns<decltype(form)>(x, e, columns, out); });
      });
    }
  }};
}

template <class T>
ir::BoundKernel bind_values(const ir::NodeView& node) {
  const tensor::Dims dims = node.in_dims(0);
  const int64_t n = dims.back(), rows = tensor::element_count(tensor::Dims(dims.begin(), dims.end() - 1));
  const bool e5m2 = node.in[0].dtype == DType::f8e5m2;
  return {[=](const ir::RunArgs& args) {
    const auto* codes = in_ptr<uint8_t>(args, 0);
    const auto* scale = in_ptr<float>(args, 1);
    T* y = out_ptr<T>(args, 0);
    cpu::pool_of(args.stream)
        .for_range(rows, grain_for(4.0 * static_cast<double>(n)), [&](int64_t first, int64_t last) {
          by_form(e5m2, [&](auto form) {
            for (int64_t r = first; r < last; ++r) {
              for (int64_t i = r * n; i < (r + 1) * n; ++i)
                y[i] = static_cast<T>(tensor::float8_value(codes[i], form.value) * scale[r]);
            }
          });
        });
  }};
}

}  // namespace

std::vector<ir::Kernel> float8_quantize_cpu_kernels(Float8Results results) {
  return {{.name = "reference",
           .is_reference = true,
           .refuse =
               [](const ir::NodeView& n) {
                 return refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16});
               },
           .prepare =
               [results](const ir::KernelInit& init) {
                 return visit_element(init.node.in[0].dtype,
                                      [&](auto t) { return bind_quantize<decltype(t)>(init.node, results); });
               }}};
}

std::vector<ir::Kernel> float8_values_cpu_kernels() {
  return {{.name = "reference",
           .is_reference = true,
           .refuse =
               [](const ir::NodeView& n) {
                 return refuse_dtype(n, 0, {DType::f8e4m3fn, DType::f8e5m2});
               },
           .prepare =
               [](const ir::KernelInit& init) {
                 return visit_element(init.node.out[0].dtype,
                                      [&](auto t) { return bind_values<decltype(t)>(init.node); });
               }}};
}

}  // namespace trireme::ops
