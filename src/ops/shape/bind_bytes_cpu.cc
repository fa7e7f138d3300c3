// Kernels that move elements without interpreting them: binding, and the unpacking of 2- and 4-bit elements.
#include <memory>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/move/transpose_copy.h"
#include "backend/cpu/move/zero_fill.h"
#include "ops/shape/copy_ops.h"

namespace trireme::ops {
namespace {

void unpack_bits(const std::byte* packed, std::byte* bytes, int64_t count, int bits) {
  const int per_byte = 8 / bits;
  const unsigned mask = (1u << bits) - 1;
  for (int64_t i = 0; i < count; ++i) {
    const unsigned word = static_cast<unsigned>(packed[i / per_byte]);
    bytes[i] = static_cast<std::byte>(word >> (i % per_byte * bits) & mask);
  }
}

void pack_bits(const std::byte* bytes, std::byte* packed, int64_t count, int bits) {
  const int per_byte = 8 / bits;
  for (int64_t i = 0; i < count; i += per_byte) {
    unsigned word = 0;
    for (int64_t k = i; k < std::min(count, i + per_byte); ++k) {
      word |= static_cast<unsigned>(bytes[k]) << ((k - i) * bits);
    }
    packed[i / per_byte] = static_cast<std::byte>(word);
  }
}

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

constexpr size_t kMaxAddresses = StridedLoop::kMaxOperands;

/// Offsets in the workspace of a node's unpacked operands and results; -1: not packed, used in place.
struct Detour {
  int bits = 8;
  std::vector<int64_t> in_offset, out_offset, in_count, out_count;
  int64_t bytes = 0;
};

Detour plan_detour(const ir::NodeView& node) {
  Detour d;
  d.bits = tensor::bits_of(node.out[0].dtype);
  const auto place = [&](const tensor::TensorType& t, bool is_there, std::vector<int64_t>& offset,
                         std::vector<int64_t>& count) {
    const bool is_packed = is_there && tensor::bits_of(t.dtype) < 8;
    count.push_back(is_packed ? tensor::element_count(t.shape.to_dims()) : 0);
    offset.push_back(is_packed ? d.bytes : -1);
    if (is_packed) d.bytes += aligned(count.back());
  };
  for (size_t i = 0; i < node.in.size(); ++i) place(node.in[i], node.present(i), d.in_offset, d.in_count);
  for (const tensor::TensorType& t : node.out) place(t, true, d.out_offset, d.out_count);
  return d;
}

void run_around(const Detour& d, const ByteBody& body, const ir::RunArgs& args) {
  std::array<const std::byte*, kMaxAddresses> in{};
  std::array<std::byte*, kMaxAddresses> out{};
  std::byte* workspace = static_cast<std::byte*>(args.workspace);
  for (size_t i = 0; i < d.in_offset.size(); ++i) {
    in[i] = static_cast<const std::byte*>(args.in[i]);
    if (d.in_offset[i] < 0) continue;
    unpack_bits(in[i], workspace + d.in_offset[i], d.in_count[i], d.bits);
    in[i] = workspace + d.in_offset[i];
  }
  for (size_t i = 0; i < d.out_offset.size(); ++i) {
    out[i] = d.out_offset[i] < 0 ? static_cast<std::byte*>(args.out[i]) : workspace + d.out_offset[i];
  }
  body({in.data(), out.data(), cpu::pool_of(args.stream)});
  for (size_t i = 0; i < d.out_offset.size(); ++i) {
    if (d.out_offset[i] >= 0) pack_bits(out[i], static_cast<std::byte*>(args.out[i]), d.out_count[i], d.bits);
  }
}

}  // namespace

ir::BoundKernel bind_bytes(const ir::NodeView& node, ByteBody body) {
  Detour d = plan_detour(node);
  if (d.bytes == 0) {
    return {[body = std::move(body)](const ir::RunArgs& args) {
      body({reinterpret_cast<const std::byte* const*>(args.in), reinterpret_cast<std::byte* const*>(args.out),
            cpu::pool_of(args.stream)});
    }};
  }
  const size_t addresses = std::max(d.in_offset.size(), d.out_offset.size());
  if (addresses > kMaxAddresses)
    base::fail_unsupported(addresses, " packed operands or results; the most are ", kMaxAddresses);
  const int64_t bytes = d.bytes;
  return {[d = std::move(d), body = std::move(body)](const ir::RunArgs& args) { run_around(d, body, args); },
          bytes};
}

ir::BoundKernel bind_copies(const ir::NodeView& node, const std::vector<CopyJob>& jobs) {
  const int bytes = static_cast<int>(element_bytes_of(node.out[0].dtype));
  for (const CopyJob& job : jobs) {
    if (job.plan.extent.size() > static_cast<size_t>(cpu::kCopyMaxRank)) {
      base::fail_unsupported("a copy of rank ", job.plan.extent.size(), "; the largest is ",
                             cpu::kCopyMaxRank);
    }
  }
  return bind_bytes(node, [jobs, bytes](const ByteArgs& args) {
    for (const CopyJob& job : jobs) {
      if (args.out[job.out] == nullptr) continue;
      cpu::copy_strided(
          {args.in[job.in] + job.plan.in_base * bytes, args.out[job.out] + job.plan.out_base * bytes,
           job.plan.extent, job.plan.in_steps, job.plan.out_steps, bytes},
          args.pool);
    }
  });
}

ir::Kernel copy_kernel(std::function<std::vector<CopyJob>(const ir::NodeView&)> plan,
                       std::function<ir::Refusal(const ir::NodeView&)> needs) {
  ir::Kernel k{.name = "strided"};
  k.refuse = std::move(needs);
  k.prepare = [plan = std::move(plan)](const ir::KernelInit& init) {
    return bind_copies(init.node, plan(init.node));
  };
  return k;
}

ir::Kernel slice_grad_cpu_kernel() {
  ir::Kernel k{.name = "strided"};
  k.refuse = needs_values({1, 2, 3, 4});
  k.prepare = [](const ir::KernelInit& init) -> ir::BoundKernel {
    const ir::BoundKernel copy = bind_copies(init.node, plan_slice_grad(init.node));
    const int64_t bytes = tensor::bytes_of(init.node.out[0]);
    return {[run = copy.run, bytes](const ir::RunArgs& args) {
      cpu::zero_fill(args.out[0], bytes, cpu::pool_of(args.stream));
      run(args);
    }};
  };
  return k;
}

std::function<ir::Refusal(const ir::NodeView&)> needs_values(std::vector<size_t> operands) {
  return [operands = std::move(operands)](const ir::NodeView& n) -> ir::Refusal {
    for (size_t i : operands) {
      if (n.present(i) && n.value(i) == nullptr) {
        return base::concat("the value of operand ", i, " is not known before the run");
      }
    }
    return std::nullopt;
  };
}

}  // namespace trireme::ops
