// Graph -> Program: chooses kernels, aliases views and in-place results, plans memory, and then prepares the
// steps that read weights.
#include <algorithm>
#include <atomic>
#include <exception>
#include <map>

#include "compile/choose.h"
#include "compile/lanes.h"
#include "compile/program.h"
#include "base/threads/thread_pool.h"
#include "ir/updates.h"
#include "tensor/absent.h"

namespace trireme::compile {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

ir::BoundKernel copy_kernel(int64_t bytes) {
  return {.run = [bytes](const ir::RunArgs& a) { a.stream.copy(a.out[0], a.in[0], bytes); }};
}

/// What is needed to prepare a step; kept by steps that wait for the content of weights.
struct Preparation {
  std::shared_ptr<const Graph> graph;
  const Node* node;
  const ir::Kernel* kernel;
  int threads;
  tensor::Device* device;

  /// Prepares the node with `view`. Errors name the node.
  ir::BoundKernel run(const ir::NodeView& view, const Binding& with) const {
    try {
      return kernel->prepare({view, with.packs, threads, device, with.team});
    } catch (const base::Error& e) {
      throw e.with(
          base::concat("node '", node->from, "' (", node->op_name(), ", kernel ", kernel->name, ")"));
    }
  }

  /// Prepares the step from the content of the program's slots.
  ir::BoundKernel bind(const Program& program, const Step& step, const Binding& with) const {
    ir::NodeView view = graph->view(*node);
    for (size_t i = 0; i < view.known.size(); ++i) {
      if (view.known[i] == nullptr) continue;
      const Slot& slot = program.slot(step.in[i]);
      view.known[i] = &slot.constant;
    }
    ir::BoundKernel bound = run(view, with);
    for (size_t i = 0; i < view.known.size() && !bound.run; ++i) {
      if (view.known[i] != nullptr && tensor::is_absent(*view.known[i]))
        base::fail_invalid("constant '", program.slot(step.in[i]).name, "' of type ", view.in[i].to_string(),
                           " has no content to run with");
    }
    base::check(bound.run && bound.workspace_bytes == step.bound.workspace_bytes &&
                    bound.unread_inputs == step.bound.unread_inputs,
                "kernel ", kernel->name, " of '", node->op_name(), "' is not what it was planned as");
    return bound;
  }
};

class Compiler {
 public:
  Compiler(Graph graph, const CompileOptions& options, base::SharedCache& packs)
      : shared_(std::make_shared<const Graph>(std::move(graph))),
        graph_(*shared_),
        options_(options),
        packs_(packs) {}

  Program run() {
    program_.name = graph_.name;
    program_.on = options_.on;
    add_slots();
    for (const size_t n : step_order(graph_, options_.overlap)) {
      if (!graph_.nodes()[n].op->schema.is_view) choose_kernel(graph_.nodes()[n]);
    }
    prepare();
    for (Chosen& chosen : chosen_) add_step(chosen);
    claim_outputs();
    if (options_.overlap) plan_lanes(program_);
    share_in_place();
    plan_memory();
    return std::move(program_);
  }

 private:
  Slot& slot(SlotId id) { return program_.slots[index(id)]; }
  SlotId slot_of(ValueId id) const {
    return id == ir::kNoValue ? kNoSlot : SlotId(static_cast<uint32_t>(ir::index(id)));
  }
  SlotId root_of(SlotId id) { return slot(id).root; }

  /// Refuses a value that no memory can hold, even if one of its extents is 0: kernels make tables by extent.
  void refuse_impossible(const ir::Value& v, const tensor::Dims& dims) const {
    tensor::Dims solid = dims;
    std::replace(solid.begin(), solid.end(), int64_t{0}, int64_t{1});
    const int64_t bytes = tensor::bytes_of(v.type.dtype, tensor::element_count(solid));
    if (bytes <= options_.memory_bytes) return;
    base::fail(base::ErrorCode::exhausted, "value '", v.name, "' of type ", v.type.to_string(), " needs ",
               bytes, " bytes, there are ", options_.memory_bytes);
  }

