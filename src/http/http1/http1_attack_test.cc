// Attacks on the HTTP/1.1 server: measures what each byte of an attack costs, relative to a byte of ordinary
// requests.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>

#include "http/coding.h"
#include "http/http1/http1_input.h"
#include "http/server.h"
#include "tests/attack.h"
#include "tests/work_growth.h"

namespace trireme::http {
namespace {

using namespace std::chrono_literals;
using tests::Attacker;

// The bounds of docs/security.md: the bytes and packets of an attack cost at most kMostTimes those of small
// ordinary requests, plus a fixed time for ticks and connections; memory is bounded per byte sent.
constexpr double kMostTimes = 12, kFreeSeconds = 0.03, kFreeBytes = 2 << 20, kBytesPerByte = 16;

const std::string kGet = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

std::string repeated(std::string_view text, size_t count) {
  std::string out;
  out.reserve(text.size() * count);
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

std::string chunked(std::string_view chunks) {
  return "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + std::string(chunks);
}

std::string gzipped(std::string_view body) {
  return "POST / HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

/// Deflate blocks of about 13 bytes, each of which only describes new Huffman codes: the end of the block is
/// its only symbol.
std::string code_tables(int blocks) {
  std::string bits;  // of deflate data, in packing order
  const auto put = [&](unsigned value, int count) {
    for (int i = 0; i < count; ++i) bits += static_cast<char>('0' + (value >> i & 1));
  };
  for (int i = 0; i < blocks; ++i) {
    put(i + 1 == blocks, 1);
    put(2, 2);             // a block with dynamic codes
    put(0, 5), put(0, 5);  // 257 literal codes, 1 distance code
    put(18 - 4, 4);        // 18 code length codes follow, in the order of the standard
    for (const unsigned symbol : {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1})
      put(symbol == 18 || symbol == 1 ? 1 : 0, 3);
    // Code length codes: 1 -> "0", 18 -> "1". The 256 literals get no code; the end of block and one distance
    // get codes of one bit.
    put(1, 1), put(138 - 11, 7);
    put(1, 1), put(118 - 11, 7);
    put(0, 1), put(0, 1);
    put(0, 1);  // end of block
  }
  while (bits.size() % 8 != 0) bits += '0';
  std::string out("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10);
  for (size_t i = 0; i < bits.size(); i += 8) {
    int byte = 0;
    for (size_t k = 0; k < 8; ++k) byte |= (bits[i + k] - '0') << k;
    out += static_cast<char>(byte);
  }
  return out + std::string(8, '\0');  // CRC and length of the empty output
}

class Http1Attack : public testing::Test {
 protected:
  Http1Attack() : server_(options(), [this](Request&& request, Reply reply) { answer(request, reply); }) {}

  static ServerOptions options() {
    ServerOptions o;
    o.threads = 1;
    return o;
  }
  void answer(const Request& request, Reply& reply) {
    clock_.note();
    seen_ = request.body.size();
    reply.send(text_response(200, std::string(request.path == "/long" ? 16'000 : 2, 'x')));
  }
  tests::HonestCost honest() { return tests::honest_cost(server_.port(), clock_, "", kGet); }
  /// Sends `bytes` on one new connection after another, `most_bytes` in total, and checks the cost.
  void expect_bounded(const std::string& name, const std::string& bytes, size_t piece = SIZE_MAX,
                      size_t most_bytes = 512 << 10) {
    const tests::HonestCost unit_cost = honest();
    tests::AttackMeter meter(clock_);
    size_t sent = 0, packets = 0;
    while (sent < most_bytes) {
      Attacker attacker(server_.port());
      attacker.send(bytes, piece);
      meter.look();
      sent += attacker.sent_bytes();
      packets += std::min(attacker.sends(), attacker.sent_bytes()) + 4;  // to open and close it
    }
    const double spent_s = meter.cpu_s();
    const double unit_s =
        static_cast<double>(sent) * unit_cost.byte_s + static_cast<double>(packets) * unit_cost.packet_s;
    const double times = std::max(spent_s - kFreeSeconds, 0.0) / unit_s;
    std::printf("%-32s %8zu bytes %7zu packets %8.1f ns/byte %5.2f times, %.1f bytes/byte\n", name.c_str(),
                sent, packets, spent_s / static_cast<double>(sent) * 1e9, spent_s / unit_s,
                meter.peak_bytes() / static_cast<double>(sent));
    EXPECT_LT(times, kMostTimes) << name << ": " << spent_s << " s for " << sent << " bytes";
    EXPECT_LT(meter.peak_bytes(), kFreeBytes + kBytesPerByte * static_cast<double>(sent)) << name;
    // Other clients are still served.
    Attacker other(server_.port());
    other.send(kGet);
    for (int i = 0; i < 500 && other.read(1) == 0; ++i) std::this_thread::sleep_for(10ms);
    EXPECT_NE(other.last().find("200 OK"), std::string::npos) << name;
  }

  tests::ThreadClock clock_;
  std::atomic<size_t> seen_{0};
  Server server_;
};

TEST_F(Http1Attack, HeadsAndBlankLines) {
  const std::string head = "GET / HTTP/1.1\r\nHost: h\r\n";
  expect_bounded("blank lines", repeated("\r\n", 200'000));
  expect_bounded("blank lines, byte by byte", repeated("\r\n", 5'000), 1, 20'000);
  expect_bounded("a head, byte by byte", head + "a: " + std::string(30'000, 'x'), 1, 30'000);
  expect_bounded("headers of a byte", head + repeated("a:\r\n", 99) + "\r\n");
  expect_bounded("too many headers", head + repeated("a:\r\n", 8'000) + "\r\n");
  expect_bounded("requests without end", repeated(kGet, 20'000));
  expect_bounded("noise", repeated("\x16\x03\x01", 20'000), SIZE_MAX, 256 << 10);
}

TEST_F(Http1Attack, Chunks) {
  expect_bounded("chunks of a byte", chunked(repeated("1\r\nx\r\n", 65'000) + "0\r\n\r\n"));
  expect_bounded("chunks of a byte, byte by byte", chunked(repeated("1\r\nx\r\n", 3'000)), 1, 20'000);
  expect_bounded("long extensions", chunked(repeated("1;" + std::string(8'000, 'e') + "\r\nx\r\n", 60)));
  expect_bounded("an extension, byte by byte", chunked("1;" + std::string(30'000, 'e')), 1, 30'000);
  expect_bounded("many extensions", chunked(repeated("1" + repeated(";a=b", 2'000) + "\r\nx\r\n", 60)));
  expect_bounded("trailers", chunked("0\r\n" + repeated("a: b\r\n", 5'000) + "\r\n"));
  expect_bounded("trailers, byte by byte", chunked("0\r\n" + repeated("a: b\r\n", 5'000)), 1, 30'000);
}

TEST_F(Http1Attack, Gzip) {
  const std::string nothing = deflate_body("", Coding::gzip);
  expect_bounded("empty gzip members", gzipped(repeated(nothing, 20'000)));
  expect_bounded("stored blocks of nothing",
                 gzipped(std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10) +
                         repeated(std::string_view("\0\0\0\xff\xff", 5), 80'000)));
  expect_bounded("code tables", gzipped(code_tables(30'000)));
  EXPECT_EQ(inflate_body(code_tables(100), 1000).size(), 0u);  // check of the data itself: valid, and empty
  expect_bounded("a bomb", gzipped(deflate_body(std::string(2 << 20, ' '), Coding::gzip)), SIZE_MAX,
                 64 << 10);
}

TEST_F(Http1Attack, ConnectionsThatSayNothing) {
  const tests::HonestCost unit_cost = honest();
  tests::AttackMeter meter(clock_);
  constexpr int kConnections = 2'000;
  for (int i = 0; i < kConnections; ++i) {
    const Attacker gone(server_.port());
    meter.look();
  }
  const double spent_s = meter.cpu_s();
  EXPECT_LT(spent_s, kFreeSeconds + kMostTimes * 4 * kConnections * unit_cost.packet_s);
  EXPECT_LT(meter.peak_bytes(), kFreeBytes + kConnections * 24.0 * 1024);  // per connection while it is open
}

// A client that reads tens of megabytes, but never everything that waits; bytes already sent are not kept.
TEST_F(Http1Attack, AReaderThatIsAlwaysBehind) {
  honest();
  Attacker client(server_.port(), false, 64 << 10);
  tests::AttackMeter meter(clock_);
  const std::string ask = repeated("GET /long HTTP/1.1\r\nHost: h\r\n\r\n", 64);
  size_t got = 0, asked = 0;
  for (int quiet = 0; got < size_t{96} << 20 && quiet < 2000;) {
    while (asked < got + (size_t{12} << 20) && client.send(ask)) asked += size_t{64} * 16'000;
    const size_t now = client.read(256 << 10);
    quiet = now == 0 ? quiet + 1 : 0;
    got += now;
    meter.look();
    std::this_thread::sleep_for(now == 0 ? 2ms : 200us);
  }
  EXPECT_GE(got, size_t{96} << 20);
  EXPECT_LT(meter.peak_bytes(), 12 << 20);
}

// The same without measuring time: how many bytes the queue holds, and how much memory it keeps for them.
TEST(OutputMemory, FollowsWhatWaits) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const Descriptor far(ends[1]);
  Socket socket(Descriptor(ends[0]), nullptr);
  Output out;
  const auto tensor = std::make_shared<const std::string>(10'000, 't');
  std::string wanted, got;
  const auto read_one = [&] {
    char buffer[20'000];
    const ssize_t n = ::recv(far.get(), buffer, sizeof buffer, 0);
    if (n > 0) got.append(buffer, static_cast<size_t>(n));
    ASSERT_NE(out.flush(socket), Output::Flush::broken);
  };
  for (size_t i = 0; i < 5'000; ++i) {
    const size_t before = out.bytes();
    const std::string piece(1'000 + i % 7 * 1'500, static_cast<char>('a' + i % 26));
    out.text() += piece;
    wanted += piece;
    if (i % 500 == 0) out.append(BodyPart(std::string_view(*tensor), tensor)), wanted += *tensor;
    EXPECT_EQ(out.bytes(), before + piece.size() + (i % 500 == 0 ? tensor->size() : 0));
    while (out.bytes() > 300'000) read_one();   // so that some bytes always remain
    EXPECT_LE(out.text_bytes(), 2 * 320'000u);  // twice the most that ever waited
  }
  EXPECT_GT(out.bytes(), 0u);
  while (got.size() < wanted.size()) read_one();
  EXPECT_EQ(out.bytes() + out.text_bytes(), 0u);
  EXPECT_EQ(got, wanted);
}

// A head that arrives byte by byte is not searched or copied again from its start for each byte.
TEST(Http1InputWork, FollowsTheBytes) {
  const auto read_bytes = [](int64_t count) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    const Descriptor far(ends[1]);
    Socket socket(Descriptor(ends[0]), nullptr);
    Http1Input input(socket, {.max_header_bytes = size_t{1} << 24});
    const std::string head =
        "GET / HTTP/1.1\r\nHost: h\r\na: " + std::string(static_cast<size_t>(count), 'x');
    for (const char& c : head) {
      ASSERT_EQ(::send(far.get(), &c, 1, 0), 1);
      ASSERT_EQ(input.read(true), Http1Input::Read::some);
      ASSERT_EQ(input.parse(1), Http1Input::Parsed::nothing);
      input.compact();
    }
  };
  EXPECT_LT(tests::growth_over_eight(40'000, read_bytes), tests::kMostLinearGrowth);
}

}  // namespace
}  // namespace trireme::http
