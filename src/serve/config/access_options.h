// Where `trireme serve` listens, under which names, and what callers have to show.
#pragma once

#include <string>
#include <vector>

#include "base/text/options.h"

namespace trireme::serve {

struct AccessOptions {
  std::string host = "127.0.0.1";
  std::string grpc_host, metrics_host;  ///< empty: as `host`
  std::vector<std::string> host_name;
  std::vector<std::string> restrict;
  std::string restrict_file, api_keys;
  std::string tls_certificate, tls_key, tls_client_ca;

  void fields(base::OptionList& f) {
    f.add("host", &host, "address to listen on; 0.0.0.0 or ::: every network that the machine is in");
    f.add("grpc_host", &grpc_host, "likewise of the gRPC listener; empty: --host");
    f.add("metrics_host", &metrics_host, "likewise of --metrics-port; empty: --host");
    f.add("host_name", &host_name,
          "a name with a dot under which HTTP clients call this server, *.example.com: all below, *: any; "
          "addresses and names without a dot always are (docs/security.md)");
    f.add("restrict", & restrict,
          "CATEGORY[,CATEGORY][@MODEL[,MODEL]]:header=secret: such calls (all: those of categories that no "
          "other rule names) need the header; CATEGORY:anyone: other machines need no key, not even for "
          "control calls");
    f.add("restrict_file", &restrict_file,
          "more rules of that form, one a line; ${NAME} in a secret: from the environment");
    f.add("api_keys", &api_keys,
          "YAML file of keys for inference (Authorization: Bearer KEY), each of a tenant, with models and "
          "quotas "
          "of requests and tokens a minute; changes are followed");
    f.add("tls_certificate", &tls_certificate, "PEM file; with --tls-key: HTTPS");
    f.add("tls_key", &tls_key, "PEM file of the certificate's key");
    f.add("tls_client_ca", &tls_client_ca, "PEM file: clients must show a certificate that it signed");
  }
};

}  // namespace trireme::serve