  /// One slot per value, with the same index; views have the root of their operand.
  void add_slots() {
    for (const ir::Value& v : graph_.values()) {
      Slot s;
      s.dtype = v.type.dtype;
      s.dims = v.type.shape.to_dims();
      refuse_impossible(v, s.dims);
      s.bytes = tensor::bytes_of(v.type);
      s.name = v.name;
      s.root = SlotId(static_cast<uint32_t>(program_.slots.size()));
      if (v.kind == ir::ValueKind::input) s.kind = SlotKind::input;
      if (v.kind == ir::ValueKind::state) {
        s.kind = SlotKind::state;
        program_.states.push_back(s.root);
        program_.memory.state_bytes += s.bytes;
      }
      if (v.data.defined()) {
        s.kind = SlotKind::constant;
        s.constant = v.data;
        s.unread = true;
        program_.memory.constant_bytes += s.bytes;
      }
      program_.slots.push_back(std::move(s));
    }
    is_view_.assign(program_.slots.size(), 0);
    for (const Node& node : graph_.nodes()) {
      if (!node.op->schema.is_view) continue;
      slot(slot_of(node.out[0])).root = root_of(slot_of(node.in[0]));
      is_view_[index(slot_of(node.out[0]))] = 1;
    }
    for (ValueId id : graph_.inputs()) {
      program_.inputs.push_back(slot_of(id));
      program_.input_names.push_back(graph_.value(id).name);
    }
  }

  /// A node that becomes a step, and the choices made for it.
  struct Chosen {
    const Node* node;
    const ir::Kernel* kernel;
    Step step;
    std::exception_ptr failure = {};  ///< of its preparation
  };

  void choose_kernel(const Node& node) {
    const ir::NodeView view = graph_.view(node);
    Step step;
    const Choice choice = choose(node, view, options_, step.refusals);
    step.op = node.op;
    step.on_host = choice.on_host;
    step.kernel = choice.on_host ? "host:" + choice.kernel->name : choice.kernel->name;
    step.attrs = node.attrs.to_string();
    step.from = node.from;
    if (node.op->schema.is_collective) step.axes = node.attrs.get_string("axes", "");
    step.cost = ir::cost_of(node.op->schema, view);
    chosen_.push_back({&node, choice.kernel, std::move(step)});
  }

  /// Large constants are passed to kernels as types only, and steps that need their content wait for it. If
  /// the device is present, kernels get the content at once: its libraries take seconds to prepare, which is
  /// done once.
  void prepare(Chosen& chosen) const {
    const Preparation by{shared_, chosen.node, chosen.kernel, options_.threads,
                         chosen.step.on_host ? nullptr : options_.device};
    ir::NodeView view = graph_.view(*chosen.node);
    const bool is_there = options_.device != nullptr && options_.on != tensor::DeviceKind::cpu;
    std::vector<tensor::Tensor> types(view.known.size());
    for (size_t i = 0; i < view.known.size() && !is_there; ++i) {
      if (view.known[i] == nullptr) continue;
      types[i] = tensor::without_content(*view.known[i]);
      view.known[i] = &types[i];
    }
    try {
      chosen.step.bound = by.run(view, {packs_});
    } catch (...) {
      chosen.failure = std::current_exception();
    }
    if (chosen.step.bound.run) return;
    chosen.step.bind = [by](const Program& program, const Step& step, const Binding& with) {
      return by.bind(program, step, with);
    };
  }

  /// Steps of a device are prepared concurrently, since its libraries choose and compile kernels for seconds.
  /// Steps of the CPU are prepared one at a time, since each packs a weight and needs memory for it. Throws
  /// the first failure in the order of steps.
  void prepare() {
    std::atomic<int64_t> failed = INT64_MAX;  // steps after it need not be prepared
    const auto prepare_one = [&](int64_t i) {
      if (failed < i) return;
      Chosen& chosen = chosen_[static_cast<size_t>(i)];
      prepare(chosen);
      if (!chosen.failure) return;
      for (int64_t at = failed; i < at && !failed.compare_exchange_weak(at, i);) {
      }
    };
    const auto count = static_cast<int64_t>(chosen_.size());
    const bool is_on_device = options_.device != nullptr && options_.on != tensor::DeviceKind::cpu;
    const int64_t threads = is_on_device ? std::min<int64_t>(options_.threads, count) : 1;
    base::ThreadPool team(static_cast<int>(std::max<int64_t>(threads, 1)));
    team.run(count, prepare_one);
    for (const Chosen& chosen : chosen_) {
      if (chosen.failure) std::rethrow_exception(chosen.failure);
    }
  }

