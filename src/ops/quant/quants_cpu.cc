// Vector and reference kernels of quantize_linear, dequantize_linear and dynamic_quantize_linear on CPU, and
// the reference kernel of qlinear_matmul.
#include <algorithm>
#include <cmath>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/quant/quantize_linear.h"
#include "ops/dense/matmul_shape.h"
#include "ops/elementwise/cast.h"
#include "ops/elementwise/small_float.h"
#include "ops/kernel_forms.h"
#include "ops/quant/element_codec.h"
#include "ops/quant/quant_kernels.h"
#include "ops/quant/scale_map.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

// A multiple of the elements per byte of every packing, so that no two tasks share a byte.
constexpr int64_t kChunk = 4096;

/// Calls body(begin, end) over [0, n) in chunks that never split a byte.
template <class Body>
void for_chunks(base::ThreadPool& pool, int64_t n, const Body& body) {
  pool.run((n + kChunk - 1) / kChunk, [&](int64_t i) { body(i * kChunk, std::min(n, (i + 1) * kChunk)); });
}

/// Rounds a quotient to the precision in which it is computed.
double in_precision(DType type, double v) {
  if (type == DType::f16) return static_cast<float>(tensor::Half(static_cast<float>(v)));
  if (type == DType::bf16) return static_cast<float>(tensor::BFloat16(static_cast<float>(v)));
  return type == DType::f64 ? v : static_cast<float>(v);
}

struct QuantizePlan {
  ScaleMap map;
  DType from, scale, to, precision;
  int64_t n;
  bool saturate, has_zero;
};

QuantizePlan plan_quantize(const ir::NodeView& node) {
  const int64_t precision = node.attrs.get_int("precision", 0);
  QuantizePlan p{.map = scale_map(node),
                 .from = node.in[0].dtype,
                 .scale = node.in[1].dtype,
                 .to = node.out[0].dtype,
                 .precision = DType::f32,
                 .n = tensor::element_count(node.in_dims(0)),
                 .saturate = node.attrs.get_int("saturate", 1) != 0,
                 .has_zero = node.present(2)};
  if (precision != 0) {
    p.precision = dtype_from_onnx(precision);
  } else if (p.scale == DType::f16 || p.scale == DType::bf16) {
    p.precision = p.from == p.scale ? p.scale : DType::f32;
  }
  return p;
}

void quantize_range(const QuantizePlan& p, const ir::RunArgs& args, int64_t begin, int64_t end) {
  const bool to_float = tensor::is_float(p.to);
  const IntegerRange range = to_float ? IntegerRange{0, 0} : range_of(p.to);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t s = p.map.scale_of(i);
    const double quotient =
        in_precision(p.precision, read_element(p.from, args.in[0], i) / read_element(p.scale, args.in[1], s));
    const double zero = p.has_zero ? read_element(p.to, args.in[2], s) : 0.0;
    if (to_float) {
      write_code(p.to, args.out[0], i,
                 encode_small_float(p.to, static_cast<float>(quotient + zero), p.saturate));
    } else {
      // NaN would pass through clamp, because both of its comparisons fail, so it gets the zero point.
      const double v = std::isnan(quotient) ? zero : std::nearbyint(quotient) + zero;
      write_integer(p.to, args.out[0], i,
                    static_cast<int64_t>(std::clamp(v, double(range.lowest), double(range.highest))));
    }
  }
}

ir::BoundKernel prepare_quantize(const ir::KernelInit& init) {
  const QuantizePlan plan = plan_quantize(init.node);
  return {[plan](const ir::RunArgs& args) {
    for_chunks(cpu::pool_of(args.stream), plan.n,
               [&](int64_t begin, int64_t end) { quantize_range(plan, args, begin, end); });
  }};
}

ir::BoundKernel prepare_dequantize(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const ScaleMap map = scale_map(node);
  const DType from = node.in[0].dtype, scale = node.in[1].dtype, to = node.out[0].dtype;
  const int64_t n = tensor::element_count(node.in_dims(0));
  const bool has_zero = node.present(2) && tensor::is_integer(from);
  auto run = [=](const ir::RunArgs& args) {
    for_chunks(cpu::pool_of(args.stream), n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t s = map.scale_of(i);
        const double zero = has_zero ? read_element(from, args.in[2], s) : 0.0;
        const double v = (read_element(from, args.in[0], i) - zero) * read_element(scale, args.in[1], s);
        switch (to) {
          case DType::f16: out_ptr<tensor::Half>(args, 0)[i] = tensor::Half(static_cast<float>(v)); break;
          case DType::bf16:
            out_ptr<tensor::BFloat16>(args, 0)[i] = tensor::BFloat16(static_cast<float>(v));
            break;
          case DType::f64: out_ptr<double>(args, 0)[i] = v; break;
          default: out_ptr<float>(args, 0)[i] = static_cast<float>(v); break;
        }
      }
    });
  };
  return {run};
}

