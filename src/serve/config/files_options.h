// What the server keeps of the OpenAI API's files and batches, and where.
#pragma once

#include <cstdint>
#include <string>

#include "base/text/options.h"

namespace trireme::serve {

struct FilesOptions {
  std::string files;  ///< directory; empty: nothing is kept
  base::ByteSize files_limit{int64_t{10} << 30};
  int64_t batch_requests = 64;

  void fields(base::OptionList& f) {
    f.add("files", &files,
          "directory for files and batches of the OpenAI API, which outlive the server; empty: it has none");
    f.add("files_limit", &files_limit, "bytes of all files that are kept there");
    f.add("batch_requests", &batch_requests,
          "requests of a batch that are under way at a time, in what those of clients leave")
        .at_least(1);
  }
};

}  // namespace trireme::serve
