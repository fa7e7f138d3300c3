// A template's source as tokens: text between tags, and what is inside them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data::jinja {

struct TemplateToken {
  enum class Kind {
    text,
    block_begin,
    block_end,
    output_begin,
    output_end,
    name,
    string,
    integer,
    real,
    symbol,
    end
  };
  Kind kind = Kind::end;
  std::string text;  ///< of strings without quotes and escapes
  int line = 1;

  bool is(std::string_view symbol_or_name) const {
    return (kind == Kind::symbol || kind == Kind::name) && text == symbol_or_name;
  }
};

/// Ends with a token of kind `end`. Throws invalid_argument with the line, and above 1 MiB of source.
std::vector<TemplateToken> tokens_of_template(std::string_view source);

}  // namespace trireme::data::jinja