/// The tensor as the vector kernel takes it: [outer, axis, inner] with one scale per index of the axis.
struct VectorForm {
  int64_t outer = 1, axis = 1, inner = 0;
  bool has_zero = false;
};

VectorForm vector_form(const ir::NodeView& node) {
  const ScaleMap map = scale_map(node);
  if (map.kind == ScaleMap::Kind::tensor)
    return {1, 1, tensor::element_count(node.in_dims(0)), node.present(2)};
  return {map.outer, map.n, map.inner, node.present(2)};
}

ir::Refusal refuse_vector(const ir::NodeView& node) {
  if (auto why = refuse_empty(node)) return why;
  if (auto why = refuse_dtype(node, 1, {DType::f32})) return why;
  if (scale_map(node).kind == ScaleMap::Kind::blocked) return "scales are blocked";
  return std::nullopt;
}

ir::Refusal refuse_vector_quantize(const ir::NodeView& node) {
  if (auto why = refuse_dtype(node, 0, {DType::f32})) return why;
  if (node.out[0].dtype != DType::u8 && node.out[0].dtype != DType::i8)
    return "the result is not an 8-bit integer";
  if (node.attrs.get_int("precision", 0) > 1) return "another precision is asked for";
  return refuse_vector(node);
}

ir::BoundKernel prepare_vector_quantize(const ir::KernelInit& init) {
  const VectorForm form = vector_form(init.node);
  const cpu::QuantType type = init.node.out[0].dtype == DType::i8 ? cpu::QuantType::i8 : cpu::QuantType::u8;
  return {[form, type](const ir::RunArgs& args) {
    const cpu::QuantizeLinear call{.x = in_ptr<float>(args, 0),
                                   .y = args.out[0],
                                   .type = type,
                                   .scale = in_ptr<float>(args, 1),
                                   .zero_point = form.has_zero ? args.in[2] : nullptr,
                                   .outer = form.outer,
                                   .axis = form.axis,
                                   .inner = form.inner};
    cpu::quantize_linear(call, cpu::pool_of(args.stream));
  }};
}

ir::Refusal refuse_vector_dequantize(const ir::NodeView& node) {
  if (auto why = refuse_dtype(node, 0, {DType::u8, DType::i8, DType::i32})) return why;
  if (node.out[0].dtype != DType::f32) return "the result is not f32";
  return refuse_vector(node);
}

ir::BoundKernel prepare_vector_dequantize(const ir::KernelInit& init) {
  using Type = cpu::DequantizeLinear::Type;
  const VectorForm form = vector_form(init.node);
  const DType from = init.node.in[0].dtype;
  const Type type = from == DType::u8 ? Type::u8 : from == DType::i8 ? Type::i8 : Type::i32;
  return {[form, type](const ir::RunArgs& args) {
    const cpu::DequantizeLinear call{.x = args.in[0],
                                     .y = out_ptr<float>(args, 0),
                                     .type = type,
                                     .scale = in_ptr<float>(args, 1),
                                     .zero_point = form.has_zero ? args.in[2] : nullptr,
                                     .outer = form.outer,
                                     .axis = form.axis,
                                     .inner = form.inner};
    cpu::dequantize_linear(call, cpu::pool_of(args.stream));
  }};
}

void dynamic_quantize(const ir::RunArgs& args, int64_t n) {
  const cpu::QuantParams params =
      cpu::dynamic_quantize(in_ptr<float>(args, 0), out_ptr<uint8_t>(args, 0), n, cpu::pool_of(args.stream));
  *out_ptr<float>(args, 1) = params.scale;
  *out_ptr<uint8_t>(args, 2) = params.zero_point;
}

void dynamic_quantize_plainly(const ir::RunArgs& args, int64_t n) {
  const float* x = in_ptr<float>(args, 0);
  float lo = 0.0f, hi = 0.0f;
  bool has_nan = false;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] < lo) lo = x[i];
    if (x[i] > hi) hi = x[i];
    has_nan |= std::isnan(x[i]);
  }
  const float scale = hi > lo && !has_nan ? (hi - lo) / 255.0f : 1.0f;
  const float place = has_nan ? 0.0f : std::nearbyint(0.0f - lo / scale);
  const float zero = std::isnan(place) ? 0.0f : std::clamp(place, 0.0f, 255.0f);
  for (int64_t i = 0; i < n; ++i) {
    const float steps = std::nearbyint(x[i] / scale);
    const float q = std::isnan(steps) ? zero : steps + zero;
    out_ptr<uint8_t>(args, 0)[i] = static_cast<uint8_t>(std::clamp(q, 0.0f, 255.0f));
  }
  *out_ptr<float>(args, 1) = scale;
  *out_ptr<uint8_t>(args, 2) = static_cast<uint8_t>(zero);
}

