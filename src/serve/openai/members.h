// Members of a request of the OpenAI API, read with their types and ranges.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/text/json.h"
#include "serve/openai/openai_error.h"

namespace trireme::serve {

[[noreturn]] inline void fail_member(std::string_view member, const std::string& what) {
  throw MemberError(base::ErrorCode::invalid_argument, std::string(member), what);
}

/// For what would change an answer and is not served.
[[noreturn]] inline void refuse_member(std::string_view member, const std::string& what) {
  throw MemberError(base::ErrorCode::unsupported, std::string(member), what);
}

/// The members of one request; absent and null are the same.
class Members {
 public:
  explicit Members(const base::Json& json) : json_(json) {}

  const base::Json* find(std::string_view name) const {
    const base::Json* member = json_.find(name);
    return member == nullptr || member->is_null() ? nullptr : member;
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }

  bool flag(std::string_view name, bool otherwise = false) const {
    const base::Json* m = find(name);
    if (m == nullptr) return otherwise;
    if (!m->is_bool()) fail_member(name, base::concat("expected a boolean, found ", m->type_name()));
    return m->as_bool();
  }
  std::string text(std::string_view name) const {
    const base::Json* m = find(name);
    if (m == nullptr) return {};
    if (!m->is_string()) fail_member(name, base::concat("expected a string, found ", m->type_name()));
    return m->as_string();
  }
  double number(std::string_view name, double otherwise, double low, double high) const {
    const base::Json* m = find(name);
    if (m == nullptr) return otherwise;
    if (!m->is_number()) fail_member(name, base::concat("expected a number, found ", m->type_name()));
    const double value = m->as_double();
    if (!(value >= low && value <= high))
      fail_member(name, base::concat(value, " is not between ", low, " and ", high));
    return value;
  }
  int64_t integer(std::string_view name, int64_t otherwise, int64_t low, int64_t high) const {
    const base::Json* m = find(name);
    if (m == nullptr) return otherwise;
    if (!m->is_integer()) fail_member(name, base::concat("expected an integer, found ", m->type_name()));
    if (std::holds_alternative<uint64_t>(m->value())) fail_member(name, "the integer is too large");
    const int64_t value = m->as_int();
    if (value < low || value > high)
      fail_member(name, base::concat(value, " is not between ", low, " and ", high));
    return value;
  }

 private:
  const base::Json& json_;
};

/// The object that a body holds. Throws invalid_argument.
base::Json request_object(std::string_view body);

}  // namespace trireme::serve
