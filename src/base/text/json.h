// JSON: a value type for documents, an event interface for bulk data, and exact shortest-form output.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text/json_object.h"
#include "base/variant.h"

namespace trireme::base {

class Json;
using JsonMember = BasicJsonMember<Json>;
using JsonArray = std::vector<Json>;
using JsonObject = BasicJsonObject<Json>;  // insertion order is kept

struct JsonDumpOptions {
  int indent = 0;                 // 0 = compact, one line
  bool nan_and_infinity = false;  // write NaN, Infinity, -Infinity; else such a number is an error
};

/// One JSON value. Accessors that do not fit the value throw invalid_argument naming what was found.
/// A member is found, set and added in the same time however many an object has.
class Json {
 public:
  Json() = default;  // null
  Json(std::nullptr_t) {}
  template <std::same_as<bool> T>
  Json(T value) : value_(value) {}
  template <std::signed_integral T>
  Json(T value) : value_(static_cast<int64_t>(value)) {}
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) Json(T value) : Json(from_unsigned(value)) {}
  template <std::floating_point T>
  Json(T value) : value_(static_cast<double>(value)) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(JsonArray value) : value_(std::move(value)) {}
  Json(JsonObject value) : value_(std::move(value)) {}

  /// Json::object({{"name", "m"}, {"version", 1}}) and Json::array({1, 2}).
  static Json object(std::initializer_list<std::pair<std::string_view, Json>> members = {});
  static Json array(std::initializer_list<Json> items = {});

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const {
    return std::holds_alternative<int64_t>(value_) || std::holds_alternative<uint64_t>(value_);
  }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<JsonArray>(value_); }
  bool is_object() const { return std::holds_alternative<JsonObject>(value_); }
  /// "null", "boolean", "integer", "number", "string", "array" or "object": the word for messages.
  std::string_view type_name() const;

  bool as_bool() const;
  int64_t as_int() const;    // integers only; out of range is an error
  uint64_t as_uint() const;  // integers only; negative is an error
  double as_double() const;  // any number
  const std::string& as_string() const&;
  const JsonArray& as_array() const&;
  const JsonObject& as_object() const&;
  JsonArray& as_array() &;
  JsonObject& as_object() &;
  // From a temporary the part is moved out, so that `for (x : parse_json(t).at("list").as_array())` is safe.
  std::string as_string() && { return std::string(std::as_const(*this).as_string()); }
  JsonArray as_array() && { return std::move(as_array()); }
  JsonObject as_object() && { return std::move(as_object()); }

  /// Items of an array, members of an object; 0 for scalars.
  size_t size() const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  /// The member, or nullptr if there is none or this is not an object.
  const Json* find(std::string_view key) const;
  Json* find(std::string_view key);
  /// The member; a missing one is an error that names it.
  const Json& at(std::string_view key) const&;
  const Json& at(size_t index) const&;
  Json at(std::string_view key) && { return std::as_const(*this).at(key); }
  Json at(size_t index) && { return std::as_const(*this).at(index); }
  /// The member as T (bool, integer, floating point, std::string), or `otherwise` if absent or null.
  template <class T>
  T get_or(std::string_view key, T otherwise) const {
    const Json* member = find(key);
    return member == nullptr || member->is_null() ? otherwise : member->to<T>();
  }
  std::string get_or(std::string_view key, const char* otherwise) const {
    return get_or<std::string>(key, std::string(otherwise));
  }

  /// Sets or replaces a member (a null becomes an object first); returns the stored value.
  Json& set(std::string_view key, Json value);
  /// Finds a member or adds a null one (a null becomes an object first).
  Json& operator[](std::string_view key);
  /// Appends an item (a null becomes an array first).
  Json& push_back(Json value);

  std::string dump(JsonDumpOptions options = {}) const;
  /// Numbers compare by type and value; members by order.
  bool operator==(const Json& other) const;

  using Value = Variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, JsonArray, JsonObject>;
  const Value& value() const { return value_; }

 private:
  static Json from_unsigned(uint64_t value);
  template <class T>
  T to() const {
    if constexpr (std::same_as<T, bool>)
      return as_bool();
    else if constexpr (std::same_as<T, int64_t> || std::same_as<T, int>)
      return narrow<T>(as_int());
    else if constexpr (std::unsigned_integral<T>)
      return static_cast<T>(as_uint());
    else if constexpr (std::floating_point<T>)
      return static_cast<T>(as_double());
    else
      return T(as_string());
  }
  template <class T>
  static T narrow(int64_t value) {
    if (static_cast<int64_t>(static_cast<T>(value)) != value) throw_out_of_range(value);
    return static_cast<T>(value);
  }
  [[noreturn]] static void throw_out_of_range(int64_t value);

  // A uint64_t is stored only above the int64_t range, so that equal integers compare equal.
  Value value_ = nullptr;
};

struct JsonLimits {
  size_t depth = 100;                    // arrays and objects open at once
  size_t size_bytes = size_t{64} << 20;  // of the text
  bool nan_and_infinity = false;         // accept NaN, Inf, Infinity and their negatives
};

/// Receives a document as events, in order. The views live only during the call. May throw to stop the parse.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  virtual void null() = 0;
  virtual void boolean(bool value) = 0;
  virtual void integer(int64_t value) = 0;
  virtual void big_integer(uint64_t value) = 0;  // above the int64_t range only
  virtual void real(double value) = 0;
  virtual void string(std::string_view value) = 0;
  virtual void key(std::string_view key) = 0;
  virtual void start_object() = 0;
  virtual void end_object() = 0;
  virtual void start_array() = 0;
  virtual void end_array() = 0;
};

/// Parses RFC 8259 text. Refuses duplicate keys, ill-formed UTF-8, text past a limit and trailing text.
/// Throws invalid_argument with the byte offset. Iterative: depth costs heap, never stack.
Json parse_json(std::string_view text, const JsonLimits& limits = {});
/// The same as events; no node is built, so a million numbers cost no memory here.
void parse_json(std::string_view text, JsonHandler& handler, const JsonLimits& limits = {});

/// Appends one token of output: for writers of bulk data that build no nodes. Floats take the shortest text
/// that reads back to the same bits of that type, and always look like a float ("5.0").
void append_json(std::string& out, std::string_view text);
void append_json(std::string& out, double value, bool nan_and_infinity = false);
void append_json(std::string& out, float value, bool nan_and_infinity = false);
void append_json(std::string& out, int64_t value);
void append_json(std::string& out, uint64_t value);

}  // namespace trireme::base
