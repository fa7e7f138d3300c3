// A repository with the tuned model in it.
#include "tune/model_directory.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json.h"
#include "serve/config/pbtxt.h"

namespace trireme::tune {
namespace {

namespace fs = std::filesystem;
using serve::TextField;

void print_fields(const std::vector<TextField>& fields, const std::string& indent, std::string& out) {
  for (const TextField& f : fields) {
    switch (f.kind) {
      case TextField::Kind::message:
        out += indent + f.name + " {\n";
        print_fields(f.fields, indent + "  ", out);
        out += indent + "}\n";
        break;
      case TextField::Kind::string:
        out += indent + f.name + ": ";
        base::append_json(out, std::string_view(f.text));
        out += "\n";
        break;
      default: out += indent + f.name + ": " + f.text + "\n";
    }
  }
}

bool is_one_of(const std::string& name, std::initializer_list<std::string_view> list) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

/// A parameter that the search decides.
bool is_ours(const TextField& parameter) {
  return std::any_of(parameter.fields.begin(), parameter.fields.end(), [](const TextField& f) {
    return f.name == "key" &&
           is_one_of(f.text, {"precision", "threads", "buckets", "batch_window", "whole_batches"});
  });
}

void add_parameter(std::string& out, const std::string& key, const std::string& value) {
  out += "parameters { key: \"" + key + "\" value { string_value: \"" + value + "\" } }\n";
}

void add_batching(std::string& out, const Candidate& c, const std::string& kept) {
  out += base::concat("max_batch_size: ", c.max_batch, "\n");
  if (c.max_batch == 0) return;
  out += "dynamic_batching {\n";
  if (c.keeps_window || c.window_ns == 0)
    out += base::concat("  max_queue_delay_microseconds: ", c.window_ns / base::kNsPerUs, "\n");
  out += kept + "}\n";
  std::string buckets;
  for (int64_t b : c.row_buckets) buckets += (buckets.empty() ? "" : ",") + std::to_string(b);
  add_parameter(out, "buckets", buckets);
  if (c.runs_whole) add_parameter(out, "whole_batches", "true");
  if (!c.keeps_window && c.window_ns > 0)
    add_parameter(out, "batch_window", to_string(base::Duration{c.window_ns}));
}

void link_file(const fs::path& from, const fs::path& to) {
  fs::create_directories(to.parent_path());
  std::error_code error;
  fs::create_hard_link(fs::canonical(from), to, error);
  if (error) fs::copy_file(fs::canonical(from), to, fs::copy_options::overwrite_existing);
}

/// An ONNX file brings its external data, where it names them.
void link_model(const Variant& variant, const fs::path& version) {
  const fs::path path(variant.path);
  if (fs::is_directory(path)) {
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (entry.is_regular_file() && entry.path().filename() != "config.pbtxt")
        link_file(entry.path(), version / fs::relative(entry.path(), path));
    }
    return;
  }
  link_file(path, version / "model.onnx");
  for (const std::string& name : variant.external) link_file(path.parent_path() / name, version / name);
}

}  // namespace

std::string config_text(const Subject& subject, const Candidate& c) {
  std::string rest, kept;
  for (const TextField& f : serve::parse_pbtxt(subject.config_text)) {
    if (f.name == "dynamic_batching") {
      std::vector<TextField> inner = f.fields;
      std::erase_if(inner, [](const TextField& i) {
        return is_one_of(i.name, {"preferred_batch_size", "max_queue_delay_microseconds"});
      });
      print_fields(inner, "  ", kept);
    } else if (!is_one_of(f.name, {"name", "max_batch_size", "instance_group", "version_policy"}) &&
               !(f.name == "parameters" && is_ours(f))) {
      print_fields({f}, "", rest);
    }
  }
  const Variant& v = subject.variants[c.variant];
  std::string out = "# Written by `trireme tune`.\nname: \"" + subject.name + "\"\n";
  add_batching(out, c, kept);
  out += base::concat("instance_group [ { count: ", c.layout.instances, " } ]\n");
  add_parameter(out, "threads", std::to_string(c.layout.threads));
  using passes::Precision;
  if (v.precision != Precision::f32) {
    const bool is_f16 = v.precision == Precision::f16;
    add_parameter(out, "precision", v.precision == Precision::fp8 ? "fp8" : is_f16 ? "f16" : "bf16");
  }
  return out + rest;
}

void require_elsewhere(const std::string& model, const std::string& out) {
  const fs::path place = fs::weakly_canonical(model);
  for (const char* written : {"repository", "trial"}) {
    const fs::path inside = place.lexically_relative(fs::weakly_canonical(fs::path(out) / written));
    base::require(inside.empty() || *inside.begin() == "..", "the model '", model, "' lies in '", out, "/",
                  written, "', which is written anew: give another --out, or the model that it was made of");
  }
}

void write_model_directory(const std::string& repository, const Subject& subject,
                           const Candidate& candidate) {
  const fs::path place = fs::path(repository) / subject.name;
  const fs::path root = fs::path(repository) / ("." + subject.name + ".new");  // which no server sees
  fs::remove_all(root);
  fs::create_directories(root);
  // Labels and what else the configuration names lies beside the versions.
  if (fs::is_directory(subject.given) && !subject.config_text.empty()) {
    for (const auto& entry : fs::directory_iterator(subject.given)) {
      if (entry.is_regular_file() && entry.path().filename() != "config.pbtxt" &&
          entry.path().extension() != ".onnx")
        link_file(entry.path(), root / entry.path().filename());
    }
  }
  link_model(subject.variants[candidate.variant], root / "1");
  base::write_file_atomic((root / "config.pbtxt").string(), config_text(subject, candidate));
  fs::remove_all(place);
  fs::rename(root, place);
}

}  // namespace trireme::tune
