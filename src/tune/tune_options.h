// Options of `trireme tune`: the goal, the traffic, the space that is searched, and how long to measure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/text/options.h"
#include "tune/simulate.h"
#include "tune/text_options.h"

namespace trireme::tune {

enum class Objective { throughput, cost };
enum class PricePer { machine, core };

struct TuneOptions {
  std::vector<std::string> model;
  std::string name;
  std::vector<std::string> variant;
  std::vector<std::string> precision{"f32", "bf16"};
  double tolerance = 0.02;
  std::string test_data;
  base::Duration p50{0}, p95{0}, p99{0};
  Objective objective = Objective::throughput;
  std::string price;
  PricePer price_per = PricePer::machine;
  base::ByteSize memory{0};
  double rate = 0;
  int concurrency = 0;
  std::vector<std::string> shape;
  std::vector<std::string> range;
  std::string text_file;
  int batch = 1;
  int64_t seed = 1;
  std::vector<int64_t> instances, threads, max_batch;
  std::vector<std::string> window;
  int top = 3;
  int passes = 2;
  base::Duration probe{100 * base::kNsPerMs};
  base::Duration trial{2 * base::kNsPerSecond};
  double stability = 10;
  std::string out = "tune";
  TextTuning texts;

  void fields(base::OptionList& f) {
    f.add("model", &model, "ONNX file, Hugging Face directory, or a model's directory of a repository")
        .positional()
        .required();
    f.add("name", &name, "of the model in the repository that is written; default: of its file");
    f.add("variant", &variant,
          "name=PATH: the same model in another form, such as int8, that competes; may be repeated");
    f.add("precision", &precision,
          "of products, tried for the model itself: f32, bf16, f16, fp8; may be repeated");
    f.add("tolerance", &tolerance,
          "largest error against f32 that a precision or variant may make, over the largest value of an "
          "output")
        .at_least(0);
    f.add("test_data", &test_data, "directory with test_data_set_*/input_N.pb for that; else random inputs");
    f.add("p50", &p50, "goal: half of the answers within this time; 0: none");
    f.add("p95", &p95, "goal: 95 % of them");
    f.add("p99", &p99, "goal: 99 % of them");
    f.add_choice(
        "objective", &objective, {"throughput", "cost"},
        "what is best among configurations that meet the goal: most requests a second, or fewest money "
        "a request");
    f.add("price", &price, "for cost: 0.40/h; without one the cost is in hours of a core");
    f.add_choice("price_per", &price_per, {"machine", "core"},
                 "what the price buys; a machine costs the same however many cores are used");
    f.add("memory", &memory, "most memory of the server; 0: no limit");
    f.add("rate", &rate, "requests a second that must be met; 0: as many as possible").at_least(0);
    f.add("concurrency", &concurrency, "instead of a rate: so many clients, each with one request in flight")
        .at_least(0)
        .at_most(65536);
    f.add("shape", &shape, "input shape, name:1,3,224,224; may be repeated");
    f.add("range", &range, "random values of an input, name:low,high; default 0 to 1; may be repeated");
    f.add("text_file", &text_file, "for an encoder: one sentence a line, sent in turn; their lengths count");
    f.add("batch", &batch, "rows of a request").at_least(1);
    f.add("seed", &seed, "seed of inputs and arrivals");
    f.add("instances", &instances, "only these instance counts; default: what the cores allow").at_least(1);
    f.add("threads", &threads, "only these threads of an instance").at_least(1);
    f.add("max_batch", &max_batch, "only these largest batches; default: powers of two to 64").at_least(1);
    f.add("window", &window, "only these batch windows, such as 0, 2ms; may be repeated");
    f.add("top", &top, "configurations measured on a real server; 0: predict only").at_least(0).at_most(50);
    f.add("passes", &passes, "times that each batch is measured, with all others between").at_least(1);
    f.add("probe", &probe, "time for one batch size and pass");
    f.add("trial", &trial, "window of a server measurement; three must agree");
    f.add("stability", &stability, "percent within which they agree").at_least(1).at_most(100);
    texts.fields(f);
    f.add("out", &out, "directory of results and journal; the same again goes on where it was interrupted");
  }

  std::vector<LatencyGoal> goals() const {
    std::vector<LatencyGoal> list;
    if (p50.ns > 0) list.push_back({0.5, p50.ns});
    if (p95.ns > 0) list.push_back({0.95, p95.ns});
    if (p99.ns > 0) list.push_back({0.99, p99.ns});
    return list;
  }
};

}  // namespace trireme::tune
