// How long what runs for requests may take.
#pragma once

#include "base/clock.h"
#include "base/text/options.h"

namespace trireme::serve {

struct RunLimitOptions {
  base::Duration instance_timeout{60 * base::kNsPerSecond}, loop_timeout{30 * base::kNsPerSecond};

  void fields(base::OptionList& f) {
    f.add("instance_timeout", &instance_timeout,
          "a batch that takes so long, and ten times what was expected, hangs: its requests get 503 and the "
          "model is not ready; 0: nobody looks");
    f.add(
        "loop_timeout", &loop_timeout,
        "longest time for the loops of a request, and at most half of --instance-timeout: further rounds are "
        "not run, the request gets 400; 0: no limit of their own");
  }
};

}  // namespace trireme::serve
