// Kernels of dequantize_blocks, block_linear and block_gather on CPU.
#include <array>
#include <cmath>

#include "backend/cpu/blocks/block_product.h"
#include "backend/cpu/device/cpu_stream.h"
#include "ops/blocks/blocks.h"
#include "ops/blocks/packed_blocks_cpu.h"
#include "ops/index/index_access.h"
#include "ops/kernel_forms.h"
#include "tensor/absent.h"

namespace trireme::ops {
namespace {

using tensor::DType;

/// Divides the rows of the matrix among the team in tasks of some ten thousand weights.
template <class F>
void for_rows(const ir::RunArgs& args, int64_t rows, int64_t k, const F& body) {
  cpu::pool_of(args.stream)
      .for_range(rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, k)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t row = begin; row < end; ++row) body(row);
                 });
}

ir::BoundKernel prepare_dequantize(const ir::KernelInit& init) {
  const BlockMatrix m = block_matrix(init.node, 0);
  return {[m](const ir::RunArgs& args) {
    const auto* blocks = in_ptr<uint8_t>(args, 0);
    auto* y = out_ptr<float>(args, 0);
    for_rows(args, m.n, m.k, [&](int64_t row) {
      m.format->decode(blocks + row * m.row_bytes(), m.k / m.format->weights, y + row * m.k);
    });
  }};
}

std::shared_ptr<const PackedMatrix> pack(const tensor::Tensor& w, const tensor::BlockFormat& format,
                                         const std::shared_ptr<const base::Slab>& slab, int threads) {
  const int64_t n = w.dims()[0], k = format.depth(w.dims()[1]);
  const PackMemory memory(slab, static_cast<size_t>(cpu::packed_block_bytes(format, n, k)));
  base::ThreadPool pool(threads);
  const auto* rows = reinterpret_cast<const uint8_t*>(w.raw());
  auto* to = reinterpret_cast<uint8_t*>(memory.data.get());
  const cpu::PackedBlocks packed = cpu::pack_blocks({&format, rows, n, k}, to, pool);
  return std::make_shared<const PackedMatrix>(
      PackedMatrix{memory, packed, packed.layout().is_floats() ? w : tensor::Tensor()});
}

}  // namespace

std::shared_ptr<const PackedMatrix> packed_matrix(const ir::KernelInit& init, size_t operand, size_t number) {
  const tensor::Tensor& w = *init.node.value(operand);
  const tensor::BlockFormat& format = *block_matrix(init.node, operand, number).format;
  if (const auto held = tensor::held_by(w)) return std::static_pointer_cast<const PackedMatrix>(held);
  const auto slab = pack_slab(init.packs);
  return pack_once<PackedMatrix>(init.packs, w, base::concat("blocks ", format.name),
                                 [&] { return pack(w, format, slab, init.threads); });
}

cpu::PackedBlocks packed_form(const ir::NodeView& node, size_t operand, size_t number) {
  const BlockMatrix m = block_matrix(node, operand, number);
  return {.format = cpu::block_format_index(*m.format), .n = m.n, .k = m.k};
}

ir::Refusal refuse_packed(const ir::NodeView& node, size_t operand) {
  if (node.value(operand) == nullptr) return "weights are not constant, so they cannot be packed once";
  return refuse_empty(node);
}

