// The plan of a job: where its output may lie, and which models it goes on with.
#include "batch/job_plan.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "base/files/file.h"
#include "batch/state/test_directory.h"

namespace trireme::batch {
namespace {

std::string refusal_of(const std::string& input, const std::string& output) {
  JobOptions options;
  options.input_files = {input};
  options.output_directory = output;
  return error_of([&] { input_paths(options); });
}

TEST(InputPaths, AnOutputAmongThemIsSeenHoweverItIsSpelled) {
  const std::string directory = fresh("spelled");
  std::filesystem::create_directories(directory + "/data/out/old");
  for (const char* name : {"/data/a.jsonl", "/data/out/old/b.jsonl"})
    base::write_file_atomic(directory + name, "");
  std::filesystem::create_directory_symlink(directory + "/data", directory + "/link");
  const std::string in = "the output directory lies in the input", among = "lies among the input";
  for (const char* output : {"/data/out", "/data/new/deep", "/./data/new/../out/", "/link/out"}) {
    for (const char* input : {"/data", "/./data/", "/link", "/data/out/.."}) {
      const std::string said = refusal_of(directory + input, directory + output);
      EXPECT_NE(said.find(in), std::string::npos) << input << " " << output << ": " << said;
    }
  }
  for (const char* output : {"/data/out", "/./data/out", "/link/out"}) {
    for (const char* input : {"/data/out/old/*.jsonl", "/data/./out/old/*.jsonl", "/link/out/old/b.jsonl"}) {
      const std::string said = refusal_of(directory + input, directory + output);
      EXPECT_NE(said.find(among), std::string::npos) << input << " " << output << ": " << said;
    }
  }
  EXPECT_EQ(refusal_of(directory + "/data/*.jsonl", directory + "/data/new"), "no error");
  EXPECT_EQ(refusal_of(directory + "/data/out", directory + "/data/output"), "no error");
  JobOptions options;
  options.input_files = {directory + "/./link"};
  options.output_directory = directory + "/elsewhere";
  for (const std::string& path : input_paths(options))
    EXPECT_TRUE(path.starts_with(directory + "/./link/")) << "the manifest has it as it was given: " << path;
}

TEST(InputPaths, AnOutputBelowTheWorkingDirectoryIsComparedWithItsWholePath) {
  const std::string directory = fresh("relative");
  std::filesystem::create_directories(directory + "/data");
  base::write_file_atomic(directory + "/data/a.jsonl", "");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory);
  const std::string relative = refusal_of("./data", "data/out"),
                    mixed = refusal_of("data", directory + "/data/out"),
                    beside = refusal_of("data/a.jsonl", "out");
  std::filesystem::current_path(before);
  EXPECT_NE(relative.find("lies in the input './data'"), std::string::npos) << relative;
  EXPECT_NE(mixed.find("lies in the input 'data'"), std::string::npos) << mixed;
  EXPECT_EQ(beside, "no error");
}

TEST(CheckSameModel, AnOptionOfALaterBuildMayBeAtItsDefault) {
  const auto identity = [](std::initializer_list<std::pair<std::string_view, base::Json>> options) {
    return base::Json::object({{"name", "m"}, {"options", base::Json::object(options)}});
  };
  Manifest manifest;
  manifest.identity = identity({{"task", "generate"}, {"seed", 3}});
  const auto refusal = [&](const base::Json& now) {
    return error_of([&] { check_same_model(manifest, now); });
  };
  EXPECT_EQ(refusal(identity({{"task", "generate"}, {"top_k", 0}, {"seed", 3}})), "no error");
  EXPECT_NE(refusal(identity({{"task", "generate"}, {"top_k", 5}, {"seed", 3}}))
                .find("options.top_k: null then, 5"),
            std::string::npos);
  EXPECT_NE(
      refusal(identity({{"task", "generate"}, {"top_k", 0}, {"seed", 4}})).find("options.seed: 3 then, 4"),
      std::string::npos);
  EXPECT_NE(refusal(identity({{"task", "generate"}})).find("options.seed: 3 then, null"), std::string::npos);
}

}  // namespace
}  // namespace trireme::batch
