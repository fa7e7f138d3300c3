// From the attributes of fused ops to the epilogue of the CPU's dense kernels; memory for packed weights.
#pragma once

#include "backend/cpu/tiles/dense_epilogue.h"
#include "backend/cpu/dense/gemm_f32.h"
#include "ops/dense/activation.h"
#include "ops/kernel_forms.h"
#include "ops/pack_memory.h"
#include "tensor/joined.h"

namespace trireme::ops {

/// The epilogue without its pointers.
inline cpu::Epilogue epilogue_of(const ActivationSpec& s) {
  cpu::Epilogue e;
  e.act = s.kind;
  e.lo = s.lo;
  e.hi = s.hi;
  e.alpha = s.alpha;
  e.beta = s.beta;
  e.act_before_residual = s.before_residual;
  return e;
}

/// Adds the pointers of a node with `operands` operands: operand 2 is the bias, operand 3 the residual.
inline void bind_epilogue(cpu::Epilogue& e, const ir::RunArgs& args, size_t operands) {
  e.bias = opt_ptr<float>(args, 2, operands);
  e.residual = opt_ptr<float>(args, 3, operands);
}

/// A packed weight and the memory it looks at.
struct PackedWeight {
  PackMemory memory;
  cpu::PackedMatrix matrix;
};

/// Packs a constant [k, n] (or [n, k] if transposed) once per model and level. One that was joined from parts
/// is put together for the while. Null for one without content, which is not packed yet.
inline std::shared_ptr<const PackedWeight> pack_matrix(const ir::KernelInit& init,
                                                       const tensor::Tensor& weight, bool transposed) {
  const std::string format =
      base::concat("gemm_f32 ", cpu::to_string(cpu::best_isa()), transposed ? " t" : " n");
  const auto slab = pack_slab(init.packs);
  return pack_once<PackedWeight>(init.packs, weight, format, [&] {
    const int64_t rows = weight.dims()[0], cols = weight.dims()[1];
    const int64_t k = transposed ? cols : rows, n = transposed ? rows : cols;
    const PackMemory memory(slab, cpu::packed_b_bytes(k, n));
    const tensor::Tensor joined = tensor::joined_now(weight);
    const float* content = (joined.defined() ? joined : weight).data<float>().data();
    Packers packers(init, weight);
    const cpu::PackedMatrix matrix =
        cpu::pack_b({content, k, n, cols, transposed}, memory.data.get(), packers);
    return std::make_shared<PackedWeight>(PackedWeight{memory, matrix});
  });
}

}  // namespace trireme::ops
