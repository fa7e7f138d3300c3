// Translates JSON schemas to grammars of compact or spaced JSON texts.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "data/grammar/grammar.h"

namespace trireme::data {
namespace {

using base::Json;
using Row = Grammar::Row;

constexpr int kDeepestSchema = 64;
constexpr int64_t kMostItems = 10000;

/// Keywords that do not restrict which values are allowed.
const std::set<std::string_view>& notes() {
  static const std::set<std::string_view> kNotes = {
      "title", "description", "default",    "examples", "$schema",   "$id",    "$comment",
      "$defs", "definitions", "deprecated", "readOnly", "writeOnly", "$anchor"};
  return kNotes;
}

/// Keywords that say what a value is made of. All others, known or not, only restrict values further, and so
/// does `pattern`.
const std::set<std::string_view>& structure() {
  static const std::set<std::string_view> kStructure = {
      "$ref",     "anyOf",     "oneOf",       "allOf",    "const",    "enum",
      "type",     "required",  "properties",  "items",    "minItems", "additionalProperties",
      "maxItems", "minLength", "prefixItems", "maxLength"};
  return kStructure;
}

/// Without the % escapes of URIs.
std::string unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t code = 0;
    const char* digits = text.data() + i + 1;
    const bool is_escape = text[i] == '%' && i + 2 < text.size() &&
                           std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2;
    out.push_back(is_escape ? static_cast<char>(code) : text[i]);
    i += is_escape ? 2 : 0;
  }
  return out;
}

/// The key of a part of a JSON pointer (RFC 6901): ~1 is a slash, ~0 a tilde.
std::string pointer_key(std::string_view part) {
  std::string key;
  for (size_t i = 0; i < part.size(); ++i) {
    const char next = part[i] == '~' && i + 1 < part.size() ? part[i + 1] : '\0';
    const bool is_escape = next == '0' || next == '1';
    key.push_back(!is_escape ? part[i] : next == '0' ? '~' : '/');
    i += is_escape ? 1 : 0;
  }
  return key;
}

/// The part of a schema under a key of a reference, null if there is none.
const Json* part_of_schema(const Json& of, const std::string& key) {
  if (!of.is_array()) return of.find(key);
  size_t index = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
  const bool is_index = error == std::errc() && end == key.data() + key.size();
  return is_index && index < of.size() ? &of.at(index) : nullptr;
}

class SchemaReader {
 public:
  SchemaReader(const Json& schema, bool lenient) : root_(schema), is_lenient_(lenient) {
    space_ = named("space", {b_.optional(b_.text(" "))});
    character_ = named("character", characters());
    string_ = named("string", {quoted(b_.repeated(b_.rule(character_), 0, -1))});
    integer_ = named("integer", {append_regex(b_, "-?(0|[1-9][0-9]{0,15})")});
    number_ =
        named("number", {append_regex(b_, "-?(0|[1-9][0-9]{0,15})(\\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?")});
    value_ = b_.add_rule("value");
    b_.set_rows(value_, {b_.rule(string_), b_.rule(number_), b_.text("true"), b_.text("false"),
                         b_.text("null"), list(b_.rule(value_), 0, -1), object_of_any()});
  }

  Grammar run() {
    const uint32_t root = b_.add_rule("root");
    b_.set_rows(root, {value(root_)});
    return b_.build(root);
  }

 private:
  uint32_t named(const char* name, std::vector<Row> rows) {
    const uint32_t rule = b_.add_rule(name);
    b_.set_rows(rule, std::move(rows));
    return rule;
  }
  Row space() const { return b_.rule(space_); }
  Row quoted(const Row& inner) { return GrammarBuilder::joined({b_.text("\""), inner, b_.text("\"")}); }

