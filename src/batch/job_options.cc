// The options of a job: fields, the job file, and what must hold among them.
#include "batch/job_options.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text/yaml.h"
#include "data/rows/partitions.h"

namespace trireme::batch {
namespace {

/// A mapping where a list of texts is wanted: {ids: text} -> ["ids=text"].
base::Json as_assignments(const base::Json& mapping) {
  base::Json list = base::Json::array();
  for (const base::JsonMember& m : mapping.as_object()) {
    list.push_back(m.key + "=" + (m.value.is_string() ? m.value.as_string() : m.value.dump()));
  }
  return list;
}

struct JobFile {
  const base::YamlDocument& document;
  const std::string& source;
  base::OptionList& list;

  void set(const std::string& key, const std::string& path, const base::Json& value) const {
    const bool wants_list = list.is_list(key);
    if (value.is_object() && !wants_list) {
      for (const base::JsonMember& m : value.as_object()) {
        set(key.empty() ? m.key : key + "_" + m.key, path.empty() ? m.key : path + "." + m.key, m.value);
      }
      return;
    }
    if (value.is_null()) return;  // "input:" with nothing under it
    try {
      base::Json object = base::Json::object();
      object.set(key, !wants_list || value.is_array() ? value
                      : value.is_object()             ? as_assignments(value)
                                                      : base::Json::array({value}));
      list.parse_json(object);
    } catch (const base::Error& e) {
      throw e.with(base::concat(source, ":", document.line(path)));
    }
  }
};

/// Told by the name alone: a bucket is not asked for before its turn.
bool is_bucket(const std::string& path) {
  return path.find("://") != std::string::npos && !path.starts_with("file://");
}

bool is_one_of(const std::string& word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

void JobOptions::fields(base::OptionList& f) {
  model.fields(f);
  f.add("input_files", &input_files, "files, directories, patterns and s3:// or gs:// URLs, in this order");
  f.add("input_format", &input_format,
        "parquet, arrow, jsonl, csv, tfrecord, webdataset, npy, images or openai; empty: by the name");
  f.add("input_keep", &input_keep, "columns of the input that are carried into the output");
  f.add("input_partitions", &input_partitions, "directories named key=value give columns of that name");
  f.add("input_csv_header", &input_csv_header, "the first line of CSV names the columns");
  f.add("input_csv_delimiter", &input_csv_delimiter, "between the values of CSV");
  f.add("input_most_row_bytes", &input_most_row_bytes, "a longer row fails");
  f.add("output_directory", &output_directory, "directory or s3:// or gs:// URL: one file a chunk");
  f.add("output_format", &output_format,
        "parquet, arrow, jsonl, csv or npy; openai: the lines of a batch of that API");
  f.add("output_compression", &output_compression,
        "parquet, arrow: zstd, snappy, gzip, lz4; lines: gzip; empty: none");
  f.add("output_columns", &output_columns, "output=name: the model's outputs under other names");
  f.add("chunk_rows", &chunk_rows, "rows of a chunk: what is done again when a worker is lost")
      .at_least(1)
      .at_most(kMostRows);
  f.add("state", &state, "directory of manifest and journal; empty: _job in the output's directory");
  f.add("retries", &retries, "how often a row whose error may pass is asked for again")
      .at_least(0)
      .at_most(100);
  f.add("retry_wait", &retry_wait, "before the first time; doubles with each");
  f.add("max_errors", &max_errors, "failed rows with which the job ends; -1: any number").at_least(-1);
  f.add("patience", &patience, "how long a full disk or a lost store is waited for");
  f.add("lease", &lease, "a worker that shows no life for so long loses its chunks");
  f.add("grace", &grace, "time to finish the chunk in hand on SIGTERM; what does not fit is given back");
  f.add("preempt_notice", &preempt_notice,
        "a file whose appearance, or `!COMMAND` whose success, says that this machine is about to be taken");
  f.add("workers", &workers,
        "processes of this machine that share the job and the cores; with a deadline as few of them as meet "
        "it")
      .at_least(1)
      .at_most(1024);
  f.add("cost_per_hour", &cost_per_hour, "of a worker, in any currency; 0: unknown").at_least(0);
  f.add("budget", &budget, "the job ends when it has cost so much; 0: no bound").at_least(0);
  f.add("deadline", &deadline, "the job should be done so long after its start; 0: none");
  f.add("trace", &trace, "write a Perfetto trace of this worker's stages");
}

void JobOptions::check() const {
  base::require(!model.model.empty(), "a job needs a model: model: PATH");
  base::require(!input_files.empty(), "a job needs input: input: {files: [PATH, ...]}");
  base::require(!output_directory.empty(), "a job needs an output: output: {directory: PATH}");
  base::require(input_csv_delimiter.size() == 1, "input_csv_delimiter is one character, found '",
                input_csv_delimiter, "'");
  base::require(is_one_of(output_format, {"parquet", "arrow", "jsonl", "csv", "npy", "openai"}),
                "output_format is parquet, arrow, jsonl, csv, npy or openai; found '", output_format, "'");
  base::require(lease.ns >= base::kNsPerSecond, "lease must be at least 1s");
  base::require(grace.ns >= 0 && patience.ns >= 0 && retry_wait.ns >= 0 && deadline.ns >= 0,
                "grace, patience, retry_wait and deadline must not be negative");
  base::require(budget == 0 || cost_per_hour > 0, "budget needs cost_per_hour");
  std::set<std::string> names;
  for (const auto& [output, name] : renamed_outputs()) {
    base::require(names.insert(name).second, "output_columns gives two outputs the name '", name, "'");
  }
  if (is_bucket(output_directory)) {
    base::require(!state.empty(),
                  "the output is in a bucket: the job's state needs a directory that all workers see, "
                  "with state: DIRECTORY");
  }
  base::require(
      !is_bucket(state), "state must be a directory, found '", state,
      "': workers agree through a file with locks, which buckets have not; give one that all of them "
      "see, the output may lie in the bucket");
}

data::RowFileOptions JobOptions::row_file_options(std::vector<data::Field> partitions) const {
  return {.format = input_format,
          .csv_header = input_csv_header,
          .csv_delimiter = input_csv_delimiter.at(0),
          .most_row_bytes = input_most_row_bytes.bytes,
          .partitions = std::move(partitions)};
}

std::vector<data::Field> JobOptions::partitions_of(const std::vector<std::string>& paths) const {
  return input_partitions ? data::partition_fields(paths) : std::vector<data::Field>();
}

std::vector<std::pair<std::string, std::string>> JobOptions::renamed_outputs() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string& word : output_columns) {
    const size_t equals = word.find('=');
    base::require(equals != std::string::npos && equals > 0 && equals + 1 < word.size(),
                  "output_columns holds output=name, found '", word, "'");
    out.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return out;
}

std::string JobOptions::state_directory() const { return state.empty() ? output_directory + "/_job" : state; }

base::Json JobOptions::result() const {
  JobOptions copy = *this;
  const base::Json all = base::OptionList(copy).to_json();
  base::Json out = base::Json::object();
  for (const char* key :
       {"task", "input_columns", "input_format", "input_keep", "input_csv_header", "input_csv_delimiter",
        "input_most_row_bytes", "output_format", "output_compression", "output_columns", "chunk_rows"}) {
    out.set(key, all.at(key));
  }
  if (!input_partitions) out.set("input_partitions", false);  // jobs of older builds lack the key
  return out;
}

void read_job(std::string_view yaml, const std::string& source, JobOptions& options) {
  base::YamlDocument document;
  try {
    document = base::parse_yaml(yaml);
  } catch (const base::Error& e) {
    throw e.with(source);
  }
  base::require(document.value.is_object(), source, ": expected keys of a job, found ",
                document.value.type_name());
  base::OptionList list(options);
  JobFile{document, source, list}.set("", "", document.value);
  options.complete();
}

void JobOptions::complete() {
  if (input_format != "openai") return;
  output_format = "openai";
  if (input_keep.empty()) input_keep = {"custom_id"};
}

}  // namespace trireme::batch
