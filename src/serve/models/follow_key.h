// What the other ranks of a job are told of a model that the first rank serves, so that they load the same.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace trireme::serve {

/// Their options are the server's, for every process of a job has the same command line; what a model's own
/// configuration says comes with it.
struct FollowKey {
  std::string path;
  bool continues_texts = false;
  std::vector<std::pair<std::string, std::string>> parameters;  ///< of its config.pbtxt
  std::string kept_outputs;                                     ///< see places_of_outputs()
  uint64_t load = 0;  ///< tells one load of the path from the next, whose files may differ

  /// JSON.
  std::string text() const;
  /// Throws invalid_argument for what text() did not write.
  static FollowKey read(const std::string& text);
};

}  // namespace trireme::serve