  std::vector<Row> characters() {
    std::vector<Row> rows{b_.characters({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0x7F, 0x7F}}, true)};
    rows.push_back(append_regex(b_, R"(\\["\\/bfnrt])"));
    rows.push_back(append_regex(b_, R"(\\u[0-9a-cA-CefEF][0-9a-fA-F]{3})"));  // no lone surrogates
    return rows;
  }

  Row list(const Row& item, int64_t least, int64_t most) {
    const Row comma = GrammarBuilder::joined({b_.text(","), space()});
    Row inner;
    if (most != 0) {
      const Row more = b_.repeated(GrammarBuilder::joined({comma, item}), std::max<int64_t>(least - 1, 0),
                                   most < 0 ? -1 : most - 1);
      inner = GrammarBuilder::joined({item, more});
      if (least == 0) inner = b_.optional(inner);
    }
    return GrammarBuilder::joined({b_.text("["), inner, b_.text("]")});
  }

  Row member(const Row& key, const Row& value) {
    return GrammarBuilder::joined({key, b_.text(":"), space(), value});
  }

  Row object_of_any() {
    const Row one = member(b_.rule(string_), b_.rule(value_));
    const Row more = b_.repeated(GrammarBuilder::joined({b_.text(","), space(), one}), 0, -1);
    return GrammarBuilder::joined(
        {b_.text("{"), b_.optional(GrammarBuilder::joined({one, more})), b_.text("}")});
  }

  /// Refuses every keyword that is not in `known`, the list of those that the caller has read.
  void expect(const Json& schema, std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : schema.as_object()) {
      if (is_lenient_ && !structure().contains(key)) continue;
      if (notes().contains(key) || std::find(known.begin(), known.end(), key) != known.end()) continue;
      base::fail_unsupported("JSON schema: the keyword '", key, "'", known.size() > 1 ? "" : " here");
    }
  }

  Row value(const Json& schema) {
    if (++depth_ > kDeepestSchema)
      base::fail_invalid("JSON schema: nested more than ", kDeepestSchema, " deep");
    Row row = inner_value(schema);
    --depth_;
    return row;
  }

  Row inner_value(const Json& schema) {
    if (schema.is_bool()) {
      if (!schema.as_bool()) base::fail_unsupported("JSON schema: false, which allows nothing");
      return b_.rule(value_);
    }
    if (const Json* ref = schema.find("$ref")) {
      expect(schema, {"$ref"});
      return referred(ref->as_string());
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      // oneOf is read as anyOf: whether its options exclude each other is the responsibility of the schema.
      if (const Json* options = schema.find(key)) return any_of(schema, key, *options);
    }
    if (const Json* all = schema.find("allOf")) {
      expect(schema, {"allOf"});
      if (all->size() != 1) base::fail_unsupported("JSON schema: allOf of ", all->size(), " schemas");
      return value(all->at(size_t{0}));
    }
    if (const Json* only = schema.find("const")) {
      expect(schema, {"const", "type"});
      if (!has_type_of(schema, *only)) base::fail_invalid("JSON schema: a const of another type");
      return b_.text(only->dump());
    }
    if (const Json* list = schema.find("enum")) return enumeration(schema, *list);
    const Json* type = schema.find("type");
    if (type == nullptr) return untyped(schema);
    if (type->is_string()) return typed(schema, type->as_string());
    std::vector<Row> rows;
    for (const Json& one : type->as_array()) {
      rows.push_back(typed(with_keywords_of(schema, one.as_string()), one.as_string()));
    }
    base::require(!rows.empty(), "JSON schema: a type of nothing");
    return b_.any_of(std::move(rows));
  }

  /// The keywords that apply to values of `type`; each restricts values of its own type only.
  static Json with_keywords_of(const Json& schema, const std::string& type) {
    static const std::map<std::string_view, std::string_view> kTypes = {
        {"properties", "object"}, {"required", "object"},   {"additionalProperties", "object"},
        {"items", "array"},       {"prefixItems", "array"}, {"minItems", "array"},
        {"maxItems", "array"},    {"minLength", "string"},  {"maxLength", "string"},
        {"pattern", "string"}};
    Json out = Json::object();
    for (const auto& [key, value] : schema.as_object()) {
      const auto of = kTypes.find(key);
      if (of == kTypes.end() || of->second == type) out.set(key, value);
    }
    return out;
  }

  Row any_of(const Json& schema, std::string_view key, const Json& options) {
    expect(schema, {key});
    std::vector<Row> rows;
    for (const Json& option : options.as_array()) rows.push_back(value(option));
    base::require(!rows.empty(), "JSON schema: ", key, " of nothing");
    return b_.any_of(std::move(rows));
  }

  Row enumeration(const Json& schema, const Json& list) {
    expect(schema, {"enum", "type"});
    std::vector<Row> rows;
    for (const Json& one : list.as_array()) {
      if (has_type_of(schema, one)) rows.push_back(b_.text(one.dump()));
    }
    base::require(!rows.empty(), "JSON schema: enum of nothing, or of no value of its type");
    return b_.any_of(std::move(rows));
  }

  /// Whether a value has the type, or one of the types, that the schema names.
  static bool has_type_of(const Json& schema, const Json& value) {
    const Json* type = schema.find("type");
    if (type == nullptr) return true;
    const auto fits = [&](const Json& one) {
      const std::string& name = one.as_string();
      const bool is_whole = value.is_number() && value.as_double() == std::floor(value.as_double());
      return name == "object"    ? value.is_object()
             : name == "array"   ? value.is_array()
             : name == "string"  ? value.is_string()
             : name == "integer" ? is_whole
             : name == "number"  ? value.is_number()
             : name == "boolean" ? value.is_bool()
                                 : name == "null" && value.is_null();
    };
    if (!type->is_array()) return fits(*type);
    return std::any_of(type->as_array().begin(), type->as_array().end(), fits);
  }

  Row untyped(const Json& schema) {
    if (schema.contains("properties")) return object(schema);
    if (schema.contains("items") || schema.contains("prefixItems")) return array(schema);
    expect(schema, {});
    return b_.rule(value_);
  }

  Row typed(const Json& schema, const std::string& type) {
    if (type == "object") return object(schema);
    if (type == "array") return array(schema);
    if (type == "string") return string(schema);
    expect(schema, {"type"});
    if (type == "integer") return b_.rule(integer_);
    if (type == "number") return b_.rule(number_);
    if (type == "boolean") return b_.any_of({b_.text("true"), b_.text("false")});
    if (type == "null") return b_.text("null");
    base::fail_invalid("JSON schema: the type '", type, "'");
  }

  Row string(const Json& schema) {
    expect(schema, {"type", "minLength", "maxLength", "pattern"});
    if (const Json* pattern = schema.find("pattern"); pattern != nullptr && is_followed(*pattern)) {
      if (!is_lenient_ && (schema.contains("minLength") || schema.contains("maxLength")))
        base::fail_unsupported("JSON schema: a pattern beside minLength or maxLength");
      return quoted(append_regex(b_, whole_pattern(pattern->as_string()), RegexText::in_json_string));
    }
    const int64_t least = bound(schema, "minLength", 0), most = bound(schema, "maxLength", -1);
    if (least == 0 && most < 0) return b_.rule(string_);
    base::require(most < 0 || most >= least, "JSON schema: maxLength below minLength");
    return quoted(b_.repeated(b_.rule(character_), least, most));
  }

  /// A pattern matches anywhere in a text, but only one for the whole text can become a grammar.
  static const std::string& whole_pattern(const std::string& pattern) {
    if (!pattern.starts_with('^') || !pattern.ends_with('$') || pattern.ends_with("\\$"))
      base::fail_unsupported("JSON schema: the pattern '", pattern, "', which is not of the form ^...$");
    return pattern;
  }

  bool is_followed(const Json& pattern) const {
    if (!is_lenient_) return true;
    try {
      GrammarBuilder trial;
      append_regex(trial, whole_pattern(pattern.as_string()), RegexText::in_json_string);
      return true;
    } catch (const base::Error&) {
      return false;
    }
  }

  static int64_t bound(const Json& schema, const char* key, int64_t otherwise) {
    const int64_t n = schema.get_or(key, otherwise);
    base::require(n >= otherwise && n <= kMostItems, "JSON schema: ", key, " of ", n, "; at most ",
                  kMostItems);
    return n;
  }

  Row array(const Json& schema) {
    expect(schema, {"type", "items", "minItems", "maxItems", "prefixItems"});
    if (schema.contains("prefixItems")) return tuple(schema);
    const int64_t least = bound(schema, "minItems", 0), most = bound(schema, "maxItems", -1);
    base::require(most < 0 || most >= least, "JSON schema: maxItems below minItems");
    const Json* items = schema.find("items");
    const uint32_t item = b_.add_rule("item");
    b_.set_rows(item, {items == nullptr ? b_.rule(value_) : value(*items)});
    return list(b_.rule(item), least, most);
  }

  /// A list of fixed length, each item with its own schema.
  Row tuple(const Json& schema) {
    const Json* rest = schema.find("items");
    const Json& items = schema.at("prefixItems");
    const auto n = static_cast<int64_t>(items.size());
    const bool is_closed = rest == nullptr || (rest->is_bool() && !rest->as_bool());
    if (!is_closed || bound(schema, "minItems", n) != n || schema.get_or("maxItems", n) != n)
      base::fail_unsupported("JSON schema: prefixItems with a length that is not their number");
    Row row = b_.text("[");
    for (int64_t i = 0; i < n; ++i) {
      if (i > 0) row = GrammarBuilder::joined({row, b_.text(","), space()});
      row = GrammarBuilder::joined({row, value(items.at(static_cast<size_t>(i)))});
    }
    return GrammarBuilder::joined({row, b_.text("]")});
  }

  /// Members in their order; those that are not required may be left out.
  Row object(const Json& schema) {
    expect(schema, {"type", "properties", "required", "additionalProperties"});
    const Json* properties = schema.find("properties");
    const Json* more = schema.find("additionalProperties");
    const bool has_more = more != nullptr && !(more->is_bool() && !more->as_bool());
    std::set<std::string> required;
    if (const Json* names = schema.find("required")) {
      for (const Json& name : names->as_array()) required.insert(name.as_string());
    }
    if (properties == nullptr || properties->size() == 0) {
      if (!required.empty()) base::fail_unsupported("JSON schema: required members without properties");
      if (more == nullptr && properties == nullptr) return object_of_any();
      if (!has_more) return b_.text("{}");
      const Row one = member(b_.rule(string_), value(*more));
      const Row others = b_.repeated(GrammarBuilder::joined({b_.text(","), space(), one}), 0, -1);
      return GrammarBuilder::joined(
          {b_.text("{"), b_.optional(GrammarBuilder::joined({one, others})), b_.text("}")});
    }
    // Additional members could repeat the names of listed ones, so none are written.
    if (has_more && more->is_object())
      base::fail_unsupported("JSON schema: additionalProperties beside properties");
    return GrammarBuilder::joined({b_.text("{"), members(properties->as_object(), required), b_.text("}")});
  }

  /// Built from the last member backwards: `behind` follows a written member, `first` applies while none is.
  Row members(const base::JsonObject& properties, const std::set<std::string>& required) {
    std::vector<const base::JsonMember*> order;
    size_t found = 0;
    for (const base::JsonMember& one : properties) {
      order.push_back(&one);
      found += required.contains(one.key) ? 1 : 0;
    }
    if (found != required.size())
      base::fail_unsupported("JSON schema: a required member that is not in properties");
    uint32_t behind = named("end", {{}}), first = behind;
    for (size_t i = order.size(); i-- > 0;) {
      const Row one = member(b_.text(Json(order[i]->key).dump()), value(order[i]->value));
      const bool is_needed = required.contains(order[i]->key);
      const Row next = GrammarBuilder::joined({b_.text(","), space(), one, b_.rule(behind)});
      const Row start = GrammarBuilder::joined({one, b_.rule(behind)});
      std::vector<Row> starts{start}, follow{next};
      if (!is_needed) {
        starts.push_back(b_.rule(first));
        follow.push_back(b_.rule(behind));
      }
      first = named("first member", std::move(starts));
      behind = named("next member", std::move(follow));
    }
    return b_.rule(first);
  }

  /// "#", "#/$defs/name" and other paths inside the schema, but no anchors. Each becomes one rule, so that
  /// schemas may refer to themselves.
  Row referred(const std::string& path) {
    if (const auto known = referred_.find(path); known != referred_.end()) return b_.rule(known->second);
    const Json* at = &root_;
    base::require(path.starts_with('#'), "JSON schema: the reference '", path, "' leads out of the schema");
    if (path.size() > 1 && path[1] != '/')
      base::fail_unsupported("JSON schema: the reference '", path, "' to an anchor");
    const std::string pointer = unescaped(path);
    for (size_t begin = pointer.find('/'); begin != std::string::npos;) {
      const size_t end = pointer.find('/', begin + 1);
      const size_t size = end == std::string::npos ? end : end - begin - 1;
      at = part_of_schema(*at, pointer_key(pointer.substr(begin + 1, size)));
      if (at == nullptr) base::fail_invalid("JSON schema: the reference '", path, "' leads nowhere");
      begin = end;
    }
    const uint32_t rule = b_.add_rule(path);
    referred_.emplace(path, rule);
    b_.set_rows(rule, {value(*at)});
    return b_.rule(rule);
  }

  const Json& root_;
  const bool is_lenient_;
  GrammarBuilder b_;
  std::map<std::string, uint32_t> referred_;
  uint32_t space_ = 0, character_ = 0, string_ = 0, integer_ = 0, number_ = 0, value_ = 0;
  int depth_ = 0;
};

}  // namespace

Grammar grammar_of_schema(const Json& schema, bool lenient) { return SchemaReader(schema, lenient).run(); }

Grammar grammar_of_json_object() { return grammar_of_schema(Json::object({{"type", "object"}})); }

}  // namespace trireme::data
