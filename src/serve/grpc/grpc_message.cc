// ModelInferRequest and ModelInferResponse in protobuf's wire format.
#include "serve/grpc/grpc_message.h"

#include <algorithm>
#include <cstring>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "base/text/shortened.h"
#include "base/utf8.h"
#include "serve/infer/data_writer.h"
#include "serve/infer/infer_parameter.h"
#include "serve/core/shared_regions.h"
#include "serve/core/tensor_bytes.h"

namespace trireme::serve {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;
using protozero::pbf_writer;

constexpr uint32_t kRawInputs = 7;
/// Smaller tensors are copied into the message, because a buffer of their own would cost more.
constexpr size_t kSmallBytes = 2048;

/// Reads the bytes of a message, which are in several pieces, from front to back.
class PieceReader {
 public:
  explicit PieceReader(std::span<const std::string_view> pieces) : pieces_(pieces) { settle(); }

  bool is_over() const { return index_ == pieces_.size(); }

  uint64_t varint(std::string* copy = nullptr) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      base::require(!is_over(), "malformed message: it ends within a number");
      const char c = pieces_[index_][at_];
      advance(1);
      if (copy != nullptr) copy->push_back(c);
      value |= static_cast<uint64_t>(c & 0x7f) << shift;
      if ((c & 0x80) == 0) return value;
    }
    base::fail_invalid("malformed message: a number has more than 10 bytes");
  }
  /// Calls `use` with each run of the next `bytes`.
  template <class Use>
  void take(uint64_t bytes, const Use& use) {
    while (bytes > 0) {
      base::require(!is_over(), "malformed message: it ends within a field");
      const std::string_view piece = pieces_[index_].substr(at_, bytes);
      use(piece);
      advance(piece.size());
      bytes -= piece.size();
    }
  }
  /// The next `bytes` as one view; empty if they are in several pieces.
  std::string_view in_one(uint64_t bytes) const {
    if (is_over() || pieces_[index_].size() - at_ < bytes) return {};
    return pieces_[index_].substr(at_, bytes);
  }

 private:
  void advance(size_t bytes) {
    at_ += bytes;
    settle();
  }
  void settle() {
    while (index_ < pieces_.size() && at_ == pieces_[index_].size()) {
      ++index_;
      at_ = 0;
    }
  }
  std::span<const std::string_view> pieces_;
  size_t index_ = 0, at_ = 0;
};

/// Bytes, and the owner of their memory.
struct RawContents {
  std::string_view bytes;
  std::shared_ptr<const void> owner;
};

/// The message without raw_input_contents, which are used in place.
struct SplitMessage {
  std::string head;
  std::vector<RawContents> raw;
};

RawContents take_raw(PieceReader& reader, uint64_t bytes, const std::shared_ptr<const void>& owner) {
  const std::string_view whole = reader.in_one(bytes);
  // 8 bytes is the widest element. Less aligned bytes would be copied later for their type, so they are now.
  const bool is_aligned = reinterpret_cast<uintptr_t>(whole.data()) % 8 == 0;
  if (bytes == 0 || (whole.size() == bytes && is_aligned)) {
    reader.take(bytes, [](std::string_view) {});
    return {whole, owner};
  }
  tensor::Tensor copy = tensor::Tensor::empty(tensor::DType::u8, {static_cast<int64_t>(bytes)});
  char* to = reinterpret_cast<char*>(copy.mutable_raw());
  const std::string_view view(to, bytes);
  reader.take(bytes, [&to](std::string_view run) {
    std::memcpy(to, run.data(), run.size());
    to += run.size();
  });
  return {view, copy.owner()};
}

