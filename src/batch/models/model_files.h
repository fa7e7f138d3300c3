// The content of a model's files, so that a job knows its model again.
#pragma once

#include <string>

#include "base/text/json.h"
#include "model/model.h"

namespace trireme::batch {

/// An array of {name, bytes, crc32c}: the file that `path` is and those it refers to, or all files directly
/// in a directory and the JSON files one directory further down. Names are without directories, so that a
/// copy elsewhere is the same. Reads them whole. Empty for a model that no file holds ("zoo:NAME").
base::Json content_of_files(const std::string& path, const model::Model& model);

}  // namespace trireme::batch
