// Tests HTTPS: a server with a certificate made here, an independent OpenSSL client, bodies of every size.
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "http/client.h"
#include "http/server.h"

namespace trireme::http {
namespace {

template <class T, void (*Free)(T*)>
struct Freer {
  void operator()(T* p) const { Free(p); }
};
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY, EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509, X509_free>>;
using Context = std::unique_ptr<SSL_CTX, Freer<SSL_CTX, SSL_CTX_free>>;
using Session = std::unique_ptr<SSL, Freer<SSL, SSL_free>>;

// A self-signed certificate for "localhost" and its key, in files that are deleted with the object.
class CertificateFiles {
 public:
  CertificateFiles()
      : base_(
            (std::filesystem::temp_directory_path() / ("trireme_tls_" + std::to_string(getpid()))).string()) {
    const Key key(EVP_EC_gen("P-256"));
    const Certificate certificate(X509_new());
    ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_set_pubkey(certificate.get(), key.get());
    X509_NAME* name = X509_get_subject_name(certificate.get());
    const auto* host = reinterpret_cast<const unsigned char*>("localhost");
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, host, -1, -1, 0);
    X509_set_issuer_name(certificate.get(), name);
    X509_sign(certificate.get(), key.get(), EVP_sha256());
    std::FILE* out = std::fopen(certificate_file().c_str(), "w");
    PEM_write_X509(out, certificate.get());
    std::fclose(out);
    out = std::fopen(key_file().c_str(), "w");
    PEM_write_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(out);
  }
  ~CertificateFiles() {
    std::filesystem::remove(certificate_file());
    std::filesystem::remove(key_file());
  }
  std::string certificate_file() const { return base_ + ".crt"; }
  std::string key_file() const { return base_ + ".key"; }

 private:
  std::string base_;
};

Received exchange(SSL* ssl, const std::string& request) {
  size_t sent = 0;
  EXPECT_EQ(SSL_write_ex(ssl, request.data(), request.size(), &sent), 1);
  ResponseParser parser;
  std::string buffer(65536, '\0');
  while (!parser.done()) {
    const int got = SSL_read(ssl, buffer.data(), static_cast<int>(buffer.size()));
    if (got <= 0) {
      parser.feed_eof();
      break;
    }
    parser.feed({buffer.data(), static_cast<size_t>(got)});
  }
  return parser.message();
}

TEST(HttpTls, ServesKeptConnectionsAndLargeBodies) {
  const CertificateFiles files;
  ServerOptions options;
  options.host = "127.0.0.1";
  options.tls_certificate_file = files.certificate_file();
  options.tls_key_file = files.key_file();
  Server server(options, [](Request&& request, Reply reply) {
    Response response;
    response.body.emplace_back(std::string(request.body.view()));
    reply.send(std::move(response));
  });
  const Context context(SSL_CTX_new(TLS_client_method()));
  const int fd = connect_to("127.0.0.1", server.port(), false);
  {
    const Session ssl(SSL_new(context.get()));
    SSL_set_fd(ssl.get(), fd);
    ASSERT_EQ(SSL_connect(ssl.get()), 1);
    for (const size_t bytes : {0, 5, 100'000, 2'000'000}) {
      std::string body(bytes, '\0');
      for (size_t i = 0; i < bytes; ++i) body[i] = static_cast<char>(i * 31);
      const Received got = exchange(ssl.get(), request_head("POST", "/", "h", bytes, {}) + body);
      EXPECT_EQ(got.status, 200);
      EXPECT_EQ(got.body, body) << bytes;
    }
    EXPECT_EQ(server.counts().connections_accepted, 1u);
  }
  ::close(fd);
}

TEST(HttpTls, AsksClientsForACertificate) {
  const CertificateFiles files;  // self-signed, so it is its own authority
  ServerOptions options;
  options.host = "127.0.0.1";
  options.tls_certificate_file = files.certificate_file();
  options.tls_key_file = files.key_file();
  options.tls_client_ca_file = files.certificate_file();
  Server server(options, [](Request&&, Reply reply) { reply.send(Response{}); });
  for (const bool has_certificate : {false, true, true}) {
    const Context context(SSL_CTX_new(TLS_client_method()));
    if (has_certificate) {
      SSL_CTX_use_certificate_file(context.get(), files.certificate_file().c_str(), SSL_FILETYPE_PEM);
      SSL_CTX_use_PrivateKey_file(context.get(), files.key_file().c_str(), SSL_FILETYPE_PEM);
    }
    const int fd = connect_to("127.0.0.1", server.port(), false);
    {
      const Session ssl(SSL_new(context.get()));
      SSL_set_fd(ssl.get(), fd);
      // A TLS 1.3 client finishes before the server has checked it; the first request meets the refusal.
      if (SSL_connect(ssl.get()) == 1) {
        size_t sent = 0;
        const std::string request = request_head("GET", "/", "h", 0, {});
        SSL_write_ex(ssl.get(), request.data(), request.size(), &sent);
        char byte = 0;
        EXPECT_EQ(SSL_read(ssl.get(), &byte, 1) == 1, has_certificate);
      } else {
        EXPECT_FALSE(has_certificate);
      }
    }
    ::close(fd);
  }
  EXPECT_EQ(server.counts().requests, 2u);
  options.tls_client_ca_file = files.key_file();  // contains no certificate
  EXPECT_THROW(Server(options, [](Request&&, Reply) {}), base::Error);
}

TEST(HttpTls, PlainBytesOnATlsPortAreDroppedQuietly) {
  const CertificateFiles files;
  ServerOptions options;
  options.host = "127.0.0.1";
  options.tls_certificate_file = files.certificate_file();
  options.tls_key_file = files.key_file();
  Server server(options, [](Request&&, Reply) {});
  Client client("127.0.0.1", server.port(), std::chrono::seconds(5));
  client.send_raw("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(client.wait_closed());
  EXPECT_EQ(server.counts().requests, 0u);
}

}  // namespace
}  // namespace trireme::http
