// Fuzzes every method of every gRPC service, including reflection and health: any message, plain or
// compressed, is answered or refused with work, memory and an answer in proportion to its bytes.
#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "http/coding.h"
#include "http/http2/http2_session.h"
#include "http/socket.h"
#include "serve/grpc/grpc_call.h"
#include "serve/grpc/grpc_health.h"
#include "serve/grpc/grpc_reflection.h"
#include "serve/grpc/grpc_service.h"
#include "serve/core/kserve_core.h"
#include "tests/fuzz_bounds.h"

namespace {

using namespace trireme::serve;
namespace base = trireme::base;
namespace http = trireme::http;

constexpr size_t kMostMessageBytes = size_t{1} << 20;

/// A server without models, with an empty directory as repository.
struct World {
  World() {
    root = (std::filesystem::temp_directory_path() / "trireme-fuzz-XXXXXX").string();
    if (mkdtemp(root.data()) == nullptr) std::abort();
    options.model_repository = {root};
    options.model_control = ModelControl::explicitly;
    options.allow_client_shm = true;
    repository = std::make_unique<Repository>(options, env, metrics);
    repository->load();
    core = std::make_unique<KserveCore>(*repository, options, env);
    core->set_state(ServerState::serving);
    health = std::make_unique<GrpcHealth>(grpc_service_names(), [] { return true; });
    routes = make_kserve_routes(*core, *health);
    const auto* pool = google::protobuf::DescriptorPool::generated_pool();
    for (const std::string& name : grpc_service_names()) {
      const auto* service = pool->FindServiceByName(name);
      for (int i = 0; i < service->method_count(); ++i)
        paths.push_back("/" + name + "/" + service->method(i)->name());
    }
  }

  ServeOptions options;
  base::SystemClock clock;
  base::Log log{base::LogLevel::off, -1, [](std::string_view) {}};  // the level is one of the settings
  base::Env env{log, clock};
  MetricRegistry metrics;
  std::string root;
  std::unique_ptr<Repository> repository;
  std::unique_ptr<KserveCore> core;
  std::unique_ptr<GrpcHealth> health;
  std::unique_ptr<GrpcRoutes> routes;
  std::vector<std::string> paths;
};

class Side final : public http::Http2Owner {
 public:
  explicit Side(World& world)
      : world_(world), session({.stream_window_bytes = 1u << 30, .connection_window_bytes = 1 << 30}, *this) {
    mailbox->owner.store(std::this_thread::get_id());
  }
  /// Loads are answered by the repository's thread; an answer after the end is discarded, as on a connection.
  ~Side() { mailbox->close(); }
  std::shared_ptr<http::Http2Stream> open_stream() override {
    return std::make_shared<GrpcCall>(*world_.routes, session, mailbox, kMostMessageBytes, true);
  }
  void on_output() override {}

 private:
  World& world_;

 public:
  std::shared_ptr<http::Mailbox> mailbox = std::make_shared<http::Mailbox>();
  http::Http2Session session;
};

std::string frame(uint8_t type, uint8_t flags, uint8_t stream, std::string_view payload) {
  std::string out;
  for (int shift : {16, 8, 0}) out += static_cast<char>(payload.size() >> shift);
  out += static_cast<char>(type);
  out += static_cast<char>(flags);
  out.append(3, '\0');
  out += static_cast<char>(stream);
  return out.append(payload);
}

/// A field without use of HPACK's tables; names and values are shorter than 127 bytes.
std::string field(std::string_view name, std::string_view value) {
  std::string out(1, '\0');
  out += static_cast<char>(name.size());
  out.append(name);
  out += static_cast<char>(value.size());
  return out.append(value);
}

std::string conversation(const std::string& path, std::string_view message, bool is_compressed) {
  std::string body =
      is_compressed ? std::string(http::deflate_body(message, http::Coding::gzip)) : std::string(message);
  std::string prefix(1, is_compressed ? '\1' : '\0');
  for (int shift : {24, 16, 8, 0}) prefix += static_cast<char>(body.size() >> shift);
  body.insert(0, prefix);
  std::string fields = field(":method", "POST") + field(":scheme", "http") + field(":authority", "a") +
                       field(":path", path) + field("content-type", "application/grpc");
  if (is_compressed) fields += field("grpc-encoding", "gzip");
  std::string out =
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, "") + frame(4, 1, 0, "") + frame(1, 4, 1, fields);
  for (std::string_view rest = body; !rest.empty(); rest.remove_prefix(std::min<size_t>(rest.size(), 16384)))
    out += frame(0, 0, 1, rest.substr(0, 16384));
  return out + frame(0, 1, 1, "");
}

}  // namespace

// The first byte chooses the method, the second how often the rest repeats and whether it is compressed.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World world;
  if (size < 2) return 0;
  const std::string& path = world.paths[data[0] % world.paths.size()];
  const std::string_view text(reinterpret_cast<const char*>(data + 2), size - 2);
  std::string message;
  for (size_t i = 0; i < size_t{1} << (data[1] % 8); ++i) message.append(text);
  message.resize(std::min(message.size(), kMostMessageBytes));
  const std::string bytes = conversation(path, message, data[1] >= 128);
  const trireme::fuzz::BoundedWork bounded(message.size());
  Side side(world);
  http::Output out;
  side.session.send(out, SIZE_MAX, true);
  side.session.receive(bytes, 1);
  side.session.send(out, SIZE_MAX, true);
  // Descriptors have kilobytes for any request, and an echo is not longer than the request.
  if (out.bytes() > (size_t{256} << 10) + 4 * message.size()) std::abort();
  return 0;
}