/// Binds one of the above to the number of elements.
template <class Run>
PrepareFn over_elements(Run run) {
  return [run](const ir::KernelInit& init) {
    const int64_t n = tensor::element_count(init.node.in_dims(0));
    return ir::BoundKernel{[n, run](const ir::RunArgs& args) { run(args, n); }};
  };
}

struct QMatmulPlan {
  MatmulShape shape;
  DType a, b, y, scale;
  int64_t a_scales, a_zeros, b_scales, b_zeros;  // 1, m or n values each
};

/// Value of the scale or zero point `i` for index `at` of `count`; a single value serves all.
double parameter(DType type, const ir::RunArgs& args, size_t i, int64_t at, int64_t count) {
  return read_element(type, args.in[i], count > 1 ? at : 0);
}

void qmatmul_row(const QMatmulPlan& p, const ir::RunArgs& args, int64_t row) {
  const MatmulShape& s = p.shape;
  const size_t batch = static_cast<size_t>(row / s.m);
  const int64_t i = row % s.m, a0 = s.a_offset[batch] + i * s.k, b0 = s.b_offset[batch];
  const double a_zero = parameter(p.a, args, 2, i, p.a_zeros),
               a_scale = parameter(p.scale, args, 1, i, p.a_scales);
  const double y_scale = read_element(p.scale, args.in[6], 0), y_zero = read_element(p.y, args.in[7], 0);
  const IntegerRange range = range_of(p.y);
  for (int64_t j = 0; j < s.n; ++j) {
    const double b_zero = parameter(p.b, args, 5, j, p.b_zeros);
    double sum = 0;  // exact, since terms are products of 8-bit values
    for (int64_t l = 0; l < s.k; ++l) {
      sum += (read_element(p.a, args.in[0], a0 + l) - a_zero) *
             (read_element(p.b, args.in[3], b0 + l * s.n + j) - b_zero);
    }
    const double v = sum * a_scale * parameter(p.scale, args, 4, j, p.b_scales) / y_scale;
    const double whole = std::isnan(v) ? y_zero : std::nearbyint(v) + y_zero;
    const double q = std::clamp(whole, double(range.lowest), double(range.highest));
    write_integer(p.y, args.out[0], row * s.n + j, static_cast<int64_t>(q));
  }
}

ir::Refusal refuse_qmatmul(const ir::NodeView& node) {
  for (size_t i : {0, 3, 7}) {
    if (auto why = refuse_dtype(node, i, {DType::i8, DType::u8})) return why;
  }
  return std::nullopt;
}

ir::BoundKernel prepare_qmatmul(const ir::KernelInit& init) {
  const ir::NodeView& node = init.node;
  const QMatmulPlan plan{matmul_shape(node.in_dims(0), node.in_dims(3)),
                         node.in[0].dtype,
                         node.in[3].dtype,
                         node.out[0].dtype,
                         node.in[1].dtype,
                         tensor::element_count(node.in_dims(1)),
                         tensor::element_count(node.in_dims(2)),
                         tensor::element_count(node.in_dims(4)),
                         tensor::element_count(node.in_dims(5))};
  return {[plan](const ir::RunArgs& args) {
    cpu::pool_of(args.stream).run(plan.shape.batches() * plan.shape.m, [&](int64_t row) {
      qmatmul_row(plan, args, row);
    });
  }};
}

}  // namespace

std::vector<ir::Kernel> quantize_linear_cpu_kernels() {
  return {{.name = "vector", .refuse = refuse_vector_quantize, .prepare = prepare_vector_quantize},
          {.name = "reference", .is_reference = true, .prepare = prepare_quantize}};
}

std::vector<ir::Kernel> dequantize_linear_cpu_kernels() {
  return {{.name = "vector", .refuse = refuse_vector_dequantize, .prepare = prepare_vector_dequantize},
          {.name = "reference", .is_reference = true, .prepare = prepare_dequantize}};
}

std::vector<ir::Kernel> dynamic_quantize_linear_cpu_kernels() {
  const auto refuse_other = [](const ir::NodeView& n) { return refuse_dtype(n, 0, {DType::f32}); };
  return {{.name = "vector", .refuse = refuse_other, .prepare = over_elements(dynamic_quantize)},
          {.name = "reference",
           .is_reference = true,
           .refuse = refuse_other,
           .prepare = over_elements(dynamic_quantize_plainly)}};
}

std::vector<ir::Kernel> qlinear_matmul_cpu_kernels() {
  return {{.name = "reference", .is_reference = true, .refuse = refuse_qmatmul, .prepare = prepare_qmatmul}};
}

}  // namespace trireme::ops
