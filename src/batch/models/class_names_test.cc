// Names of classes from configurations and files of every kind.
#include "batch/models/class_names.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

#include "base/error.h"
#include "base/files/file.h"
#include "batch/test_job.h"

namespace trireme::batch {
namespace {

using Names = std::vector<std::string>;

TEST(ClassNames, ComeByNumber) {
  const auto names = [](const char* text) { return class_names_of(base::parse_json(text)); };
  EXPECT_EQ(names(R"({"id2label": {"1": "dog", "0": "cat", "2": "ä"}})"), (Names{"cat", "dog", "ä"}));
  std::string eleven;
  for (int i = 10; i >= 0; --i) eleven += base::concat(i == 10 ? "" : ",", "\"", i, "\":\"c", i, "\"");
  EXPECT_EQ(names(("{\"id2label\": {" + eleven + "}}").c_str()).at(10), "c10") << "10 is not between 1 and 2";
  EXPECT_TRUE(names("{}").empty());
  EXPECT_TRUE(names("{\"id2label\": null}").empty());
  EXPECT_TRUE(class_names_of(base::Json()).empty());
  for (const char* wrong : {R"({"id2label": {"0": "a", "2": "b"}})", R"({"id2label": {"0": "a", "00": "b"}})",
                            R"({"id2label": {"0": "a", "one": "b"}})", R"({"id2label": {"-1": "a"}})",
                            R"({"id2label": {"0": 7}})", R"({"id2label": ["a"]})"}) {
    EXPECT_NE(error_of([&] { names(wrong); }), "no error") << wrong;
  }
}

TEST(ClassNames, ComeFromFiles) {
  const std::string path = base::concat(::testing::TempDir(), "/labels_", ::getpid());
  const auto names = [&](const char* text) {
    base::write_file_atomic(path, text);
    return read_class_names(path);
  };
  EXPECT_EQ(names("cat\r\n\ndog\n\n"), (Names{"cat", "", "dog"})) << "an empty line names a class too";
  EXPECT_EQ(names("cat"), Names{"cat"});
  EXPECT_EQ(names(" [\"cat\", \"dog\"]"), (Names{"cat", "dog"}));
  EXPECT_EQ(names("{\"1\": \"dog\", \"0\": \"cat\"}"), (Names{"cat", "dog"}));
  EXPECT_EQ(names("{\"id2label\": {\"0\": \"cat\"}}"), Names{"cat"});
  for (const char* wrong : {"", "\n\n", "[]", "[1]", "{\"id2label\": {}}", "[\"cat\""}) {
    EXPECT_NE(error_of([&] { names(wrong); }).find(path), std::string::npos) << wrong;
  }
}

}  // namespace
}  // namespace trireme::batch
