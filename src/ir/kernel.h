// How a kernel offers itself to the compiler: says yes or why not, then binds itself to one node with fixed
// shapes.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/memory/shared_cache.h"
#include "ir/schema.h"
#include "tensor/device.h"

namespace trireme::base {
class ThreadPool;
}
namespace trireme::comm {
class Mesh;
}

namespace trireme::ir {

/// Why a kernel cannot run a node, in words; nullopt means it can.
using Refusal = std::optional<std::string>;

/// What a kernel found wrong with the data it was given (an index out of range): kernels do not throw, so the
/// first one to fail records it here and goes on without touching memory outside its operands. Whoever runs
/// kernels throws invalid_argument from it afterwards.
class RunStatus {
 public:
  /// Records a failure unless there is one already; `message` must live for ever (a literal). Any thread.
  void fail(const char* message, int64_t value) {
    bool expected = false;
    if (!taken_.compare_exchange_strong(expected, true)) return;
    value_ = value;
    message_.store(message, std::memory_order_release);
  }
  bool failed() const { return message_.load(std::memory_order_acquire) != nullptr; }
  /// Throws invalid_argument if a kernel failed. Resets, so that the status can be used again.
  void throw_if_failed(std::string_view op) {
    const char* message = message_.load(std::memory_order_acquire);
    if (message == nullptr) return;
    message_.store(nullptr, std::memory_order_relaxed);
    taken_.store(false, std::memory_order_relaxed);
    base::fail_invalid(op, ": ", message, ": ", value_);
  }

 private:
  std::atomic<bool> taken_{false};
  std::atomic<const char*> message_{nullptr};
  int64_t value_ = 0;
};

/// Operand and result addresses of one launch, in schema order; an absent optional operand or result is null.
struct RunArgs {
  const void* const* in;
  void* const* out;
  void* workspace;
  tensor::Stream& stream;
  RunStatus* status = nullptr;  ///< where kernels report bad data; null: they do not
  comm::Mesh* mesh = nullptr;   ///< where collectives meet the other ranks; null: one rank
  /// Where kernels of a device that runs on after a launch report bad data: two numbers in memory that both
  /// see, {0, 0} while all is well, then {step + 1, the value}. Null: they do not.
  int64_t* fault = nullptr;
  int64_t step = 0;
};

/// What `prepare` may use. `packs` shares packed weights between programs and instances of one model.
struct KernelInit {
  const NodeView& node;  ///< shapes static; valid only during prepare
  base::SharedCache& packs;
  int threads;  ///< team size of the stream that will run it; results must not depend on it
  /// The device that runs the kernel and holds what it packs. Null for the CPU, and for a program that is
  /// only inspected, whose kernels do not run.
  tensor::Device* device = nullptr;
  /// The team with which constants are packed (ops/pack_memory.h), not used by anyone else meanwhile. Null:
  /// the caller packs alone.
  base::ThreadPool* team = nullptr;
};

/// A kernel bound to one node, its choices made. `run` never allocates or locks; only collectives throw.
struct BoundKernel {
  std::function<void(const RunArgs&)> run;
  int64_t workspace_bytes = 0;
  /// Bit i: operand i is not read by run (its packed copy is), so the program need not keep it in memory.
  uint32_t unread_inputs = 0;
};

/// One implementation of an op on one kind of device. The compiler tries an op's kernels in list order.
struct Kernel {
  tensor::DeviceKind on = tensor::DeviceKind::cpu;
  std::string name;           ///< unique within the op: "packed_gemm", "reference"
  bool is_reference = false;  ///< plain loops over every type, for what the faster kernels refuse
  std::function<Refusal(const NodeView&)> refuse;
  std::function<BoundKernel(const KernelInit&)> prepare;
  /// Bit i: result 0 may overwrite operand i (same byte size, read at an index before it is written there).
  uint32_t may_overwrite = 0;
  bool is_via_f32 = false;  ///< copies 16-bit operands to f32 in its workspace, runs another kernel on them
  /// Bit i: a constant operand i is packed from what it was rounded from (tensor::source_of), never read.
  uint32_t packs_source = 0;
};

/// Key of a packed weight in KernelInit::packs: the address of the constant plus the packing's name and
/// parameters.
std::string pack_key(const tensor::Tensor& weight, std::string_view format);

/// An operator: its schema, and its kernels in the order they are tried.
struct OpDef {
  OpSchema schema;
  std::vector<Kernel> kernels;
};

/// All operators by name; built once from an explicit list, immutable afterwards.
class OpTable {
 public:
  explicit OpTable(std::vector<OpDef> ops);
  const OpDef* find(std::string_view name) const;
  /// Throws not_found naming the nearest known op.
  const OpDef& need(std::string_view name) const;
  const std::vector<OpDef>& all() const { return ops_; }

 private:
  std::vector<OpDef> ops_;  // sorted by name; addresses are stable because the table never changes
};

}  // namespace trireme::ir
