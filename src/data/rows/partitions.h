// Columns that directories name, as Hive and Spark lay data sets out: year=2024/country=DE/part-0.parquet.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/rows/row_file.h"

namespace trireme::data {

/// The directories `key=value` of a path or URL in their order, escapes (%2F) undone. Throws invalid_argument
/// for a key that is there twice.
std::vector<std::pair<std::string, std::string>> partitions_of(const std::string& path);

/// The columns that the directories of all these files name, in the order in which they are met: i64 where
/// every value is a whole number, else text. `__HIVE_DEFAULT_PARTITION__` stands for a missing value.
std::vector<Field> partition_fields(const std::vector<std::string>& paths);

/// The file with one more column for each of `fields` that its own directories name, the same value in every
/// row; a column of that name in the file itself stands. The file as it is, where there is none. Throws
/// invalid_argument for a value that is no whole number where the field wants one.
std::unique_ptr<RowFile> with_partitions(std::unique_ptr<RowFile> file, const std::string& path,
                                         const std::vector<Field>& fields);

}  // namespace trireme::data
