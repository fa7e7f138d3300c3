// Measures what batches cost.
#include "tune/batch_costs.h"

#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>

#include "base/machine/cpu_info.h"

namespace trireme::tune {
namespace {

/// Samples of one measurement that the journal keeps: enough for medians and tails of a probe.
constexpr size_t kMostSamples = 64;
constexpr size_t kFewestRuns = 3;

/// The sessions of one layout, each with its batches prepared.
class Bench {
 public:
  Bench(const Subject& subject, size_t variant, Layout layout) : subject_(subject) {
    const Variant& v = subject.variants[variant];
    for (int i = 0; i < layout.instances; ++i) {
      sessions_.push_back(std::make_unique<engine::Session>(
          v.model, engine::SessionOptions{.threads = layout.threads,
                                          .strategy = {.precision = {.compute = v.precision}}}));
      runners_.push_back(std::make_unique<sched::BatchRunner>(*sessions_.back(), subject.padding));
    }
  }

  /// Runs batches on `busy` instances at once for `probe_ns` after one to warm up; times of all of them.
  std::vector<double> measure(size_t group, int64_t rows, int busy, int64_t probe_ns) {
    for (int i = 0; i < busy; ++i) run(static_cast<size_t>(i), group, rows);
    std::vector<std::vector<double>> times(static_cast<size_t>(busy));
    std::vector<std::exception_ptr> failures(static_cast<size_t>(busy));
    std::latch ready(busy);
    // Who ends first keeps running, so that the others are measured in company to their end.
    std::atomic<int> unfinished{busy};
    std::vector<std::thread> others;
    const auto work = [&](size_t i) {
      ready.arrive_and_wait();
      try {
        times[i] = run_until(i, group, rows, clock_.now_ns() + probe_ns);
        --unfinished;
        while (unfinished.load() > 0) run(i, group, rows);
      } catch (const std::exception&) {
        failures[i] = std::current_exception();
        unfinished.store(-busy);
      }
    };
    for (int i = 1; i < busy; ++i) others.emplace_back(work, static_cast<size_t>(i));
    work(0);
    for (std::thread& t : others) t.join();
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
    std::vector<double> all;
    for (const auto& list : times) all.insert(all.end(), list.begin(), list.end());
    return thinned(std::move(all));
  }

  Footprint footprint(int64_t rows) {
    Footprint f;
    for (const Group& g : subject_.groups) {
      std::vector<tensor::Dims> shapes;
      for (size_t i = 0; i < g.example.size(); ++i) {
        tensor::Dims dims = g.example[i].dims();
        if (subject_.is_batched()) dims[0] = rows;
        const auto& padded = subject_.padding.padded_inputs;
        if (std::find(padded.begin(), padded.end(), i) != padded.end())
          dims[1] = sched::bucket_of(subject_.padding.length_buckets, dims[1]);
        shapes.push_back(std::move(dims));
      }
      const compile::MemoryPlan& memory = sessions_[0]->prepare(shapes).memory;
      f.weight_bytes = std::max(f.weight_bytes, memory.constant_bytes);
      f.arena_bytes = std::max(f.arena_bytes, memory.arena_bytes);
    }
    return f;
  }

 private:
  std::vector<double> run_until(size_t instance, size_t group, int64_t rows, int64_t end_ns) {
    std::vector<double> times;
    for (int64_t now_ns = clock_.now_ns(); now_ns < end_ns || times.size() < kFewestRuns;) {
      run(instance, group, rows);
      const int64_t start_ns = std::exchange(now_ns, clock_.now_ns());
      times.push_back(static_cast<double>(now_ns - start_ns));
    }
    return times;
  }

  /// One batch of requests, through gathering and taking apart.
  void run(size_t instance, size_t group, int64_t rows) {
    const std::vector<tensor::Tensor>& example = subject_.groups[group].example;
    const int64_t rows_each = subject_.is_batched() && !example.empty() ? example[0].dims()[0] : 1;
    std::vector<sched::Request> batch;
    std::optional<base::Error> error;
    for (int64_t have = 0; have < rows; have += rows_each) {
      batch.push_back({.inputs = example, .rows = rows_each, .sink = [&error](sched::Outcome&& outcome) {
                         if (outcome.error) error = outcome.error;
                       }});
    }
    runners_[instance]->run(batch, clock_, {});
    if (error) throw error->with("measuring a batch");
  }

