// Fuzzes HTTP/2 and gRPC framing: any bytes are read or refused, and how they are received does not change
// the result.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "http/http2/http2_session.h"
#include "http/socket.h"
#include "serve/grpc/grpc_call.h"

namespace {

using namespace trireme::serve;
namespace http = trireme::http;

/// Takes messages as they arrive; answers every third, and ends its call at every seventh.
class Handler final : public GrpcHandler {
 public:
  Handler(std::shared_ptr<GrpcCall> call, std::string& log) : call_(std::move(call)), log_(log) {}
  size_t aligned_at(std::string_view begin) const override { return begin.size() % 40; }
  void on_message(http::Bytes&& message) override {
    log_.append("m").append(message.view());
    ++messages_;
    if (messages_ % 5 == 0) call_->hold(true);
    if (messages_ % 3 == 0) {
      std::vector<http::BodyPart> parts;
      parts.emplace_back(std::string(message.view()));
      call_->send(std::move(parts));
      call_->count();
    }
    if (messages_ % 7 == 0) call_->finish({GrpcCode::internal, log_.substr(0, 20)});
  }
  void on_end() override {
    log_ += "e";
    call_->finish({});
  }
  void on_sent() override { call_->hold(false); }
  void on_cancel() override { log_ += "c"; }

 private:
  const std::shared_ptr<GrpcCall> call_;
  std::string& log_;
  int messages_ = 0;
};

class Side final : public http::Http2Owner, public GrpcRoutes {
 public:
  Side() : session({.stream_window_bytes = 1u << 30, .connection_window_bytes = 1 << 30}, *this) {
    mailbox->owner.store(std::this_thread::get_id());
  }
  std::shared_ptr<http::Http2Stream> open_stream() override {
    return std::make_shared<GrpcCall>(*this, session, mailbox, size_t{1} << 20);
  }
  std::unique_ptr<GrpcHandler> open(const std::shared_ptr<GrpcCall>& call) override {
    logs.push_back(std::make_unique<std::string>(call->field(":path")));
    return std::make_unique<Handler>(call, *logs.back());
  }
  void on_output() override {}

  std::shared_ptr<http::Mailbox> mailbox = std::make_shared<http::Mailbox>();
  std::vector<std::unique_ptr<std::string>> logs;
  http::Http2Session session;
};

/// The meaning of the bytes: what each call received.
std::string read_all(std::string_view bytes, std::string_view cuts, bool scatters) {
  Side side;
  http::Output out;
  side.session.send(out, SIZE_MAX, true);  // the server's settings, which a conversation acknowledges
  std::array<char, 16384> spill;
  size_t cut = 0;
  bool goes_on = true;
  while (!bytes.empty() && goes_on) {
    const size_t wanted =
        cuts.empty() ? spill.size() : size_t{1} + static_cast<unsigned char>(cuts[cut++ % cuts.size()]) * 37;
    const std::string_view piece = bytes.substr(0, wanted);
    std::array<iovec, 132> views;
    const size_t count = scatters ? side.session.scatter(views, spill) : 0;
    size_t got = 0;
    if (count == 0) {
      got = piece.size();
      goes_on = side.session.receive(piece, 1);
    } else {
      for (size_t i = 0; i < count && got < piece.size(); ++i) {
        const size_t here = std::min(views[i].iov_len, piece.size() - got);
        std::memcpy(views[i].iov_base, piece.data() + got, here);
        got += here;
      }
      goes_on = side.session.receive_scattered(got, 1);
    }
    bytes.remove_prefix(got);
  }
  // Answers are sent at the end, because the time of sending decides what is held and so what is received.
  side.session.send(out, SIZE_MAX, cuts.empty());
  std::string meaning;
  for (const auto& log : side.logs) meaning.append(*log).append("|");
  return meaning;
}

std::string frame(uint8_t type, uint8_t flags, uint8_t stream, std::string_view payload) {
  std::string out = {static_cast<char>(payload.size() >> 16),
                     static_cast<char>(payload.size() >> 8),
                     static_cast<char>(payload.size()),
                     static_cast<char>(type),
                     static_cast<char>(flags),
                     '\0',
                     '\0',
                     '\0',
                     static_cast<char>(stream)};
  return out.append(payload);
}

/// A well-formed conversation whose frames are chosen by the input, because random bytes alone seldom get
/// past the first frame.
std::string conversation(std::string_view choices) {
  // HPACK without a table: POST, http, authority a, path /t/m, application/grpc.
  static const std::string kFields = std::string(
                                         "\x83\x86\x01\x01"
                                         "a"
                                         "\x04\x04/t/m\x0f\x10\x10",
                                         14) +
                                     "application/grpc";
  std::string out = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, "") + frame(4, 1, 0, "");
  uint8_t newest = 1;
  bool is_open = false;
  while (choices.size() >= 2) {
    const auto what = static_cast<unsigned char>(choices[0]), size = static_cast<unsigned char>(choices[1]);
    choices.remove_prefix(2);
    const std::string body(choices.substr(0, size % 16));
    if (!is_open || what % 8 == 0) {
      if (is_open) newest = static_cast<uint8_t>(newest + 2);
      is_open = true;
      out += frame(1, 4, newest, kFields);
    } else if (what % 8 < 4) {
      std::string message(size_t{size} * (what % 8 == 1 ? 1 : 200), 'b');
      const std::string prefix = {0, 0, static_cast<char>(message.size() >> 16),
                                  static_cast<char>(message.size() >> 8), static_cast<char>(message.size())};
      message = prefix + message;
      for (std::string_view rest = message; !rest.empty();
           rest.remove_prefix(std::min<size_t>(rest.size(), 16384)))
        out += frame(0, 0, newest, rest.substr(0, 16384));
    } else if (what % 8 == 4) {
      out += frame(0, 1, newest, "");
    } else {
      out += frame(what % 10, size, what % 3 == 0 ? newest : uint8_t{0}, body);
    }
  }
  return out.append(choices);
}

}  // namespace

// The first byte determines how many cut sizes follow, and whether the rest is bytes or choices of frames.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t count = std::min<size_t>(data[0] % 8, size - 1);
  const std::string_view cuts = all.substr(1, count);
  std::string bytes(all.substr(1 + count));
  if (data[0] >= 64) bytes = conversation(bytes);
  const std::string whole = read_all(bytes, {}, false);
  if (read_all(bytes, cuts, false) != whole) std::abort();
  if (read_all(bytes, cuts, true) != whole) std::abort();
  if (read_all(bytes, {}, true) != whole) std::abort();
  return 0;
}
