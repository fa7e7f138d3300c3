// CPU kernels of pow, bit_shift, gelu, where, clip and dropout.
#include <cstring>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/elementwise/typed_ops.h"
#include "base/rng.h"
#include "tensor/binary_math.h"
#include "ops/elementwise/short_rows.h"
#include "ops/elementwise/special.h"

namespace trireme::ops {
namespace {

using tensor::DType;

/// base^exponent with an exponent of another type: in double, or exactly if both are integers.
template <class T, class E>
void pow_mixed_row(const RowArgs& r) {
  const T* a = static_cast<const T*>(r.in[0]) + r.offset[0];
  const E* b = static_cast<const E*>(r.in[1]) + r.offset[1];
  T* y = static_cast<T*>(r.out) + r.out_offset;
  const math::Pow f(r.params);
  using C = std::conditional_t<std::is_integral_v<T> && std::is_integral_v<E>, int64_t, double>;
  for (int64_t i = 0; i < r.n; ++i) {
    y[i] = static_cast<T>(f(static_cast<C>(a[i * r.step[0]]), static_cast<C>(b[i * r.step[1]])));
  }
}

template <class Word>
void select_row(const RowArgs& r) {
  const bool* c = static_cast<const bool*>(r.in[0]) + r.offset[0];
  const Word* a = static_cast<const Word*>(r.in[1]) + r.offset[1];
  const Word* b = static_cast<const Word*>(r.in[2]) + r.offset[2];
  Word* y = static_cast<Word*>(r.out) + r.out_offset;
  const int64_t sc = r.step[0], sa = r.step[1], sb = r.step[2];
  if (sc == 1 && sa == 1 && sb == 1) {
    for (int64_t i = 0; i < r.n; ++i) y[i] = c[i] ? a[i] : b[i];
  } else if (sc == 1 && sa == 1 && sb == 0) {
    const Word v = *b;
    for (int64_t i = 0; i < r.n; ++i) y[i] = c[i] ? a[i] : v;
  } else if (sc == 1 && sa == 0 && sb == 1) {
    const Word v = *a;
    for (int64_t i = 0; i < r.n; ++i) y[i] = c[i] ? v : b[i];
  } else {
    for (int64_t i = 0; i < r.n; ++i) y[i] = c[i * sc] ? a[i * sa] : b[i * sb];
  }
}

/// Bounds may be absent (null); NaN stays NaN.
template <class T>
void clamp_row(const RowArgs& r) {
  using C = Arithmetic<T>;
  using Limits = std::numeric_limits<C>;
  const T* x = static_cast<const T*>(r.in[0]) + r.offset[0];
  T* y = static_cast<T*>(r.out) + r.out_offset;
  const C lowest = std::is_integral_v<C> ? Limits::lowest() : -Limits::infinity();
  const C highest = std::is_integral_v<C> ? Limits::max() : Limits::infinity();
  const C low =
      r.operands > 1 && r.in[1] != nullptr ? static_cast<C>(*static_cast<const T*>(r.in[1])) : lowest;
  const C high =
      r.operands > 2 && r.in[2] != nullptr ? static_cast<C>(*static_cast<const T*>(r.in[2])) : highest;
  for (int64_t i = 0; i < r.n; ++i) {
    const C v = static_cast<C>(x[i]);
    const C raised = v < low ? low : v;
    y[i] = static_cast<T>(raised > high ? high : raised);
  }
}

struct ClampRow {
  template <class T>
  static constexpr RowFn row = &clamp_row<T>;
};

ir::Kernel special_reference(std::function<ir::BoundKernel(const ir::NodeView&)> bind) {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.prepare = [bind = std::move(bind)](const ir::KernelInit& init) { return bind(init.node); };
  k.may_overwrite = 0xffffffffu;
  return k;
}

/// Drops element i if draw i of the seed's stream is below the ratio and scales the others. A Philox block
/// gives four draws.
ir::BoundKernel bind_training_dropout(const ir::NodeView& n) {
  const double ratio = n.present(1) ? n.value(1)->to_doubles().at(0) : 0.5;
  base::require(ratio >= 0 && ratio < 1, "dropout: the ratio must be in [0, 1), got ", ratio);
  const double scale = 1 / (1 - ratio);
  const uint64_t seed = static_cast<uint64_t>(n.attrs.get_int("seed", 0));
  const int64_t count = tensor::element_count(n.in_dims(0));
  const bool has_mask = n.out.size() > 1;
  return tensor::visit_dtype(n.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    return {[=](const ir::RunArgs& args) {
      const T* x = static_cast<const T*>(args.in[0]);
      T* y = static_cast<T*>(args.out[0]);
      bool* mask = has_mask ? static_cast<bool*>(args.out[1]) : nullptr;
      cpu::pool_of(args.stream).for_range((count + 3) / 4, 1024, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; ++block) {
          const base::PhiloxBlock words = base::philox_block(seed, 0, static_cast<uint64_t>(block));
          for (int64_t i = 4 * block; i < std::min(count, 4 * block + 4); ++i) {
            const bool keeps =
                static_cast<double>(base::uniform_f32(words[static_cast<size_t>(i % 4)])) >= ratio;
            y[i] = keeps ? static_cast<T>(static_cast<double>(static_cast<Arithmetic<T>>(x[i])) * scale)
                         : static_cast<T>(0);
            if (mask != nullptr) mask[i] = keeps;
          }
        }
      });
    }};
  });
}

