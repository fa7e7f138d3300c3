// Tests what is asked of all models, or of all versions of one, without a network.
#include "serve/core/kserve_core.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/files/file.h"
#include "base/files/scratch.h"
#include "model/onnx/export.h"
#include "ops/table.h"

namespace trireme::serve {
namespace {

TEST(KserveCore, StatisticsWithoutAVersionAreOfAllThatServe) {
  const std::shared_ptr<const std::string> root = base::make_scratch("trireme-core-");
  ir::Graph g;
  const ir::ValueId x =
      g.add_input("x", {tensor::DType::f32, {tensor::Dim::symbol("batch"), tensor::Dim(4)}});
  g.add_output(g.add1(ops::table().need("relu"), {x}), "y");
  for (const char* version : {"1", "2", "3"}) {
    std::filesystem::create_directories(*root + "/m/" + version);
    model::onnx::save_onnx(g, *root + "/m/" + version + "/model.onnx");
  }
  base::write_file_atomic(*root + "/m/config.pbtxt", "version_policy { latest { num_versions: 2 } }");
  ServeOptions options;
  options.model_repository = {*root};
  options.threads = 1;
  options.warm_up = WarmUpLevel::none;
  base::SystemClock clock;
  base::Log log{base::LogLevel::off};
  MetricRegistry metrics;
  const base::Env env{log, clock};
  Repository repository(options, env, metrics);
  repository.load();
  KserveCore core(repository, options, env);
  core.set_state(ServerState::serving);
  const auto versions = [&](const std::string& version) {
    std::string all;
    for (const base::Json& stats : core.statistics("m", version).at("model_stats").as_array())
      all += stats.at("version").as_string();
    return all;
  };
  EXPECT_EQ(versions(""), "23");
  EXPECT_EQ(versions("2"), "2");
  EXPECT_THROW(versions("1"), base::Error);
  EXPECT_THROW(core.statistics("n", ""), base::Error);
}

}  // namespace
}  // namespace trireme::serve
