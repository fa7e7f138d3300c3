// Checks what is said about prompts that are read elsewhere.
#include "serve/config/prefill_options.h"

#include "base/error.h"
#include "http/client.h"

namespace trireme::serve {

void PrefillOptions::check(bool shares_beginnings, bool has_tls) const {
  base::require(
      prefill_from.empty() || prefill_instances == 0,
      "--prefill-from and --prefill-instances: prompts are read by other servers or by instances of "
      "this one");
  base::require(shares_beginnings || (!is_on() && pages_port < 0),
                "pages of prompts are taken in as known beginnings: --no-share-prefixes leaves none");
  base::require(
      !has_tls || pages_port < 0 || !pages_host.empty(),
      "--pages-port speaks no TLS: with --tls-certificate say by --pages-host on which address of a "
      "private network it listens");
  base::require(prefill_timeout.ns > 0, "--prefill-timeout: prompts are waited for until then");
  for (const std::string& url : prefill_from) http::Url::parse(url);
  const size_t equals = prefill_header.find('=');
  const bool is_header = equals != std::string::npos && equals > 0 && equals + 1 < prefill_header.size() &&
                         prefill_header.find_first_of("\r\n") == std::string::npos;
  base::require(prefill_header.empty() || is_header, "--prefill-header is name=secret");
}

}  // namespace trireme::serve