/// Runs a row function over x only; the function reads the other operands itself.
ir::BoundKernel run_over_x(RowFn row, const ir::NodeView& node) {
  const tensor::Dims dims = node.in_dims(0);
  const StridedLoop loop(dims, {dense_steps(dims)});
  const size_t operands = node.in.size();
  return {[loop, row, operands](const ir::RunArgs& args) {
    const Params none{};
    loop.run(cpu::pool_of(args.stream), [&](const int64_t* offset, int64_t out_offset, int64_t n) {
      row({args.in, offset, loop.inner_steps(), args.out[0], out_offset, n, none.data(), operands});
    });
  }};
}

}  // namespace

RowFn pow_row(DType base, DType exponent) {
  if (!has_arithmetic(base) || !has_arithmetic(exponent)) return nullptr;
  if (base == exponent) return row_for<BinaryRow<math::Pow>, Class::number>(base);
  return tensor::visit_dtype(base, [&](auto b) -> RowFn {
    return tensor::visit_dtype(exponent, [](auto e) -> RowFn {
      using T = decltype(b);
      using E = decltype(e);
      if constexpr (belongs<T>(Class::number) && belongs<E>(Class::number))
        return &pow_mixed_row<T, E>;
      else
        return nullptr;
    });
  });
}
RowFn bit_shift_row(DType dtype) { return row_for<BinaryRow<math::BitShift>, Class::integer>(dtype); }
RowFn gelu_row(DType dtype, bool is_tanh) {
  return is_tanh ? row_for<UnaryRow<math::GeluTanh>, Class::real>(dtype)
                 : row_for<UnaryRow<math::GeluErf>, Class::real>(dtype);
}
RowFn clip_row(DType dtype) { return row_for<ClampRow, Class::number>(dtype); }
RowFn where_row(DType dtype) {
  switch (tensor::bits_of(dtype)) {
    case 8: return &select_row<uint8_t>;
    case 16: return &select_row<uint16_t>;
    case 32: return &select_row<uint32_t>;
    case 64: return &select_row<uint64_t>;
    default: return nullptr;
  }
}

std::vector<ir::Kernel> pow_cpu_kernels() {
  ir::Kernel fast{.name = "vector"};
  fast.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (n.in[0].dtype != DType::f32) return "the vector toolkit computes f32";
    if (n.value(1) == nullptr || n.value(1)->elements() != 1) return "the exponent is not one known number";
    if (n.in[0].shape != n.out[0].shape) return "the base is broadcast";
    return std::nullopt;
  };
  fast.prepare = [](const ir::KernelInit& init) {
    const Params exponent{init.node.value(1)->to_doubles().at(0)};
    return vector_unary_kernel("pow_scalar", [exponent](const ir::Attrs&) { return exponent; }).prepare(init);
  };
  fast.may_overwrite = 1;
  return {fast, special_reference([](const ir::NodeView& n) {
            return broadcast_run(pow_row(n.in[0].dtype, n.in[1].dtype), n, {});
          })};
}

std::vector<ir::Kernel> bit_shift_cpu_kernels() {
  return {special_reference([](const ir::NodeView& n) {
    return broadcast_run(bit_shift_row(n.in[0].dtype), n,
                         {n.attrs.get_string("direction", "") == "LEFT" ? 1.0 : 0.0});
  })};
}

std::vector<ir::Kernel> gelu_cpu_kernels() {
  const auto vector_of = [](const char* function, bool is_tanh) {
    ir::Kernel k = vector_unary_kernel(function, [](const ir::Attrs&) { return Params{}; });
    k.name = function;
    k.refuse = [is_tanh](const ir::NodeView& n) -> ir::Refusal {
      if (n.in[0].dtype == DType::f64) return "the vector toolkit computes f32 and 16-bit floats";
      if (is_tanh != (n.attrs.get_string("approximate", "none") == "tanh"))
        return "the other formula is asked for";
      return std::nullopt;
    };
    return k;
  };
  return {vector_of("gelu", false), vector_of("gelu_tanh", true),
          special_reference([](const ir::NodeView& n) {
            return broadcast_run(gelu_row(n.in[0].dtype, n.attrs.get_string("approximate", "none") == "tanh"),
                                 n, {});
          })};
}

