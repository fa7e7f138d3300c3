// Reduces a protobuf message to the fields that its receiver knows.
#include "serve/grpc/grpc_fields.h"

#include <google/protobuf/descriptor.h>

#include <cstdint>

#include "base/error.h"

namespace trireme::serve {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

Wire wire_of(const FieldDescriptor& field) {
  switch (field.type()) {
    case FieldDescriptor::TYPE_DOUBLE:
    case FieldDescriptor::TYPE_FIXED64:
    case FieldDescriptor::TYPE_SFIXED64: return kFixed64;
    case FieldDescriptor::TYPE_FLOAT:
    case FieldDescriptor::TYPE_FIXED32:
    case FieldDescriptor::TYPE_SFIXED32: return kFixed32;
    case FieldDescriptor::TYPE_STRING:
    case FieldDescriptor::TYPE_BYTES:
    case FieldDescriptor::TYPE_MESSAGE: return kBytes;
    default: return kVarint;
  }
}

/// Reads a message's bytes from front to back.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  bool is_over() const { return left_.empty(); }
  const char* at() const { return left_.data(); }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    base::fail_invalid("malformed message: a number has more than 10 bytes");
  }
  std::string_view take(uint64_t bytes) {
    base::require(bytes <= left_.size(), "malformed message: it ends within a field");
    const std::string_view out = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return out;
  }
  /// Skips a value; returns the content of length-delimited fields.
  std::string_view value(uint32_t wire) {
    if (wire == kVarint) return varint(), std::string_view();
    if (wire == kBytes) return take(varint());
    base::require(wire == kFixed64 || wire == kFixed32, "malformed message: unknown wire type ", wire);
    return take(wire == kFixed64 ? 8 : 4), std::string_view();
  }

 private:
  std::string_view left_;
};

void append_varint(std::string& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>((value & 0x7f) | 0x80);
  to += static_cast<char>(value);
}

class Filter {
 public:
  std::string read(const Descriptor& type, std::string_view message, int depth) {
    base::require(depth <= kMostMessageDepth, "message is nested deeper than the limit of ",
                  kMostMessageDepth);
    std::string out;
    for (Reader reader(message); !reader.is_over();) {
      const char* begin = reader.at();
      const uint64_t tag = reader.varint();
      const auto wire = static_cast<uint32_t>(tag & 7);
      const uint64_t number = tag >> 3;
      base::require(number >= 1 && number <= FieldDescriptor::kMaxNumber, "malformed message: field number ",
                    number);
      const FieldDescriptor* field = type.FindFieldByNumber(static_cast<int>(number));
      const std::string_view value = reader.value(wire);
      const bool is_packed = field != nullptr && wire == kBytes && field->is_packable();
      if (field == nullptr || (wire != wire_of(*field) && !is_packed)) continue;
      // A packed number takes at least one byte, and eight in memory, so its bytes limit it sufficiently.
      base::require(++fields_ <= kMostMessageFields, "message has more fields than the limit of ",
                    kMostMessageFields);
      if (field->type() != FieldDescriptor::TYPE_MESSAGE) {
        out.append(begin, static_cast<size_t>(reader.at() - begin));
        continue;
      }
      const std::string inner = read(*field->message_type(), value, depth + 1);
      append_varint(out, tag);
      append_varint(out, inner.size());
      out += inner;
    }
    return out;
  }

 private:
  size_t fields_ = 0;
};

}  // namespace

std::string known_fields(const Descriptor& type, std::string_view message) {
  return Filter().read(type, message, 1);
}

}  // namespace trireme::serve
