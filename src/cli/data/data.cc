// trireme data inspect: shows what a data set holds: files, counts, fields, shares of the classes and the
// first samples.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>

#include "base/error.h"
#include "base/utf8.h"
#include "cli/data/field_type.h"
#include "cli/verb.h"
#include "data/loader/open_dataset.h"

namespace trireme::cli {
namespace {

using base::Json;
using data::FieldKind;

struct DataOptions {
  std::string action;
  data::DatasetSpec spec;
  int64_t samples = 3;
  int64_t labels = 100000;
  bool json = false;

  void fields(base::OptionList& f) {
    f.add("action", &action, "inspect; or rows, with options of its own").positional().required();
    spec.fields(f);
    f.add("samples", &samples, "how many samples to show").at_least(0).at_most(1000);
    f.add("labels", &labels, "how many samples to read for the shares of the classes; 0: none").at_least(0);
    f.add("json", &json, "print one JSON object");
  }
};

/// At most `limit` characters of a text on one line; for binary data, the number of bytes.
std::string preview(const std::string& text, FieldKind kind, size_t limit = 72) {
  if (kind == FieldKind::bytes || !base::is_utf8(text)) return std::to_string(text.size()) + " bytes";
  std::string out = "\"";
  size_t pos = 0;
  for (size_t shown = 0; pos < text.size() && shown < limit; ++shown) {
    const char32_t c = base::next_code_point(text, pos);
    base::append_utf8(out, c < 0x20 || c == 0x7f ? U' ' : c);
  }
  return out + (pos < text.size() ? "…\"" : "\"");
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

/// The values of a small tensor, or the range of a larger one.
std::string preview(const tensor::Tensor& t) {
  constexpr int64_t kShown = 8;
  std::string out = std::string(tensor::name_of(t.dtype())) + tensor::to_string(t.dims());
  if (t.elements() == 0) return out;
  const std::vector<double> values = t.to_doubles();
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  if (t.elements() > kShown) return out + " " + number_text(*low) + " to " + number_text(*high);
  std::string list;
  for (const double v : values) list += (list.empty() ? "" : ", ") + number_text(v);
  return out + " {" + list + "}";
}

/// The text that token ids stand for, if the vocabulary is known.
std::string decoded(const tensor::Tensor& t, const data::DatasetInfo& info) {
  if (info.vocabulary.empty() || t.dtype() != tensor::DType::i64) return {};
  std::string text;
  for (const int64_t id : t.data<int64_t>()) text += info.vocabulary.at(static_cast<size_t>(id));
  return " " + preview(text, FieldKind::text);
}

FieldKind kind_of(const data::DatasetInfo& info, const std::string& field) {
  const data::Field* f = info.find(field);
  return f == nullptr ? FieldKind::bytes : f->kind;
}

std::string describe(const data::Value& v, const data::DatasetInfo& info) {
  if (v.tensor.defined()) return preview(v.tensor) + decoded(v.tensor, info);
  std::string out;
  for (const std::string& s : v.strings) out += (out.empty() ? "" : ", ") + preview(s, kind_of(info, v.name));
  return out;
}

/// How often each label occurs among the first `limit` samples; empty unless labels are scalar integers.
std::map<int64_t, int64_t> count_labels(const data::Dataset& set, int64_t limit) {
  std::map<int64_t, int64_t> counts;
  const data::Field* label = set.info().find("label");
  const bool countable = label != nullptr && label->kind == FieldKind::tensor &&
                         tensor::is_integer(label->dtype) && label->shape == tensor::Shape{};
  // Beside images of unknown size, a label is known only after decoding, which is too slow for many samples.
  const data::Field* image = set.info().find("image");
  if (image != nullptr && !image->shape.is_static()) limit = std::min<int64_t>(limit, 200);
  for (int64_t i = 0; countable && i < std::min(limit, set.size()); ++i) {
    const data::Sample sample = set.read(i);
    if (sample.find("label") != nullptr) ++counts[sample.tensor("label").to_ints().at(0)];
  }
  return counts;
}

int64_t total_bytes(const data::DatasetInfo& info) {
  int64_t bytes = 0;
  for (const data::ShardInfo& s : info.shards) bytes += s.bytes;
  return bytes;
}

std::string class_name(const data::DatasetInfo& info, int64_t label) {
  const bool named = label >= 0 && label < static_cast<int64_t>(info.class_names.size());
  return named ? info.class_names[static_cast<size_t>(label)] : std::string();
}

std::string fingerprint_text(const data::Dataset& set) {
  char text[24];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(data::fingerprint(set)));
  return text;
}

void print_shards(const data::DatasetInfo& info) {
  constexpr size_t kShown = 16;
  std::printf("\nfiles\n");
  for (size_t i = 0; i < std::min(kShown, info.shards.size()); ++i) {
    const data::ShardInfo& s = info.shards[i];
    std::printf("  %10lld samples %14lld bytes  %s\n", static_cast<long long>(s.samples),
                static_cast<long long>(s.bytes), s.path.c_str());
  }
  if (info.shards.size() > kShown) std::printf("  and %zu more\n", info.shards.size() - kShown);
}

void print_labels(const data::Dataset& set, int64_t limit) {
  const std::map<int64_t, int64_t> counts = count_labels(set, limit);
  if (counts.empty()) return;
  int64_t total = 0, most = 0;
  for (const auto& [label, count] : counts) {
    total += count;
    most = std::max(most, count);
  }
  constexpr size_t kShown = 40;
  constexpr int64_t kBar = 30;
  std::printf("\nlabels of %s%lld samples: %zu classes\n", total < set.size() ? "the first " : "",
              static_cast<long long>(total), counts.size());
  size_t shown = 0;
  for (const auto& [label, count] : counts) {
    if (shown++ == kShown) {
      std::printf("  and %zu more\n", counts.size() - kShown);
      break;
    }
    const std::string bar(static_cast<size_t>((count * kBar + most - 1) / most), '#');
    std::printf("  %6lld %-20s %8lld %5.1f %% %s\n", static_cast<long long>(label),
                class_name(set.info(), label).c_str(), static_cast<long long>(count),
                100.0 * static_cast<double>(count) / static_cast<double>(total), bar.c_str());
  }
}

/// Prints the first samples, or why one cannot be read. Returns how many could not be read.
int64_t print_samples(const data::Dataset& set, int64_t count) {
  int64_t broken = 0;
  std::printf("\nsamples\n");
  for (int64_t i = 0; i < std::min(count, set.size()); ++i) {
    std::printf("  %lld  %s\n", static_cast<long long>(i), set.name_of(i).c_str());
    try {
      const data::Sample sample = set.read(i);
      for (const data::Value& v : sample.values) {
        std::printf("     %-24s %s\n", v.name.c_str(), describe(v, set.info()).c_str());
      }
    } catch (const base::Error& e) {
      std::printf("     broken: %s\n", e.message().c_str());
      ++broken;
    }
  }
  return broken;
}

int64_t print_text(const data::Dataset& set, const DataOptions& options) {
  const data::DatasetInfo& info = set.info();
  std::printf("format      %s\nsamples     %lld\nfiles       %zu, %s\nfingerprint %s\n", info.format.c_str(),
              static_cast<long long>(set.size()), info.shards.size(),
              to_string(base::ByteSize{total_bytes(info)}).c_str(), fingerprint_text(set).c_str());
  if (info.vocabulary_size > 0)
    std::printf("vocabulary  %lld\n", static_cast<long long>(info.vocabulary_size));
  std::printf("\nfields\n");
  for (const data::Field& f : info.fields) {
    std::printf("  %-24s %s%s\n", f.name.c_str(), type_text(f).c_str(), f.is_target ? "  (target)" : "");
  }
  print_shards(info);
  print_labels(set, options.labels);
  return options.samples > 0 ? print_samples(set, options.samples) : 0;
}

Json samples_json(const data::Dataset& set, int64_t count) {
  Json list = Json::array();
  for (int64_t i = 0; i < std::min(count, set.size()); ++i) {
    Json sample = Json::object({{"index", i}, {"name", set.name_of(i)}});
    Json& values = sample.set("values", Json::object());
    for (const data::Value& v : set.read(i).values) values.set(v.name, describe(v, set.info()));
    list.push_back(std::move(sample));
  }
  return list;
}

void print_json(const data::Dataset& set, const DataOptions& options) {
  const data::DatasetInfo& info = set.info();
  Json fields = Json::array(), shards = Json::array(), labels = Json::array();
  for (const data::Field& f : info.fields) {
    fields.push_back(Json::object({{"name", f.name}, {"type", type_text(f)}, {"is_target", f.is_target}}));
  }
  for (const data::ShardInfo& s : info.shards) {
    shards.push_back(Json::object({{"path", s.path}, {"samples", s.samples}, {"bytes", s.bytes}}));
  }
  for (const auto& [label, count] : count_labels(set, options.labels)) {
    labels.push_back(Json::object({{"label", label}, {"name", class_name(info, label)}, {"count", count}}));
  }
  const Json all = Json::object({{"format", info.format},
                                 {"samples", set.size()},
                                 {"bytes", total_bytes(info)},
                                 {"fingerprint", fingerprint_text(set)},
                                 {"vocabulary_size", info.vocabulary_size},
                                 {"fields", std::move(fields)},
                                 {"shards", std::move(shards)},
                                 {"labels", std::move(labels)},
                                 {"first", samples_json(set, options.samples)}});
  std::cout << all.dump({.indent = 2}) << "\n";
}

/// Files of tokens do not say how long a sample is; for inspecting them any length will do.
void settle_context(data::DatasetSpec& spec) {
  const std::string format = spec.format == "auto" ? data::guess_format(spec.path.at(0)) : spec.format;
  if (spec.context == 0 && (format == "tokens" || format == "characters")) spec.context = 64;
}

}  // namespace

int data_main(std::span<const std::string> words, base::Env&) {
  if (!words.empty() && words[0] == "rows") return data_rows_main(words.subspan(1));
  DataOptions options;
  if (!parse(options, words, "data")) return 0;
  base::require(options.action == "inspect", "unknown action of trireme data: '", options.action,
                "'; there are inspect and rows");
  settle_context(options.spec);
  const data::DatasetPtr set = data::open_dataset(options.spec);
  if (options.json) {
    print_json(*set, options);
    return 0;
  }
  return print_text(*set, options) == 0 ? 0 : 1;
}

std::string data_markdown() {
  return options_markdown<DataOptions>() + "\n`trireme data rows PATH`\n\n" + data_rows_markdown();
}

}  // namespace trireme::cli
