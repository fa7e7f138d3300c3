// Reads and writes requests for the pages of a prompt.
#include "serve/models/pages_request.h"

#include <cstring>

#include "base/error.h"
#include "serve/infer/request_json.h"

namespace trireme::serve {
namespace {

using base::Json;

constexpr std::string_view kDigits = "0123456789abcdef";

std::string hex_of(std::string_view bytes) {
  std::string digits;
  digits.reserve(2 * bytes.size());
  for (const char c : bytes) {
    digits += kDigits[static_cast<unsigned char>(c) >> 4];
    digits += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return digits;
}

std::string bytes_of(std::string_view digits, const char* name) {
  base::require(digits.size() % 2 == 0, name, ": an odd number of digits");
  std::string bytes;
  bytes.reserve(digits.size() / 2);
  for (size_t i = 0; i < digits.size(); i += 2) {
    const size_t high = kDigits.find(digits[i]), low = kDigits.find(digits[i + 1]);
    base::require(high != std::string_view::npos && low != std::string_view::npos, name,
                  ": expected hexadecimal digits");
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

/// Null where there is none.
const std::string* text_of(const Json& json, const char* name) {
  const Json* member = json.find(name);
  base::require(member == nullptr || member->is_string(), name, ": expected a string");
  return member == nullptr ? nullptr : &member->as_string();
}

int64_t number_of_member(const Json& json, const char* name, int64_t most) {
  const Json* member = json.find(name);
  if (member == nullptr) return 0;
  const int64_t value = member->as_int();
  base::require(value >= 0 && value <= most, name, ": ", value, " is not in 0 to ", most);
  return value;
}

}  // namespace

std::string to_json(const PagesRequest& request) {
  std::string text = "{\"tokens\":[";
  for (const int64_t token : request.tokens) {
    if (text.back() != '[') text += ',';
    base::append_json(text, token);
  }
  text += "],\"first\":";
  base::append_json(text, request.first);
  const std::string_view key(reinterpret_cast<const char*>(request.key.data()), sizeof request.key);
  text += ",\"key\":";
  base::append_json(text, std::string_view(hex_of(key)));
  text += ",\"salt\":";
  base::append_json(text, std::string_view(hex_of(request.salt)));
  text += ",\"adapter\":";
  base::append_json(text, std::string_view(request.adapter));
  text += ",\"priority\":";
  base::append_json(text, request.priority);
  return text + "}";
}

PagesRequest pages_request(std::string_view body) {
  const Json json = request_json(body);
  base::require(json.is_object(), "expected a JSON object, found ", json.type_name());
  PagesRequest request;
  const Json* tokens = json.find("tokens");
  base::require(tokens != nullptr && tokens->is_array() && !tokens->as_array().empty(),
                "tokens: expected a list of tokens");
  request.tokens.reserve(tokens->as_array().size());
  for (const Json& token : tokens->as_array()) request.tokens.push_back(token.as_int());
  request.first = number_of_member(json, "first", static_cast<int64_t>(request.tokens.size()));
  request.priority = number_of_member(json, "priority", UINT32_MAX - 1);
  const std::string* key = text_of(json, "key");
  base::require(key != nullptr && key->size() == 2 * sizeof request.key, "key: expected ",
                2 * sizeof request.key, " hexadecimal digits");
  std::memcpy(request.key.data(), bytes_of(*key, "key").data(), sizeof request.key);
  if (const std::string* salt = text_of(json, "salt")) {
    base::require(salt->size() <= 2 * PagesRequest::kMostSalt, "salt: longer than ", PagesRequest::kMostSalt,
                  " bytes");
    request.salt = bytes_of(*salt, "salt");
  }
  if (const std::string* adapter = text_of(json, "adapter")) request.adapter = *adapter;
  return request;
}

}  // namespace trireme::serve