SplitMessage split(std::span<const std::string_view> pieces, const std::shared_ptr<const void>& owner) {
  uint64_t left = 0;
  for (const std::string_view piece : pieces) left += piece.size();
  SplitMessage out;
  PieceReader reader(pieces);
  while (!reader.is_over()) {
    std::string key;
    const uint64_t tag = reader.varint(&key);
    const auto wire = static_cast<uint32_t>(tag & 7);
    const auto append = [&out](std::string_view run) { out.head.append(run); };
    if (tag >> 3 == kRawInputs && wire == 2) {
      const uint64_t bytes = reader.varint();
      base::require(bytes <= left, "malformed message: a field is longer than the message");
      check_tensor_room(out.raw.size());
      out.raw.push_back(take_raw(reader, bytes, owner));
      continue;
    }
    out.head += key;
    if (wire == 0) {
      reader.varint(&out.head);
    } else if (wire == 1 || wire == 5) {
      reader.take(wire == 1 ? 8 : 4, append);
    } else if (wire == 2) {
      reader.take(reader.varint(&out.head), append);
    } else {
      base::fail_invalid("malformed message: unknown wire type ", wire);
    }
  }
  return out;
}

// protozero relies on its caller to check wire types, and senders cannot be trusted.

void need(const pbf_reader& r, pbf_wire_type type) {
  base::require(r.wire_type() == type, "malformed message: field ", r.tag(), " has the wrong wire type");
}

std::string_view view_of(pbf_reader& r) {
  need(r, pbf_wire_type::length_delimited);
  const auto view = r.get_view();
  return {view.data(), view.size()};
}

std::string text_of(pbf_reader& r) { return std::string(view_of(r)); }

pbf_reader message_of(pbf_reader& r) {
  const std::string_view view = view_of(r);
  return {view.data(), view.size()};
}

uint64_t varint_of(pbf_reader& r) {
  need(r, pbf_wire_type::varint);
  return r.get_uint64();
}

/// An InferParameter. If unset, it is null, which the reader of parameters refuses.
struct Parameter {
  std::string key;
  std::string text;
  ParameterValue value = nullptr;
};

Parameter read_parameter(pbf_reader entry) {
  Parameter out;
  while (entry.next()) {
    if (entry.tag() == 1) {
      out.key = text_of(entry);
    } else if (entry.tag() == 2) {
      pbf_reader choice = message_of(entry);
      while (choice.next()) {
        switch (choice.tag()) {
          case 1: out.value = varint_of(choice) != 0; break;
          case 2: out.value = static_cast<int64_t>(varint_of(choice)); break;
          case 3:
            out.text = text_of(choice);
            out.value = std::string_view();
            break;
          case 4:
            need(choice, pbf_wire_type::fixed64);
            out.value = choice.get_double();
            break;
          case 5: out.value = varint_of(choice); break;
          default: choice.skip();
        }
      }
    } else {
      entry.skip();
    }
  }
  if (std::holds_alternative<std::string_view>(out.value)) out.value = std::string_view(out.text);
  return out;
}

/// Calls `put` for each value of a repeated scalar field, packed or not.
template <class T, class Packed, class One, class Put>
void each(pbf_reader& r, pbf_wire_type scalar, const Packed& packed, const One& one, const Put& put) {
  if (r.wire_type() == scalar) return put(static_cast<T>(one()));
  base::require(r.wire_type() == pbf_wire_type::length_delimited, "tensor contents have the wrong wire type");
  for (const auto value : packed()) put(static_cast<T>(value));
}

/// Field numbers of InferTensorContents.
enum Contents : uint32_t { kBool = 1, kInt, kInt64, kUint, kUint64, kFp32, kFp64, kBytes };

uint32_t contents_field(WireType type) {
  using tensor::DType;
  if (!type) return kBytes;
  switch (*type) {
    case DType::boolean: return kBool;
    case DType::i8:
    case DType::i16:
    case DType::i32: return kInt;
    case DType::i64: return kInt64;
    case DType::u8:
    case DType::u16:
    case DType::u32: return kUint;
    case DType::u64: return kUint64;
    case DType::f32: return kFp32;
    case DType::f64: return kFp64;
    default: return 0;  // FP16 and BF16 are sent raw only
  }
}

