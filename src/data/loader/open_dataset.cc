// The table of formats: how each is recognised, which options it takes, and how it is opened.
#include "data/loader/open_dataset.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/text/options.h"
#include "base/files/file.h"
#include "data/dataset/data_files.h"
#include "data/readers/image_field.h"
#include "data/readers/readers.h"

namespace trireme::data {

namespace fs = std::filesystem;
using base::require;

namespace {

using Files = std::vector<std::string>;

struct Format {
  std::string name;
  bool (*is_name)(std::string_view file_name);  // by the name without .gz
  std::string options;                          // " context stride ": options beyond the common ones
  DatasetPtr (*open)(const DatasetSpec& spec, const std::string& path);
};

bool ends_with_one_of(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view e) { return name.ends_with(e); });
}

/// Opens every file that `path` and the split select, and joins them.
template <class Open>
DatasetPtr open_each(const DatasetSpec& spec, const std::string& path, bool (*wanted)(std::string_view),
                     const Open& open) {
  Files files = expand_path(path, wanted);
  if (is_directory(path)) files = files_of_split(files, spec.hold_out > 0 ? "train" : spec.split);
  std::vector<DatasetPtr> parts;
  for (const std::string& file : files) parts.push_back(open(file));
  return concat(std::move(parts));
}

bool is_idx_name(std::string_view name) {
  name = without_gz(name);
  return ends_with_one_of(name, {"-ubyte", ".idx"}) || name.find("-idx") != std::string_view::npos;
}
bool is_idx_images(std::string_view name) {
  return is_idx_name(name) && name.find("labels") == std::string_view::npos;
}

void replace_word(std::string& text, std::string_view word, std::string_view by) {
  const size_t at = text.rfind(word);
  if (at != std::string::npos) text.replace(at, word.size(), by);
}

/// train-images-idx3-ubyte.gz -> train-labels-idx1-ubyte, packed or not; "" if there is none.
std::string idx_labels_of(const std::string& images) {
  std::string name = base_name(images);
  replace_word(name, "images", "labels");
  replace_word(name, "idx3", "idx1");
  if (name == base_name(images)) return {};
  const fs::path directory = fs::path(images).parent_path();
  const std::string plain(without_gz(name));
  for (const std::string& candidate : {plain, plain + ".gz"}) {
    if (fs::exists(directory / candidate)) return (directory / candidate).string();
  }
  return {};
}

DatasetPtr open_idx_path(const DatasetSpec& spec, const std::string& path) {
  return open_each(spec, path, is_idx_images, [&](const std::string& file) {
    return open_idx(file, idx_labels_of(file), spec.max_unpacked.bytes);
  });
}

bool is_cifar_name(std::string_view name) {
  return without_gz(name).ends_with(".bin") && name.find("batch") != std::string_view::npos;
}
DatasetPtr open_cifar10_path(const DatasetSpec& spec, const std::string& path) {
  return open_each(spec, path, is_cifar_name,
                   [&](const std::string& file) { return open_cifar10(file, spec.max_unpacked.bytes); });
}

DatasetPtr open_images_path(const DatasetSpec& spec, const std::string& path) {
  // The usual form is a directory per split with its classes; classes without splits are all training data.
  Files splits;
  for (const std::string& name : list_directory(path)) {
    if (split_of_name(name).empty() || !is_directory(path + "/" + name)) continue;
    splits.push_back((fs::path(path) / name).string());
  }
  const std::string split = spec.hold_out > 0 ? "train" : spec.split;
  if (splits.empty()) {
    require(split == "train", "image folder '", path, "' has no directory for the split: '", split, "'");
    return open_image_folder(path);
  }
  return open_image_folder(files_of_split(splits, split).front());
}

TokenWindows windows_of(const DatasetSpec& spec) {
  TokenWindows windows{.context = spec.context, .stride = spec.stride, .hold_out = spec.hold_out};
  windows.split = spec.hold_out > 0 ? spec.split : "train";
  return windows;
}

bool is_token_name(std::string_view name) {
  return ends_with_one_of(without_gz(name), {".bin", ".u16", ".u32", ".tokens"});
}
DatasetPtr open_tokens_path(const DatasetSpec& spec, const std::string& path) {
  require(spec.token_type == "u16" || spec.token_type == "u32", "token_type is not u16 or u32: '",
          spec.token_type, "'");
  const bool wide = spec.token_type == "u32";
  return open_each(spec, path, is_token_name, [&](const std::string& file) {
    const TokenType type = wide || without_gz(file).ends_with(".u32") ? TokenType::u32 : TokenType::u16;
    return open_tokens(file, type, spec.vocabulary_size, windows_of(spec), spec.max_unpacked.bytes);
  });
}

bool is_text_name(std::string_view name) { return without_gz(name).ends_with(".txt"); }
DatasetPtr open_characters_path(const DatasetSpec& spec, const std::string& path) {
  return open_each(spec, path, is_text_name, [&](const std::string& file) {
    return open_characters(file, windows_of(spec), spec.max_unpacked.bytes);
  });
}

