// Reads config.json strictly: what nobody asked for and what is not known to be without effect is refused.
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

#include "base/text/json.h"

namespace trireme::model::hf {

/// The members of one JSON object, each read by the form that knows it. Null counts as absent.
class ConfigReader {
 public:
  /// `where` ("rope_scaling.") stands before the keys in messages. The object outlives the reader.
  explicit ConfigReader(const base::Json& object, std::string where = "");

  bool has(std::string_view key);
  /// Integers above 0 and below 2^31. Throws invalid_argument naming the key.
  int64_t positive(std::string_view key);
  int64_t positive(std::string_view key, int64_t otherwise);
  double number(std::string_view key);
  double number(std::string_view key, double otherwise);
  bool flag(std::string_view key, bool otherwise);
  std::string text(std::string_view key, const char* otherwise);
  /// The member, or null.
  const base::Json* find(std::string_view key);
  /// Throws unsupported if the member is there and something else.
  void only(std::string_view key, const base::Json& value);
  /// Members that change nothing here.
  void ignore(std::initializer_list<std::string_view> keys);
  /// Throws unsupported naming a member that nobody read, unless it is null, false, or known to be without
  /// effect on what the network computes.
  void finish() const;

 private:
  const base::Json& object_;
  std::string where_;
  std::set<std::string, std::less<>> read_;
};

}  // namespace trireme::model::hf
