// What `trireme serve` can be told about prompts that are read by other instances or servers than those that
// answer them.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/text/options.h"

namespace trireme::serve {

struct PrefillOptions {
  int pages_port = -1;
  std::string pages_host = {};
  std::vector<std::string> prefill_from = {};
  std::string prefill_header = {};
  int prefill_instances = 0, prefill_threads = 0;
  int64_t prefill_least = 256, prefill_connections = 8;
  base::Duration prefill_timeout{10 * base::kNsPerSecond};
  base::ByteSize prefill_room{int64_t{1} << 30};

  void fields(base::OptionList& f) {
    f.add("pages_port", &pages_port,
          "another port, for a private network, where servers with --prefill-from ask for the pages of "
          "prompts; 0: the system picks one; -1: none")
        .at_least(-1)
        .at_most(65535);
    f.add("pages_host", &pages_host, "likewise of --pages-port; empty: --host");
    f.add("prefill_from", &prefill_from,
          "http://HOST:PORT of another server's --pages-port: it reads prompts of language models, this one "
          "goes on with their pages, or reads them itself where they do not come; several share the prompts");
    f.add("prefill_header", &prefill_header,
          "name=secret: a header for those servers, as their --restrict or --api-keys want it; ${NAME}: from "
          "the environment");
    f.add("prefill_instances", &prefill_instances,
          "instances of each language model that read prompts for the one that answers, with pages of their "
          "own; 0: it reads them itself")
        .at_least(0)
        .at_most(64);
    f.add("prefill_threads", &prefill_threads, "threads of such an instance; 0: as --threads").at_least(0);
    f.add("prefill_least", &prefill_least, "prompts with fewer unknown tokens are read by who answers them")
        .at_least(1);
    f.add("prefill_connections", &prefill_connections,
          "prompts of a model that other servers read at a time; further ones wait for a connection")
        .at_least(1)
        .at_most(1024);
    f.add("prefill_timeout", &prefill_timeout, "after that a prompt is read by who answers it");
    f.add("prefill_room", &prefill_room, "bytes of pages of a model that are on their way, at most");
  }

  bool is_on() const { return !prefill_from.empty() || prefill_instances > 0; }
  /// Throws invalid_argument for what does not go together, and for what is no address or header.
  void check(bool shares_beginnings, bool has_tls) const;
};

}  // namespace trireme::serve
