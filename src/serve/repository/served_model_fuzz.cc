// Fuzzes shapes and values of requests through a served model, its scheduler and its batches, for models with
// open extents, data-dependent sizes, and loops. Every request is answered or refused, with processor time
// and memory bounded by its bytes, and all memory is returned.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>

#include "base/machine/memory.h"
#include "base/memory/memory_budget.h"
#include "ops/table.h"
#include "serve/repository/load_served_model.h"

namespace {

using namespace trireme;
using tensor::Dim;
using tensor::DType;
using tensor::Tensor;

constexpr int64_t kLimitBytes = int64_t{64} << 20;   // for requests, in addition to the models
constexpr int64_t kSlackBytes = int64_t{512} << 20;  // for the sanitizer, which keeps freed memory
constexpr double kSecondsEach = 2, kSecondsAByte = 1e-4;
constexpr int64_t kExtents[] = {0,
                                1,
                                2,
                                3,
                                5,
                                8,
                                31,
                                64,
                                257,
                                4093,
                                65536,
                                1 << 20,
                                1 << 24,
                                1 << 28,
                                int64_t{1} << 31,
                                int64_t{1} << 40,
                                int64_t{1} << 55,
                                INT64_MAX};

ir::GraphPtr parsed(const char* text) {
  return std::make_shared<const ir::Graph>(ir::parse(text, ops::table()));
}

/// n iterations that either each produce 4 KiB, or double the state that they carry.
ir::Graph loop(bool grows) {
  ir::Attrs attrs{{"captures", int64_t{0}}};
  attrs.set("body",
            grows ? parsed("graph \"b\"\n %0 = input \"i\" : i64[]\n %1 = input \"go\" : bool[]\n"
                           " %2 = input \"v\" : f32[n]\n %3 = identity(%1)\n %4 = concat(%2, %2) {axis=0}\n"
                           " return %3, %4\n")
                  : parsed("graph \"b\"\n %0 = input \"i\" : i64[]\n %1 = input \"go\" : bool[]\n"
                           " %2 = input \"v\" : f32[n]\n %3 = identity(%1)\n %4 = identity(%2)\n"
                           " %5 = const : i64[1]{1024}\n %6 = constant_of_shape(%5)\n return %3, %4, %6\n"));
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", {DType::f32, {Dim::symbol("n")}});
  const ir::ValueId k = g.add_input("k", {DType::i64, {}});
  const auto out =
      g.add(ops::table().need("loop"), {k, ir::kNoValue, x}, std::move(attrs), grows ? 1 : 2, "loop");
  for (size_t i = 0; i < out.size(); ++i) g.add_output(out[i], base::concat("y", i));
  g.sort();
  return g;
}

struct Case {
  const char* text;    // null: a loop
  const char* config;  // "batched" or ""
  bool grows = false;
};
constexpr Case kCases[] = {
    {"graph \"rows\"\n %0 = input \"x\" : f32[batch,n]\n %1 = exp(%0)\n return %1 \"y\"\n", "batched"},
    {"graph \"planes\"\n %0 = input \"x\" : f32[a,b,c]\n %1 = const : i64[1]{0}\n %2 = reduce_sum(%0, %1) "
     "{keepdims=0}\n"
     " return %2 \"y\"\n",
     ""},
    {"graph \"outer\"\n %0 = input \"x\" : f32[n]\n %1 = const : i64[1]{1}\n %2 = unsqueeze(%0, %1)\n"
     " %3 = mul(%0, %2)\n return %3 \"y\"\n",
     ""},
    {"graph \"fill\"\n %0 = input \"x\" : i64[2]\n %1 = constant_of_shape(%0)\n %2 = exp(%1)\n return %2 "
     "\"y\"\n",
     ""},
    {"graph \"expand\"\n %0 = input \"x\" : f32[n]\n %1 = input \"k\" : i64[2]\n %2 = expand(%0, %1)\n "
     "return %2 \"y\"\n",
     ""},
    {"graph \"tile\"\n %0 = input \"x\" : f32[n]\n %1 = input \"k\" : i64[1]\n %2 = tile(%0, %1)\n return %2 "
     "\"y\"\n",
     ""},
    {nullptr, "", false},
    {nullptr, "", true},
};
constexpr size_t kCaseCount = std::size(kCases);

/// The models, which live as long as the process.
class Fleet {
 public:
  Fleet() {
    options_.threads = 1;
    options_.warm_up = serve::WarmUpLevel::none;
    options_.batch_window = {0};
    options_.runs.instance_timeout = {base::kNsPerSecond / 2};
    options_.others = {.holds = [](const std::string&) { return true; },
                       .open = [](const std::string& path) { return open(kCases[std::stoul(path)]); },
                       .fingerprint = [](const std::string&) { return std::string(); }};
    const serve::ModelHost host{
        options_,
        env_,
        metrics_,
        [](const std::string&, const std::string&) -> std::shared_ptr<serve::ServedModel> { return nullptr; },
        cache_,
        tenants_};
    for (size_t i = 0; i < kCaseCount; ++i) {
      serve::ModelSource source{
          .name = base::concat("m", i), .version = "1", .path = std::to_string(i), .root = ".", .config = {}};
      // The results of a loop have no known rank unless it is stated.
      if (kCases[i].text == nullptr)
        source.config.outputs = {{.name = "y0", .type = DType::f32, .dims = {-1}}};
      if (kCases[i].text == nullptr && !kCases[i].grows)
        source.config.outputs.push_back({.name = "y1", .type = DType::f32, .dims = {-1, 1024}});
      source.config.max_batch_size = std::strcmp(kCases[i].config, "batched") == 0 ? 8 : 0;
      models_.push_back(serve::load_served_model(source, host, nullptr));
    }
  }
  serve::ServedModel& model(size_t i) { return *models_[i % models_.size()]; }
  int64_t now_ns() const { return clock_.now_ns(); }

