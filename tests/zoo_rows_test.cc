// Every network whose rows are independent is shown to have independent rows: as it is built, as this program
// exports it, and as others export theirs.
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/batch_proof.h"
#include "engine/session.h"
#include "model/onnx/export.h"
#include "model/onnx/import.h"
#include "model/zoo/zoo.h"
#include "tests/test_data.h"

namespace trireme {
namespace {

/// Smaller than the real ones where an option says so: what the graph does stays the same.
std::vector<std::string> small_options(const std::string& name) {
  const base::Json options = model::zoo::options_of(name);
  std::vector<std::string> assignments;
  for (const auto& [option, value] : {std::pair("layers", 2),
                                      {"width", 64},
                                      {"heads", 4},
                                      {"kv_heads", 2},
                                      {"vocabulary", 211},
                                      {"positions", 300},
                                      {"inner", 128}}) {
    if (options.contains(option)) assignments.push_back(base::concat(option, "=", value));
  }
  if (options.contains("depth") && options.at("depth").as_int() > 50) assignments.push_back("depth=50");
  return assignments;
}

std::string why_not(ir::Graph graph) {
  return engine::why_not_batched(engine::PreparedModel(std::move(graph)).graph());
}

model::Model exported(const ir::Graph& graph) {
  const auto bytes = std::make_shared<const std::string>(model::onnx::export_onnx(graph));
  return model::onnx::import_onnx(*bytes, bytes, {});
}

TEST(ZooRows, EveryNetworkIsBatched) {
  for (const model::zoo::Entry& entry : model::zoo::entries()) {
    SCOPED_TRACE(entry.name);
    const std::vector<std::string> options = small_options(entry.name);
    model::Model built = model::zoo::build(entry.name, options);
    EXPECT_EQ(why_not(exported(built.graph).graph), "") << "as exported";
    EXPECT_EQ(why_not(std::move(built.graph)), "") << "as built";
  }
}

/// Files of others whose first dimension is open.
TEST(ZooRows, FilesOfOthersAreBatched) {
  const auto root = tests::shared_data("onnx-models");
  if (!root) GTEST_SKIP() << tests::kNoSharedData;
  for (const auto& file : std::filesystem::recursive_directory_iterator(*root)) {
    if (file.path().extension() != ".onnx") continue;
    ir::Graph graph = model::onnx::load_onnx(file.path().string()).graph;
    std::cout << file.path().filename().string() << ": " << why_not(std::move(graph)) << "\n";
  }
}

}  // namespace
}  // namespace trireme
