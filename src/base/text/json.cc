// JSON values: access, building, and output in shortest round-trip form.
#include "base/text/json.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace trireme::base {
namespace {

constexpr char kHex[] = "0123456789abcdef";

template <class T>
void append_integer(std::string& out, T value) {
  char text[24];
  out.append(text, std::to_chars(text, text + sizeof text, value).ptr);
}

template <class T>
void append_float(std::string& out, T value, bool nan_and_infinity) {
  if (!std::isfinite(value)) [[unlikely]] {
    require(nan_and_infinity, "JSON cannot hold a number that is not finite: ", value);
    out += std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
    return;
  }
  char text[32];
  char* end = std::to_chars(text, text + sizeof text, value).ptr;
  out.append(text, end);
  // to_chars writes 5.0 as "5"; ".0" is appended for readers that distinguish floats from integers.
  for (const char* c = text; c != end; ++c) {
    if (*c == '.' || *c == 'e') return;
  }
  out += ".0";
}

void append_escape(std::string& out, char c) {
  switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    case '\b': out += "\\b"; return;
    case '\f': out += "\\f"; return;
    default: break;
  }
  out += "\\u00";
  out.push_back(kHex[c >> 4 & 15]);
  out.push_back(kHex[c & 15]);
}

void break_line(std::string& out, const JsonDumpOptions& options, int level) {
  if (options.indent == 0) return;
  out.push_back('\n');
  out.append(static_cast<size_t>(level * options.indent), ' ');
}

void dump_value(std::string& out, const Json& json, const JsonDumpOptions& options, int level);

void dump_array(std::string& out, const JsonArray& items, const JsonDumpOptions& options, int level) {
  out.push_back('[');
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.push_back(',');
    break_line(out, options, level + 1);
    dump_value(out, items[i], options, level + 1);
  }
  if (!items.empty()) break_line(out, options, level);
  out.push_back(']');
}

void dump_object(std::string& out, const JsonObject& members, const JsonDumpOptions& options, int level) {
  out.push_back('{');
  for (bool is_first = true; const JsonMember& member : members) {
    if (!std::exchange(is_first, false)) out.push_back(',');
    break_line(out, options, level + 1);
    append_json(out, member.key);
    out += options.indent > 0 ? ": " : ":";
    dump_value(out, member.value, options, level + 1);
  }
  if (!members.empty()) break_line(out, options, level);
  out.push_back('}');
}

void dump_value(std::string& out, const Json& json, const JsonDumpOptions& options, int level) {
  const Json::Value& v = json.value();
  if (json.is_null())
    out += "null";
  else if (const bool* b = std::get_if<bool>(&v))
    out += *b ? "true" : "false";
  else if (const int64_t* i = std::get_if<int64_t>(&v))
    append_integer(out, *i);
  else if (const uint64_t* u = std::get_if<uint64_t>(&v))
    append_integer(out, *u);
  else if (const double* d = std::get_if<double>(&v))
    append_float(out, *d, options.nan_and_infinity);
  else if (const std::string* s = std::get_if<std::string>(&v))
    append_json(out, *s);
  else if (const JsonArray* a = std::get_if<JsonArray>(&v))
    dump_array(out, *a, options, level);
  else
    dump_object(out, std::get<JsonObject>(v), options, level);
}

template <class T>
const T& expect(const Json& json, std::string_view wanted) {
  const T* value = std::get_if<T>(&json.value());
  require(value != nullptr, "expected JSON ", wanted, ", found ", json.type_name());
  return *value;
}

}  // namespace

void append_json(std::string& out, std::string_view text) {
  out.push_back('"');
  for (size_t pos = 0; pos < text.size();) {
    // Plain ASCII runs are copied whole; they are nearly everything.
    size_t run = pos;
    while (run < text.size() && static_cast<uint8_t>(text[run]) - 0x20u < 0x60u && text[run] != '"' &&
           text[run] != '\\') {
      ++run;
    }
    out.append(text.substr(pos, run - pos));
    pos = run;
    if (pos >= text.size()) break;
    if (static_cast<uint8_t>(text[pos]) < 0x80)
      append_escape(out, text[pos++]);
    else
      append_utf8(out, next_code_point(text, pos));
  }
  out.push_back('"');
}

