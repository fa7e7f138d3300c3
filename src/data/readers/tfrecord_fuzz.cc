// libFuzzer entry: any bytes are TFRecords and a tf.Example, or give a clear error.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "data/readers/tfrecord.h"
#include "tests/fuzz_bounds.h"

namespace {

template <class Body>
void must_be_clear(const Body& body) {
  try {
    body();
  } catch (const trireme::base::Error& e) {
    if (e.code() == trireme::base::ErrorCode::internal) __builtin_trap();
  }
}

/// Reads every byte of a record, so that a view beyond its file is detected.
void read_record(std::string_view record) {
  size_t values = 0;
  for (const trireme::data::Feature& f : trireme::data::parse_example(record)) {
    values += f.size();
    for (const std::string_view b : f.bytes) values += trireme::base::crc32c(b) & 1;
  }
  // The smallest value takes one byte of the message.
  if (values > 2 * record.size()) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const trireme::fuzz::BoundedWork bounded(size);
  using namespace trireme;
  const std::string_view file(reinterpret_cast<const char*>(bytes), size);
  must_be_clear([&] {
    for (const data::RecordSpan& r : data::list_tfrecords(file)) read_record(data::checked_record(file, r));
  });
  must_be_clear([&] { read_record(file); });  // no checksums, which few mutations get right
  return 0;
}