/// Writes one field of the contents to the tensor; the writer checks each value against the type.
void read_values(pbf_reader& r, DataWriter& out) {
  const auto integer = [&out](int64_t v) { out.put(v); };
  const auto natural = [&out](uint64_t v) { out.put(v); };
  const auto real = [&out](double v) { out.put(v); };
  switch (r.tag()) {
    case kBool:
      return each<bool>(
          r, pbf_wire_type::varint, [&] { return r.get_packed_bool(); }, [&] { return r.get_uint64() != 0; },
          [&out](bool v) { out.put(v); });
    case kInt:
      return each<int64_t>(
          r, pbf_wire_type::varint, [&] { return r.get_packed_int32(); }, [&] { return r.get_int32(); },
          integer);
    case kInt64:
      return each<int64_t>(
          r, pbf_wire_type::varint, [&] { return r.get_packed_int64(); }, [&] { return r.get_int64(); },
          integer);
    case kUint:
      return each<uint64_t>(
          r, pbf_wire_type::varint, [&] { return r.get_packed_uint32(); }, [&] { return r.get_uint32(); },
          natural);
    case kUint64:
      return each<uint64_t>(
          r, pbf_wire_type::varint, [&] { return r.get_packed_uint64(); }, [&] { return r.get_uint64(); },
          natural);
    case kFp32:
      return each<double>(
          r, pbf_wire_type::fixed32, [&] { return r.get_packed_float(); }, [&] { return r.get_float(); },
          real);
    case kFp64:
      return each<double>(
          r, pbf_wire_type::fixed64, [&] { return r.get_packed_double(); }, [&] { return r.get_double(); },
          real);
    default: {
      out.put(view_of(r));
    }
  }
}

/// Reads an InferTensorContents, whose fields are in all of `parts`, into a tensor whose name, type and dims
/// are known.
void fill_contents(std::span<const std::string_view> parts, WireTensor& t) {
  const uint32_t field = contents_field(t.type);
  base::require(field != 0, "input '", t.name, "' has datatype ", wire_name(t.type),
                ", which only raw_input_contents can carry");
  // A value takes at least one byte; a string has a tag as well.
  size_t bytes = 2;
  for (const std::string_view part : parts) bytes += part.size();
  DataWriter out(t, bytes);
  out.start_array();
  for (const std::string_view part : parts) {
    pbf_reader r(part.data(), part.size());
    while (r.next()) {
      base::require(r.tag() == field, "input '", t.name, "' of datatype ", wire_name(t.type),
                    " has contents of another type");
      read_values(r, out);
    }
  }
  out.end_array();
}

struct InputPart {
  WireTensor tensor;
  RegionSpan span;
  std::vector<std::string_view> contents;  ///< several are one message, as of every embedded message
};

InputPart read_input(pbf_reader message) {
  InputPart out;
  bool has_type = false;
  while (message.next()) {
    switch (message.tag()) {
      case 1: out.tensor.name = text_of(message); break;
      case 2:
        out.tensor.type = wire_type(text_of(message));
        has_type = true;
        break;
      case 3:
        each<int64_t>(
            message, pbf_wire_type::varint, [&] { return message.get_packed_int64(); },
            [&] { return message.get_int64(); },
            [&out](int64_t d) {
              check_dim_room(out.tensor.dims.size());
              out.tensor.dims.push_back(d);
            });
        break;
      case 4: {
        const Parameter p = read_parameter(message_of(message));
        set_input_parameter(out.span, p.key, p.value);
        break;
      }
      case 5: {
        // An empty message counts as absent: MLServer's client sends one beside raw contents.
        const std::string_view contents = view_of(message);
        if (!contents.empty()) out.contents.push_back(contents);
        break;
      }
      default: message.skip();
    }
  }
  base::require(has_type, "Unable to parse 'datatype': input '", out.tensor.name, "' has none");
  return out;
}

