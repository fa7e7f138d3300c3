// Writes TensorBoard events as protobuf messages, with the fields of tensorflow's event.proto, summary.proto.
#include "train/report/tensorboard.h"

#include <unistd.h>

#include <array>
#include <protozero/pbf_writer.hpp>

#include "base/crc32c.h"
#include "base/error.h"

namespace trireme::train {
namespace {

// Fields of Event.
constexpr protozero::pbf_tag_type kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
// Fields of Summary, Summary.Value and SessionLog.
constexpr protozero::pbf_tag_type kValue = 1, kTag = 1, kSimpleValue = 2, kStatus = 1;
constexpr int kStart = 1;  // SessionLog.START: voids earlier events of this step and later ones

void append_little_endian(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> 8 * i & 255);
}

std::string file_name(const std::string& directory, int64_t wall_ns) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == 0) host = {"localhost"};
  return base::concat(directory, "/events.out.tfevents.", wall_ns / 1'000'000'000, ".", host.data(), ".",
                      ::getpid());
}

double seconds(int64_t wall_ns) { return static_cast<double>(wall_ns) * 1e-9; }

}  // namespace

std::string record_frame(std::string_view message) {
  std::string frame;
  append_little_endian(frame, message.size(), 8);
  append_little_endian(frame, base::masked_crc32c(base::crc32c(frame)), 4);
  frame += message;
  append_little_endian(frame, base::masked_crc32c(base::crc32c(message)), 4);
  return frame;
}

TensorboardWriter::TensorboardWriter(const std::string& directory, int64_t wall_ns, int64_t first_step)
    : file_(file_name(directory, wall_ns)) {
  std::string message;
  protozero::pbf_writer event(message);
  event.add_double(kWallTime, seconds(wall_ns));
  event.add_string(kFileVersion, "brain.Event:2");
  file_.append(record_frame(message));
  if (first_step <= 0) return;
  std::string start;
  protozero::pbf_writer restart(start);
  restart.add_double(kWallTime, seconds(wall_ns));
  restart.add_int64(kStep, first_step);
  {
    protozero::pbf_writer log(restart, kSessionLog);
    log.add_enum(kStatus, kStart);
  }
  file_.append(record_frame(start));
}

void TensorboardWriter::write(int64_t step, int64_t wall_ns, std::span<const Scalar> scalars) {
  std::string message;
  protozero::pbf_writer event(message);
  event.add_double(kWallTime, seconds(wall_ns));
  event.add_int64(kStep, step);
  {
    protozero::pbf_writer summary(event, kSummary);
    for (const Scalar& s : scalars) {
      protozero::pbf_writer value(summary, kValue);
      value.add_string(kTag, s.tag.data(), s.tag.size());
      value.add_float(kSimpleValue, static_cast<float>(s.value));
    }
  }
  file_.append(record_frame(message));
}

}  // namespace trireme::train
