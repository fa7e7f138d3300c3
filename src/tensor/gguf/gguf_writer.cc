// Writes GGUF files.
#include "tensor/gguf/gguf_writer.h"

#include <algorithm>

#include "base/files/file.h"

namespace trireme::tensor {
namespace {

constexpr int64_t kAlignment = 32;

template <class T>
void append(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void append_text(std::string& to, std::string_view text) {
  append<uint64_t>(to, text.size());
  to += text;
}

template <class T>
std::string bytes_of(T value) {
  std::string bytes;
  append(bytes, value);
  return bytes;
}

int64_t padding(int64_t bytes) { return (kAlignment - bytes % kAlignment) % kAlignment; }

}  // namespace

void GgufWriter::put(std::string_view key, GgufKind kind, std::string bytes) {
  Entry entry{std::string(key), static_cast<uint32_t>(kind), std::move(bytes)};
  const auto same =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  if (same != entries_.end()) {
    *same = std::move(entry);
  } else {
    entries_.push_back(std::move(entry));
  }
}

void GgufWriter::put_array(std::string_view key, GgufKind kind, uint64_t count, const std::string& bytes) {
  std::string all = bytes_of(static_cast<uint32_t>(kind));
  append(all, count);
  put(key, GgufKind::array, all + bytes);
}

void GgufWriter::set(std::string_view key, const GgufValue& value) {
  if (value.is_array) return put_array(key, value.kind, value.count, std::string(value.bytes));
  put(key, value.kind, std::string(value.bytes));
}

void GgufWriter::set_integer(std::string_view key, uint32_t value) {
  put(key, GgufKind::u32, bytes_of(value));
}
void GgufWriter::set_number(std::string_view key, float value) { put(key, GgufKind::f32, bytes_of(value)); }
void GgufWriter::set_flag(std::string_view key, bool value) {
  put(key, GgufKind::boolean, bytes_of<uint8_t>(value ? 1 : 0));
}

void GgufWriter::set_text(std::string_view key, std::string_view value) {
  std::string bytes;
  append_text(bytes, value);
  put(key, GgufKind::text, std::move(bytes));
}

void GgufWriter::set_texts(std::string_view key, std::span<const std::string> values) {
  std::string bytes;
  for (const std::string& value : values) append_text(bytes, value);
  put_array(key, GgufKind::text, values.size(), bytes);
}

void GgufWriter::set_integers(std::string_view key, std::span<const int32_t> values) {
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  put_array(key, GgufKind::i32, values.size(), bytes);
}

void GgufWriter::set_numbers(std::string_view key, std::span<const float> values) {
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  put_array(key, GgufKind::f32, values.size(), bytes);
}

void GgufWriter::add(std::string name, const Dims& dims, const GgufType& type) {
  base::require(dims.size() <= 4, "tensor '", name, "' has ", dims.size(), " dimensions, GGUF has at most 4");
  const int64_t width = dims.empty() ? 1 : dims.back(), elements = element_count(dims);
  const int64_t bytes = width == 0 ? 0 : elements / width * type.row_bytes(width);
  tensors_.push_back({std::move(name), dims, &type, bytes});
}

int64_t GgufWriter::tensor_bytes() const {
  int64_t sum = 0;
  for (const Planned& t : tensors_) sum += t.bytes;
  return sum;
}

std::string GgufWriter::header() const {
  std::string text = "GGUF";
  append<uint32_t>(text, 3);
  append<uint64_t>(text, tensors_.size());
  append<uint64_t>(text, entries_.size());
  for (const Entry& e : entries_) {
    append_text(text, e.key);
    append(text, e.kind);
    text += e.bytes;
  }
  int64_t offset = 0;
  for (const Planned& t : tensors_) {
    append_text(text, t.name);
    append(text, static_cast<uint32_t>(t.dims.size()));
    for (size_t i = t.dims.size(); i-- > 0;) append(text, static_cast<uint64_t>(t.dims[i]));
    append(text, t.type->id);
    append(text, static_cast<uint64_t>(offset));
    offset += t.bytes + padding(t.bytes);
  }
  text.append(static_cast<size_t>(padding(static_cast<int64_t>(text.size()))), '\0');
  return text;
}

void GgufWriter::write(const std::string& path,
                       const std::function<std::string(size_t)>& bytes_of_tensor) const {
  base::AtomicFile file(path);
  file.write(header());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const std::string bytes = bytes_of_tensor(i);
    base::require(static_cast<int64_t>(bytes.size()) == tensors_[i].bytes, "tensor '", tensors_[i].name,
                  "' has ", bytes.size(), " bytes, announced were ", tensors_[i].bytes);
    file.write(bytes);
    file.write(std::string(static_cast<size_t>(padding(tensors_[i].bytes)), '\0'));
  }
  file.commit();
}

}  // namespace trireme::tensor