void append_json(std::string& out, double value, bool nan_and_infinity) {
  append_float(out, value, nan_and_infinity);
}
void append_json(std::string& out, float value, bool nan_and_infinity) {
  append_float(out, value, nan_and_infinity);
}
void append_json(std::string& out, int64_t value) { append_integer(out, value); }
void append_json(std::string& out, uint64_t value) { append_integer(out, value); }

template <class Value>
BasicJsonObject<Value>::BasicJsonObject(BasicJsonObject&& other) noexcept = default;
template <class Value>
BasicJsonObject<Value>& BasicJsonObject<Value>::operator=(BasicJsonObject&& other) noexcept = default;
template class BasicJsonObject<Json>;

Json Json::from_unsigned(uint64_t value) {
  Json json;
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    json.value_ = static_cast<int64_t>(value);
  else
    json.value_ = value;
  return json;
}

Json Json::object(std::initializer_list<std::pair<std::string_view, Json>> members) {
  Json json{JsonObject{}};
  for (const auto& [key, value] : members) json.set(key, value);
  return json;
}

Json Json::array(std::initializer_list<Json> items) { return Json(JsonArray(items)); }

std::string_view Json::type_name() const {
  constexpr std::string_view kNames[] = {"null",   "boolean", "integer", "integer",
                                         "number", "string",  "array",   "object"};
  return kNames[value_.index()];
}

bool Json::as_bool() const { return expect<bool>(*this, "boolean"); }

int64_t Json::as_int() const {
  if (const uint64_t* u = std::get_if<uint64_t>(&value_)) fail_invalid("JSON integer is out of range: ", *u);
  return expect<int64_t>(*this, "integer");
}

uint64_t Json::as_uint() const {
  if (const uint64_t* u = std::get_if<uint64_t>(&value_)) return *u;
  const int64_t value = expect<int64_t>(*this, "integer");
  require(value >= 0, "JSON integer must not be negative: ", value);
  return static_cast<uint64_t>(value);
}

double Json::as_double() const {
  if (const int64_t* i = std::get_if<int64_t>(&value_)) return static_cast<double>(*i);
  if (const uint64_t* u = std::get_if<uint64_t>(&value_)) return static_cast<double>(*u);
  return expect<double>(*this, "number");
}

const std::string& Json::as_string() const& { return expect<std::string>(*this, "string"); }
const JsonArray& Json::as_array() const& { return expect<JsonArray>(*this, "array"); }
const JsonObject& Json::as_object() const& { return expect<JsonObject>(*this, "object"); }
JsonArray& Json::as_array() & { return const_cast<JsonArray&>(expect<JsonArray>(*this, "array")); }
JsonObject& Json::as_object() & { return const_cast<JsonObject&>(expect<JsonObject>(*this, "object")); }

size_t Json::size() const {
  if (is_array()) return as_array().size();
  return is_object() ? as_object().size() : 0;
}

const Json* Json::find(std::string_view key) const { return is_object() ? as_object().find(key) : nullptr; }

Json* Json::find(std::string_view key) { return const_cast<Json*>(std::as_const(*this).find(key)); }

const Json& Json::at(std::string_view key) const& {
  require(is_object(), "expected a JSON object with member '", key, "', found ", type_name());
  const Json* member = find(key);
  require(member != nullptr, "JSON object has no member '", key, "'");
  return *member;
}

const Json& Json::at(size_t index) const& {
  const JsonArray& items = as_array();
  require(index < items.size(), "JSON array index is out of range: ", index, " of ", items.size());
  return items[index];
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = JsonObject{};
  if (Json* member = find(key)) return *member;
  return as_object().push_back({std::string(key), Json()});
}

Json& Json::set(std::string_view key, Json value) { return (*this)[key] = std::move(value); }

Json& Json::push_back(Json value) {
  if (is_null()) value_ = JsonArray{};
  return as_array().emplace_back(std::move(value));
}

std::string Json::dump(JsonDumpOptions options) const {
  std::string out;
  dump_value(out, *this, options, 0);
  return out;
}

bool Json::operator==(const Json& other) const { return value_ == other.value_; }

void Json::throw_out_of_range(int64_t value) { fail_invalid("JSON integer is out of range: ", value); }

}  // namespace trireme::base
