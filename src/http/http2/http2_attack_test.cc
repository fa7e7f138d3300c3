// Attacks on HTTP/2 connections of a real server: measures what each byte of an attack costs, relative to a
// byte of ordinary requests, and which attacks end their connection.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "http/http2/http2_connection.h"
#include "http/http2/test_frame_types.h"
#include "http/server.h"
#include "tests/attack.h"
#include "tests/http2_peer.h"

namespace trireme::http {
namespace {

using namespace std::chrono_literals;
using tests::Attacker;
using tests::http2_frame;
using tests::http2_preface;

/// Bounds as in http1_attack_test.cc. An open stream takes much memory for a request of few bytes, but the
/// number of streams is limited; kFreeBytes covers them.
constexpr double kMostTimes = 12, kFreeSeconds = 0.03, kFreeBytes = 8 << 20, kBytesPerByte = 16;
constexpr uint64_t kMostResets = 1'000, kMostSettings = 1'000;

std::string number(uint32_t value) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 255);
  return out;
}

/// The smallest request: GET, http, and a path: "/a" if it wants an answer, else "/", which gets none.
std::string fields(bool wants_answer) {
  return std::string("\x82\x86", 2) + (wants_answer ? "\x04\x02/a" : "\x84") + std::string("\x01\x01h", 3);
}
std::string open_stream(uint32_t id, bool is_whole, bool wants_answer = false) {
  return http2_frame(kHeaders, static_cast<uint8_t>(kEndHeaders | (is_whole ? kEndStream : 0)), id,
                     fields(wants_answer));
}
std::string window_sizes(int entries) {
  std::string payload;
  for (int i = 0; i < entries; ++i)
    payload += std::string("\0\4", 2) + number(65'535 - static_cast<uint32_t>(i % 2));
  return http2_frame(kSettings, 0, 0, payload);
}

class Asked final : public Http2Stream {
 public:
  explicit Asked(Http2Streams& streams) : streams_(&streams) {}
  void on_field(std::string_view name, std::string_view value) override {
    if (name == ":path") wants_answer_ = value == "/a";
  }
  void on_fields_end(bool) override {}
  std::span<char> room() override { return {}; }
  void on_data(std::string_view) override {}
  void on_end() override {
    if (!wants_answer_ || streams_ == nullptr) return;
    const std::array<Http2Field, 1> head = {{{":status", "200"}}};
    streams_->respond(*this, head, true);
  }
  void on_close() override { streams_ = nullptr; }

 private:
  Http2Streams* streams_;
  bool wants_answer_ = false;
};

class Http2Attack : public testing::Test {
 protected:
  Http2Attack() {
    service_.limits.resets_at_once = kMostResets;
    service_.limits.resets_per_second = 1;
    service_.limits.settings_at_once = kMostSettings;
    service_.limits.settings_per_second = 1;
    service_.open = [this](Loop&, Http2Session& session, bool) {
      clock_.note();
      opened_.fetch_add(1);
      return std::make_shared<Asked>(session.streams());
    };
    ServerOptions options;
    options.threads = 1;
    server_ = std::make_unique<Server>(
        options,
        [this](Loop& loop, Descriptor fd) {
          return std::make_unique<Http2Connection>(loop, std::move(fd), service_);
        },
        "");
  }

  /// Measures ordinary requests, each with its own stream number, on one connection.
  tests::HonestCost honest() {
    opened_.store(0);
    Attacker client(server_->port());
    uint32_t id = 1;
    const auto one = [&] { return open_stream(std::exchange(id, id + 2), true, true); };
    client.send(http2_preface() + one());
    for (int i = 0; i < 500 && !clock_.is_known(); ++i) std::this_thread::sleep_for(10ms);
    tests::HonestCost cost;
    const double begin_s = clock_.settled_seconds();
    size_t bytes = 0;
    for (int i = 0; i < 50; ++i) {
      std::string many;
      for (int k = 0; k < 500; ++k) many += one();
      client.send(many);
      bytes += many.size();
      for (int w = 0; w < 2000 && opened_.load() < (id - 1) / 2; ++w) std::this_thread::sleep_for(1ms);
      client.read(SIZE_MAX);
    }
    const double behind_s = clock_.settled_seconds();
    cost.byte_s = (behind_s - begin_s) / static_cast<double>(bytes);
    constexpr int kPackets = 500;
    client.read(SIZE_MAX);
    for (int i = 0; i < kPackets; ++i) {
      client.send(one());
      while (client.read(SIZE_MAX) == 0 && client.is_open()) std::this_thread::yield();
    }
    cost.packet_s = (clock_.settled_seconds() - behind_s) / kPackets;
    EXPECT_TRUE(client.is_open());
    opened_.store(0);
    return cost;
  }

  /// On one connection, sends `begin` once, then `unit` with increasing stream numbers until `most_bytes` are
  /// sent. Returns true if the server ended the connection.
  bool expect_bounded(const std::string& name, const std::string& begin,
                      const std::function<std::string(uint32_t)>& unit, size_t piece = SIZE_MAX,
                      size_t most_bytes = 400 << 10) {
    const tests::HonestCost unit_cost = honest();
    std::string bytes = http2_preface() + begin;
    uint32_t id = 2001;
    while (bytes.size() < most_bytes) {
      bytes += unit(id);
      id += 2;
    }
    tests::AttackMeter meter(clock_);
    Attacker attacker(server_->port());
    for (size_t at = 0; at < bytes.size() && attacker.is_open(); at += 16'384) {
      if (!attacker.send(std::string_view(bytes).substr(at, 16'384), piece)) break;
      meter.look();
    }
    const double spent_s = meter.cpu_s();
    const bool has_ended = attacker.is_ended_within(100);
    const auto sent = static_cast<double>(attacker.sent_bytes());
    const double unit_s =
        sent * unit_cost.byte_s + static_cast<double>(attacker.sends() + 4) * unit_cost.packet_s;
    std::printf("%-32s %8zu bytes %7zu packets %8.1f ns/byte %5.2f times, %.1f bytes/byte%s\n", name.c_str(),
                attacker.sent_bytes(), attacker.sends(), spent_s / sent * 1e9, spent_s / unit_s,
                meter.peak_bytes() / sent, has_ended ? ", ended" : "");
    EXPECT_LT(std::max(spent_s - kFreeSeconds, 0.0) / unit_s, kMostTimes) << name << ": " << spent_s << " s";
    EXPECT_LT(meter.peak_bytes(), kFreeBytes + kBytesPerByte * sent) << name;
    return has_ended;
  }
  bool expect_bounded(const std::string& name, const std::string& begin, const std::string& unit,
                      size_t piece = SIZE_MAX, size_t most_bytes = 400 << 10) {
    return expect_bounded(
        name, begin, [&](uint32_t) { return unit; }, piece, most_bytes);
  }
  static std::string thousand_streams() {
    std::string out;
    for (uint32_t i = 0; i < 1'000; ++i) out += open_stream(2 * i + 1, false);
    return out;
  }

  tests::ThreadClock clock_;
  std::atomic<size_t> opened_{0};
  Http2Service service_;
  std::unique_ptr<Server> server_;
};

TEST_F(Http2Attack, OneByteAtATime) {
  expect_bounded(
      "requests, byte by byte", "", [](uint32_t id) { return open_stream(id, true, true); }, 1, 20'000);
  expect_bounded("a body, byte by byte", open_stream(1, false),
                 http2_frame(kData, 0, 1, std::string(9'000, 'x')), 1, 20'000);
  expect_bounded("frames of a byte", open_stream(1, false), http2_frame(kData, 0, 1, "x"));
  expect_bounded("frames of nothing", open_stream(1, false), http2_frame(kData, 0, 1, ""));
  expect_bounded("frames of a byte, in turn", open_stream(1, false) + open_stream(3, false),
                 http2_frame(kData, 0, 1, "x") + http2_frame(kData, 0, 3, "x"));
}

TEST_F(Http2Attack, StreamsThatDoNotEnd) {
  expect_bounded("streams without end", "", [](uint32_t id) { return open_stream(id, false); });
  EXPECT_LE(opened_.load(), service_.limits.max_streams);
}

TEST_F(Http2Attack, StreamsThatFail) {
  const auto opens_few = [&] { EXPECT_LE(opened_.exchange(0), kMostResets + 2'100) << "they go on"; };
  EXPECT_TRUE(expect_bounded("rapid reset", "", [](uint32_t id) {
    return open_stream(id, true) + http2_frame(kReset, 0, id, number(8));
  }));
  opens_few();
  EXPECT_TRUE(expect_bounded("resets that we are made to send", "", [](uint32_t id) {
    return open_stream(id, true) + http2_frame(kWindow, 0, id, number(0));
  }));
  opens_few();
  EXPECT_TRUE(expect_bounded("data after the end", "", [](uint32_t id) {
    return open_stream(id, true) + http2_frame(kData, 0, id, "x");
  }));
  opens_few();
  EXPECT_TRUE(expect_bounded("windows that overflow", "", [](uint32_t id) {
    return open_stream(id, true) + http2_frame(kWindow, 0, id, number(0x7fffffff));
  }));
  opens_few();
  EXPECT_TRUE(expect_bounded("requests without a path", "", [](uint32_t id) {
    return http2_frame(kHeaders, kEndHeaders | kEndStream, id, std::string("\x82\x86", 2));
  }));
  opens_few();
}

TEST_F(Http2Attack, FramesAboutTheConnection) {
  EXPECT_TRUE(expect_bounded("pings", "", http2_frame(kPing, 0, 0, "12345678")));
  expect_bounded("acknowledged pings", "", http2_frame(kPing, 1, 0, "12345678"));
  EXPECT_TRUE(expect_bounded("settings", "", http2_frame(kSettings, 0, 0, "")));
  EXPECT_TRUE(expect_bounded("settings of windows", thousand_streams(), window_sizes(32)));
  EXPECT_TRUE(expect_bounded("settings of one window", thousand_streams(), window_sizes(1)));
  expect_bounded("windows of one byte more", open_stream(1, false),
                 http2_frame(kWindow, 0, 0, number(1)) + http2_frame(kWindow, 0, 1, number(1)));
  EXPECT_TRUE(expect_bounded("windows of none more", "", http2_frame(kWindow, 0, 0, number(0))));
  expect_bounded("priorities", "",
                 [](uint32_t id) { return http2_frame(kPriority, 0, id, number(0) + "x"); });
  expect_bounded("unknown frames", "", http2_frame(200, 0, 0, ""));
}

// A client that waits for each acknowledgement fills no queue, but its settings are counted as well.
TEST_F(Http2Attack, SettingsOneByOne) {
  Attacker attacker(server_->port());
  attacker.send(http2_preface() + thousand_streams());
  std::this_thread::sleep_for(100ms);
  attacker.read(SIZE_MAX);
  int taken = 0;
  for (; taken < 2'000 && attacker.send(window_sizes(1)); ++taken) {
    for (int i = 0; i < 5'000 && attacker.read(SIZE_MAX) == 0 && attacker.is_open(); ++i)
      std::this_thread::sleep_for(1ms);
  }
  EXPECT_GE(taken, 400);
  EXPECT_LE(taken, 600);
  EXPECT_NE(attacker.last().find("too_many_settings"), std::string::npos);
}

TEST_F(Http2Attack, FieldsWithoutEnd) {
  EXPECT_TRUE(expect_bounded("continuations", http2_frame(kHeaders, 0, 1, fields(false)),
                             http2_frame(kContinuation, 0, 1, "")));
  EXPECT_TRUE(expect_bounded("continuations of fields", http2_frame(kHeaders, 0, 1, fields(false)),
                             http2_frame(kContinuation, 0, 1, std::string("\0\1a\1b", 5))));
  // Each byte refers to a field of 4,000 bytes.
  const std::string bomb = std::string("\x40\x01", 2) + "a" + std::string("\x7f\xa1\x1e", 3) +
                           std::string(4000, 'b') + std::string(10'000, '\xbe');
  expect_bounded("fields by their index", "",
                 [&](uint32_t id) { return http2_frame(kHeaders, kEndHeaders, id, fields(false) + bomb); });
  // Each field evicts all others from the table.
  const std::string large =
      std::string("\x40\x01", 2) + "a" + std::string("\x7f\xa1\x1e", 3) + std::string(4000, 'b');
  expect_bounded("fields that fill the table", "", [&](uint32_t id) {
    return http2_frame(kHeaders, kEndHeaders, id, fields(false) + large + large);
  });
}

}  // namespace
}  // namespace trireme::http
