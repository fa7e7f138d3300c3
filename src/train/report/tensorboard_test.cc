// Tests event files by reading them back: frames, checksums and fields, and a golden frame as TensorFlow
// writes it.
#include "train/report/tensorboard.h"

#include <gtest/gtest.h>

#include <protozero/pbf_reader.hpp>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/files/file.h"
#include "train/files/test_files.h"

namespace trireme::train {
namespace {

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// Splits a file into messages, and checks every length and checksum.
std::vector<std::string> messages_of(const std::string& file) {
  std::vector<std::string> messages;
  std::string_view rest = file;
  while (!rest.empty()) {
    const uint64_t length = little_endian(rest.substr(0, 8));
    EXPECT_EQ(little_endian(rest.substr(8, 4)), base::masked_crc32c(base::crc32c(rest.substr(0, 8))));
    const std::string_view message = rest.substr(12, length);
    EXPECT_EQ(little_endian(rest.substr(12 + length, 4)), base::masked_crc32c(base::crc32c(message)));
    messages.emplace_back(message);
    rest.remove_prefix(16 + length);
  }
  return messages;
}

struct Event {
  double wall = 0;
  int64_t step = 0;
  std::string version;
  int session = 0;
  std::vector<std::pair<std::string, float>> values;
};

Event parse(const std::string& message) {
  Event e;
  protozero::pbf_reader event(message);
  while (event.next()) {
    switch (event.tag()) {
      case 1: e.wall = event.get_double(); break;
      case 2: e.step = event.get_int64(); break;
      case 3: e.version = event.get_string(); break;
      case 5: {
        protozero::pbf_reader summary = event.get_message();
        while (summary.next(1)) {
          protozero::pbf_reader value = summary.get_message();
          auto& [tag, number] = e.values.emplace_back();
          while (value.next()) {
            if (value.tag() == 1) tag = value.get_string();
            if (value.tag() == 2) number = value.get_float();
          }
        }
        break;
      }
      case 7: {
        protozero::pbf_reader log = event.get_message();
        if (log.next(1)) e.session = log.get_enum();
        break;
      }
      default: event.skip();
    }
  }
  return e;
}

TEST(Tensorboard, ScalarsReadBack) {
  TensorboardWriter writer(fresh("events_plain"), 1'700'000'000'500'000'000, 0);
  const std::vector<Scalar> scalars{{"loss", 2.5}, {"time/forward_ms", 12}};
  writer.write(7, 1'700'000'001'000'000'000, scalars);
  writer.write(8, 1'700'000'002'000'000'000, std::vector<Scalar>{{"loss", 2.25}});
  writer.flush();
  EXPECT_NE(writer.path().find("/events.out.tfevents.1700000000."), std::string::npos);
  const auto messages = messages_of(base::read_file(writer.path()));
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(parse(messages[0]).version, "brain.Event:2");
  EXPECT_EQ(parse(messages[0]).wall, 1'700'000'000.5);
  const Event event = parse(messages[1]);
  EXPECT_EQ(event.step, 7);
  EXPECT_EQ(event.values,
            (std::vector<std::pair<std::string, float>>{{"loss", 2.5f}, {"time/forward_ms", 12.f}}));
  EXPECT_EQ(parse(messages[2]).values[0].second, 2.25f);
}

TEST(Tensorboard, AResumedRunSaysFromWhere) {
  TensorboardWriter writer(fresh("events_resumed"), 1'700'000'000'000'000'000, 41);
  writer.flush();
  const auto messages = messages_of(base::read_file(writer.path()));
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(parse(messages[1]).session, 1);
  EXPECT_EQ(parse(messages[1]).step, 41);
}

// The bytes that TensorFlow's writer creates for Event{file_version: "brain.Event:2"} at wall time 1.0. Their
// length and its checksum begin every event file whose first message has 24 bytes.
TEST(Tensorboard, FrameEqualsTensorFlows) {
  std::string message("\x09\0\0\0\0\0\0\xf0\x3f\x1a\x0d", 11);
  message += "brain.Event:2";
  const std::string frame = record_frame(message);
  ASSERT_EQ(message.size(), 24u);
  EXPECT_EQ(frame.substr(0, 12), std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
}

}  // namespace
}  // namespace trireme::train
