// Execution plans of cuDNN graphs: taken from the plan store, or the fastest of those that cuDNN proposes.
#include <algorithm>
#include <exception>
#include <limits>

#include "backend/cuda/cudnn/toolkit_cudnn.cuh"
#include "backend/cuda/dense/launch_timer.cuh"

namespace trireme::cuda {
namespace {

/// The first byte of a stored plan says what the rest holds.
constexpr char kRefused = '-';  ///< cuDNN has no plan; nothing follows
constexpr char kPlan = 'p';     ///< the plan as serialized by cuDNN
constexpr char kName = 'n';  ///< the name of a plan, if cuDNN cannot serialize the plan but builds it quickly

using Graph = fe::graph::Graph;

/// Finds the plan of one graph.
class PlanBuilder {
 public:
  PlanBuilder(const GemmPlace& place, const Cudnn& cudnn, const PlanWish& wish,
              const std::function<void(Graph&)>& describe)
      : place_(place), cudnn_(cudnn), wish_(wish), describe_(describe) {}

  /// Makes the graph from a stored entry; false if the entry cannot be used any more.
  bool open(std::string_view kept) {
    if (kept.empty()) return false;
    const std::string_view rest = kept.substr(1);
    // The front end parses with a JSON library that throws exceptions of its own.
    try {
      if (kept[0] == kRefused) return graph_.reset(), true;
      if (kept[0] == kPlan) return (graph_ = opened(rest)) != nullptr;
      if (kept[0] == kName) return (graph_ = named(rest)) != nullptr;
    } catch (const std::exception&) {
    }
    return false;
  }

  /// Makes the graph from cuDNN's proposals; returns the entry to store.
  std::string build() {
    graph_ = proposed();
    std::vector<int64_t> found;
    if (graph_ != nullptr) found = candidates();
    if (found.empty()) return graph_.reset(), std::string(1, kRefused);
    const int64_t best = found.size() == 1 ? found[0] : fastest(found);
    // execute() runs the plan that was built last; the second call prepares its arguments.
    const Cudnn::Lease lease(cudnn_, nullptr);
    if (graph_->build_plan_at_index(best).is_bad() || graph_->build_plans(lease.handle()).is_bad())
      return graph_.reset(), std::string(1, kRefused);
    return written(best);
  }

  std::unique_ptr<const Graph> graph() { return std::move(graph_); }

 private:
  bool fits(const Graph& graph) const {
    // The front end may add memory of its own to the plan's workspace, which its filter does not count.
    int64_t needed = 0;
    return graph.get_workspace_size(needed).is_good() && needed <= wish_.workspace_bytes;
  }

  std::unique_ptr<Graph> opened(std::string_view plan) const {
    const Cudnn::Lease lease(cudnn_, nullptr);
    auto graph = std::make_unique<Graph>();
    const std::vector<uint8_t> bytes(plan.begin(), plan.end());
    constexpr bool kEnforcePrecompiled = false, kWarmUp = false;
    const bool is_good = graph->deserialize(lease.handle(), bytes, kEnforcePrecompiled, kWarmUp).is_good();
    return is_good && fits(*graph) ? std::move(graph) : nullptr;
  }

  std::unique_ptr<Graph> named(std::string_view name) const {
    std::unique_ptr<Graph> graph = proposed();
    if (graph == nullptr) return nullptr;
    std::string own;
    for (int64_t i = 0; i < graph->get_execution_plan_count(); ++i) {
      if (graph->get_plan_name_at_index(i, own).is_bad() || own != name) continue;
      const Cudnn::Lease lease(cudnn_, nullptr);
      const bool is_built =
          graph->build_plan_at_index(i).is_good() && graph->build_plans(lease.handle()).is_good();
      return is_built && fits(*graph) ? std::move(graph) : nullptr;
    }
    return nullptr;
  }

  /// The graph with cuDNN's proposals except the unwanted ones; null if cuDNN does not support the graph.
  std::unique_ptr<Graph> proposed() const {
    const Cudnn::Lease lease(cudnn_, nullptr);
    auto graph = std::make_unique<Graph>();
    describe_(*graph);
    if (graph->validate().is_bad()) return nullptr;
    if (graph->build_operation_graph(lease.handle()).is_bad()) return nullptr;
    if (graph->create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}).is_bad()) return nullptr;
    std::vector<fe::NumericalNote_t> unwanted;
    if (wish_.checks_notes)
      unwanted = {fe::NumericalNote_t::NONDETERMINISTIC, fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION};
    if (wish_.keeps_f32) {
      unwanted.push_back(fe::NumericalNote_t::TENSOR_CORE);
      unwanted.push_back(fe::NumericalNote_t::DOWN_CONVERT_INPUTS);
    }
    graph->deselect_numeric_notes(unwanted);
    graph->deselect_workspace_greater_than(wish_.workspace_bytes);
    return graph->check_support(lease.handle()).is_good() ? std::move(graph) : nullptr;
  }

