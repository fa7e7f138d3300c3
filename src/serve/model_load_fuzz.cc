// Fuzzes load requests: any parameters, with a configuration as JSON or text and a model's files, load the
// model or are refused; afterwards, a valid model is served.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/files/file.h"
#include "http/message.h"
#include "model/onnx/export.h"
#include "ops/table.h"
#include "serve/core/kserve_core.h"
#include "serve/infer/request_json.h"
#include "tests/fuzz_bounds.h"

namespace {

using namespace trireme;
using namespace trireme::serve;

/// A server with one model, y = x + 1 for x [batch, 4].
struct World {
  World() {
    std::string root = (std::filesystem::temp_directory_path() / "trireme-fuzz-XXXXXX").string();
    if (mkdtemp(root.data()) == nullptr) std::abort();
    ir::Graph g;
    const ir::ValueId x =
        g.add_input("x", {tensor::DType::f32, {tensor::Dim::symbol("batch"), tensor::Dim(4)}});
    const ir::ValueId one = g.add_param("one", tensor::Tensor::from<float>({4}, {1, 1, 1, 1}));
    g.add_output(g.add1(ops::table().need("add"), {x, one}), "y");
    std::filesystem::create_directories(root + "/m/1");
    model::onnx::save_onnx(g, root + "/m/1/model.onnx");
    file = base::read_file(root + "/m/1/model.onnx", size_t{1} << 20);
    options.model_repository = {root};
    options.model_control = ModelControl::explicitly;
    options.threads = 1;
    options.warm_up = WarmUpLevel::none;
    repository = std::make_unique<Repository>(options, env, metrics);
    repository->load();
    core = std::make_unique<KserveCore>(*repository, options, env);
    core->set_state(ServerState::serving);
  }
  bool load(const base::Json& parameters) {
    std::promise<std::optional<base::Error>> said;
    core->load("m", parameters, [&](const std::optional<base::Error>& error) { said.set_value(error); });
    const std::optional<base::Error> error = said.get_future().get();
    if (error && error->code() == base::ErrorCode::internal) std::abort();
    return !error;
  }

  ServeOptions options;
  base::SystemClock clock;
  base::Log log{base::LogLevel::off};
  base::Env env{log, clock};
  MetricRegistry metrics;
  std::string file;
  std::unique_ptr<Repository> repository;
  std::unique_ptr<KserveCore> core;
};

/// Parses parameters as HTTP requests contain them.
base::Json parameters_of(std::string_view text) {
  const base::Json json = request_json(text);
  const base::Json* parameters = json.find("parameters");
  return parameters == nullptr ? json : *parameters;
}

}  // namespace

// The first byte chooses the meaning of the rest: the request's JSON, a configuration as JSON, or a
// configuration for a model whose file comes with it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World world;
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    base::Json parameters = base::Json::object();
    {
      const fuzz::BoundedWork bounded(size);
      if (data[0] % 4 == 0) {
        parameters = parameters_of(text);
      } else {
        parse_model_config_json(text);
        parameters.set("config", text);
        if (data[0] % 4 == 1) parameters.set("file:1/model.onnx", world.file);
      }
    }
    if (!world.load(parameters)) return 0;
    const auto model = world.core->find("m", "");
    base::parse_json(config_json(model->config()).dump());
    base::parse_json(world.core->metadata("m", "").dump());
  } catch (const base::Error& e) {
    if (e.code() == base::ErrorCode::internal) std::abort();
  }
  return 0;
}
