// Protobuf by hand: tags, lengths and varints of four messages.
#include "load/requests/kserve_grpc.h"

#include <array>
#include <optional>

#include "base/error.h"

namespace trireme::load {
namespace {

constexpr unsigned kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void append_bytes(std::string& out, unsigned field, std::string_view bytes) {
  append_varint(out, field << 3 | kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

[[noreturn]] void fail_malformed() {
  base::fail(base::ErrorCode::unavailable, "the server's message is no protobuf of KServe v2");
}

/// Walks the fields of a message.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}

  bool next() {
    if (rest_.empty()) return false;
    const uint64_t tag = varint();
    number_ = tag >> 3;
    value_ = 0;
    bytes_ = {};
    switch (tag & 7) {
      case kVarint: value_ = varint(); break;
      case kFixed64: skip(8); break;
      case kFixed32: skip(4); break;
      case kBytes: {
        const uint64_t size = varint();
        bytes_ = rest_.substr(0, size);
        skip(size);
        break;
      }
      default: fail_malformed();
    }
    return true;
  }
  uint64_t number() const { return number_; }
  uint64_t value() const { return value_; }
  std::string_view bytes() const { return bytes_; }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) fail_malformed();
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    fail_malformed();
  }
  bool is_empty() const { return rest_.empty(); }

 private:
  void skip(uint64_t bytes) {
    if (bytes > rest_.size()) fail_malformed();
    rest_.remove_prefix(bytes);
  }
  std::string_view rest_, bytes_;
  uint64_t number_ = 0, value_ = 0;
};

base::Json tensor_of(std::string_view message) {
  base::Json shape = base::Json::array();
  std::string name, datatype;
  for (Fields f(message); f.next();) {
    if (f.number() == 1) name = f.bytes();
    if (f.number() == 2) datatype = f.bytes();
    if (f.number() != 3) continue;
    if (f.bytes().empty()) {
      shape.push_back(static_cast<int64_t>(f.value()));
    } else {
      for (Fields packed(f.bytes()); !packed.is_empty();)
        shape.push_back(static_cast<int64_t>(packed.varint()));
    }
  }
  return base::Json::object({{"name", name}, {"datatype", datatype}, {"shape", shape}});
}

base::Json duration_of(std::string_view message) {
  int64_t count = 0, ns = 0;
  for (Fields f(message); f.next();) {
    if (f.number() == 1) count = static_cast<int64_t>(f.value());
    if (f.number() == 2) ns = static_cast<int64_t>(f.value());
  }
  return base::Json::object({{"count", count}, {"ns", ns}});
}

base::Json times_of(std::string_view message) {
  constexpr std::array<std::string_view, 7> kNames = {
      "", "success", "fail", "queue", "compute_input", "compute_infer", "compute_output"};
  base::Json out = base::Json::object();
  for (size_t i = 1; i < kNames.size(); ++i) out.set(kNames[i], duration_of({}));
  for (Fields f(message); f.next();) {
    if (f.number() > 0 && f.number() < kNames.size()) out.set(kNames[f.number()], duration_of(f.bytes()));
  }
  return out;
}

}  // namespace

std::string encode_model_name(std::string_view model) {
  std::string out;
  append_bytes(out, 1, model);
  return out;
}

std::string encode_grpc_infer(std::string_view model, const std::vector<InputTensor>& inputs) {
  std::string out = encode_model_name(model);
  for (const InputTensor& input : inputs) {
    std::string tensor, shape;
    append_bytes(tensor, 1, input.name);
    append_bytes(tensor, 2, input.datatype);
    for (const int64_t extent : input.shape) append_varint(shape, static_cast<uint64_t>(extent));
    append_bytes(tensor, 3, shape);
    append_bytes(out, 5, tensor);
  }
  for (const InputTensor& input : inputs) append_bytes(out, 7, input.bytes);
  return out;
}

base::Json metadata_of_grpc(std::string_view message) {
  base::Json inputs = base::Json::array();
  for (Fields f(message); f.next();) {
    if (f.number() == 4) inputs.push_back(tensor_of(f.bytes()));
  }
  return base::Json::object({{"inputs", inputs}});
}

base::Json statistics_of_grpc(std::string_view message) {
  base::Json models = base::Json::array();
  for (Fields f(message); f.next();) {
    if (f.number() != 1) continue;
    base::Json model = base::Json::object(
        {{"inference_count", 0}, {"execution_count", 0}, {"inference_stats", times_of({})}});
    for (Fields m(f.bytes()); m.next();) {
      if (m.number() == 4) model.set("inference_count", static_cast<int64_t>(m.value()));
      if (m.number() == 5) model.set("execution_count", static_cast<int64_t>(m.value()));
      if (m.number() == 6) model.set("inference_stats", times_of(m.bytes()));
    }
    models.push_back(std::move(model));
  }
  return base::Json::object({{"model_stats", models}});
}

}  // namespace trireme::load
