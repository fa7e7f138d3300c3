// A std::variant whose copies may fail.
#pragma once

#include <variant>

namespace trireme::base {

/// libstdc++ 12 copies a variant of strings or vectors into one that holds nothing yet, and when that throws
/// (there is no memory) destroys what is not there: the copy constructor of this one assigns instead. The
/// first type must be default constructible.
template <class... Types>
class Variant : public std::variant<Types...> {
  using Base = std::variant<Types...>;

 public:
  using Base::Base;
  using Base::operator=;
  Variant() = default;
  Variant(const Variant& other) : Base() { Base::operator=(static_cast<const Base&>(other)); }
  Variant(Variant&&) = default;
  Variant& operator=(const Variant&) = default;
  Variant& operator=(Variant&&) = default;
};

}  // namespace trireme::base