  /// In order, at even distances: the same quantiles with fewer numbers.
  static std::vector<double> thinned(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    if (values.size() <= kMostSamples) return values;
    std::vector<double> few;
    for (size_t i = 0; i < kMostSamples; ++i)
      few.push_back(values[(2 * i + 1) * values.size() / (2 * kMostSamples)]);
    return few;
  }

  const Subject& subject_;
  base::SystemClock clock_;
  std::vector<std::unique_ptr<engine::Session>> sessions_;
  std::vector<std::unique_ptr<sched::BatchRunner>> runners_;
};

/// One pass over one layout of a variant; makes the bench when something is missing in the journal.
class LayoutPass {
 public:
  LayoutPass(const Subject& subject, const CostPlan& plan, Journal& journal, Costs& costs)
      : subject_(subject), plan_(plan), journal_(journal), costs_(costs) {}

  void run(size_t variant, Layout layout, int pass) {
    variant_ = variant;
    layout_ = layout;
    pass_ = pass;
    bench_.reset();
    for (size_t g = 0; g < subject_.groups.size(); ++g) run_group(g);
    if (const int64_t most = costs_.table.most_rows(variant, layout); most > 0) add_footprint(most);
  }

 private:
  void run_group(size_t group) {
    int64_t largest = 0;
    for (int64_t rows : plan_.rows) {
      const double ns = take({variant_, layout_, layout_.instances, group, rows});
      largest = rows;
      // The next size is of no use if even this one takes the whole time that an answer may.
      if (plan_.bound_ns > 0 && ns > static_cast<double>(plan_.bound_ns)) break;
    }
    if (layout_.instances == 1) return;
    take({variant_, layout_, 1, group, plan_.rows.front()});
    if (largest != plan_.rows.front()) take({variant_, layout_, 1, group, largest});
  }

  /// Median of this pass, from the journal or measured now.
  double take(const CostKey& key) {
    const std::string id = base::concat(key.id(), " pass", pass_);
    std::vector<double> samples;
    if (const base::Json* known = journal_.find(id)) {
      for (const base::Json& ns : known->as_array()) samples.push_back(ns.as_double());
    } else {
      samples = bench().measure(key.group, key.rows, key.busy, plan_.probe_ns);
      journal_.add(id, base::JsonArray(samples.begin(), samples.end()));
    }
    costs_.table.add(key, samples);
    return median(samples);
  }

  void add_footprint(int64_t rows) {
    const std::string id =
        base::concat("memory v", variant_, " i", layout_.instances, " t", layout_.threads, " r", rows);
    Footprint f;
    if (const base::Json* known = journal_.find(id)) {
      f = {known->at("weight_bytes").as_int(), known->at("arena_bytes").as_int()};
    } else {
      f = bench().footprint(rows);
      journal_.add(id,
                   base::Json::object({{"weight_bytes", f.weight_bytes}, {"arena_bytes", f.arena_bytes}}));
    }
    costs_.footprints[{variant_, layout_}] = f;
  }

  Bench& bench() {
    if (!bench_) bench_ = std::make_unique<Bench>(subject_, variant_, layout_);
    return *bench_;
  }

  const Subject& subject_;
  const CostPlan& plan_;
  Journal& journal_;
  Costs& costs_;
  size_t variant_ = 0;
  Layout layout_;
  int pass_ = 0;
  std::unique_ptr<Bench> bench_;
};

}  // namespace

Costs measure_costs(const Subject& subject, const CostPlan& plan, Journal& journal,
                    const Progress& progress) {
  Costs costs;
  LayoutPass layout_pass(subject, plan, journal, costs);
  for (int pass = 0; pass < plan.passes; ++pass) {
    for (Layout layout : plan.layouts) {
      // Variants one after another: what they are compared by lies close in time.
      for (size_t v = 0; v < subject.variants.size(); ++v) {
        if (!subject.variants[v].refusal.empty()) continue;
        progress(base::concat("costs, pass ", pass + 1, " of ", plan.passes, ": ", subject.variants[v].name,
                              ", ", layout.instances, " x ", layout.threads, " threads"));
        layout_pass.run(v, layout, pass);
      }
    }
  }
  return costs;
}

}  // namespace trireme::tune