namespace {

ir::BoundKernel bind_select(const ir::NodeView& n) {
  const StridedLoop loop = StridedLoop::broadcast(n.out_dims(0), all_in_dims(n));
  const int bytes = tensor::bits_of(n.in[1].dtype) / 8;
  if (ShortRows::fits(loop)) {
    return {[rows = ShortRows(loop, {1, bytes, bytes}), bytes](const ir::RunArgs& args) {
      rows.run(cpu::pool_of(args.stream), args.in, [&](const void* const* in, int64_t out, int64_t count) {
        void* y = static_cast<std::byte*>(args.out[0]) + out * bytes;
        cpu::select_words({.c = in[0], .a = in[1], .b = in[2], .y = y, .bytes = bytes},
                          static_cast<size_t>(count));
      });
    }};
  }
  return {[loop, bytes](const ir::RunArgs& args) {
    const auto at = [&](size_t k, int64_t offset, int size) {
      return static_cast<const std::byte*>(args.in[k]) + offset * size;
    };
    const int64_t* step = loop.inner_steps();
    loop.run(cpu::pool_of(args.stream), [&](const int64_t* offset, int64_t out_offset, int64_t count) {
      cpu::select_words({.c = at(0, offset[0], 1),
                         .a = at(1, offset[1], bytes),
                         .b = at(2, offset[2], bytes),
                         .y = static_cast<std::byte*>(args.out[0]) + out_offset * bytes,
                         .c_step = step[0],
                         .a_step = step[1],
                         .b_step = step[2],
                         .bytes = bytes},
                        static_cast<size_t>(count));
    });
  }};
}

}  // namespace

std::vector<ir::Kernel> where_cpu_kernels() {
  ir::Kernel k =
      special_reference([](const ir::NodeView& n) { return broadcast_run(where_row(n.in[1].dtype), n, {}); });
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (where_row(n.in[1].dtype) == nullptr) return no_type(n.in[1].dtype);
    return std::nullopt;
  };
  ir::Kernel words{.name = "words", .refuse = k.refuse};
  words.prepare = [](const ir::KernelInit& init) { return bind_select(init.node); };
  words.may_overwrite = k.may_overwrite;
  return {words, k};
}

std::vector<ir::Kernel> clip_cpu_kernels() {
  ir::Kernel k =
      special_reference([](const ir::NodeView& n) { return run_over_x(clip_row(n.in[0].dtype), n); });
  k.may_overwrite = 1;  // a bound is read again for every piece
  ir::Kernel fast{.name = "vector"};
  fast.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (n.in[0].dtype != DType::f32) return "the vector toolkit computes f32";
    for (size_t i = 1; i < 3; ++i) {
      if (n.present(i) && n.value(i) == nullptr) return "a bound is not known before the run";
    }
    return std::nullopt;
  };
  fast.prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const Params bounds{n.present(1) ? n.value(1)->to_doubles().at(0) : -kInfinity,
                        n.present(2) ? n.value(2)->to_doubles().at(0) : kInfinity};
    return vector_unary_kernel("clip", [bounds](const ir::Attrs&) { return bounds; }).prepare(init);
  };
  fast.may_overwrite = 1;
  return {fast, k};
}

std::vector<ir::Kernel> dropout_cpu_kernels() {
  ir::Kernel inference{.name = "inference"};
  inference.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (!n.present(2)) return std::nullopt;
    if (n.value(2) == nullptr) return "training_mode is not known before the run";
    if (n.value(2)->to_ints()[0] != 0) return "training mode draws a mask";
    return std::nullopt;
  };
  inference.prepare = [](const ir::KernelInit& init) -> ir::BoundKernel {
    const size_t bytes = static_cast<size_t>(tensor::bytes_of(init.node.out[0]));
    const size_t mask =
        init.node.out.size() > 1 ? static_cast<size_t>(tensor::bytes_of(init.node.out[1])) : 0;
    return {[bytes, mask](const ir::RunArgs& args) {
      if (args.out[0] != args.in[0] && bytes != 0) std::memmove(args.out[0], args.in[0], bytes);
      if (mask != 0 && args.out[1] != nullptr) std::memset(args.out[1], 1, mask);
    }};
  };
  inference.may_overwrite = 1;
  ir::Kernel training{.name = "training"};
  training.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (n.present(2) && n.value(2) == nullptr) return "training_mode is not known before the run";
    if (n.present(1) && n.value(1) == nullptr) return "the ratio is not known before the run";
    return std::nullopt;
  };
  training.prepare = [](const ir::KernelInit& init) { return bind_training_dropout(init.node); };
  training.may_overwrite = 1;
  return {inference, training};
}

}  // namespace trireme::ops