  void add_step(Chosen& chosen) {
    const Node& node = *chosen.node;
    Step& step = chosen.step;
    for (size_t i = 0; i < node.in.size(); ++i) {
      const bool unread = i < 32 && (step.bound.unread_inputs >> i & 1u);
      step.in.push_back(slot_of(node.in[i]));
      if (node.in[i] != ir::kNoValue && !unread) slot(root_of(step.in.back())).unread = false;
    }
    for (ValueId id : node.out) step.out.push_back(slot_of(id));
    alias_updates(node, step);
    overwrites_.push_back(chosen.kernel->may_overwrite);
    program_.steps.push_back(std::move(step));
  }

  /// Aliases new contents of states with the old ones, which they overwrite.
  void alias_updates(const Node& node, Step& step) {
    for (const ir::StateUpdate& u : ir::updates_of(node)) {
      const SlotId state = step.in[u.operand];
      // A state that is a computed value has memory of its own.
      if (slot(root_of(state)).kind == SlotKind::arena) continue;
      base::check(slot(state).kind == SlotKind::state && slot(state).root == state, "node '", node.from,
                  "' (", node.op_name(), ") updates operand ", u.operand, ", which is no state");
      if (step.out[u.result] == kNoSlot) {
        step.out[u.result] = state;
      } else {
        slot(step.out[u.result]).root = state;
        is_view_[index(step.out[u.result])] = 1;
      }
    }
  }

  bool is_updated(SlotId state) const {
    return std::any_of(program_.steps.begin(), program_.steps.end(), [&](const Step& step) {
      return std::any_of(step.out.begin(), step.out.end(),
                         [&](SlotId id) { return id != kNoSlot && program_.slots[index(id)].root == state; });
    });
  }

  /// Places graph outputs in the caller's memory: their root becomes an output slot, or a step copies them to
  /// a new one.
  void claim_outputs() {
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      const SlotId id = slot_of(graph_.outputs()[i]);
      Slot& root = slot(root_of(id));
      SlotId out = id;
      if (root.kind == SlotKind::arena) {
        root.kind = SlotKind::output;
        out = root_of(id);
        // The caller sees the extents of the output itself, not of the value that it is a view of.
        output_dims_.emplace_back(out, slot(id).dims);
      } else {
        // Copies run last, so they would see the content after the update.
        base::check(root.kind != SlotKind::state || root_of(id) != id || !is_updated(id), "output '",
                    graph_.output_names()[i], "' is a state that the program updates");
        root.unread = false;
        Slot copy = slot(id);
        copy.kind = SlotKind::output;
        copy.constant = {};
        copy.root = SlotId(static_cast<uint32_t>(program_.slots.size()));
        out = copy.root;
        program_.slots.push_back(copy);
        is_view_.push_back(0);
        program_.steps.push_back({.op = nullptr,
                                  .kernel = "copy",
                                  .attrs = {},
                                  .bound = copy_kernel(copy.bytes),
                                  .in = {id},
                                  .out = {out},
                                  .cost = {0, 2.0 * static_cast<double>(copy.bytes)},
                                  .from = graph_.output_names()[i]});
        overwrites_.push_back(0);
      }
      program_.outputs.push_back(out);
      program_.output_names.push_back(graph_.output_names()[i]);
    }
    for (auto& [id, dims] : output_dims_) slot(id).dims = dims;
  }