OutputWish read_output(pbf_reader message) {
  OutputWish out;
  while (message.next()) {
    if (message.tag() == 1) {
      out.name = text_of(message);
    } else if (message.tag() == 2) {
      const Parameter p = read_parameter(message_of(message));
      set_output_parameter(out, p.key, p.value);
    } else {
      message.skip();
    }
  }
  return out;
}

/// Gives every input its values: from shared memory, the next raw contents, or its own typed contents.
void attach(std::vector<InputPart>& inputs, std::vector<RawContents>& raw, const SharedRegions* regions,
            InferRequest& request) {
  size_t next = 0;
  for (InputPart& input : inputs) {
    WireTensor& t = input.tensor;
    if (!input.span.region.empty()) {
      base::require(input.contents.empty(), "input '", t.name, "' has contents and a shared memory region");
      if (regions == nullptr) base::fail_unsupported("shared memory is not served here");
      t = regions->read(std::move(t), input.span);
    } else if (!raw.empty()) {
      base::require(input.contents.empty(),
                    "contents field must not be specified when using raw_input_contents for '", t.name, "'");
      base::require(next < raw.size(), "expected tensor data for input '", t.name,
                    "': raw_input_contents has too few entries");
      const RawContents& bytes = raw[next++];
      t = tensor_from_bytes(std::move(t.name), t.type, std::move(t.dims), {bytes.bytes, bytes.owner});
    } else {
      fill_contents(input.contents, t);
    }
    request.inputs.push_back(std::move(t));
  }
  base::require(next == raw.size(), "unexpected number of raw_input_contents: ", raw.size(), ", used ", next);
}

GrpcInferRequest read_request(const SplitMessage& message, std::vector<InputPart>& inputs) {
  GrpcInferRequest out;
  pbf_reader r(message.head.data(), message.head.size());
  while (r.next()) {
    switch (r.tag()) {
      case 1: out.model_name = text_of(r); break;
      case 2: out.model_version = text_of(r); break;
      case 3:
        out.request.id = text_of(r);
        base::require(base::is_utf8(out.request.id), "Unable to parse 'id': it is not UTF-8");
        out.request.has_id = !out.request.id.empty();
        break;
      case 4: {
        const Parameter p = read_parameter(message_of(r));
        if (p.key == "triton_enable_empty_final_response") {
          out.wants_empty_final = parameter_bool(p.value, p.key);
        } else {
          set_parameter(out.request, p.key, p.value);
        }
        break;
      }
      case 5:
        check_tensor_room(inputs.size());
        inputs.push_back(read_input(message_of(r)));
        break;
      case 6:
        check_tensor_room(out.request.outputs.size());
        out.request.outputs.push_back(read_output(message_of(r)));
        break;
      default: r.skip();
    }
  }
  return out;
}

void write_text_parameter(pbf_writer& message, uint32_t field, std::string_view key, std::string_view value) {
  pbf_writer entry(message, field);
  entry.add_string(1, key.data(), key.size());
  pbf_writer choice(entry, 2);
  choice.add_string(3, value.data(), value.size());
}

void write_number_parameter(pbf_writer& message, uint32_t field, std::string_view key, uint64_t value) {
  pbf_writer entry(message, field);
  entry.add_string(1, key.data(), key.size());
  pbf_writer choice(entry, 2);
  choice.add_int64(2, static_cast<int64_t>(value));
}

void write_output(pbf_writer& message, const InferOutput& o) {
  pbf_writer output(message, 5);
  output.add_string(1, o.tensor.name);
  const std::string_view type = wire_name(o.tensor.type);
  output.add_string(2, type.data(), type.size());
  output.add_packed_int64(3, o.tensor.dims.begin(), o.tensor.dims.end());
  if (o.span.region.empty()) return;
  write_text_parameter(output, 4, "shared_memory_region", o.span.region);
  write_number_parameter(output, 4, "shared_memory_offset", o.span.offset);
  write_number_parameter(output, 4, "shared_memory_byte_size", o.span.bytes);
}