namespace {

ir::BoundKernel prepare_packed(const ir::KernelInit& init) {
  const BlockLinearExtents e = block_linear_extents(init.node);
  const auto packed = packed_matrix(init, kBlWeights);
  const cpu::PackedBlocks form = packed_form(init.node, kBlWeights);
  ir::BoundKernel bound{
      .workspace_bytes = cpu::block_product_workspace({&form, 1}, e.rows, init.node.present(kBlNorm)),
      .unread_inputs = 1u << kBlWeights};
  if (packed == nullptr) return bound;
  const size_t operands = init.node.in.size();
  const float epsilon = block_epsilon(init.node.attrs);
  bound.run = [packed, e, operands, epsilon](const ir::RunArgs& args) {
    const cpu::BlockResult to{packed->blocks, opt_ptr<float>(args, kBlBias, operands),
                              out_ptr<float>(args, 0), opt_ptr<float>(args, kBlResidual, operands)};
    cpu::block_products({.results = {&to, 1},
                         .x = in_ptr<float>(args, kBlX),
                         .m = e.rows,
                         .rounds = e.form != BlockRows::f32,
                         .norm = opt_ptr<float>(args, kBlNorm, operands),
                         .epsilon = epsilon},
                        args.workspace, cpu::pool_of(args.stream));
  };
  return bound;
}

/// Several products with one x. In a gated pair, the first result goes to the workspace.
ir::BoundKernel prepare_joined(const ir::KernelInit& init) {
  const BlockLinearsExtents e = block_linears_extents(init.node);
  std::vector<std::shared_ptr<const PackedMatrix>> packed;
  std::vector<cpu::PackedBlocks> weights;
  ir::BoundKernel bound;
  bool is_packed = true;
  for (size_t i = 0; i < e.count; ++i) {
    packed.push_back(packed_matrix(init, e.weights(i), i));
    is_packed = is_packed && packed[i] != nullptr;
    weights.push_back(packed_form(init.node, e.weights(i), i));
    bound.unread_inputs |= 1u << e.weights(i);
  }
  const size_t operands = init.node.in.size();
  const float epsilon = block_epsilon(init.node.attrs);
  const int64_t form_bytes =
      align_up(cpu::block_product_workspace(weights, e.rows, init.node.present(e.norm())));
  bound.workspace_bytes = form_bytes + (e.is_gated ? e.rows * weights[0].n * 4 : 0);
  if (!is_packed) return bound;
  bound.run = [packed, e, operands, epsilon, form_bytes](const ir::RunArgs& args) {
    std::array<cpu::BlockResult, kMostJoined> to;
    auto* scratch = reinterpret_cast<float*>(static_cast<std::byte*>(args.workspace) + form_bytes);
    for (size_t i = 0; i < e.count; ++i) {
      float* y = !e.is_gated ? out_ptr<float>(args, i) : i == 0 ? scratch : out_ptr<float>(args, 0);
      to[i] = {packed[i]->blocks, opt_ptr<float>(args, e.bias(i), operands), y};
    }
    cpu::block_products({.results = {to.data(), e.count},
                         .x = in_ptr<float>(args, kBlX),
                         .m = e.rows,
                         .rounds = e.form != BlockRows::f32,
                         .norm = opt_ptr<float>(args, e.norm(), operands),
                         .epsilon = epsilon,
                         .is_gated = e.is_gated},
                        args.workspace, cpu::pool_of(args.stream));
  };
  return bound;
}

/// Rounds 32 numbers as q8 rows do: to the nearest of 255 multiples of a scale.
void round_to_codes(const float* x, double* to) {
  float most = 0;
  bool is_finite = true;
  for (int64_t i = 0; i < 32; ++i) {
    most = std::max(most, std::fabs(x[i]));
    is_finite = is_finite && std::isfinite(x[i]);
  }
  for (int64_t i = 0; i < 32; ++i) {
    const double code =
        most > 0 ? std::nearbyint(static_cast<double>(x[i]) * 127 / static_cast<double>(most)) : 0;
    to[i] = is_finite ? code * static_cast<double>(most) / 127 : NAN;
  }
}

/// Each result is one sum in f64.
ir::BoundKernel prepare_reference(const ir::KernelInit& init) {
  const BlockLinearExtents e = block_linear_extents(init.node);
  const size_t operands = init.node.in.size();
  const int64_t k = e.w.k;
  const auto run = [e, operands, k](const ir::RunArgs& args) {
    const auto* x = in_ptr<float>(args, kBlX);
    const auto* bias = opt_ptr<float>(args, kBlBias, operands);
    auto* rows = static_cast<double*>(args.workspace);  // [rows, k]
    for (int64_t i = 0; i < e.rows * k; i += 32) {
      switch (e.form) {
        case BlockRows::q8: round_to_codes(x + i, rows + i); break;
        case BlockRows::bf16:
          std::transform(x + i, x + i + 32, rows + i, [](float v) { return double{tensor::BFloat16(v)}; });
          break;
        case BlockRows::f32: std::copy_n(x + i, 32, rows + i); break;
      }
    }
    auto* line = reinterpret_cast<float*>(rows + e.rows * k);  // [k]
    for (int64_t n = 0; n < e.w.n; ++n) {
      e.w.format->decode(in_ptr<uint8_t>(args, kBlWeights) + n * e.w.row_bytes(), k / e.w.format->weights,
                         line);
      for (int64_t m = 0; m < e.rows; ++m) {
        double sum = bias == nullptr ? 0 : static_cast<double>(bias[n]);
        for (int64_t i = 0; i < k; ++i) sum += rows[m * k + i] * static_cast<double>(line[i]);
        out_ptr<float>(args, 0)[m * e.w.n + n] = static_cast<float>(sum);
      }
    }
  };
  return {run, e.rows * k * 8 + k * 4};
}

/// Gathers rows by index with at(row, out); an index out of range is reported and gives zeros.
template <class At>
void gather_rows(const ir::RunArgs& args, const IndexReader& reader, const BlockMatrix& m, int64_t count,
                 const At& at) {
  for_rows(args, count, m.k, [&](int64_t i) {
    float* y = out_ptr<float>(args, 0) + i * m.k;
    const int64_t row = reader.checked(args.in[kBgIndices], i, m.n, args.status);
    if (row < 0) {
      std::fill_n(y, m.k, 0.0f);
    } else {
      at(row, y);
    }
  });
}

ir::BoundKernel prepare_gather(const ir::KernelInit& init) {
  const BlockMatrix m = block_matrix(init.node, kBgWeights);
  const int64_t count = tensor::element_count(init.node.in_dims(kBgIndices));
  const IndexReader reader(init.node.in[kBgIndices].dtype);
  return {[m, count, reader](const ir::RunArgs& args) {
    const auto* blocks = in_ptr<uint8_t>(args, kBgWeights);
    gather_rows(args, reader, m, count, [&](int64_t row, float* y) {
      m.format->decode(blocks + row * m.row_bytes(), m.k / m.format->weights, y);
    });
  }};
}

/// Reads the packed matrix of the block_linear that has the same operand, so that only one copy exists.
ir::BoundKernel prepare_gather_packed(const ir::KernelInit& init) {
  const BlockMatrix m = block_matrix(init.node, kBgWeights);
  const int64_t count = tensor::element_count(init.node.in_dims(kBgIndices));
  const IndexReader reader(init.node.in[kBgIndices].dtype);
  const auto packed = packed_matrix(init, kBgWeights);
  ir::BoundKernel bound{.unread_inputs = 1u << kBgWeights};
  if (packed == nullptr) return bound;
  bound.run = [m, count, reader, packed](const ir::RunArgs& args) {
    gather_rows(args, reader, m, count,
                [&](int64_t row, float* y) { cpu::unpack_row(packed->blocks, row, y); });
  };
  return bound;
}

ir::Kernel kernel_of(const char* name, bool is_reference,
                     std::function<ir::Refusal(const ir::NodeView&)> refuse, PrepareFn prepare) {
  ir::Kernel k{.name = name, .is_reference = is_reference};
  k.refuse = std::move(refuse);
  k.prepare = std::move(prepare);
  return k;
}
ir::Refusal takes_all(const ir::NodeView&) { return std::nullopt; }

}  // namespace

