// Reads the protobuf text format into a tree, without a schema: the syntax of config.pbtxt.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/json.h"

namespace trireme::serve {

/// One field as written; a list `[a, b]` is as many fields of one name.
struct TextField {
  std::string name;
  int line = 0;
  /// `either`: from JSON, where names and numbers may stand in quotes.
  enum class Kind { word, string, message, either } kind = Kind::word;
  std::string text;  ///< a word (number, enum name, true) as written, or a string without escapes
  std::vector<TextField> fields;  ///< of a message

  // The value by type; throw invalid_argument naming field and line if it is of another kind or out of range.
  int64_t as_int() const;
  bool as_bool() const;
  const std::string& as_string() const;
  const std::string& as_word() const;
  const std::vector<TextField>& as_message() const;
};

/// No configuration that serves is larger, or has so many fields in one message (a list is as many): what is
/// compared with each other may then be compared each with each.
inline constexpr size_t kMostConfigBytes = size_t{4} << 20, kMostConfigFields = 4096;

/// Parses a whole file. Throws invalid_argument with the line number. Depth is limited to 50 messages.
std::vector<TextField> parse_pbtxt(std::string_view text);

/// The same tree from a JSON object whose keys are the fields' names. Values that are a field's default
/// anyway (false, 0, "", []) are left out, so that what a server printed can be given back; line numbers are
/// 0.
std::vector<TextField> fields_of_json(const base::Json& json);

/// For readers, of a field that they do not honour: refuses it by its path and line, with the reason where it
/// is a field of ModelConfig. One of those that has its default value is let pass.
void refuse_field(std::string_view path, const TextField& field);

}  // namespace trireme::serve
