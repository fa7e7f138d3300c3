// Socket input and output: gathering writes on plain sockets, OpenSSL on TLS sockets.
#include "http/socket.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#include "base/error.h"

namespace trireme::http {

struct TlsContext::Impl {
  SSL_CTX* context = nullptr;
  std::string protocols;  // the only ALPN name, in wire form: its length, then the name
  bool is_client = false;
  std::string host;  // name of the server; for clients only
  ~Impl() { SSL_CTX_free(context); }
};

namespace {

/// Throws OpenSSL's most recent error, after the names of the files that caused it.
[[noreturn]] void fail_tls(const char* what, const std::string& files) {
  std::array<char, 256> reason{};
  ERR_error_string_n(ERR_get_error(), reason.data(), reason.size());
  ERR_clear_error();
  base::fail_invalid(what, " cannot be used: ", files, ": ", reason.data());
}

/// Requests a client certificate signed by this authority; a handshake without one fails.
void require_client_certificate(SSL_CTX* context, const std::string& ca_file) {
  // Without a session id context, a server that verifies clients refuses to resume their sessions.
  constexpr unsigned char kSessionId[] = "trireme";
  SSL_CTX_set_session_id_context(context, kSessionId, sizeof kSessionId - 1);
  STACK_OF(X509_NAME)* names = SSL_load_client_CA_file(ca_file.c_str());
  if (names == nullptr || SSL_CTX_load_verify_locations(context, ca_file.c_str(), nullptr) != 1) {
    sk_X509_NAME_pop_free(names, X509_NAME_free);
    fail_tls("TLS client CA", ca_file);
  }
  SSL_CTX_set_client_CA_list(context, names);  // takes ownership
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
}

/// ALPN: the handshake fails unless the client offers the server's protocol.
int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* chosen_bytes,
                    const unsigned char* offered, unsigned int offered_bytes, void* ours) {
  const auto& name = *static_cast<const std::string*>(ours);
  unsigned char* match = nullptr;
  const int found =
      SSL_select_next_proto(&match, chosen_bytes, reinterpret_cast<const unsigned char*>(name.data()),
                            static_cast<unsigned int>(name.size()), offered, offered_bytes);
  *chosen = match;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

SSL_CTX* new_context(const SSL_METHOD* method) {
  SSL_CTX* context = SSL_CTX_new(method);
  base::check(context != nullptr, "OpenSSL cannot start");
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  // Allows partial writes and moving buffers: the output queue may have grown (and moved) between two
  // attempts of one write.
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  return context;
}

void use_certificate(SSL_CTX* context, const std::string& certificate, const std::string& key) {
  const bool usable = SSL_CTX_use_certificate_chain_file(context, certificate.c_str()) == 1 &&
                      SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) == 1 &&
                      SSL_CTX_check_private_key(context) == 1;
  if (!usable) fail_tls("TLS certificate or key", certificate + ", " + key);
}

}  // namespace

TlsContext::TlsContext(const TlsFiles& files) : impl_(std::make_unique<Impl>()) {
  SSL_CTX* context = impl_->context = new_context(TLS_server_method());
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  use_certificate(context, files.certificate, files.key);
  if (!files.client_ca.empty()) require_client_certificate(context, files.client_ca);
  if (files.protocol.empty()) return;
  impl_->protocols = static_cast<char>(files.protocol.size()) + files.protocol;
  SSL_CTX_set_alpn_select_cb(context, choose_protocol, &impl_->protocols);
}