HeldBlocks hold_packed(const tensor::Tensor& weights, const tensor::BlockFormat& format,
                       base::SharedCache& packs, int threads) {
  const std::shared_ptr<const PackedMatrix> packed = pack(weights, format, pack_slab(packs), threads);
  return {tensor::absent(weights.dtype(), weights.dims(), packed), packed};
}

std::vector<ir::Kernel> dequantize_blocks_cpu_kernels() {
  return {kernel_of("reference", true, takes_all, prepare_dequantize)};
}

std::vector<ir::Kernel> block_linear_cpu_kernels() {
  const auto refuse_type = [](const ir::NodeView& n) { return refuse_dtype(n, kBlX, {DType::f32}); };
  const ir::Kernel packed = kernel_of(
      "packed", false,
      [refuse_type](const ir::NodeView& n) {
        const ir::Refusal type = refuse_type(n);
        return type ? type : refuse_packed(n, kBlWeights);
      },
      prepare_packed);
  const auto refuse_joined = [refuse_type](const ir::NodeView& n) -> ir::Refusal {
    if (n.present(kBlNorm) || n.present(kBlResidual)) return "a norm or a residual: its parts have kernels";
    return refuse_type(n);
  };
  const ir::Kernel reference = kernel_of("reference", true, refuse_joined, prepare_reference);
  return {packed, via_f32(packed), reference, via_f32(reference)};
}

std::vector<ir::Kernel> block_linears_cpu_kernels() {
  const auto refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (auto why = refuse_dtype(n, kBlX, {DType::f32})) return why;
    const BlockLinearsExtents e = block_linears_extents(n);
    for (size_t i = 0; i < e.count; ++i) {
      if (auto why = refuse_packed(n, e.weights(i))) return why;
    }
    return std::nullopt;
  };
  const ir::Kernel packed = kernel_of("packed", false, refuse, prepare_joined);
  return {packed, via_f32(packed)};
}

std::vector<ir::Kernel> block_gather_cpu_kernels() {
  const auto refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (n.attrs.get_int("packed", 0) == 0) return "no product reads the same matrix";
    return refuse_packed(n, kBgWeights);
  };
  return {kernel_of("packed", false, refuse, prepare_gather_packed),
          kernel_of("reference", true, takes_all, prepare_gather)};
}

}  // namespace trireme::ops
