// Tests copies of variants that throw, and copies of errors, which never throw.
#include "base/variant.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace trireme::base {
namespace {

struct ThrowsWhenCopied {
  ThrowsWhenCopied() = default;
  ThrowsWhenCopied(const ThrowsWhenCopied&) { throw std::bad_alloc(); }
  ThrowsWhenCopied(ThrowsWhenCopied&&) noexcept = default;
  ThrowsWhenCopied& operator=(const ThrowsWhenCopied&) = default;
  ThrowsWhenCopied& operator=(ThrowsWhenCopied&&) noexcept = default;
};

// With this many types, std::variant copies through a table; a copy that throws there ends the program.
using Value =
    Variant<int, bool, long, float, double, std::string, std::vector<int>, std::vector<ThrowsWhenCopied>>;

TEST(Variant, ACopyThatThrowsIsAnException) {
  Value value = std::vector<ThrowsWhenCopied>(3);
  EXPECT_THROW(Value{value}, std::bad_alloc);
  Value other = std::string("kept");
  EXPECT_THROW(other = value, std::bad_alloc);
  EXPECT_EQ(std::get<std::string>(other), "kept");
}

TEST(Variant, IsAVariant) {
  Value value = std::string("text");
  const Value copy = value;
  const Value moved = std::move(value);
  EXPECT_EQ(std::get<std::string>(copy), "text");
  EXPECT_EQ(std::get<std::string>(moved), "text");
  EXPECT_TRUE(std::holds_alternative<int>(Value()));
  EXPECT_EQ(std::visit([](const auto& v) { return sizeof v; }, copy), sizeof(std::string));
}

TEST(Error, CopiesNeedNoMemory) {
  static_assert(std::is_nothrow_copy_constructible_v<Error> && std::is_nothrow_copy_assignable_v<Error>);
  const Error error(ErrorCode::not_found, std::string(100, 'x'));
  const Error copy = error;
  EXPECT_EQ(copy.message().data(), error.message().data());
}

}  // namespace
}  // namespace trireme::base