TlsContext::TlsContext(const TlsClientFiles& files) : impl_(std::make_unique<Impl>()) {
  SSL_CTX* context = impl_->context = new_context(TLS_client_method());
  impl_->is_client = true;
  impl_->host = files.host;
  if (!files.certificate.empty() || !files.key.empty())
    use_certificate(context, files.certificate, files.key);
  if (files.checks) {
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    const int found = files.ca.empty() ? SSL_CTX_set_default_verify_paths(context)
                                       : SSL_CTX_load_verify_locations(context, files.ca.c_str(), nullptr);
    if (found != 1) fail_tls("TLS authorities", files.ca);
    X509_VERIFY_PARAM* wanted = SSL_CTX_get0_param(context);
    // A certificate stores IP addresses apart from host names.
    if (!files.host.empty() && X509_VERIFY_PARAM_set1_ip_asc(wanted, files.host.c_str()) != 1)
      X509_VERIFY_PARAM_set1_host(wanted, files.host.c_str(), files.host.size());
    ERR_clear_error();
  }
  if (files.protocol.empty()) return;
  const std::string offered = static_cast<char>(files.protocol.size()) + files.protocol;
  SSL_CTX_set_alpn_protos(context, reinterpret_cast<const unsigned char*>(offered.data()),
                          static_cast<unsigned int>(offered.size()));
}

TlsContext::~TlsContext() = default;

struct Socket::Tls {
  SSL* ssl;
  explicit Tls(SSL* s) : ssl(s) {}
  ~Tls() { SSL_free(ssl); }
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;
};

Socket::Socket(Descriptor fd, const TlsContext* tls) : fd_(std::move(fd)) {
  if (tls == nullptr) return;
  tls_ = std::make_unique<Tls>(SSL_new(tls->impl_->context));
  SSL* ssl = tls_->ssl;
  base::check(ssl != nullptr && SSL_set_fd(ssl, fd_.get()) == 1, "OpenSSL cannot open a connection");
  // The handshake runs inside the first reads; a client's runs inside its first writes and reads.
  if (tls->impl_->is_client) {
    SSL_set_connect_state(ssl);
    if (!tls->impl_->host.empty()) SSL_set_tlsext_host_name(ssl, tls->impl_->host.c_str());
  } else {
    SSL_set_accept_state(ssl);
  }
}

Socket::~Socket() = default;

bool Socket::is_local() const {
  sockaddr_storage peer{};
  socklen_t bytes = sizeof peer;
  if (getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&peer), &bytes) != 0) return false;
  if (peer.ss_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(peer).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  if (peer.ss_family != AF_INET6) return false;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&address) ||
         (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == IN_LOOPBACKNET);
}

std::string Socket::distrust() const {
  const long result = tls_ == nullptr ? X509_V_OK : SSL_get_verify_result(tls_->ssl);
  return result == X509_V_OK ? "" : X509_verify_cert_error_string(result);
}

ssize_t Socket::tls_result(int rc) const {
  if (rc > 0) return rc;
  // OpenSSL keeps errors in a per-thread queue; a stale one would be attributed to the next connection.
  const int error = SSL_get_error(tls_->ssl, rc);
  ERR_clear_error();
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return kAgain;
  return error == SSL_ERROR_ZERO_RETURN ? kEof : kBroken;
}

ssize_t Socket::read(char* to, size_t bytes) {
  if (tls_ != nullptr) {
    return tls_result(SSL_read(tls_->ssl, to, static_cast<int>(std::min<size_t>(bytes, INT_MAX))));
  }
  for (;;) {
    const ssize_t got = ::recv(fd_.get(), to, bytes, 0);
    if (got >= 0) return got;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? kAgain : kBroken;
  }
}

ssize_t Socket::read(std::span<char> to, std::span<char> spill) {
  if (tls_ != nullptr) return read(to.data(), to.size());
  const std::array<iovec, 2> io = {{{to.data(), to.size()}, {spill.data(), spill.size()}}};
  return read(io);
}

ssize_t Socket::read(std::span<const iovec> views) {
  for (;;) {
    const ssize_t got = ::readv(fd_.get(), views.data(), static_cast<int>(views.size()));
    if (got >= 0) return got;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? kAgain : kBroken;
  }
}

void Socket::wake_at(size_t bytes) {
  if (bytes == wake_bytes_ || tls_ != nullptr) return;
  const int low = static_cast<int>(bytes);
  if (setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low) == 0) wake_bytes_ = bytes;
}