bool is_tar_name(std::string_view name) { return ends_with_one_of(name, {".tar", ".tgz", ".tar.gz"}); }
DatasetPtr open_webdataset_path(const DatasetSpec& spec, const std::string& path) {
  return open_each(spec, path, is_tar_name,
                   [&](const std::string& file) { return open_webdataset(file, spec.max_unpacked.bytes); });
}

bool is_tfrecord_name(std::string_view name) { return name.find("tfrecord") != std::string_view::npos; }
DatasetPtr open_tfrecord_path(const DatasetSpec& spec, const std::string& path) {
  return open_each(spec, path, is_tfrecord_name,
                   [&](const std::string& file) { return open_tfrecord(file, spec.max_unpacked.bytes); });
}

bool is_jsonl_name(std::string_view name) {
  return ends_with_one_of(without_gz(name), {".jsonl", ".ndjson"});
}
DatasetPtr open_jsonl_path(const DatasetSpec& spec, const std::string& path) {
  return open_each(spec, path, is_jsonl_name,
                   [&](const std::string& file) { return open_jsonl(file, spec.max_unpacked.bytes); });
}

bool is_csv_name(std::string_view name) { return ends_with_one_of(without_gz(name), {".csv", ".tsv"}); }
DatasetPtr open_csv_path(const DatasetSpec& spec, const std::string& path) {
  const std::string& d = spec.delimiter;
  require(d == "tab" || d.size() == 1, "delimiter is not one character or the word tab: '", d, "'");
  return open_each(spec, path, is_csv_name, [&](const std::string& file) {
    const bool tab = d == "tab" || (d == "," && without_gz(file).ends_with(".tsv"));
    return open_csv(file, {spec.header, tab ? '\t' : d[0]}, spec.max_unpacked.bytes);
  });
}

bool is_parquet_name(std::string_view name) { return name.ends_with(".parquet"); }
DatasetPtr open_parquet_path(const DatasetSpec& spec, const std::string& path) {
  return open_each(spec, path, is_parquet_name, [&](const std::string& file) {
    return open_parquet(file, spec.columns, spec.max_unpacked.bytes);
  });
}

constexpr const char* kFieldOptions = " image_field label_field ";

/// Decodes or renames one field to "image", renames one to "label".
DatasetPtr with_named_fields(DatasetPtr from, const std::string& image, const std::string& label) {
  if (image.empty() && label.empty()) return from;
  std::vector<Field> fields = from->info().fields;
  std::string there;
  for (const Field& f : fields) there += (there.empty() ? "" : ", ") + f.name;
  for (const std::string& name : {image, label}) {
    require(name.empty() || from->info().find(name) != nullptr, "data set has no field '", name, "'; it has ",
            there);
  }
  for (Field& f : fields) {
    if (f.name == image)
      f = f.kind == FieldKind::tensor ? Field{"image", f.kind, f.dtype, f.shape} : image_field("image");
    if (f.name == label) {
      f.name = "label";
      f.is_target = true;
    }
  }
  return map(std::move(from), std::move(fields), [image, label](Sample& sample) {
    for (Value& v : sample.values) {
      if (v.name == image) {
        if (!v.tensor.defined()) v = {"image", decode_image_tensor(sample.text(image)), {}};
        v.name = "image";
      } else if (v.name == label) {
        v.name = "label";
      }
    }
  });
}

/// In the order in which "auto" tries them.
const std::vector<Format>& formats() {
  static const std::vector<Format> list = {
      {"idx", is_idx_images, "", open_idx_path},
      {"cifar10", is_cifar_name, "", open_cifar10_path},
      {"webdataset", is_tar_name, kFieldOptions, open_webdataset_path},
      {"tfrecord", is_tfrecord_name, kFieldOptions, open_tfrecord_path},
      {"parquet", is_parquet_name, std::string(kFieldOptions) + " columns ", open_parquet_path},
      {"jsonl", is_jsonl_name, kFieldOptions, open_jsonl_path},
      {"csv", is_csv_name, std::string(kFieldOptions) + " header delimiter ", open_csv_path},
      {"tokens", is_token_name, " context stride token_type vocabulary_size ", open_tokens_path},
      {"characters", is_text_name, " context stride ", open_characters_path},
      {"images", is_image_name, "", open_images_path},
  };
  return list;
}

struct KnownName {
  std::string name, path, package;
  std::vector<std::string> class_names;
};
const std::vector<KnownName>& known_names() {
  static const std::vector<KnownName> list = {{"fashion-mnist",
                                               "/usr/share/datasets/fashion-mnist",
                                               "dataset-fashion-mnist",
                                               {"T-shirt/top", "trouser", "pullover", "dress", "coat",
                                                "sandal", "shirt", "sneaker", "bag", "ankle boot"}}};
  return list;
}

