// Records as bytes and back.
#include "batch/state/record.h"

#include <algorithm>

#include "base/crc32c.h"
#include "base/text/shortened.h"
#include "batch/state/byte_fields.h"

namespace trireme::batch {
namespace {

constexpr size_t kHeadBytes = 8;  // length and checksum
constexpr size_t kMostText = 1024;

/// Calls `field` on every number of a record, in the order of its bytes.
template <class R, class Field>
void for_each_number(R& r, const Field& field) {
  field(r.worker), field(r.token), field(r.chunk), field(r.wall_ns);
  if (r.kind != RecordKind::done) return;
  auto& result = r.result;
  field(result.rows), field(result.errors), field(result.bytes), field(result.error_bytes);
  field(result.crc), field(result.error_crc);
  auto& e = r.effort;
  field(e.elapsed_ns), field(e.read_ns), field(e.blocked_ns), field(e.waiting_ns), field(e.write_ns);
  field(e.commit_ns), field(e.busy_ns), field(e.instances), field(e.elements), field(e.padded);
  field(e.tokens), field(e.retried);
}

}  // namespace

void Effort::add(const Effort& other) {
  elapsed_ns += other.elapsed_ns, read_ns += other.read_ns, blocked_ns += other.blocked_ns;
  waiting_ns += other.waiting_ns, write_ns += other.write_ns, commit_ns += other.commit_ns;
  busy_ns += other.busy_ns, instances = std::max(instances, other.instances);
  elements += other.elements, padded += other.padded, tokens += other.tokens, retried += other.retried;
}

std::string encode(const Record& record) {
  std::string body;
  put(body, record.kind);
  for_each_number(record, [&](const auto& value) { put(body, value); });
  put_text(body, base::shortened(record.text, kMostText));
  std::string out;
  put(out, static_cast<uint32_t>(body.size()));
  put(out, base::masked_crc32c(base::crc32c(body)));
  return out + body;
}

std::optional<Decoded> decode(std::string_view bytes) {
  FieldReader head(bytes);
  const auto size = head.take<uint32_t>();
  const auto crc = head.take<uint32_t>();
  if (head.failed() || size == 0 || size > kMostRecordBytes - kHeadBytes || head.left() < size) return {};
  const std::string_view body = bytes.substr(kHeadBytes, size);
  if (base::masked_crc32c(base::crc32c(body)) != crc) return {};
  FieldReader fields(body);
  Decoded out{.record = {}, .bytes = kHeadBytes + size};
  Record& r = out.record;
  r.kind = fields.take<RecordKind>();
  if (r.kind < RecordKind::worker || r.kind > RecordKind::ended) return {};
  for_each_number(r, [&](auto& value) { value = fields.take<std::remove_reference_t<decltype(value)>>(); });
  r.text = fields.take_text();
  if (fields.failed() || fields.left() > 0) return {};
  return out;
}

}  // namespace trireme::batch
