// The manifest as bytes: a JSON head, the files, the chunks, and a checksum of all.
#include "batch/state/manifest.h"

#include "base/crc32c.h"
#include "base/error.h"
#include "base/files/file.h"
#include "batch/state/byte_fields.h"

namespace trireme::batch {
namespace {

constexpr std::string_view kManifestMagic = "TRMJOB\n\1";
constexpr size_t kChunkBytes = 40;
constexpr size_t kMostManifestBytes = size_t{4} << 30;
constexpr const char *kText = "text", *kNumber = "i64";  // types of columns that directories name

/// {"year": "i64", "country": "text"}
base::Json partitions_json(const std::vector<data::Field>& fields) {
  base::Json out = base::Json::object();
  for (const data::Field& f : fields) out.set(f.name, f.kind == data::FieldKind::text ? kText : kNumber);
  return out;
}

std::vector<data::Field> partitions_from(const base::Json& json) {
  std::vector<data::Field> fields;
  for (const base::JsonMember& m : json.as_object()) {
    const std::string& type = m.value.as_string();
    base::require(type == kText || type == kNumber, "a directory's column has the type '", type, "'");
    data::Field& field = fields.emplace_back(data::Field{.name = m.key});
    if (type == kText) field.kind = data::FieldKind::text;
    if (type == kNumber) field.dtype = tensor::DType::i64;
  }
  return fields;
}

Manifest parse(std::string_view body) {
  FieldReader in(body);
  Manifest m;
  m.job = in.take<uint64_t>();
  m.wall_ns = in.take<int64_t>();
  const base::Json head = base::parse_json(in.take_text());
  m.identity = head.at("model");
  m.result = head.at("result");
  m.options = head.at("options");
  if (const base::Json* partitions = head.find("partitions")) m.partitions = partitions_from(*partitions);
  const auto files = in.take<uint64_t>();
  for (uint64_t i = 0; i < files && !in.failed(); ++i) {
    m.files.push_back({.path = std::string(in.take_text()), .content_id = in.take<uint64_t>()});
  }
  const auto chunks = in.take<uint64_t>();
  base::require(!in.failed() && in.left() == chunks * kChunkBytes, "its tables do not fill it");
  m.chunks.reserve(chunks);
  for (uint64_t i = 0; i < chunks; ++i) {
    Chunk& c = m.chunks.emplace_back();
    c.file = in.take<uint32_t>();
    c.span.crc = in.take<uint32_t>();
    c.span.first_row = in.take<int64_t>();
    c.span.rows = in.take<int64_t>();
    c.span.begin = in.take<int64_t>();
    c.span.end = in.take<int64_t>();
    base::require(c.file < m.files.size(), "a chunk names a file that is not there");
  }
  return m;
}

std::string shown(const base::Json& value) { return value.is_string() ? value.as_string() : value.dump(); }

void compare(const std::string& path, const base::Json& then, const base::Json& now,
             std::vector<std::string>& out) {
  if (then == now) return;
  if (!then.is_object() || !now.is_object()) {
    out.push_back(base::concat(path, ": ", shown(then), " then, ", shown(now), " now"));
    return;
  }
  const std::string prefix = path.empty() ? "" : path + ".";
  for (const base::JsonMember& m : then.as_object()) {
    const base::Json* other = now.find(m.key);
    compare(prefix + m.key, m.value, other == nullptr ? base::Json() : *other, out);
  }
  for (const base::JsonMember& m : now.as_object()) {
    if (!then.contains(m.key)) compare(prefix + m.key, base::Json(), m.value, out);
  }
}

}  // namespace

int64_t Manifest::rows() const {
  int64_t sum = 0;
  for (const Chunk& c : chunks) sum += c.span.rows;
  return sum;
}

void write_manifest(const std::string& path, const Manifest& m) {
  std::string body;
  put(body, m.job);
  put(body, m.wall_ns);
  put_text(body, base::Json::object({{"model", m.identity},
                                     {"result", m.result},
                                     {"options", m.options},
                                     {"partitions", partitions_json(m.partitions)}})
                     .dump());
  put(body, static_cast<uint64_t>(m.files.size()));
  for (const InputFile& f : m.files) {
    put_text(body, f.path);
    put(body, f.content_id);
  }
  put(body, static_cast<uint64_t>(m.chunks.size()));
  body.reserve(body.size() + m.chunks.size() * kChunkBytes);
  for (const Chunk& c : m.chunks) {
    put(body, c.file);
    put(body, c.span.crc);
    put(body, c.span.first_row);
    put(body, c.span.rows);
    put(body, c.span.begin);
    put(body, c.span.end);
  }
  std::string tail;
  put(tail, base::crc32c(body));
  base::AtomicFile file(path);
  file.write(kManifestMagic);
  file.write(body);
  file.write(tail);
  file.commit();
}

Manifest read_manifest(const std::string& path) {
  const std::string bytes = base::read_file(path, kMostManifestBytes);
  const std::string_view all = bytes;
  try {
    base::require(
        all.size() >= kManifestMagic.size() + sizeof(uint32_t) &&
            all.substr(0, kManifestMagic.size() - 1) == kManifestMagic.substr(0, kManifestMagic.size() - 1),
        "it is no manifest of a batch job");
    const int version = all[kManifestMagic.size() - 1];
    base::require(version == kManifestMagic.back(), "its version is ", version,
                  "; this program reads version 1");
    const std::string_view body =
        all.substr(kManifestMagic.size(), all.size() - kManifestMagic.size() - sizeof(uint32_t));
    const auto crc = FieldReader(all.substr(kManifestMagic.size() + body.size())).take<uint32_t>();
    base::require(base::crc32c(body) == crc, "it is damaged: its checksum does not fit");
    return parse(body);
  } catch (const base::Error& e) {
    throw e.with(base::concat("manifest '", path, "'"));
  }
}

std::vector<std::string> differences(const base::Json& then, const base::Json& now) {
  std::vector<std::string> out;
  compare("", then, now, out);
  return out;
}

}  // namespace trireme::batch
