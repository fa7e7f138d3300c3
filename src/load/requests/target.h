// Where requests go and how: protocol, TLS, streams; and single calls there, before and after the load.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "http/client.h"
#include "load/load_options.h"

namespace trireme::http {
class TlsContext;
}

namespace trireme::load {

enum class Protocol { http, grpc };

struct Target {
  std::string host;
  uint16_t port = 80;
  Protocol protocol = Protocol::http;
  std::shared_ptr<const http::TlsContext> tls = {};  // null: plain
  bool streams = false;                              // answers come in parts, and their times count
};

/// `http`, `https`, `grpc` and `grpcs` URLs. Throws invalid_argument for others and for files that cannot be
/// used.
http::Url parse_url(const std::string& url);
Target target_of(const LoadOptions& options, const http::Url& url);

/// A request as the load sends it: over HTTP head and body; over gRPC the fields as lines "name: value"
/// (":path" among them), an empty line, and the body with its five bytes in front.
std::string grpc_request(std::string_view path, const http::HeaderList& headers, std::string_view authority,
                         std::string_view message);

/// Sends one request on a connection of its own and gives the body of the answer (over gRPC: the message).
/// Throws not_found or unavailable with what the server said.
std::string call(const Target& target, const std::string& request);

/// A call of KServe v2's gRPC service, such as "ModelMetadata".
inline constexpr std::string_view kGrpcService = "/inference.GRPCInferenceService/";

}  // namespace trireme::load
