// Reads the protobuf text format as a tree, without a schema.
#include "serve/config/pbtxt.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/utf8.h"

namespace trireme::serve {
namespace {

constexpr int kMaxDepth = 50;

void check_room(const std::vector<TextField>& fields) {
  base::require(fields.size() <= kMostConfigFields,
                "a message of the configuration has more fields than the limit of ", kMostConfigFields);
}

bool is_word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '-' || c == '+';
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {
    constexpr std::string_view kMark = "\xEF\xBB\xBF";  // byte order mark, which some editors write
    if (text_.starts_with(kMark)) text_.remove_prefix(kMark.size());
  }

  /// Reads fields up to `end` ('\0' stands for the end of the text).
  std::vector<TextField> message(char end, int depth) {
    if (depth > kMaxDepth) fail("messages are nested too deeply");
    std::vector<TextField> fields;
    while (true) {
      skip_space();
      if (at_end() || peek() == end) {
        if (at_end() != (end == '\0')) fail(at_end() ? "a message does not end" : "unexpected NUL");
        return fields;
      }
      field(fields, depth);
      check_room(fields);
      skip_space();
      if (!at_end() && (peek() == ',' || peek() == ';')) ++at_;
    }
  }

 private:
  [[noreturn]] void fail(std::string_view what) const { base::fail_invalid("line ", line_, ": ", what); }
  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return text_[at_]; }

  void skip_space() {
    while (!at_end()) {
      const char c = peek();
      if (c == '#') {
        while (!at_end() && peek() != '\n') ++at_;
      } else if (c == ' ' || (c >= '\t' && c <= '\r')) {  // also \v and \f
        line_ += c == '\n';
        ++at_;
      } else {
        return;
      }
    }
  }

  bool take(char c) {
    skip_space();
    if (at_end() || peek() != c) return false;
    ++at_;
    return true;
  }

  std::string word() {
    const size_t begin = at_;
    while (!at_end() && is_word_char(peek())) ++at_;
    if (at_ == begin) fail("expected a name or a value");
    return std::string(text_.substr(begin, at_ - begin));
  }

  void field(std::vector<TextField>& fields, int depth) {
    TextField head;
    head.line = line_;
    head.name = word();
    const bool has_colon = take(':');
    if (take('[')) {
      if (take(']')) return;
      do {
        fields.push_back(value(head, true, depth));
        check_room(fields);
      } while (take(','));
      if (!take(']')) fail("a list does not end");
      return;
    }
    fields.push_back(value(head, has_colon, depth));
  }

  TextField value(TextField field, bool may_be_scalar, int depth) {
    skip_space();
    field.line = line_;
    if (at_end()) fail("a value is missing");
    const char c = peek();
    if (c == '{' || c == '<') {
      ++at_;
      field.kind = TextField::Kind::message;
      field.fields = message(c == '{' ? '}' : '>', depth + 1);
      ++at_;
      return field;
    }
    if (!may_be_scalar) fail("expected ':' or '{'");
    if (c == '"' || c == '\'') {
      field.kind = TextField::Kind::string;
      while (!at_end() && (peek() == '"' || peek() == '\'')) {  // adjacent strings are joined
        append_string(field.text);
        skip_space();
      }
      if (!base::is_utf8(field.text)) fail("a string is not UTF-8");
      return field;
    }
    if (c == '-') {  // space may follow the sign
      ++at_;
      skip_space();
      field.text = '-';
    }
    field.text += word();
    return field;
  }

  void append_string(std::string& out) {
    const char quote = text_[at_++];
    while (true) {
      if (at_end() || peek() == '\n') fail("a string does not end");
      const char c = text_[at_++];
      if (c == quote) return;
      if (c == '\\') {
        append_escape(out);
      } else {
        out += c;
      }
    }
  }

  void append_escape(std::string& out) {
    if (at_end()) fail("a string does not end");
    const char c = text_[at_++];
    switch (c) {
      case 'n': out += '\n'; return;
      case 't': out += '\t'; return;
      case 'r': out += '\r'; return;
      case 'a': out += '\a'; return;
      case 'b': out += '\b'; return;
      case 'f': out += '\f'; return;
      case 'v': out += '\v'; return;
      case '\\':
      case '\'':
      case '"':
      case '?': out += c; return;
      case 'x':
      case 'X': out += static_cast<char>(digits(16, 2)); return;
      case 'u': return base::append_utf8(out, code_point(4));
      case 'U': return base::append_utf8(out, code_point(8));
      default: break;
    }
    if (c < '0' || c > '7') fail("unknown escape in a string");
    --at_;
    out += static_cast<char>(digits(8, 3) & 0xff);
  }

