// Job files: nested keys, lists and mappings, errors with their lines.
#include "batch/job_options.h"

#include <gtest/gtest.h>

#include "batch/state/test_directory.h"

namespace trireme::batch {
namespace {

JobOptions read(const std::string& yaml) {
  JobOptions options;
  read_job(yaml, "job.yaml", options);
  return options;
}

constexpr const char* kJob = R"(
model: m.onnx
input:
  files: "data/*.jsonl"
  columns: {ids: tokens, mask: 7}
  keep: [id, date]
  csv: {delimiter: ";"}
output:
  directory: out/
  columns: {y: vector}
lease: 30s
max_errors: 5
)";

TEST(JobOptions, NestedKeysAreJoined) {
  const JobOptions o = read(kJob);
  EXPECT_EQ(o.model.model, "m.onnx");
  EXPECT_EQ(o.input_files, std::vector<std::string>{"data/*.jsonl"});
  EXPECT_EQ(o.model.columns, (std::vector<std::string>{"ids=tokens", "mask=7"}));
  EXPECT_EQ(o.input_keep, (std::vector<std::string>{"id", "date"}));
  EXPECT_EQ(o.row_file_options().csv_delimiter, ';');
  EXPECT_EQ(o.renamed_outputs(), (std::vector<std::pair<std::string, std::string>>{{"y", "vector"}}));
  EXPECT_EQ(o.lease.ns, 30 * base::kNsPerSecond);
  EXPECT_EQ(o.max_errors, 5);
  EXPECT_EQ(o.state_directory(), "out//_job");
  o.check();
}

TEST(JobOptions, ErrorsNameTheLine) {
  EXPECT_NE(error_of([] {
              read("model: m\ninput:\n  filez: [a]\n");
            }).find("job.yaml:3: unknown key 'input_filez'"),
            std::string::npos);
  EXPECT_NE(error_of([] { read("model: m\nretries: many\n"); }).find("job.yaml:2: key 'retries'"),
            std::string::npos);
  EXPECT_NE(error_of([] { read("- a\n- b\n"); }).find("expected keys of a job, found array"),
            std::string::npos);
  EXPECT_NE(error_of([] { read("a: [1"); }).find("job.yaml"), std::string::npos);
}

TEST(JobOptions, WhatContradictsItselfIsRefused) {
  const auto refused = [](const std::function<void(JobOptions&)>& change) {
    JobOptions o = read(kJob);
    change(o);
    return error_of([&] { o.check(); });
  };
  EXPECT_NE(refused([](JobOptions& o) { o.model.model = ""; }).find("needs a model"), std::string::npos);
  EXPECT_NE(refused([](JobOptions& o) { o.output_format = "xml"; }).find("found 'xml'"), std::string::npos);
  EXPECT_NE(refused([](JobOptions& o) { o.output_columns = {"y"}; }).find("output=name"), std::string::npos);
  EXPECT_NE(refused([](JobOptions& o) {
              o.output_columns = {"y=a", "z=a"};
            }).find("two outputs"),
            std::string::npos);
  EXPECT_NE(refused([](JobOptions& o) { o.budget = 3; }).find("needs cost_per_hour"), std::string::npos);
  EXPECT_NE(refused([](JobOptions& o) { o.lease.ns = 1; }).find("at least 1s"), std::string::npos);
  EXPECT_NE(refused([](JobOptions& o) { o.output_directory = "s3://b/x"; }).find("state: DIRECTORY"),
            std::string::npos);
  EXPECT_NE(refused([](JobOptions& o) { o.state = "gs://b/x"; }).find("state must be a directory"),
            std::string::npos);
}

TEST(JobOptions, CountsOfRowsAreBounded) {
  for (const std::string key : {"chunk_rows", "batch_rows", "window_rows"}) {
    const std::string text = std::string(kJob) + "\n" + key + ": ";
    EXPECT_NE(error_of([&] { read(text + "9223372036854775807"); }).find(key), std::string::npos) << key;
    EXPECT_NE(error_of([&] { read(text + "4611686018427387909"); }).find(key), std::string::npos) << key;
  }
}

TEST(JobOptions, OnlyWhatChangesBytesCounts) {
  const JobOptions o = read(kJob);
  JobOptions other = o;
  other.model.threads = 9;
  other.lease.ns *= 2;
  other.max_errors = 1;
  other.cost_per_hour = 4;
  EXPECT_EQ(o.result(), other.result());
  for (const auto& change : std::vector<std::function<void(JobOptions&)>>{
           [](JobOptions& c) { c.chunk_rows = 7; }, [](JobOptions& c) { c.output_format = "csv"; },
           [](JobOptions& c) { c.input_keep = {"id"}; }, [](JobOptions& c) { c.model.columns = {}; },
           [](JobOptions& c) { c.output_compression = "zstd"; }}) {
    JobOptions changed = o;
    change(changed);
    EXPECT_NE(o.result(), changed.result());
  }
}

}  // namespace
}  // namespace trireme::batch
