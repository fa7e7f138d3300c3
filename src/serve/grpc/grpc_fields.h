// What of a protobuf message its receiver knows, taken out of the wire form before anything is built of it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace google::protobuf {
class Descriptor;
}

namespace trireme::serve {

/// So deep messages may lie in each other, and so many fields one may have with all that lie in it: a field
/// of two bytes becomes an object of a hundred and more.
inline constexpr int kMostMessageDepth = 16;
inline constexpr size_t kMostMessageFields = 65'536;

/// The message without the fields that its type does not have, which generated code would keep, in objects of
/// their own, and send back. Throws invalid_argument for what is no message, for groups, and beyond the
/// bounds above. Costs one copy of the bytes for each level.
std::string known_fields(const google::protobuf::Descriptor& type, std::string_view message);

}  // namespace trireme::serve
