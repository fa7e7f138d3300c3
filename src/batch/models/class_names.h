// The names of a classifier's classes: from a file of the job, or from the model's own configuration.
#pragma once

#include <string>
#include <vector>

#include "base/text/json.h"

namespace trireme::batch {

/// By class, of the key id2label of a Hugging Face configuration: {"0": "cat", "1": "dog"}. Empty where it
/// has none. Throws invalid_argument unless it names each class from 0 on once.
std::vector<std::string> class_names_of(const base::Json& config);

/// Of a file: JSON (a list of names, the mapping of id2label, or an object that holds it), or lines of text,
/// one name each. Throws invalid_argument for a file without names.
std::vector<std::string> read_class_names(const std::string& path);

}  // namespace trireme::batch
