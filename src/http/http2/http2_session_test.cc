// HTTP/2 sessions against nghttp2's client and hand-made frames: bodies in place, windows, floods, ends.
#include "http/http2/http2_session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "http/http2/http2_library.h"
#include "http/http2/test_frame_types.h"
#include "http/socket.h"
#include "tests/http2_peer.h"

namespace trireme::http {
namespace {

using tests::grpc_fields;
using tests::http2_frame;
using tests::http2_preface;
using tests::Http2Peer;
using tests::Http2PeerOptions;

/// Keeps what it receives; the first `expected` bytes have a fixed place, as in a message of known length.
class Kept final : public Http2Stream {
 public:
  explicit Kept(size_t expected) : place(expected) {}

  void on_field(std::string_view name, std::string_view value) override {
    fields.emplace_back(std::string(name), std::string(value));
  }
  void on_fields_end(bool fits) override { has_fields = true, fields_fit = fits; }
  std::span<char> room() override { return std::span<char>(place).subspan(std::min(placed, place.size())); }
  void on_data(std::string_view bytes) override {
    const size_t here = std::min(bytes.size(), place.size() - placed);
    if (bytes.data() == place.data() + placed && here > 0) {
      in_place += here;
    } else if (here > 0) {
      std::memcpy(place.data() + placed, bytes.data(), here);
    }
    placed += here;
    rest.append(bytes.substr(here));
  }
  void on_end() override { has_ended = true; }
  void on_close() override { has_closed = true; }
  std::string body() const { return std::string(place.data(), placed) + rest; }