void append_varint(std::string& to, uint64_t value) { protozero::add_varint_to_buffer(&to, value); }

constexpr uint64_t length_tag(uint32_t field) { return uint64_t{field} << 3 | 2; }

size_t bytes_of(const std::vector<http::BodyPart>& parts) {
  size_t bytes = 0;
  for (const http::BodyPart& p : parts) bytes += p.bytes().size();
  return bytes;
}

}  // namespace

GrpcInferRequest parse_grpc_infer(std::span<const std::string_view> pieces,
                                  const std::shared_ptr<const void>& owner, const SharedRegions* regions) {
  try {
    SplitMessage message = split(pieces, owner);
    std::vector<InputPart> inputs;
    GrpcInferRequest out = read_request(message, inputs);
    attach(inputs, message.raw, regions, out.request);
    check_request_names(out.request);
    return out;
  } catch (const protozero::exception& e) {
    base::fail_invalid("malformed message: ", e.what());
  }
}

size_t grpc_tensor_offset(std::string_view begin) {
  const char* at = begin.data();
  const char* const end = at + begin.size();
  try {
    while (at < end) {
      const uint64_t tag = protozero::decode_varint(&at, end);
      if ((tag & 7) != 2) {
        if ((tag & 7) != 0) return 0;  // the messages only have texts, numbers and messages
        protozero::skip_varint(&at, end);
        continue;
      }
      const uint64_t bytes = protozero::decode_varint(&at, end);
      if (tag >> 3 == kRawInputs && bytes > kSmallBytes) return static_cast<size_t>(at - begin.data());
      if (bytes > static_cast<uint64_t>(end - at)) return 0;
      at += bytes;
    }
  } catch (const protozero::exception&) {
    // Cut off or malformed: the reader of the whole message will report it.
  }
  return 0;
}

std::vector<http::BodyPart> grpc_infer_response(const InferResponse& response, bool is_stream) {
  std::string head;
  pbf_writer message(head);
  message.add_string(1, response.model_name);
  message.add_string(2, response.model_version);
  if (response.has_id) message.add_string(3, response.id);
  if (is_stream) {
    pbf_writer entry(message, 4);
    entry.add_string(1, "triton_final_response");
    pbf_writer choice(entry, 2);
    choice.add_bool(1, response.is_final);
  }
  for (const InferOutput& o : response.outputs) write_output(message, o);
  std::vector<http::BodyPart> parts;
  for (const InferOutput& o : response.outputs) {
    // Clients find an output's bytes by position, so an output in shared memory has an empty entry.
    http::BodyPart bytes = o.span.region.empty() ? tensor_bytes(o.tensor) : http::BodyPart(std::string());
    append_varint(head, length_tag(6));
    append_varint(head, bytes.bytes().size());
    if (bytes.bytes().size() < kSmallBytes) {
      head += bytes.bytes();
      continue;
    }
    parts.emplace_back(std::exchange(head, {}));
    parts.push_back(std::move(bytes));
  }
  if (!head.empty()) parts.emplace_back(std::move(head));
  if (is_stream) {
    std::string wrapper;
    append_varint(wrapper, length_tag(2));
    append_varint(wrapper, bytes_of(parts));
    parts.insert(parts.begin(), http::BodyPart(std::move(wrapper)));
  }
  return parts;
}

std::string grpc_stream_error(std::string_view message, std::string_view id) {
  std::string out;
  pbf_writer stream(out);
  stream.add_string(1, base::shortened(message));
  if (!id.empty()) {
    pbf_writer response(stream, 2);
    response.add_string(3, id.data(), id.size());
  }
  return out;
}

}  // namespace trireme::serve