/// `path`, or the directory where the package installs the data set of that name.
std::string resolve(const std::string& path) {
  for (const KnownName& known : known_names()) {
    if (path != known.name || fs::exists(path)) continue;
    if (fs::exists(known.path)) return known.path;
    base::fail(base::ErrorCode::not_found, "data set '", path, "' is not installed: run apt install ",
               known.package, ", or give the directory of its files");
  }
  return path;
}

const Format& format_named(const std::string& name) {
  const Format* nearest = nullptr;
  for (const Format& f : formats()) {
    if (f.name == name) return f;
    if (nearest == nullptr || base::edit_distance(name, f.name) < base::edit_distance(name, nearest->name))
      nearest = &f;
  }
  std::string all;
  for (const Format& f : formats()) all += (all.empty() ? "" : ", ") + f.name;
  base::fail_invalid("unknown data format '", name, "'; the nearest is '", nearest->name, "' of ", all);
}

/// Refuses options that the format would ignore, as that would be a silent mistake.
void check_options(const DatasetSpec& spec, const Format& format) {
  static constexpr std::string_view kCommon = " path format split hold_out max_unpacked ";
  DatasetSpec given = spec, plain;
  const base::Json now = base::OptionList(given).to_json(), defaults = base::OptionList(plain).to_json();
  for (const base::JsonMember& member : now.as_object()) {
    const std::string word = " " + member.key + " ";
    if (kCommon.find(word) != std::string_view::npos || format.options.find(word) != std::string::npos)
      continue;
    require(member.value == defaults.at(member.key), "data format ", format.name, " has no option '",
            member.key, "'");
  }
}

std::string guess_inside(const std::string& directory) {
  bool has_directories = false;
  for (const std::string& name : list_directory(directory)) {
    if (name.starts_with('.')) continue;
    if (is_directory(directory + "/" + name)) {
      has_directories = true;
      continue;
    }
    for (const Format& f : formats()) {
      if (f.is_name(name)) return f.name;
    }
  }
  return has_directories ? "images" : "";
}

}  // namespace

void DatasetSpec::fields(base::OptionList& f) {
  std::string names = "auto";
  for (const Format& known : formats()) names += ", " + known.name;
  f.add("path", &path, "files (also with * and ?), directories, or a known name: fashion-mnist")
      .positional()
      .required();
  f.add("format", &format, "one of " + names);
  f.add("split", &split, "train, validation or test, told by file and directory names");
  f.add("hold_out", &hold_out, "share of the samples set aside as split validation").at_least(0).at_most(1);
  f.add("context", &context, "token data: tokens of a sample").at_least(0);
  f.add("stride", &stride, "token data: from one sample's start to the next; 0: context").at_least(0);
  f.add("token_type", &token_type, "token data: u16 or u32");
  f.add("vocabulary_size", &vocabulary_size, "token data: larger ids are errors; 0: not checked").at_least(0);
  f.add("columns", &columns, "parquet: the columns to read; none given: all");
  f.add("header", &header, "csv: the first row names the columns");
  f.add("delimiter", &delimiter, "csv: one character, or tab");
  f.add("image_field", &image_field,
        "records and rows: the field that becomes image, decoded if it is bytes");
  f.add("label_field", &label_field, "records and rows: the field that becomes label");
  f.add("max_unpacked", &max_unpacked, "largest size of a gzip or Parquet file in memory");
}

std::string guess_format(const std::string& given) {
  const std::string path = resolve(given);
  if (is_directory(path)) return guess_inside(path);
  const std::string name = base_name(path);
  for (const Format& f : formats()) {
    if (f.name != "images" && f.is_name(name)) return f.name;  // a single picture is not a data set
  }
  return {};
}

DatasetPtr open_dataset(const DatasetSpec& spec) {
  require(!spec.path.empty(), "data set has no path");
  std::string name = spec.format;
  if (name == "auto") {
    name = guess_format(spec.path[0]);
    require(!name.empty(), "cannot tell the data format of '", spec.path[0], "'; give the option format");
  }
  const Format& format = format_named(name);
  check_options(spec, format);
  std::vector<DatasetPtr> parts;
  for (const std::string& path : spec.path) {
    DatasetPtr part = format.open(spec, resolve(path));
    for (const KnownName& known : known_names()) {
      if (path != known.name || !part->info().class_names.empty()) continue;
      DatasetInfo info = part->info();
      info.class_names = known.class_names;
      part = with_info(std::move(part), std::move(info));
    }
    parts.push_back(std::move(part));
  }
  DatasetPtr all = with_named_fields(concat(std::move(parts)), spec.image_field, spec.label_field);
  const bool by_tokens = format.options.find(" context ") != std::string::npos;  // it splits tokens itself
  return spec.hold_out > 0 && !by_tokens ? hold_out(std::move(all), spec.hold_out, spec.split) : all;
}

}  // namespace trireme::data
