// A program: kernels chosen, every byte placed, order fixed. Flat and printable; what the planner prices and,
// once it is bound to the content of weights, the runtime runs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace trireme::compile {

enum class SlotId : uint32_t {};
inline constexpr SlotId kNoSlot{0xffffffffu};
constexpr size_t index(SlotId id) { return static_cast<size_t>(id); }

/// input/output: memory of the caller, bound per run; constant: weights; arena: planned scratch memory;
/// state: memory that lives across runs, bound once, written in place by update ops.
enum class SlotKind : uint8_t { input, output, constant, arena, state };
std::string_view to_string(SlotKind kind);

/// The place of one value. A slot whose `root` is another slot shares that slot's bytes (views, in-place
/// results).
struct Slot {
  SlotKind kind = SlotKind::arena;
  tensor::DType dtype = tensor::DType::f32;
  tensor::Dims dims;
  int64_t bytes = 0;
  SlotId root = kNoSlot;
  int64_t offset = 0;   ///< in the arena, for arena roots
  int first_step = -1;  ///< steps [first, last] during which an arena root's bytes are live
  int last_step = -1;
  std::string name;
  tensor::Tensor constant;  ///< content of a constant slot
  bool unread = false;      ///< a constant of which kernels read only packed copies
};

struct Program;

/// With what a plan is bound to its constants: the cache of what kernels pack, and the team that packs.
struct Binding {
  base::SharedCache& packs;
  base::ThreadPool* team = nullptr;  ///< not used by anyone else meanwhile; null: the caller packs alone
};

struct Step {
  const ir::OpDef* op = nullptr;  ///< null for a copy the compiler inserted
  std::string kernel;
  std::string attrs;  ///< text, for listings
  ir::BoundKernel bound;
  std::vector<SlotId> in, out;   ///< kNoSlot for absent operands and unread results
  int64_t workspace_offset = 0;  ///< in the arena
  ir::Cost cost;
  std::string from;       ///< source layer
  std::string axes;       ///< mesh axes over whose ranks the step communicates; empty if it does not
  bool on_host = false;   ///< the CPU's kernel in a device's program: operands and results are staged
  bool is_aside = false;  ///< runs on the communication lane, in the order of such steps
  int until = -1;         ///< of a step on the lane: the first step that waits for it, else the step count
  int after_aside = -1;   ///< the last step on the lane that must be done before this one starts; -1: none
  std::vector<std::string> refusals;  ///< "kernel: reason" of those tried before
  /// Of a kernel that packs or reads large constants: prepares it from the content of the program's slots.
  /// Empty: `bound` runs.
  std::function<ir::BoundKernel(const Program&, const Step&, const Binding&)> bind = {};
};

/// Bytes a program needs, for reports.
struct MemoryPlan {
  int64_t arena_bytes = 0;     ///< planned peak of activations and workspaces
  int64_t sum_bytes = 0;       ///< what the same values would take if no memory were reused
  int64_t constant_bytes = 0;  ///< weights as they stand in the model
  int64_t state_bytes = 0;     ///< what lives across runs: trained weights, moments, statistics
};

struct Program {
  std::string name;
  tensor::DeviceKind on = tensor::DeviceKind::cpu;
  std::vector<Slot> slots;
  std::vector<Step> steps;
  std::vector<SlotId> inputs, outputs;
  std::vector<SlotId> states;  ///< in the order the executor wants their addresses; named by their slots
  std::vector<std::string> input_names, output_names;
  MemoryPlan memory;

  const Slot& slot(SlotId id) const { return slots[index(id)]; }
  const Slot& root(SlotId id) const { return slots[index(slots[index(id)].root)]; }
  ir::Cost cost() const;
  /// Whether it can run: no step waits for the content of weights.
  bool is_bound() const;
  /// Operators that run on the host though the program is a device's, with their counts: "lstm, top_k x2".
  std::string host_operators() const;
};

struct CompileOptions {
  tensor::DeviceKind on = tensor::DeviceKind::cpu;
  /// The device that holds packed weights. Null on the CPU, and for a program that is only inspected.
  tensor::Device* device = nullptr;
  /// Whether nodes for which the device has no kernel run on the CPU; otherwise they are an error.
  bool host_fallback = true;
  int threads = 1;
  std::string only_kernel = {};  ///< prefer kernels of this name ("reference"), for oracles and experiments
  /// Whether collectives run on a lane or stream of their own while steps that do not need their results
  /// proceed. Results have the same bits either way.
  bool overlap = false;
  /// Bound on the size of a value and of the arena, checked before kernels build tables for the extents.
  int64_t memory_bytes = INT64_MAX;
};

/// Compiles a graph whose shapes are all static. Nodes without a kernel are rewritten by their `expand`; on
/// devices those whose parts have none either run on the host (Step::on_host). Of constants above
/// tensor::kSmallBytes only types are looked at: their content need not be there, and nothing is packed.
/// Throws unsupported naming the node and every kernel's reason when nothing runs it, exhausted when it needs
/// too much memory.
Program plan(const ir::Graph& graph, const CompileOptions& options, base::SharedCache& packs);
/// Prepares the steps of a plan that read constants, from the content of its slots, which may have been given
/// since. Places, order and listings stay. Throws invalid_argument naming a constant that still has none.
Program bind(Program plan, const Binding& with);
/// The same where it is shared; the program itself if it is bound.
std::shared_ptr<const Program> bind(std::shared_ptr<const Program> plan, const Binding& with);
/// Both at once.
Program compile(const ir::Graph& graph, const CompileOptions& options, base::SharedCache& packs);

/// Listings for `trireme inspect`: steps, memory map with the largest values, kernels that refused.
std::string print_steps(const Program& program);
std::string print_memory(const Program& program);
std::string print_refusals(const Program& program);

/// Places buffers of given sizes and live intervals so that no two that live together overlap; returns
/// offsets. Greedy by size: within a few percent of the lower bound on the networks we serve (Pisarchyk & Lee
/// 2020).
struct Interval {
  int64_t bytes = 0;
  int first = 0, last = 0;
  int64_t offset = 0;
};
/// Fills the offsets, aligned to `alignment` bytes; returns the arena size.
int64_t place(std::vector<Interval>& intervals, int64_t alignment = 64);

}  // namespace trireme::compile
