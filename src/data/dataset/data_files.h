// Which files a path means: directories, wildcards, and the files of a split told by their names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// "train", "validation" (also val, valid, dev) or "test" (also t10k) if such a word stands in the file's
/// name, set off by its start or by '-', '_', '.'; else "".
std::string_view split_of_name(std::string_view name);

/// The files that belong to `split`: those whose names say so; if no name says train, the files whose names
/// say nothing are train. Throws not_found, with the splits that are there.
std::vector<std::string> files_of_split(const std::vector<std::string>& files, std::string_view split);

/// Expands `path`: a wildcard (* ? [..]) in its last part to the matching files, sorted; a directory to the
/// files inside for which `wanted` holds; else the path itself. Throws not_found if nothing is left.
std::vector<std::string> expand_path(const std::string& path, bool (*wanted)(std::string_view name));

}  // namespace trireme::data