 private:
  static model::Model open(const Case& c) {
    model::Model model;
    model.graph = c.text == nullptr ? loop(c.grows) : ir::parse(c.text, ops::table());
    return model;
  }
  serve::ServeOptions options_;
  base::SystemClock clock_;
  base::Log log_{base::LogLevel::off};
  base::Env env_{log_, clock_};
  serve::MetricRegistry metrics_;
  serve::ResponseCache cache_{0};
  serve::Tenants tenants_{"", {}, 1, metrics_};
  std::vector<std::shared_ptr<serve::ServedModel>> models_;
};

/// Reads the given bytes, and then zeros.
class Reader {
 public:
  Reader(const uint8_t* data, size_t size) : bytes_(reinterpret_cast<const char*>(data), size) {}
  uint8_t byte() {
    if (bytes_.empty()) return 0;
    const auto value = static_cast<uint8_t>(bytes_[0]);
    bytes_.remove_prefix(1);
    return value;
  }
  std::string_view rest(size_t most) {
    const std::string_view out = bytes_.substr(0, most);
    bytes_.remove_prefix(out.size());
    return out;
  }
  int64_t extent() {
    const uint8_t b = byte();
    return b < 128 ? kExtents[b % std::size(kExtents)] : b - 128;
  }

 private:
  std::string_view bytes_;
};

/// One input: its extents as read, and as many bytes as these need if there are enough, else all that are
/// left.
serve::WireTensor input_of(const serve::TensorConfig& config, Reader& reader, bool is_batched) {
  tensor::Dims dims;
  const size_t rank = config.dims.size() + (is_batched ? 1 : 0);
  for (size_t d = 0; d < rank; ++d) {
    const size_t own = d - (is_batched ? 1 : 0);  // of the config, which has no batch
    const bool is_open = (is_batched && d == 0) || config.dims[own] == -1;
    dims.push_back(is_open ? reader.extent() : config.dims[own]);
  }
  const int64_t elements = serve::wire_elements(config.name, dims);
  const int64_t wanted = elements * tensor::bytes_of(*config.type, 1);
  std::string bytes;
  if (wanted <= 4096) {
    // Small and large numbers: an i64 is an extent from the table.
    while (static_cast<int64_t>(bytes.size()) < wanted) {
      const int64_t value = reader.extent();
      bytes.append(reinterpret_cast<const char*>(&value),
                   static_cast<size_t>(tensor::bytes_of(*config.type, 1)));
    }
  } else {
    bytes = reader.rest(SIZE_MAX);
  }
  const auto kept = std::make_shared<const std::string>(std::move(bytes));
  return serve::tensor_from_bytes(config.name, config.type, dims, {*kept, kept, "m"});
}

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

[[noreturn]] void trap(const char* what, const std::string& more) {
  std::fprintf(stderr, "%s: %s\n", what, more.c_str());
  __builtin_trap();
}

void ask(Fleet& fleet, Reader& reader) {
  serve::ServedModel& model = fleet.model(reader.byte());
  serve::InferRequest request;
  request.binary_output = true;
  for (const serve::TensorConfig& config : model.config().inputs)
    request.inputs.push_back(input_of(config, reader, model.config().is_batched()));
  std::promise<std::optional<base::Error>> outcome;
  model.infer(std::move(request), {.done = [&](serve::InferResponse&&) { outcome.set_value(std::nullopt); },
                                   .failed = [&](const base::Error& e) { outcome.set_value(e); },
                                   .cancelled = {},
                                   .received_ns = fleet.now_ns()});
  const std::optional<base::Error> error = outcome.get_future().get();
  if (error) throw *error;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Fleet& fleet = *new Fleet;
  base::MemoryBudget& budget = base::process_memory();
  static const int64_t models_bytes = budget.used_bytes();
  budget.set_limit(models_bytes + kLimitBytes);
  const double began_s = cpu_seconds();
  const int64_t resident = base::resident_bytes();
  const bool is_measured = base::reset_peak_resident();
  try {
    Reader reader(data, size);
    ask(fleet, reader);
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) trap("internal", e.message());
  }
  const double took_s = cpu_seconds() - began_s;
  if (took_s > kSecondsEach + kSecondsAByte * static_cast<double>(size))
    trap("processor seconds", std::to_string(took_s));
  if (is_measured && base::peak_resident_bytes() - resident > kLimitBytes + kSlackBytes)
    trap("resident bytes", std::to_string(base::peak_resident_bytes() - resident));
  return 0;
}
