// Which models' files have changed since they were loaded.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "serve/config/other_models.h"

namespace trireme::serve {

/// One thread at a time. Knows files by what files_fingerprint() says of them.
class FileWatch {
 public:
  /// Both outlive it.
  FileWatch(const std::vector<std::string>& roots, const OtherModels& others)
      : roots_(roots), others_(others) {}

  /// The model is loaded as its files are now.
  void note(const std::string& name);
  /// True where the files have changed since and then were the same at two calls, so that half a copy stays
  /// out; they count as noted then.
  bool has_new_files(const std::string& name);
  /// Models that were noted and are not among `names`, which are sorted.
  std::vector<std::string> missing(const std::vector<std::string>& names) const;
  void forget(const std::string& name);

 private:
  std::string fingerprint(const std::string& name) const;

  const std::vector<std::string>& roots_;
  const OtherModels& others_;
  std::map<std::string, std::string> loaded_, seen_;  ///< fingerprints by model
};

}  // namespace trireme::serve