  /// Of \u and \U, whose digits are all there. A code point beyond 16 bits may be a pair of \u.
  char32_t code_point(size_t count) {
    const auto number = [this](size_t digits) {
      const std::string_view hex = text_.substr(at_, digits);
      uint32_t value = 0;
      const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), value, 16);
      if (hex.size() < digits || error != std::errc() || end != hex.data() + digits)
        fail("an escape lacks its digits");
      at_ += digits;
      return value;
    };
    uint32_t code = number(count);
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_).starts_with("\\u")) {
      at_ += 2;
      const uint32_t low = number(4);
      code = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) : 0xD800;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail("an escape is no code point");
    return code;
  }

  int digits(int base, int most) {
    int value = 0, count = 0;
    for (; count < most && !at_end(); ++count, ++at_) {
      const int digit = hex_digit(peek());
      if (digit < 0 || digit >= base) break;
      value = value * base + digit;
    }
    if (count == 0) fail("an escape lacks its digits");
    return value;
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
};

[[noreturn]] void refuse_kind(const TextField& field, std::string_view wanted) {
  base::fail_invalid("line ", field.line, ": field '", field.name, "' is not ", wanted,
                     field.text.empty() ? "" : ": ", field.text);
}

}  // namespace

int64_t TextField::as_int() const {
  if ((kind != Kind::word && kind != Kind::either) || text.empty()) refuse_kind(*this, "an integer");
  const bool is_negative = text[0] == '-';
  std::string_view digits = std::string_view(text).substr(is_negative ? 1 : 0);
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X')) {
    base = 16;
    digits.remove_prefix(2);
  } else if (digits.size() > 1 && digits[0] == '0') {
    base = 8;
  }
  uint64_t magnitude = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, base);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.empty() ||
      magnitude > static_cast<uint64_t>(INT64_MAX)) {
    refuse_kind(*this, "an integer");
  }
  return is_negative ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
}

bool TextField::as_bool() const {
  if (kind == Kind::word && (text == "true" || text == "True" || text == "t" || text == "1")) return true;
  if (kind == Kind::word && (text == "false" || text == "False" || text == "f" || text == "0")) return false;
  refuse_kind(*this, "true or false");
}

const std::string& TextField::as_string() const {
  if (kind != Kind::string && kind != Kind::either) refuse_kind(*this, "a string in quotes");
  return text;
}

const std::string& TextField::as_word() const {
  if (kind != Kind::word && kind != Kind::either) refuse_kind(*this, "a name");
  return text;
}

const std::vector<TextField>& TextField::as_message() const {
  if (kind != Kind::message) refuse_kind(*this, "a message in braces");
  return fields;
}

namespace {

using base::Json;

/// Fields that are maps: objects in JSON, lists of key and value in the text format.
bool is_map(std::string_view name) {
  constexpr std::string_view kMaps[] = {
      "parameters", "metric_tags", "cc_model_filenames", "priority_queue_policy", "input_map",
      "output_map", "inputs"};
  return std::find(std::begin(kMaps), std::end(kMaps), name) != std::end(kMaps);
}

bool is_default_value(const Json& value) {
  if (value.is_null() || (value.is_array() && value.size() == 0)) return true;
  if (value.is_bool()) return !value.as_bool();
  if (value.is_number()) return value.as_double() == 0;
  if (!value.is_string()) return false;
  const std::string& text = value.as_string();
  return text.empty() || text == "FORMAT_NONE" || text == "TYPE_INVALID";
}

/// Protobuf's JSON format also allows lowerCamelCase.
std::string snake_case(const std::string& name) {
  std::string out;
  for (const char c : name) {
    if (c >= 'A' && c <= 'Z') {
      out += '_';
      out += static_cast<char>(c - 'A' + 'a');
    } else {
      out += c;
    }
  }
  return out;
}

/// Fields whose absence does not mean their default.
bool may_be_absent(std::string_view name) {
  return name == "max_batch_size" || name == "allow_timeout_override";
}

TextField field_of_json(const std::string& name, const Json& value) {
  TextField f;
  f.name = name;
  if (value.is_object()) {
    f.kind = TextField::Kind::message;
    f.fields = fields_of_json(value);
  } else {
    base::require(!value.is_array() && !value.is_null(), "field '", name, "' holds a list of lists");
    f.kind = value.is_string() ? TextField::Kind::either : TextField::Kind::word;
    f.text = value.is_string() ? value.as_string() : value.dump();
  }
  return f;
}

}  // namespace

std::vector<TextField> fields_of_json(const Json& json) {
  std::vector<TextField> list;
  for (const auto& [written, value] : json.as_object()) {
    const std::string name = snake_case(written);
    if (value.is_object() && is_map(name)) {
      for (const auto& [key, item] : value.as_object()) {
        TextField entry;
        entry.name = name;
        entry.kind = TextField::Kind::message;
        entry.fields = {field_of_json("key", key), field_of_json("value", item)};
        list.push_back(std::move(entry));
        check_room(list);
      }
    } else if (value.is_array()) {
      for (const Json& item : value.as_array()) {
        list.push_back(field_of_json(name, item));
        check_room(list);
      }
    } else if (!is_default_value(value) || (may_be_absent(name) && !value.is_null())) {
      list.push_back(field_of_json(name, value));
    }
    check_room(list);
  }
  return list;
}

std::vector<TextField> parse_pbtxt(std::string_view text) {
  base::require(text.size() <= kMostConfigBytes, "a configuration has ", text.size(), " bytes, the limit is ",
                kMostConfigBytes);
  return Reader(text).message('\0', 0);
}

}  // namespace trireme::serve