  Http2Fields fields;
  std::vector<char> place;
  std::string rest;
  size_t placed = 0, in_place = 0;
  bool has_fields = false, fields_fit = false, has_ended = false, has_closed = false;
};

class Side final : public Http2Owner {
 public:
  explicit Side(const Http2Limits& limits = {},
                std::unique_ptr<Http2Memory> memory = std::make_unique<Http2Memory>())
      : session(limits, *this, std::move(memory)) {}
  std::shared_ptr<Http2Stream> open_stream() override {
    streams.push_back(std::make_shared<Kept>(expected));
    return streams.back();
  }
  void on_output() override {}
  std::string output() {
    Output out;
    std::string bytes;
    session.send(out, SIZE_MAX, true);
    return std::move(out.text());
  }
  size_t expected = 0;
  std::vector<std::shared_ptr<Kept>> streams;
  Http2Session session;
};

/// Exchanges bytes until both sides have nothing to send.
bool settle(Http2Peer& peer, Side& side) {
  for (;;) {
    const std::string there = peer.output();
    const bool goes_on = side.session.receive(there, 1);
    const std::string back = side.output();
    if (!peer.input(back)) return false;
    if (!goes_on) return false;
    if (there.empty() && back.empty()) return true;
  }
}

void answer(Side& side, Kept& stream, std::string body) {
  const std::array<Http2Field, 2> head = {{{":status", "200"}, {"content-type", "application/grpc"}}};
  side.session.streams().respond(stream, head, false);
  side.session.streams().write(stream, BodyPart(std::move(body)));
  side.session.streams().finish(stream, {{"grpc-status", "0"}});
}

std::string noise(size_t bytes, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::string out(bytes, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

/// Distributes the waiting bytes over `views`, as readv() does.
size_t fill(std::span<const iovec> views, std::string_view bytes) {
  size_t total = 0;
  for (const iovec& view : views) {
    const size_t here = std::min(view.iov_len, bytes.size());
    std::memcpy(view.iov_base, bytes.data(), here);
    bytes.remove_prefix(here);
    total += here;
  }
  return total;
}

TEST(Http2Session, RequestAndAnswer) {
  Side side;
  Http2Peer peer;
  const int32_t id = peer.request(grpc_fields("/s/m", {{"x-key", "v"}}), "question");
  ASSERT_TRUE(settle(peer, side));
  ASSERT_EQ(side.streams.size(), 1u);
  Kept& stream = *side.streams[0];
  EXPECT_TRUE(stream.has_ended);
  EXPECT_TRUE(stream.fields_fit);
  EXPECT_EQ(stream.body(), "question");
  EXPECT_NE(std::find(stream.fields.begin(), stream.fields.end(),
                      std::pair<std::string, std::string>("x-key", "v")),
            stream.fields.end());
  answer(side, stream, "answer");
  ASSERT_TRUE(settle(peer, side));
  EXPECT_EQ(peer.answer(id).body, "answer");
  EXPECT_EQ(peer.answer(id).fields.at("grpc-status"), "0");
  EXPECT_TRUE(peer.answer(id).has_closed);
  EXPECT_TRUE(stream.has_closed);
  EXPECT_EQ(side.session.streams().open().size(), 0u);
}

TEST(Http2Session, PiecesOfAnySizeMeanTheSame) {
  for (const size_t piece : {1u, 2u, 9u, 10u, 4093u}) {
    Side side;
    side.expected = 3000;
    Http2Peer peer;
    const std::string body = noise(50'000);
    peer.request(grpc_fields("/s/m"), body);
    const std::string bytes = peer.output();
    for (size_t at = 0; at < bytes.size(); at += piece)
      ASSERT_TRUE(side.session.receive(std::string_view(bytes).substr(at, piece), 1));
    EXPECT_EQ(side.streams.at(0)->body(), body) << piece;
    EXPECT_TRUE(side.streams[0]->has_ended);
  }
}

// Frames of equal length are received in place; wrong guesses of the length are corrected.
TEST(Http2Session, LargeBodiesAreReceivedInPlace) {
  for (const uint32_t frame : {16384u, 16384u * 3, 5000u, 100'000u}) {
    for (const uint32_t padding : {0u, 7u}) {
      for (const size_t step : {size_t{1} << 30, size_t{70'001}, size_t{16'393}, size_t{1'234}}) {
        Side side;
        side.expected = 602'429;
        Http2Peer peer({.frame_bytes = frame, .padding = padding});
        ASSERT_TRUE(settle(peer, side));  // the server's settings
        const std::string body = noise(side.expected + 100), other = noise(40'000, 2);
        peer.request(grpc_fields("/s/m"), body);
        if (step == 70'001) peer.request(grpc_fields("/s/other"), other);  // its frames come in between
        std::string bytes = peer.output();
        std::string_view waiting = bytes;
        std::array<char, 16384> spill;
        while (!waiting.empty()) {
          std::array<iovec, 132> views;
          const size_t count = side.session.scatter(views, spill);
          const std::string_view now = waiting.substr(0, step);
          if (count == 0) {
            const size_t got = std::min(now.size(), spill.size());
            ASSERT_TRUE(side.session.receive(now.substr(0, got), 1));
            waiting.remove_prefix(got);
          } else {
            const size_t got = fill(std::span<const iovec>(views.data(), count), now);
            ASSERT_TRUE(side.session.receive_scattered(got, 1));
            waiting.remove_prefix(got);
          }
        }
        ASSERT_TRUE(side.streams.at(0)->body() == body) << frame << " " << padding << " " << step;
        EXPECT_TRUE(side.streams[0]->has_ended);
        if (step == 70'001) {
          EXPECT_TRUE(side.streams.at(1)->body() == other);
        }
        if (padding == 0 && step > 1u << 20 && frame >= 16384) {
          EXPECT_GT(side.streams[0]->in_place, side.expected * 9 / 10) << frame;
        }
      }
    }
  }
}

TEST(Http2Session, LargeAnswersKeepTheirBytes) {
  Side side;
  Http2Peer peer;
  const std::string body = noise(3'000'000);
  const int32_t id = peer.request(grpc_fields("/s/m"), "");
  ASSERT_TRUE(settle(peer, side));
  Kept& stream = *side.streams.at(0);
  const std::array<Http2Field, 1> head = {{{":status", "200"}}};
  side.session.streams().respond(stream, head, false);
  const auto kept = std::make_shared<const std::string>(body);
  side.session.streams().write(stream, BodyPart(std::string(body)));
  side.session.streams().write(stream, BodyPart(std::string_view(*kept), kept));
  side.session.streams().finish(stream, {{"grpc-status", "0"}});
  Output out;
  side.session.send(out, SIZE_MAX, false);  // unsent parts as views, not copies
  EXPECT_GT(out.bytes(), 6'000'000u);
  EXPECT_GT(kept.use_count(), 1);
  ASSERT_TRUE(side.session.is_over() == false);
  // The content of the views is tested with the connection.
  Side again;
  Http2Peer other;
  const int32_t second = other.request(grpc_fields("/s/m"), "");
  ASSERT_TRUE(settle(other, again));
  answer(again, *again.streams.at(0), body);
  ASSERT_TRUE(settle(other, again));
  EXPECT_TRUE(other.answer(second).body == body);
  EXPECT_EQ(id, second);
}

TEST(Http2Session, AHeldStreamStopsAtItsWindow) {
  Side side({.stream_window_bytes = 100'000});
  Http2Peer peer;
  ASSERT_TRUE(settle(peer, side));
  peer.request(grpc_fields("/s/m"), "", false);
  ASSERT_TRUE(settle(peer, side));
  Kept& stream = *side.streams.at(0);
  side.session.streams().hold(stream, true);
  peer.more(1, noise(1'000'000), true);
  ASSERT_TRUE(settle(peer, side));
  EXPECT_EQ(stream.body().size(), 100'000u);
  side.session.streams().hold(stream, false);
  ASSERT_TRUE(settle(peer, side));
  EXPECT_EQ(stream.body().size(), 1'000'000u);
  EXPECT_TRUE(stream.has_ended);
}

/// Bytes that a held stream has received do not count for the connection: its window opens for other streams.
TEST(Http2Session, TheConnectionsWindowOpensAsBytesArrive) {
  Side side({.stream_window_bytes = 100'000, .connection_window_bytes = 150'000});
  Http2Peer peer;
  ASSERT_TRUE(settle(peer, side));
  peer.request(grpc_fields("/s/held"), "", false);
  ASSERT_TRUE(settle(peer, side));
  side.session.streams().hold(*side.streams.at(0), true);
  peer.more(1, noise(400'000), true);
  ASSERT_TRUE(settle(peer, side));
  EXPECT_EQ(side.streams[0]->body().size(), 100'000u);
  for (size_t i = 1; i <= 3; ++i) {
    const std::string body = noise(400'000, static_cast<unsigned>(i));
    peer.request(grpc_fields("/s/m"), body);
    ASSERT_TRUE(settle(peer, side));
    EXPECT_TRUE(side.streams.at(i)->body() == body) << i;
    EXPECT_TRUE(side.streams[i]->has_ended);
  }
}

TEST(Http2Session, AnswersWaitForTheClientsWindow) {
  Side side({.max_unsent_bytes = 300'000});
  Http2Peer peer({.window_bytes = 1000, .reads_late = true});
  const int32_t id = peer.request(grpc_fields("/s/m"), "");
  ASSERT_TRUE(settle(peer, side));
  answer(side, *side.streams.at(0), noise(400'000));
  ASSERT_TRUE(settle(peer, side));
  EXPECT_EQ(peer.answer(id).body.size(), 1000u);
  // So many bytes are unsent that no new request is accepted.
  const int32_t refused = peer.request(grpc_fields("/s/m"), "");
  ASSERT_TRUE(settle(peer, side));
  EXPECT_TRUE(peer.answer(refused).has_closed);
  EXPECT_EQ(peer.answer(refused).error, 7u);  // REFUSED_STREAM
  peer.widen(id, 1 << 20);
  peer.widen(0, 1 << 20);
  ASSERT_TRUE(settle(peer, side));
  EXPECT_EQ(peer.answer(id).body.size(), 400'000u);
  const int32_t taken = peer.request(grpc_fields("/s/m"), "");
  ASSERT_TRUE(settle(peer, side));
  EXPECT_FALSE(peer.answer(taken).has_closed);
}

// A client that never opens its window cannot make the server keep what it has finished.
TEST(Http2Session, FinishedAnswersThatNobodyTakesAreDropped) {
  for (const bool is_stream_open : {false, true}) {  // true: only the connection's window is shut
    Side side({.reading = {.grace_ns = 1000, .bytes_per_second = 10'000'000}});  // 10 bytes buy 1,000 ns
    Http2Peer peer({.window_bytes = 1000, .reads_late = true});
    const int32_t id = peer.request(grpc_fields("/s/m"), "");
    const int32_t other = peer.request(grpc_fields("/s/m"), "");
    ASSERT_TRUE(settle(peer, side));
    answer(side, *side.streams.at(0), noise(400'000));
    if (is_stream_open) peer.widen(id, 1 << 20);
    ASSERT_TRUE(settle(peer, side));
    int64_t now_ns = 1;
    for (int i = 0; i < 10; ++i, now_ns += 900) {  // ten bytes per round are enough
      side.session.drop_slow(now_ns);
      peer.widen(id, 10);
      peer.widen(0, 10);
      ASSERT_TRUE(settle(peer, side));
    }
    EXPECT_FALSE(peer.answer(id).has_closed);
    side.session.drop_slow(now_ns + 800);
    side.session.drop_slow(now_ns + 2000);
    ASSERT_TRUE(settle(peer, side));
    EXPECT_TRUE(peer.answer(id).has_closed);
    EXPECT_EQ(peer.answer(id).error, 8u);  // CANCEL
    EXPECT_TRUE(side.streams[0]->has_closed);
    EXPECT_FALSE(peer.answer(other).has_closed);  // its answer has not begun
  }
}

// Nor can a client keep an answer by opening the stream's or the connection's window a little now and then,
// or both in turn; this includes an answer that is not finished.
TEST(Http2Session, AnswersTakenTooSlowlyAreDropped) {
  for (const char* opens : {"stream", "connection", "either in turn"}) {
    for (const bool is_finished : {false, true}) {
      Side side({.reading = {.grace_ns = 10'000, .bytes_per_second = 10'000'000}});
      Http2Peer peer({.window_bytes = 1000, .reads_late = true});
      const int32_t id = peer.request(grpc_fields("/s/m"), "");
      ASSERT_TRUE(settle(peer, side));
      if (opens[0] == 's') peer.widen(0, 1 << 20);
      if (opens[0] == 'c') peer.widen(id, 1 << 20);
      const std::array<Http2Field, 1> head = {{{":status", "200"}}};
      side.session.streams().respond(*side.streams.at(0), head, false);
      side.session.streams().write(*side.streams[0], BodyPart(noise(400'000)));
      if (is_finished) side.session.streams().finish(*side.streams[0], {});
      int64_t now_ns = 1;
      for (int i = 0; i < 200 && !side.streams[0]->has_closed; ++i, now_ns += 500) {
        // Two bytes extend the deadline by 200 of 500 ns; fast initial reading gives no credit for later.
        const bool in_turn = opens[0] == 'e';
        if (opens[0] != 'c') peer.widen(id, !in_turn ? 2 : i % 2 == 0 ? 1 : 3);
        if (opens[0] != 's') peer.widen(0, !in_turn ? 2 : i % 2 == 0 ? 3 : 1);
        ASSERT_TRUE(settle(peer, side));
        side.session.drop_slow(now_ns);
      }
      EXPECT_TRUE(side.streams[0]->has_closed) << opens << is_finished;
      EXPECT_LT(now_ns, 60'000) << opens << is_finished;
      EXPECT_EQ(peer.answer(id).error, 8u);  // CANCEL
    }
  }
}

// One slow stream of a busy connection is dropped; the connection and its other streams are not.
TEST(Http2Session, ASlowStreamIsNoFaultOfTheOthers) {
  Side side({.reading = {.grace_ns = 1000, .bytes_per_second = 1'000'000'000}});
  Http2Peer peer({.window_bytes = 1000, .reads_late = true});
  const int32_t slow = peer.request(grpc_fields("/s/slow"), ""),
                quick = peer.request(grpc_fields("/s/m"), "");
  ASSERT_TRUE(settle(peer, side));
  for (const size_t i : {size_t{0}, size_t{1}}) answer(side, *side.streams.at(i), noise(100'000));
  for (int64_t now_ns = 1; now_ns < 40'000; now_ns += 500) {
    peer.widen(0, 2000);
    if (!side.streams[1]->has_closed) peer.widen(quick, 2000);
    ASSERT_TRUE(settle(peer, side));
    side.session.drop_slow(now_ns);
  }
  EXPECT_EQ(peer.answer(slow).error, 8u);
  EXPECT_EQ(peer.answer(quick).body.size(), 100'000u);
  EXPECT_EQ(peer.answer(quick).error, 0u);
}

// While memory is short, a client that reads nothing is dropped after `quiet_ns`, whatever its pace.
TEST(Http2Session, AnswersThatNobodyTakesGoSoonerWhereMemoryIsShort) {
  Side side({.max_unsent_bytes = 300'000});
  Http2Peer peer({.window_bytes = 1000, .reads_late = true});
  peer.request(grpc_fields("/s/m"), "");
  ASSERT_TRUE(settle(peer, side));
  EXPECT_FALSE(side.session.streams().is_full());
  answer(side, *side.streams.at(0), noise(400'000));
  ASSERT_TRUE(settle(peer, side));
  EXPECT_TRUE(side.session.streams().is_full());
  side.session.drop_slow(1, 100);
  side.session.drop_slow(90, 100);
  ASSERT_TRUE(settle(peer, side));
  EXPECT_FALSE(side.streams[0]->has_closed);
  side.session.drop_slow(101, 100);
  ASSERT_TRUE(settle(peer, side));
  EXPECT_TRUE(side.streams[0]->has_closed);
  EXPECT_FALSE(side.session.streams().is_full());
}

TEST(Http2Session, FieldsThatDoNotEndEndTheSession) {
  Side side({.fields_ns = 1000});
  ASSERT_TRUE(side.session.receive(http2_preface(), 1));
  ASSERT_TRUE(side.session.receive(http2_frame(kHeaders, 0, 1, "\x82"), 1));
  side.session.drop_slow(1001);
  EXPECT_FALSE(side.session.is_over());
  ASSERT_TRUE(side.session.receive(http2_frame(kContinuation, 0, 1, "\x84"), 1000));  // some bytes arrive
  side.session.drop_slow(1002);
  EXPECT_TRUE(side.session.is_over());
  EXPECT_NE(side.output().find("fields_without_end"), std::string::npos);
}

// The fields of open streams count as memory of their connection, even if the streams do nothing.
TEST(Http2Session, FieldsOfOpenStreamsCount) {
  const int64_t before = base::process_memory().used_bytes();
  {
    Side side;
    Http2Peer peer;
    for (int i = 0; i < 100; ++i)
      peer.request(grpc_fields("/s/m", {{"x-" + std::to_string(i), std::string(8'000, 'x')}}), "", false);
    ASSERT_TRUE(settle(peer, side));
    EXPECT_GE(base::process_memory().used_bytes() - before, 780'000);
    for (const auto& stream : side.streams) side.session.streams().reset(*stream, 8);
    ASSERT_TRUE(settle(peer, side));
    EXPECT_LT(base::process_memory().used_bytes() - before, 40'000);
    base::process_memory().set_limit(before);
    int taken = 0;
    for (bool is_refused = false; !is_refused && taken < 1000; ++taken) {
      const int32_t id = peer.request(grpc_fields("/s/m", {{"y", std::string(8'000, 'y')}}), "", false);
      settle(peer, side);
      is_refused = peer.answer(id).error != 0;
    }
    base::process_memory().set_limit(INT64_MAX);
    EXPECT_LT(taken, 1000);
    EXPECT_FALSE(side.session.is_over());
  }
  EXPECT_EQ(base::process_memory().used_bytes(), before);
}

TEST(Http2Session, AnEarlyAnswerStopsTheClient) {
  Side side;
  Http2Peer peer;
  const int32_t id = peer.request(grpc_fields("/s/m"), "part", false);
  ASSERT_TRUE(settle(peer, side));
  const std::array<Http2Field, 2> head = {{{":status", "200"}, {"grpc-status", "5"}}};
  side.session.streams().respond(*side.streams.at(0), head, true);
  ASSERT_TRUE(settle(peer, side));
  EXPECT_TRUE(peer.answer(id).has_closed);
  EXPECT_EQ(peer.answer(id).error, 0u);
  EXPECT_TRUE(side.streams[0]->has_closed);
}

TEST(Http2Session, LeavingStreamsAndSessionsTell) {
  auto side = std::make_unique<Side>();
  Http2Peer peer;
  const int32_t id = peer.request(grpc_fields("/s/m"), "x", false);
  peer.request(grpc_fields("/s/m"), "x", false);
  ASSERT_TRUE(settle(peer, *side));
  peer.reset(id, 8);
  ASSERT_TRUE(settle(peer, *side));
  const auto first = side->streams.at(0), second = side->streams.at(1);
  EXPECT_TRUE(first->has_closed);
  EXPECT_FALSE(second->has_closed);
  side.reset();
  EXPECT_TRUE(second->has_closed);
}

TEST(Http2Session, FieldsBeyondTheLimitAreLeftOut) {
  Side side;
  Http2Peer peer;
  peer.request(grpc_fields("/s/m", {{"x-long", std::string(20'000, 'x')}}), "");
  ASSERT_TRUE(settle(peer, side));
  EXPECT_TRUE(side.streams.at(0)->has_fields);
  EXPECT_FALSE(side.streams[0]->fields_fit);
}

// Each byte of such a request refers to a field of 4,000 bytes: it is reset, and the rest is not processed.
TEST(Http2Session, FieldsByTheMegabyteAreReset) {
  Side side;
  ASSERT_TRUE(side.session.receive(http2_preface(), 1));
  const std::string bomb = std::string("\x40\x01", 2) + "a" + std::string("\x7f\xa1\x1e", 3) +
                           std::string(4000, 'b') + std::string(10'000, '\xbe');
  ASSERT_TRUE(side.session.receive(http2_frame(kHeaders, 4, 1, bomb), 1));
  Http2Peer peer;
  peer.output();
  const std::string back = side.output();
  const std::string reset = http2_frame(kReset, 0, 1, std::string("\0\0\0\2", 4));
  EXPECT_NE(back.find(reset), std::string::npos);
  EXPECT_FALSE(side.streams.at(0)->has_fields);
  EXPECT_TRUE(side.streams[0]->has_closed);
  EXPECT_FALSE(side.session.is_over());
}

TEST(Http2Session, NoMoreStreamsThanTold) {
  Side side({.max_streams = 10});
  Http2Peer peer;
  for (int i = 0; i < 20; ++i) peer.request(grpc_fields("/s/m"), "x", false);
  // The client has not received the server's settings yet. Streams beyond their limit are refused or end the
  // session, but are never kept.
  side.session.receive(peer.output(), 1);
  EXPECT_LE(side.session.streams().open().size(), 10u);
}

TEST(Http2Session, RapidResetsEndTheSession) {
  Side side({.resets_at_once = 200, .resets_per_second = 1});
  Http2Peer peer;
  ASSERT_TRUE(settle(peer, side));
  int taken = 0;
  for (; taken < 1000; ++taken) {
    const int32_t id = peer.request(grpc_fields("/s/m"), "x", false);
    if (!settle(peer, side)) break;
    peer.reset(id, 8);
    if (!settle(peer, side) || side.session.is_over()) break;
  }
  EXPECT_GE(taken, 190);
  EXPECT_LE(taken, 210);
  EXPECT_GE(peer.goaway_error(), 0);
}

TEST(Http2Session, PingsBetweenAnswersAreFineAndFloodsAreNot) {
  Side side;
  Http2Peer peer;
  for (int i = 0; i < 50; ++i) {
    const int32_t id = peer.request(grpc_fields("/s/m"), "x");
    peer.ping();
    ASSERT_TRUE(settle(peer, side));
    answer(side, *side.streams.back(), "y");
    ASSERT_TRUE(settle(peer, side));
    ASSERT_TRUE(peer.answer(id).has_closed);
  }
  EXPECT_EQ(peer.pings_answered(), 50);
  int pings = 0;
  do {
    peer.ping();
    ++pings;
  } while (settle(peer, side) && pings < 100);
  EXPECT_EQ(pings, 4);                 // the first, two strikes, and one too many
  EXPECT_EQ(peer.goaway_error(), 11);  // ENHANCE_YOUR_CALM
  EXPECT_TRUE(side.session.is_over());
}

TEST(Http2Session, FloodsByHandEndTheSession) {
  const auto ends = [](const std::string& unit, int most) {
    Side side;
    if (!side.session.receive(http2_preface(), 1)) return true;
    for (int i = 0; i < most; ++i) {
      if (!side.session.receive(unit, 1)) return true;
    }
    return side.session.is_over();
  };
  EXPECT_TRUE(ends(http2_frame(kPing, 0, 0, "12345678"), 2000));
  // Many pings in one read are answered with a single error.
  Side one;
  std::string pings = http2_preface();
  for (int i = 0; i < 100; ++i) pings += http2_frame(kPing, 0, 0, "12345678");
  one.session.receive(pings, 1);
  const std::string told = one.output();
  EXPECT_NE(told.find("too_many_pings"), std::string::npos);
  EXPECT_EQ(told.find("too_many_pings"), told.rfind("too_many_pings"));
  EXPECT_TRUE(ends(http2_frame(kSettings, 0, 0, ""), 5000));
  // A header that never ends, sent in small continuation frames.
  Side side;
  ASSERT_TRUE(side.session.receive(http2_preface(), 1));
  side.session.receive(http2_frame(kHeaders, 0, 1, ""), 1);
  bool goes_on = true;
  int pieces = 0;
  for (; goes_on && pieces < 100'000 && !side.session.is_over(); ++pieces)
    goes_on = side.session.receive(http2_frame(kContinuation, 0, 1, std::string(100, '\0')), 1) &&
              side.output().find("CALM") == std::string::npos;
  EXPECT_LT(pieces, 1000);
}

TEST(Http2Session, WhatIsNoHttp2IsRefused) {
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\nHost: h\r\n\r\n"), std::string(5000, '\0'),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string(3000, '\xff'),
        http2_preface() + http2_frame(0, 0, 1, "data of no stream"),
        http2_preface() + http2_frame(kReset, 0, 0, "1234"),
        http2_preface() + http2_frame(8, 0, 0, std::string("\x7f\xff\xff\xff", 4))}) {
    Side side;
    const bool goes_on = side.session.receive(bytes, 1);
    side.output();
    EXPECT_TRUE(!goes_on || side.session.is_over()) << bytes.substr(0, 30);
  }
}

TEST(Http2Session, AnnouncedEndsLetOpenStreamsFinish) {
  Side side;
  Http2Peer peer;
  const int32_t id = peer.request(grpc_fields("/s/m"), "x");
  ASSERT_TRUE(settle(peer, side));
  side.session.announce_end();
  ASSERT_TRUE(settle(peer, side));
  EXPECT_EQ(peer.goaway_error(), 0);
  side.session.refuse_streams();
  ASSERT_TRUE(settle(peer, side));
  EXPECT_FALSE(side.session.is_over());
  answer(side, *side.streams.at(0), "y");
  ASSERT_TRUE(settle(peer, side));
  EXPECT_EQ(peer.answer(id).body, "y");
  EXPECT_TRUE(side.session.is_over());
}

/// Fails at one allocation and, if `stays`, at all later ones.
class ShortMemory final : public Http2Memory {
 public:
  ShortMemory(int fails_at, bool stays) : left_(fails_at), stays_(stays) {}

 private:
  void* resize(void* old, size_t bytes) override {
    --left_;
    return left_ == 0 || (left_ < 0 && stays_) ? nullptr : Http2Memory::resize(old, bytes);
  }
  int left_;
  bool stays_;
};

/// A session with requests, answers, resets, held and waiting streams, and an end. False if it was lost.
bool converse(std::unique_ptr<Http2Memory> memory) {
  Side side({.stream_window_bytes = 20'000}, std::move(memory));
  Http2Peer peer({.window_bytes = 5'000, .reads_late = true});
  settle(peer, side);
  std::vector<int32_t> ids;
  for (int i = 0; i < 12; ++i)
    ids.push_back(peer.request(grpc_fields("/s/m", {{"x-" + std::to_string(i), std::string(100, 'v')}}),
                               noise(9000), i % 4 == 3));
  settle(peer, side);
  const auto each = [&](const auto& act) {
    for (const auto& stream : side.streams)
      if (!stream->has_closed) act(*stream);
    settle(peer, side);
  };
  each([&](Kept& stream) { side.session.streams().hold(stream, true); });
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i % 4 != 3) peer.more(ids[i], noise(9000), i % 2 == 0);
  }
  each([&](Kept& stream) { answer(side, stream, noise(10'000)); });
  peer.reset(ids[1], 8);
  each([&](Kept& stream) { side.session.streams().hold(stream, false); });
  peer.ping();
  if (side.streams.size() > 2 && !side.streams[2]->has_closed)
    side.session.streams().reset(*side.streams[2], 8);
  peer.widen(0, 1 << 20);
  for (const int32_t id : ids) peer.widen(id, 1 << 20);
  settle(peer, side);
  side.session.ping();
  side.session.drop_slow(5);
  side.session.announce_end();
  settle(peer, side);
  side.session.refuse_streams();
  settle(peer, side);
  side.session.streams().cut();
  const auto closed = [](const auto& stream) { return stream->has_closed; };
  EXPECT_TRUE(std::all_of(side.streams.begin(), side.streams.end(), closed));
  EXPECT_TRUE(!side.session.is_lost() || side.session.is_over());
  if (side.session.is_lost()) return false;
  const auto answered = [&](int32_t id) { return peer.answer(id).body.size() == 10'000; };
  EXPECT_EQ(std::count_if(ids.begin(), ids.end(), answered), 10);  // two were reset
  return true;
}

// Whichever allocation of nghttp2 fails, only the session is lost: no memory block is used or freed after it
// was freed.
TEST(Http2Session, MemoryThatFailsEndsTheSession) {
  for (const bool stays : {false, true}) {
    int fails_at = 2;  // the first is the session itself
    while (fails_at < 10'000) {
      try {
        if (converse(std::make_unique<ShortMemory>(fails_at++, stays))) break;
      } catch (const base::Error& error) {
        EXPECT_NE(std::string_view(error.what()).find("memory"), std::string_view::npos) << error.what();
      }
    }
    EXPECT_GT(fails_at, 50);
    EXPECT_LT(fails_at, 10'000);
  }
}

/// Throws in the callback number `at`.
class Throwing final : public Http2Stream {
 public:
  explicit Throwing(int at) : at_(at) {}
  void on_field(std::string_view, std::string_view) override { tell(0); }
  void on_fields_end(bool) override { tell(1); }
  std::span<char> room() override { return {}; }
  void on_data(std::string_view) override { tell(2); }
  void on_end() override { tell(3); }
  void on_close() override { ++closes; }
  void on_sent(uint64_t) override { tell(4); }
  int closes = 0;

 private:
  void tell(int what) const {
    if (what == at_) throw std::bad_alloc();
  }
  int at_;
};

// A callback that throws ends its session, which sends nothing more, however often it is asked to.
TEST(Http2Session, WhatIsThrownEndsTheSession) {
  struct Owner final : Http2Owner {
    explicit Owner(int at) : stream(std::make_shared<Throwing>(at)) {}
    std::shared_ptr<Http2Stream> open_stream() override { return stream; }
    void on_output() override {}
    std::shared_ptr<Throwing> stream;
  };
  for (int at = 0; at <= 5; ++at) {  // 5: in no callback
    Owner owner(at);
    Http2Session session({}, owner);
    Http2Peer peer;
    peer.request(grpc_fields("/s/m"), "body");
    EXPECT_EQ(session.receive(peer.output(), 1), at > 3) << at;
    if (at > 3) {
      const std::array<Http2Field, 1> head = {{{":status", "200"}}};
      session.streams().respond(*owner.stream, head, false);
      session.streams().write(*owner.stream, BodyPart("answer"));
    }
    Output out;
    for (int i = 0; i < 3; ++i) session.send(out, SIZE_MAX, true);
    EXPECT_EQ(session.is_lost(), at <= 4) << at;
    session.streams().cut();
    EXPECT_EQ(owner.stream->closes, 1) << at;
  }
}

}  // namespace
}  // namespace trireme::http
