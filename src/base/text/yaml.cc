// Reads and writes YAML with yaml-cpp's nodes; the types of scalars are decided here.
#include "base/text/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>

#include "base/error.h"

namespace trireme::base {
namespace {

constexpr int kMaxDepth = 50;
constexpr int64_t kMaxValues = 100'000;
/// Of all values and their paths: aliases repeat long words, and what stands below a long key.
constexpr size_t kMaxBytes = size_t{16} << 20;

int line_of(const YAML::Node& node) { return node.Mark().line + 1; }

template <class T>
bool whole(std::string_view text, T& value) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc() && result.ptr == end;
}

/// Resolves a plain (unquoted) scalar by the core schema of YAML 1.2.
Json plain(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  const bool negative = text[0] == '-';
  const std::string_view rest = std::string_view(text).substr(negative || text[0] == '+' ? 1 : 0);
  if (rest == ".inf" || rest == ".Inf" || rest == ".INF") {
    const double infinity = std::numeric_limits<double>::infinity();
    return negative ? -infinity : infinity;
  }
  if (text == ".nan" || text == ".NaN" || text == ".NAN") return std::numeric_limits<double>::quiet_NaN();
  // from_chars also accepts "inf" and "nan", which are plain words in YAML.
  if (rest.find_first_of("0123456789") > 1 || (rest[0] != '.' && (rest[0] < '0' || rest[0] > '9'))) {
    return text;
  }
  int64_t integer = 0;
  if (whole(text, integer)) return integer;
  double real = 0;
  if (whole(text, real)) return real;
  return text;
}

class YamlReader {
 public:
  explicit YamlReader(YamlDocument& document) : document_(document) {}

  Json read(const YAML::Node& node, const std::string& path, int depth) {
    require(depth <= kMaxDepth, "line ", line_of(node), ": nested deeper than ", kMaxDepth);
    require(++values_ <= kMaxValues, "line ", line_of(node), ": more than ", kMaxValues, " values");
    bytes_ += path.size() + (node.IsScalar() ? node.Scalar().size() : 0);
    require(bytes_ <= kMaxBytes, "line ", line_of(node), ": keys and values of more than ", kMaxBytes,
            " bytes in all");
    document_.lines.emplace(path, line_of(node));
    switch (node.Type()) {
      case YAML::NodeType::Scalar: return node.Tag() == "?" ? plain(node.Scalar()) : Json(node.Scalar());
      case YAML::NodeType::Sequence: return sequence(node, path, depth);
      case YAML::NodeType::Map: return mapping(node, path, depth);
      default: return nullptr;
    }
  }

 private:
  Json sequence(const YAML::Node& node, const std::string& path, int depth) {
    Json list = Json::array();
    for (const YAML::Node& item : node) {
      list.push_back(read(item, concat(path, "[", list.size(), "]"), depth + 1));
    }
    return list;
  }

  Json mapping(const YAML::Node& node, const std::string& path, int depth) {
    Json object = Json::object();
    for (const auto& member : node) {
      require(member.first.IsScalar(), "line ", line_of(member.first), ": a key must be a plain word");
      const std::string& key = member.first.Scalar();
      require(!object.contains(key), "line ", line_of(member.first), ": key '", key, "' stands twice");
      const std::string inner = path.empty() ? key : path + "." + key;
      object.set(key, read(member.second, inner, depth + 1));
      document_.lines[inner] = line_of(member.first);
    }
    return object;
  }

  YamlDocument& document_;
  int64_t values_ = 0;
  size_t bytes_ = 0;
};

/// Receives the events of a document and discards them.
struct Ignore : YAML::EventHandler {
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
  }
  void OnMapEnd() override {}
};

/// YAML::LoadAll cannot be used: for some malformed texts it never returns, as it reports one document after
/// another at a place where no document can start.
void require_one_document(std::string_view text) {
  std::istringstream in{std::string(text)};
  YAML::Parser parser(in);
  Ignore ignore;
  if (!parser.HandleNextDocument(ignore)) return;
  require(!parser.HandleNextDocument(ignore), "expected one document, found more, or text after its end");
}

bool is_word(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter && c != '_' && c != '.' && c != '/' && c != '-' && c != '+' && c != '=' && c != ':') {
      return false;
    }
  }
  // A colon at the end would turn the text into a key.
  return text[0] != '-' && text[0] != '=' && text[0] != ':' && text.back() != ':';
}

std::string scalar_text(const Json& value) {
  if (value.is_string()) {
    const std::string& text = value.as_string();
    return is_word(text) && plain(text).is_string() ? text : Json(text).dump();
  }
  if (value.is_number() && !value.is_integer() && !std::isfinite(value.as_double())) {
    const double number = value.as_double();
    return std::isnan(number) ? ".nan" : number < 0 ? "-.inf" : ".inf";
  }
  return value.dump();
}

bool is_scalar(const Json& value) { return !value.is_array() && !value.is_object(); }

std::string flow(const Json& list) {
  std::string text = "[";
  for (const Json& item : list.as_array()) text += (text.size() > 1 ? ", " : "") + scalar_text(item);
  return text + "]";
}

bool is_flat(const Json& value) {
  if (!value.is_array()) return value.size() == 0;
  for (const Json& item : value.as_array()) {
    if (!is_scalar(item)) return false;
  }
  return true;
}

/// Appends what follows "key:" or "-": a scalar on the same line, or an indented block.
void append(std::string& out, const Json& value, size_t indent) {
  const std::string margin(indent, ' ');
  if (is_scalar(value)) {
    out += " " + scalar_text(value) + "\n";
  } else if (is_flat(value)) {
    out += value.is_array() ? " " + flow(value) + "\n" : " {}\n";
  } else if (value.is_array()) {
    out += "\n";
    for (const Json& item : value.as_array()) {
      out += margin + "-";
      append(out, item, indent + 2);
    }
  } else {
    if (indent > 0) out += "\n";
    for (const JsonMember& member : value.as_object()) {
      out += margin + scalar_text(member.key) + ":";
      append(out, member.value, indent + 2);
    }
  }
}

}  // namespace

int YamlDocument::line(std::string_view path) const {
  const auto found = lines.find(path);
  return found == lines.end() ? 0 : found->second;
}

YamlDocument parse_yaml(std::string_view text) {
  YamlDocument document;
  try {
    require_one_document(text);
    const YAML::Node root = YAML::Load(std::string(text));
    if (root.IsDefined()) document.value = YamlReader(document).read(root, "", 0);
  } catch (const YAML::Exception& e) {
    fail_invalid("line ", e.mark.line + 1, ": ", e.msg);
  }
  return document;
}

Json parse_yaml_value(std::string_view text) { return parse_yaml(text).value; }

std::string to_yaml(const Json& value) {
  std::string out;
  append(out, value, 0);
  if (!value.is_object() || value.size() == 0) out.erase(0, 1);
  return out;
}

}  // namespace trireme::base
