// YAML: documents read into Json values with the line of each, and Json written as YAML.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/text/json.h"

namespace trireme::base {

struct YamlDocument {
  Json value;  ///< null for an empty document
  /// Line, from 1, of every value inside, by path: "optimizer.betas[1]".
  std::map<std::string, int, std::less<>> lines;

  /// The line of a path; 0 if there is none.
  int line(std::string_view path) const;
};

/// Reads one document. Plain scalars follow YAML 1.2's core schema (null, true, false, integers, floats);
/// everything else, and what is quoted, is a string. Throws invalid_argument with the line for broken text,
/// duplicate or non-scalar keys, nesting past 50, more than 100,000 values (aliases count), or a second
/// document.
YamlDocument parse_yaml(std::string_view text);

/// The value of one plain scalar or flow collection: "3", "1e-4", "true", "[1, 2]", "text".
Json parse_yaml_value(std::string_view text);

/// Block style, two spaces; lists of scalars in one line. parse_yaml reads back an equal value.
std::string to_yaml(const Json& value);

}  // namespace trireme::base
