// File names: splits and wildcards.
#include "data/dataset/data_files.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.h"
#include "data/dataset/source_file.h"

namespace trireme::data {

namespace fs = std::filesystem;

std::string_view split_of_name(std::string_view name) {
  struct Word {
    std::string_view word, split;
  };
  static constexpr std::array<Word, 8> kWords = {{{"train", "train"},
                                                  {"training", "train"},
                                                  {"validation", "validation"},
                                                  {"valid", "validation"},
                                                  {"val", "validation"},
                                                  {"dev", "validation"},
                                                  {"test", "test"},
                                                  {"t10k", "test"}}};
  const auto is_letter = [&](size_t i) {
    return i < name.size() && ((name[i] | 32) >= 'a' && (name[i] | 32) <= 'z');
  };
  for (const Word& w : kWords) {
    for (size_t at = name.find(w.word); at != std::string_view::npos; at = name.find(w.word, at + 1)) {
      const bool starts = at == 0 || std::string_view("-_.").find(name[at - 1]) != std::string_view::npos;
      if (starts && !is_letter(at + w.word.size())) return w.split;
    }
  }
  return {};
}

std::vector<std::string> files_of_split(const std::vector<std::string>& files, std::string_view split) {
  std::vector<std::string> chosen, unnamed;
  std::vector<std::string_view> there;
  for (const std::string& file : files) {
    const std::string_view found = split_of_name(base_name(file));
    if (found == split) chosen.push_back(file);
    if (found.empty()) unnamed.push_back(file);
    if (std::find(there.begin(), there.end(), found) == there.end()) there.push_back(found);
  }
  if (chosen.empty() && split == "train") chosen = std::move(unnamed);
  if (!chosen.empty()) return chosen;
  std::string names;
  for (const std::string_view s : there) {
    names += names.empty() ? "" : ", ";
    names += s.empty() ? "files without a split in their name" : s;
  }
  base::fail(base::ErrorCode::not_found, "no files of split '", split, "'; found ", names,
             "; the option hold_out sets samples aside");
}

std::vector<std::string> expand_path(const std::string& path, bool (*wanted)(std::string_view name)) {
  std::vector<std::string> files;
  const std::string pattern = base_name(path);
  if (is_directory(path)) {
    for (const std::string& name : list_directory(path)) {
      if (!name.starts_with('.') && wanted(name) && !is_directory(path + "/" + name)) {
        files.push_back((fs::path(path) / name).string());
      }
    }
  } else if (pattern.find_first_of("*?[") != std::string::npos && !fs::exists(path)) {
    const fs::path parent = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
    for (const std::string& name : list_directory(parent.string())) {
      if (fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD) == 0) files.push_back((parent / name).string());
    }
  } else {
    return {path};
  }
  if (files.empty()) base::fail(base::ErrorCode::not_found, "no data files at '", path, "'");
  return files;
}

}  // namespace trireme::data
