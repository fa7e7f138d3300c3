// Tests that every network with independent rows is shown to have them: as built, as exported by this
// program, and as exported by other programs.
#include <gtest/gtest.h>

#include <filesystem>

#include "lower/batch_proof.h"
#include "engine/session/session.h"
#include "model/onnx/export.h"
#include "model/onnx/import.h"
#include "model/zoo/zoo.h"
#include "tests/test_data.h"

namespace trireme {
namespace {

/// Options that make a network smaller than the real one, if it has such; the graph's structure is the same.
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
  return lower::why_not_batched(engine::PreparedModel(std::move(graph)).graph());
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

/// Every file with an open first dimension except one: nnsplit reads [n, length] and reshapes half as many
/// positions, rounded down, to [-1, length, 2], which mixes rows if the length is odd.
TEST(ZooRows, FilesOfOthersAreBatched) {
  const auto root = tests::shared_data("onnx-models");
  if (!root) GTEST_SKIP() << tests::kNoSharedData;
  int batched = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(*root)) {
    if (file.path().extension() != ".onnx") continue;
    const std::string why = why_not(model::onnx::load_onnx(file.path().string()).graph);
    const bool is_fixed = why.find("is not open") != std::string::npos;
    const bool is_nnsplit = file.path().parent_path().filename() == "nnsplit_en";
    if (is_nnsplit) {
      EXPECT_NE(why.find("cut through the rows"), std::string::npos) << why;
    } else if (!is_fixed) {
      EXPECT_EQ(why, "") << file.path();
    }
    batched += why.empty() ? 1 : 0;
  }
  EXPECT_GE(batched, 7);
}

}  // namespace
}  // namespace trireme