  /// The last step that reads each root.
  std::vector<int> last_reads() {
    std::vector<int> last(program_.slots.size(), -1);
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      for (SlotId id : program_.steps[s].in) {
        if (id != kNoSlot) last[index(root_of(id))] = static_cast<int>(s);
      }
    }
    return last;
  }

  /// Whether result `r` of a step may use the memory of operand `i`. Result 0 may if the kernel allows it;
  /// the results of a collective may each use the memory of the operand with the same number.
  bool may_share(size_t step, size_t r, size_t i) const {
    const uint32_t mask = overwrites_[step];
    if (!program_.steps[step].axes.empty()) return mask != 0 && r == i;
    return r == 0 && i < 32 && (mask >> i & 1u);
  }

  /// Lets results reuse the memory of operands that are read last by their step, if the kernel allows it.
  void share_in_place() {
    std::vector<int> last = last_reads();
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      const size_t results = program_.steps[s].axes.empty() ? 1 : program_.steps[s].out.size();
      for (size_t r = 0; r < std::min(results, program_.steps[s].out.size()); ++r) share_result(s, r, last);
    }
  }

  /// Whether an earlier aside step that reads the root may still be running during step s.
  bool is_read_aside(SlotId victim, size_t s) const {
    for (size_t q = 0; q < s; ++q) {
      const Step& aside = program_.steps[q];
      if (!aside.is_aside || aside.until <= static_cast<int>(s)) continue;
      const bool reads = std::any_of(aside.in.begin(), aside.in.end(), [&](SlotId id) {
        return id != kNoSlot && program_.slots[index(id)].root == victim;
      });
      // Aside steps run in order, so another aside step comes after it.
      if (reads && !program_.steps[s].is_aside) return true;
    }
    return false;
  }

  void share_result(size_t s, size_t r, std::vector<int>& last) {
    const Step& step = program_.steps[s];
    if (step.out[r] == kNoSlot || slot(step.out[r]).kind != SlotKind::arena) return;
    for (size_t i = 0; i < step.in.size(); ++i) {
      if (!may_share(s, r, i) || step.in[i] == kNoSlot) continue;
      const SlotId victim = root_of(step.in[i]);
      const bool dies = last[index(victim)] == static_cast<int>(s) && !is_read_aside(victim, s);
      const bool read_twice = std::count_if(step.in.begin(), step.in.end(), [&](SlotId id) {
                                return id != kNoSlot && root_of(id) == victim;
                              }) > 1;
      // Equal bytes of elements of another width are another number of elements: the operand is spread over
      // the result, and an element of it is read after its bytes were written.
      const auto width = [&](SlotId id) { return tensor::bits_of(slot(id).dtype); };
      if (slot(victim).kind != SlotKind::arena || !dies || read_twice ||
          slot(victim).bytes != slot(step.out[r]).bytes || width(step.in[i]) != width(step.out[r])) {
        continue;
      }
      const SlotId old_root = step.out[r];
      for (Slot& other : program_.slots) {
        if (other.root == old_root) other.root = victim;
      }
      last[index(victim)] = std::max(last[index(victim)], last[index(old_root)]);
      return;
    }
  }

  /// Counts the bytes of the plan; stops far above any machine's memory, so that no later sum overflows.
  void add_planned(int64_t bytes, const std::string& what) {
    constexpr int64_t kLimit = int64_t{1} << 55;
    if (bytes > kLimit || program_.memory.sum_bytes > kLimit - bytes) {
      base::fail(base::ErrorCode::exhausted, "the program needs more than ", kLimit, " bytes, among them ",
                 bytes, " for ", what);
    }
    program_.memory.sum_bytes += bytes;
  }

  void hold(SlotId id, int step) {
    if (id == kNoSlot) return;
    Slot& root = slot(root_of(id));
    root.last_step = std::max(root.last_step, step);
  }

  void plan_memory() {
    std::vector<Interval> intervals;
    std::vector<int64_t*> offsets;
    const auto touch = [&](SlotId id, int step) {
      if (id == kNoSlot) return;
      Slot& root = slot(root_of(id));
      if (root.first_step < 0) root.first_step = step;
      root.last_step = step;
    };
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      for (SlotId id : program_.steps[s].in) touch(id, static_cast<int>(s));
      for (SlotId id : program_.steps[s].out) touch(id, static_cast<int>(s));
    }
    // Values that an aside step reads or writes stay alive until a step has waited for it.
    for (const Step& step : program_.steps) {
      if (!step.is_aside) continue;
      for (SlotId id : step.in) hold(id, step.until - 1);
      for (SlotId id : step.out) hold(id, step.until - 1);
    }
    for (size_t i = 0; i < program_.slots.size(); ++i) {
      Slot& s = program_.slots[i];
      if (s.kind != SlotKind::arena || is_view_[i]) continue;
      add_planned(s.bytes, base::concat("a value of shape ", tensor::to_string(s.dims)));
      if (index(s.root) != i || s.first_step < 0) continue;
      intervals.push_back({s.bytes, s.first_step, s.last_step});
      offsets.push_back(&s.offset);
    }
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      const int64_t bytes = program_.steps[s].on_host ? 0 : program_.steps[s].bound.workspace_bytes;
      if (bytes == 0) continue;
      add_planned(bytes, base::concat("the workspace of '", program_.steps[s].from, "'"));
      const Step& step = program_.steps[s];
      intervals.push_back({bytes, static_cast<int>(s), step.is_aside ? step.until - 1 : static_cast<int>(s)});
      offsets.push_back(&program_.steps[s].workspace_offset);
    }
    // GPU libraries require this alignment for workspaces.
    constexpr int64_t kCpuAlignment = 64, kDeviceAlignment = 256;
    program_.memory.arena_bytes =
        place(intervals, options_.on == tensor::DeviceKind::cpu ? kCpuAlignment : kDeviceAlignment);
    if (program_.memory.arena_bytes > options_.memory_bytes) {
      const auto largest =
          std::max_element(intervals.begin(), intervals.end(),
                           [](const Interval& a, const Interval& b) { return a.bytes < b.bytes; });
      base::fail(base::ErrorCode::exhausted, "the program needs ", program_.memory.arena_bytes,
                 " bytes for activations, there are ", options_.memory_bytes, "; the largest takes ",
                 largest->bytes);
    }
    for (size_t i = 0; i < intervals.size(); ++i) *offsets[i] = intervals[i].offset;
  }

  std::shared_ptr<const Graph> shared_;
  const Graph& graph_;
  const CompileOptions& options_;
  base::SharedCache& packs_;
  Program program_;
  std::vector<Chosen> chosen_;        ///< in step order
  std::vector<uint32_t> overwrites_;  ///< per step: Kernel::may_overwrite
  std::vector<char> is_view_;         ///< per slot of a value
  std::vector<std::pair<SlotId, tensor::Dims>> output_dims_;
};

}  // namespace

