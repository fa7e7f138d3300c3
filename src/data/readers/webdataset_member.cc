// Recognises members by their extensions, and decodes them.
#include "data/readers/webdataset_member.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "data/dataset/source_file.h"
#include "data/readers/image_field.h"

namespace trireme::data {
namespace {

using tensor::DType;
using tensor::Tensor;

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

int64_t parse_integer(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
    text.remove_suffix(1);
  }
  int64_t value = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  base::require(error == std::errc() && at == text.data() + text.size(), "not an integer: '",
                text.substr(0, 40), "'");
  return value;
}

}  // namespace

MemberKind parse_extension(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  MemberKind e;
  e.is_gzip = text.ends_with(".gz");
  e.name = std::string(without_gz(text));
  const std::string last = e.name.substr(e.name.rfind('.') + 1);  // "seg.png" is decoded as png
  const bool whole = last == e.name;
  e.field = e.name;
  if (is_one_of(last, {"jpg", "jpeg", "png", "bmp"})) {
    e.decoding = Decoding::image;
    if (whole) e.field = "image";
  } else if (is_one_of(last, {"cls", "cls2", "class", "count", "index", "inx", "id"})) {
    e.decoding = Decoding::integer;
    if (e.name == "cls" || e.name == "class") e.field = "label";
  } else if (is_one_of(last, {"txt", "text", "transcript", "json", "jsn"})) {
    e.decoding = Decoding::text;
    if (e.name == "txt") e.field = "text";
  }
  return e;
}

std::pair<std::string_view, std::string_view> split_member_name(std::string_view name) {
  const std::string_view first = name.substr(0, name.find('/'));
  const bool is_note = first.size() >= 4 && first.starts_with("__") && first.ends_with("__");
  const size_t slash = name.rfind('/');
  const size_t start = slash == std::string_view::npos ? 0 : slash + 1;
  const size_t dot = name.find('.', start);
  if (is_note || dot == std::string_view::npos || dot == start) return {};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

Field MemberKind::as_field() const {
  Field made{field};
  if (decoding == Decoding::image) made = image_field(field);
  if (decoding == Decoding::integer) made.dtype = DType::i64;
  if (decoding == Decoding::text) made.kind = FieldKind::text;
  if (decoding == Decoding::bytes) made.kind = FieldKind::bytes;
  made.is_target = field == "label";
  return made;
}

Value decode_member(const MemberKind& kind, std::string_view content, int64_t limit_bytes) {
  std::string unpacked;
  if (kind.is_gzip) content = unpacked = gunzip(content, limit_bytes);
  switch (kind.decoding) {
    case Decoding::image: return {kind.field, decode_image_tensor(content), {}};
    case Decoding::integer: return {kind.field, Tensor::scalar(parse_integer(content)), {}};
    default: return {kind.field, {}, {std::string(content)}};
  }
}

}  // namespace trireme::data