ssize_t Socket::write(const std::string_view* views, size_t count) {
  if (tls_ != nullptr) {
    // OpenSSL accepts one buffer per call, and itself splits it into records of 16 KiB.
    const size_t bytes = std::min<size_t>(views[0].size(), INT_MAX);
    const ssize_t wrote = tls_result(SSL_write(tls_->ssl, views[0].data(), static_cast<int>(bytes)));
    return wrote == kEof ? kBroken : wrote;
  }
  constexpr size_t kMaxViews = 64;
  std::array<iovec, kMaxViews> io;
  count = std::min(count, kMaxViews);
  for (size_t i = 0; i < count; ++i) io[i] = {const_cast<char*>(views[i].data()), views[i].size()};
  msghdr message{};
  // sendmsg instead of writev: only it accepts MSG_NOSIGNAL, which avoids SIGPIPE when the client has left.
  message.msg_iov = io.data();
  message.msg_iovlen = count;
  for (;;) {
    const ssize_t wrote = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (wrote >= 0) return wrote;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? kAgain : kBroken;
  }
}

void Socket::shutdown_write() {
  if (tls_ != nullptr) {
    SSL_shutdown(tls_->ssl);
    ERR_clear_error();
  }
  ::shutdown(fd_.get(), SHUT_WR);
}

void Output::begin_segment() {
  const size_t bytes = segments_.empty() ? 0 : last_bytes();
  const size_t text_bytes = segments_.empty() ? 0 : segments_.back().text.size();
  segments_.emplace_back();
  sealed_bytes_ += bytes;
  sealed_text_bytes_ += text_bytes;
}

// A text segment that is partly sent takes no more text once it is long. Otherwise the queue would keep all
// bytes ever sent to a client that always stays a little behind.
std::string& Output::text() {
  const bool is_leaving = offset_ > 0 && first_ + 1 == segments_.size();
  if (segments_.empty() || segments_.back().part || (is_leaving && segments_.back().text.size() >= kRunBytes))
    begin_segment();
  return segments_.back().text;
}

void Output::append(BodyPart part) {
  if (part.bytes().empty()) return;
  begin_segment();
  segments_.back().part.emplace(std::move(part));
}

Output::Flush Output::flush(Socket& socket) {
  constexpr size_t kViews = 64;
  // Write until the kernel accepts no more: with edge-triggered readiness, nothing else would resume writing.
  for (;;) {
    std::array<std::string_view, kViews> views;
    size_t count = 0;
    for (size_t i = first_; i < segments_.size() && count < kViews; ++i) {
      std::string_view view = segments_[i].view();
      if (i == first_) view.remove_prefix(offset_);
      if (!view.empty()) views[count++] = view;
    }
    if (count == 0) {
      consumed(0);
      return Flush::done;
    }
    const ssize_t wrote = socket.write(views.data(), count);
    if (wrote == Socket::kAgain) return Flush::blocked;
    if (wrote < 0) return Flush::broken;
    consumed(static_cast<size_t>(wrote));
  }
}

void Output::consumed(size_t bytes) {
  constexpr size_t kKeptCapacity = size_t{64} << 10, kFewSegments = 32;
  offset_ += bytes;
  // Empty segments (reused for text) count as sent.
  while (first_ < segments_.size() && offset_ >= segments_[first_].view().size()) {
    Segment& gone = segments_[first_];
    offset_ -= gone.view().size();
    if (first_ + 1 < segments_.size()) {
      sealed_bytes_ -= gone.view().size();
      sealed_text_bytes_ -= gone.text.size();
    }
    gone.part.reset();
    gone.text.clear();  // keeps its capacity for the next answer
    if (gone.text.capacity() > kKeptCapacity || first_ > 0) gone.text.shrink_to_fit();
    ++first_;
  }
  if (first_ == segments_.size()) {
    segments_.resize(std::min<size_t>(segments_.size(), 1));
    first_ = 0;
    offset_ = 0;
  } else if (first_ >= kFewSegments && 2 * first_ >= segments_.size()) {
    segments_.erase(segments_.begin(), segments_.begin() + static_cast<ptrdiff_t>(first_));
    first_ = 0;
  }
}

}  // namespace trireme::http
