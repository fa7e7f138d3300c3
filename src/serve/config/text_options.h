// What `trireme serve` can be told about the texts of language models, beside their cache.
#pragma once

#include "base/clock.h"
#include "engine/decode/cache_options.h"
#include "engine/decode/speculation_options.h"
#include "sched/text/step_budget.h"
#include "serve/config/prefill_options.h"

namespace trireme::serve {

/// Where pages of known beginnings go that have no room among those of keys and values.
struct KeptPages {
  base::ByteSize cache_host;
  std::string cache_disk;  ///< directory; empty: nowhere
  base::ByteSize cache_disk_limit{int64_t{10} << 30};
  bool cache_by_tenant = false;

  void fields(base::OptionList& f) {
    f.add("cache_host", &cache_host,
          "host memory for pages of known beginnings that a device gave up; 0: none. On the CPU they have it "
          "already");
    f.add("cache_disk", &cache_disk,
          "directory for pages of known beginnings, of this server alone; what an earlier one left there is "
          "used; empty: none");
    f.add("cache_disk_limit", &cache_disk_limit, "bytes of all pages there; those used last stay");
    f.add("cache_by_tenant", &cache_by_tenant, "only texts of the same tenant share pages of beginnings");
  }
};

/// What is kept of /v1/responses.
struct KeptAnswers {
  int64_t responses_kept = 1024;
  base::ByteSize responses_bytes{int64_t{64} << 20};
  base::Duration responses_time{24 * 3600 * base::kNsPerSecond};

  void fields(base::OptionList& f) {
    f.add("responses_kept", &responses_kept,
          "responses of /v1/responses that are kept in memory, for previous_response_id; 0: none")
        .at_least(0)
        .at_most(1 << 20);
    f.add("responses_bytes", &responses_bytes, "of all of them; who has most loses his oldest first");
    f.add("responses_time", &responses_time, "so long each of them is kept");
  }
};

struct TextOptions {
  engine::SpeculationOptions speculation;
  KeptPages kept;
  KeptAnswers answers;
  sched::TextGoals goals;
  PrefillOptions prefill;

  void fields(base::OptionList& f) {
    speculation.fields(f);
    kept.fields(f);
    prefill.fields(f);
    answers.fields(f);
    goals.fields(f);
  }
};

}  // namespace trireme::serve
