// The model that is tuned: what decides whether measurements of an earlier run still hold.
#include "tune/subject.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/files/file.h"
#include "model/onnx/export.h"
#include "ops/table.h"

namespace trireme::tune {
namespace {

namespace fs = std::filesystem;

TEST(OpenSubject, AnotherConfigurationOfTheModelIsAnotherKey) {
  std::string root = (fs::temp_directory_path() / "trireme-tune-XXXXXX").string();
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  fs::create_directories(root + "/m/1");
  ir::Graph graph = ir::parse(R"(graph "g"
  %0 = input "x" : f32[batch,4]
  %1 = param "w" : f32[4,4]#seed=1
  %2 = matmul(%0, %1)
  return %2 "y"
)",
                              ops::table());
  graph.sort();
  model::onnx::save_onnx(graph, root + "/m/1/model.onnx");
  TuneOptions options;
  options.model = {root + "/m"};
  options.precision = {"f32"};
  options.out = root + "/out";
  const auto key_with = [&](const std::string& config) {
    base::write_file_atomic(root + "/m/config.pbtxt", config);
    return open_subject(options, {}).key;
  };
  const std::string key = key_with("max_batch_size: 8");
  EXPECT_EQ(key_with("max_batch_size: 8"), key);
  EXPECT_NE(key_with("max_batch_size: 4"), key);
  fs::remove_all(root);
}

}  // namespace
}  // namespace trireme::tune
