// Turns JSON text into events or values, with RapidJSON's iterative reader and additional limits.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/error.h"
#include "base/text/json.h"

// A failed check inside the library must throw, not abort a server.
#define RAPIDJSON_ASSERT(x) ::trireme::base::check((x), "JSON reader: " #x)
#include <rapidjson/error/en.h>
#include <rapidjson/reader.h>

namespace trireme::base {
namespace {

/// Memory for the reader's stack. The library's own allocator would continue with a null pointer on failure.
struct ReaderMemory {
  static constexpr bool kNeedFree = true;
  static void* Malloc(size_t bytes) { return Realloc(nullptr, 0, bytes); }
  static void* Realloc(void* old, size_t, size_t bytes) {
    if (bytes == 0) return Free(old), nullptr;
    void* now = std::realloc(old, bytes);
    if (now == nullptr) throw std::bad_alloc();
    return now;
  }
  static void Free(void* old) { std::free(old); }
};
using JsonReader = rapidjson::GenericReader<rapidjson::UTF8<>, rapidjson::UTF8<>, ReaderMemory>;

/// Input for the reader: bytes without a terminator. Reads as NUL past the end.
struct TextStream {
  using Ch = char;
  const char* next;
  const char* begin;
  const char* end;

  Ch Peek() const { return next == end ? '\0' : *next; }
  Ch Take() { return next == end ? '\0' : *next++; }
  size_t Tell() const { return static_cast<size_t>(next - begin); }
  // The reader's templates require these members, but call them only when parsing in place.
  Ch* PutBegin() { return nullptr; }
  void Put(Ch) {}
  size_t PutEnd(Ch*) { return 0; }
};

/// Keys of the open objects. Each object's keys are sorted when it closes, in order to find duplicates.
class OpenKeys {
 public:
  void open() { starts_.push_back(keys_.size()); }
  /// Returns false if there are too many keys to keep.
  bool add(std::string_view key) {
    if (keys_.size() == kMaxKeys) return false;
    keys_.emplace_back(key);
    return true;
  }
  /// The first key that occurs twice in the innermost object, or null; closes the object.
  const std::string* close() {
    const auto first = keys_.begin() + static_cast<std::ptrdiff_t>(starts_.back());
    starts_.pop_back();
    std::sort(first, keys_.end());
    const auto twin = std::adjacent_find(first, keys_.end());
    if (twin != keys_.end()) {
      duplicate_ = *twin;
      return &duplicate_;
    }
    keys_.erase(first, keys_.end());
    return nullptr;
  }

 private:
  // Twice the largest vocabulary in use; a one-letter key takes six times the size of its text here.
  static constexpr size_t kMaxKeys = 2'000'000;

  std::vector<std::string> keys_;
  std::vector<size_t> starts_;
  std::string duplicate_;
};

/// Handler of RapidJSON's reader: applies the limits, then passes the event on. Returning false stops the
/// reader; `refusal` then holds the reason.
class Adapter {
 public:
  using Ch = char;
  Adapter(JsonHandler& handler, const JsonLimits& limits, const TextStream& stream)
      : handler_(handler), limits_(limits), stream_(stream) {}

  bool Null() { return handler_.null(), true; }
  bool Bool(bool b) { return handler_.boolean(b), true; }
  bool Int(int i) { return handler_.integer(i), true; }
  bool Uint(unsigned u) { return handler_.integer(u), true; }
  bool Int64(int64_t i) { return handler_.integer(i), true; }
  bool Uint64(uint64_t u) {
    if (u >> 63 != 0)
      handler_.big_integer(u);
    else
      handler_.integer(static_cast<int64_t>(u));
    return true;
  }
  bool Double(double approximate) {
    // The reader works on a copy of the stream (see StreamTraits below), so `stream_` still points at the
    // number. Parsing it again with from_chars rounds exactly and is faster than the reader's full-precision
    // mode.
    double value = approximate;
    if (std::isfinite(approximate)) std::from_chars(stream_.next, stream_.end, value);
    handler_.real(value);
    return true;
  }
  bool RawNumber(const char*, rapidjson::SizeType, bool) { return false; }
  bool String(const char* text, rapidjson::SizeType length, bool) {
    const std::string_view view(text, length);
    if (has_surrogate(view)) return refuse("JSON string holds an unpaired surrogate");
    return handler_.string(view), true;
  }
  bool Key(const char* text, rapidjson::SizeType length, bool) {
    const std::string_view view(text, length);
    if (has_surrogate(view)) return refuse("JSON key holds an unpaired surrogate");
    if (!keys_.add(view)) return refuse("JSON objects have too many keys");
    return handler_.key(view), true;
  }
  bool StartObject() {
    if (!enter()) return false;
    keys_.open();
    return handler_.start_object(), true;
  }
  bool EndObject(rapidjson::SizeType) {
    --depth_;
    if (const std::string* twice = keys_.close())
      return refuse(concat("JSON object has a duplicate key '", *twice, "'"));
    return handler_.end_object(), true;
  }
  bool StartArray() { return enter() && (handler_.start_array(), true); }
  bool EndArray(rapidjson::SizeType) { return --depth_, handler_.end_array(), true; }