ir::Cost Program::cost() const {
  ir::Cost total;
  for (const Step& s : steps) total.flop += s.cost.flop, total.bytes += s.cost.bytes;
  return total;
}

std::string Program::host_operators() const {
  std::map<std::string_view, int> counts;
  for (const Step& s : steps) {
    if (s.on_host) ++counts[s.op->schema.name];
  }
  std::string text;
  for (const auto& [op, count] : counts) {
    text += base::concat(text.empty() ? "" : ", ", op, count > 1 ? base::concat(" x", count) : "");
  }
  return text;
}

bool Program::is_bound() const {
  return std::none_of(steps.begin(), steps.end(), [](const Step& s) { return static_cast<bool>(s.bind); });
}

Program plan(const Graph& graph, const CompileOptions& options, base::SharedCache& packs) {
  Graph ready = with_kernels(graph, options);
  ready.sort();
  return Compiler(std::move(ready), options, packs).run();
}

Program bind(Program plan, const Binding& with) {
  for (Step& step : plan.steps) {
    if (!step.bind) continue;
    step.bound = step.bind(plan, step, with);
    step.bind = nullptr;
  }
  return plan;
}

std::shared_ptr<const Program> bind(std::shared_ptr<const Program> plan, const Binding& with) {
  return plan->is_bound() ? plan : std::make_shared<const Program>(bind(*plan, with));
}

Program compile(const Graph& graph, const CompileOptions& options, base::SharedCache& packs) {
  return bind(plan(graph, options, packs), {packs});
}

}  // namespace trireme::compile
