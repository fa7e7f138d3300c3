// One way to open any data set: what a run's configuration says about its data, and the reader it selects.
#pragma once

#include <string>
#include <vector>

#include "base/text/options.h"
#include "data/dataset/dataset.h"

namespace trireme::data {

/// The `data` part of a run's configuration. Options that a format does not use must stay at their defaults.
struct DatasetSpec {
  std::vector<std::string> path;  ///< files, directories, or one known name such as "fashion-mnist"
  std::string format = "auto";
  std::string split = "train";
  double hold_out = 0;  ///< share of the samples set aside as split "validation"

  int64_t context = 0;  ///< token data: tokens of a sample
  int64_t stride = 0;
  std::string token_type = "u16";
  int64_t vocabulary_size = 0;
  std::vector<std::string> columns;  ///< parquet: those to read; empty: all
  bool header = true;                ///< csv: the first row names the columns
  std::string delimiter = ",";       ///< csv: one character, or "tab"
  std::string image_field;           ///< records and rows: the field that becomes "image", decoded if bytes
  std::string label_field;           ///< records and rows: the field that becomes "label"
  base::ByteSize max_unpacked{int64_t{16} << 30};

  void fields(base::OptionList& f);
};

/// Opens what the spec names; several paths become one data set, in their order. Throws invalid_argument for
/// an unknown format (naming the nearest), options the format does not use, or a format that cannot be
/// guessed; not_found with a hint for a known name that is not installed; and what the reader throws.
DatasetPtr open_dataset(const DatasetSpec& spec);

/// What "auto" takes the path for; empty if nothing fits.
std::string guess_format(const std::string& path);

}  // namespace trireme::data