  const std::string& refusal() const { return refusal_; }

 private:
  bool refuse(std::string why) {
    refusal_ = std::move(why);
    return false;
  }
  bool enter() {
    if (++depth_ <= limits_.depth) return true;
    return refuse(concat("JSON nesting depth exceeds maximum allowed limit (", limits_.depth, ")"));
  }
  // The reader checks raw bytes, but accepts a lone low surrogate when it is written as \uDC00.
  static bool has_surrogate(std::string_view text) {
    const char* end = text.data() + text.size();
    for (const char* p = text.data(); p != end;) {
      p = static_cast<const char*>(std::memchr(p, 0xED, static_cast<size_t>(end - p)));
      if (p == nullptr || p + 1 == end) return false;
      if (static_cast<unsigned char>(*++p) >= 0xA0) return true;
    }
    return false;
  }

  JsonHandler& handler_;
  const JsonLimits& limits_;
  const TextStream& stream_;
  OpenKeys keys_;
  size_t depth_ = 0;
  std::string refusal_;
};

/// Builds a value from events. `open_` holds the unfinished containers, the outermost first.
class Builder : public JsonHandler {
 public:
  void null() override { put(Json()); }
  void boolean(bool value) override { put(Json(value)); }
  void integer(int64_t value) override { put(Json(value)); }
  void big_integer(uint64_t value) override { put(Json(value)); }
  void real(double value) override { put(Json(value)); }
  void string(std::string_view value) override { put(Json(value)); }
  void key(std::string_view key) override { open_.back().key = key; }
  void start_object() override { open_.push_back({Json(JsonObject{}), {}}); }
  void start_array() override { open_.push_back({Json(JsonArray{}), {}}); }
  void end_object() override { close(); }
  void end_array() override { close(); }

  Json take() { return std::move(root_); }

 private:
  struct Open {
    Json json;
    std::string key;  // key of the member whose value comes next
  };
  void close() {
    Json done = std::move(open_.back().json);
    open_.pop_back();
    put(std::move(done));
  }
  void put(Json value) {
    if (open_.empty())
      root_ = std::move(value);
    else if (Open& top = open_.back(); top.json.is_array())
      top.json.push_back(std::move(value));
    else
      top.json.as_object().push_back({std::move(top.key), std::move(value)});
  }

  std::vector<Open> open_;
  Json root_;
};

}  // namespace
}  // namespace trireme::base

namespace rapidjson {
// Lets the reader parse each token on a copy of the stream and write it back afterwards. This is faster, and
// Adapter::Double relies on it.
template <>
struct StreamTraits<trireme::base::TextStream> {
  enum { copyOptimization = 1 };
};
}  // namespace rapidjson

namespace trireme::base {

void parse_json(std::string_view text, JsonHandler& handler, const JsonLimits& limits) {
  require(text.size() <= limits.size_bytes, "JSON text is too large: ", text.size(), " bytes, limit ",
          limits.size_bytes);
  TextStream stream{text.data(), text.data(), text.data() + text.size()};
  Adapter adapter(handler, limits, stream);
  constexpr unsigned kFlags = rapidjson::kParseIterativeFlag | rapidjson::kParseValidateEncodingFlag;
  JsonReader reader;
  const rapidjson::ParseResult result =
      limits.nan_and_infinity ? reader.Parse<kFlags | rapidjson::kParseNanAndInfFlag>(stream, adapter)
                              : reader.Parse<kFlags>(stream, adapter);
  if (result.IsError()) {
    if (!adapter.refusal().empty()) fail_invalid(adapter.refusal(), " at byte ", result.Offset());
    fail_invalid("JSON is malformed: ", rapidjson::GetParseError_En(result.Code()), " At byte ",
                 result.Offset());
  }
  // The reader takes a NUL byte for the end of the text, so a NUL inside the text ends it too early.
  require(stream.Tell() == text.size(), "JSON text goes on after its root at byte ", stream.Tell());
}

Json parse_json(std::string_view text, const JsonLimits& limits) {
  Builder builder;
  parse_json(text, builder, limits);
  return builder.take();
}

}  // namespace trireme::base
