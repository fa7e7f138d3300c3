// The CPU kernels of the attention family, listed op by op.
#pragma once

#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

std::vector<ir::Kernel> attention_cpu_kernels();
std::vector<ir::Kernel> attention_bsnd_cpu_kernels();
std::vector<ir::Kernel> attention_qkv_cpu_kernels();
std::vector<ir::Kernel> attention_bsnd_grad_cpu_kernels();
std::vector<ir::Kernel> attention_qkv_grad_cpu_kernels();
std::vector<ir::Kernel> attention_bsnd_mask_grad_cpu_kernels();
std::vector<ir::Kernel> attention_qkv_mask_grad_cpu_kernels();
std::vector<ir::Kernel> rotary_embedding_cpu_kernels();

/// f32 kernels on the fused block-wise attention of the CPU toolkit.
ir::Kernel fused_attention_kernel();
ir::Kernel fused_attention_bsnd_kernel();
ir::Kernel fused_attention_qkv_kernel();
ir::Kernel fused_attention_bsnd_grad_kernel();
ir::Kernel fused_attention_qkv_grad_kernel();

}  // namespace trireme::ops