  bool is_compiled_now(int64_t plan) const {
    std::vector<fe::BehaviorNote_t> notes;
    return graph_->get_behavior_notes_for_plan_at_index(plan, notes).is_good() &&
           std::find(notes.begin(), notes.end(), fe::BehaviorNote_t::RUNTIME_COMPILATION) != notes.end();
  }

  /// Indices of plans that build, in cuDNN's order. Compiling a plan at run time takes a second or more, so
  /// only the first plan of that kind is included.
  std::vector<int64_t> candidates() const {
    constexpr size_t kMeasured = 4;
    constexpr int64_t kTried = 32;
    const bool measures = !wish_.operands.empty() && gemm_options_from_environment().measure;
    std::vector<int64_t> found;
    bool has_compiled = false;
    const int64_t count = std::min(graph_->get_execution_plan_count(), kTried);
    for (int64_t i = 0; i < count && found.size() < (measures ? kMeasured : 1); ++i) {
      const bool compiles = is_compiled_now(i);
      if ((compiles && has_compiled) || graph_->build_plan_at_index(i).is_bad() || !fits(*graph_)) continue;
      found.push_back(i);
      has_compiled = has_compiled || compiles;
    }
    return found;
  }

  /// Returns the fastest of these plans; the first one if there is no memory for a trial.
  int64_t fastest(const std::vector<int64_t>& plans) const {
    std::vector<float> ms;
    try {
      ms = cudnn_.alone([&] { return times_of(plans); });
    } catch (const base::Error& e) {
      if (e.code() != base::ErrorCode::exhausted) throw;
      return plans[0];
    }
    return plans[static_cast<size_t>(std::min_element(ms.begin(), ms.end()) - ms.begin())];
  }

  std::vector<float> times_of(const std::vector<int64_t>& plans) const {
    std::vector<std::shared_ptr<void>> memory;
    const auto room = [&](int64_t bytes) {
      memory.push_back(place_.device->allocate(bytes));
      // In every type the byte 0x3c repeated is a small number; zeros would run faster than real data.
      check_cuda(cudaMemset(memory.back().get(), 0x3c, static_cast<size_t>(bytes)), "filling memory");
      return memory.back().get();
    };
    CudnnAddresses at;
    for (const auto& [uid, bytes] : wish_.operands) at[uid] = room(bytes);
    void* workspace = cudnn_aligned(room(wish_.workspace_bytes + kCudnnAlignment));
    LaunchTimer timer;
    const Cudnn::Lease lease(cudnn_, nullptr);
    if (fe::detail::set_stream(lease.handle(), timer.queue()) != CUDNN_STATUS_SUCCESS)
      return std::vector<float>(plans.size(), 0.0f);
    std::vector<float> ms;
    for (const int64_t plan : plans) {
      bool is_good = true;
      const float median = timer.median_ms([&](cudaStream_t) {
        is_good = is_good && graph_->execute_plan_at_index(lease.handle(), at, workspace, plan).is_good();
      });
      ms.push_back(is_good ? median : std::numeric_limits<float>::infinity());
    }
    return ms;
  }

  /// The serialized plan if cuDNN can write it and read it back, else the plan's name.
  std::string written(int64_t plan) const {
    std::vector<uint8_t> bytes;
    constexpr bool kStructure = false;
    std::string name;
    try {
      if (graph_->serialize(bytes, kStructure).is_good()) {
        const std::string text(bytes.begin(), bytes.end());
        if (opened(text) != nullptr) return kPlan + text;
      }
    } catch (const std::exception&) {
      // Thrown by the JSON library; the name is stored instead.
    }
    return graph_->get_plan_name_at_index(plan, name).is_good() ? kName + name : std::string();
  }

  const GemmPlace& place_;
  const Cudnn& cudnn_;
  const PlanWish& wish_;
  const std::function<void(Graph&)>& describe_;
  std::unique_ptr<Graph> graph_;
};

}  // namespace

std::unique_ptr<const fe::graph::Graph> ready_graph(const GemmPlace& place, const Cudnn& cudnn,
                                                    const PlanWish& wish,
                                                    const std::function<void(fe::graph::Graph&)>& describe) {
  check_cuda(cudaSetDevice(cudnn.ordinal()), "choosing a GPU");  // the front end asks for its architecture
  PlanBuilder builder(place, cudnn, wish, describe);
  const bool measures = gemm_options_from_environment().measure;
  const std::string key =
      base::concat(cudnn.device_key(), "\n", wish.key, "\n", wish.checks_notes, wish.keeps_f32, " ",
                   wish.workspace_bytes, measures ? " measured" : " first");
  cudnn.plans().get(
      key, [&](std::string_view kept) { return builder.open(kept); }, [&] { return builder.build(); });
  return builder.graph();
}

}  // namespace trireme::cuda
