// Versions of models that were replaced or unloaded: they finish what they have begun, then their memory is
// free.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/models/served_model.h"

namespace trireme::serve {

/// One thread at a time.
class OldVersions {
 public:
  using Models = std::vector<std::shared_ptr<ServedModel>>;

  /// Returns when they have ended. Whoever found an old model may still hand it a request, so it is drained
  /// after the last of them has let go: no request is refused because of a change. False where a step of a
  /// language model hangs: nothing can end it, so that its model goes once it is through.
  bool retire(Models old);
  /// `old` goes on beside `follower`, which follows it, until nothing on it does.
  void keep(const std::string& name, std::shared_ptr<ServedModel> old,
            const std::shared_ptr<ServedModel>& follower);
  bool empty() const { return kept_.empty() && hung_.empty(); }
  /// Retires those on which nothing goes on, those of the model `cut`, and the oldest where many hold memory;
  /// and those that hung and are through.
  void retire_ended(const std::string& cut);
  void drain();
  void stop();

 private:
  struct Kept {
    std::string name;
    std::shared_ptr<ServedModel> old;
    std::weak_ptr<ServedModel> follower;
  };
  bool may_go(const Kept& kept, const std::string& cut) const;
  void retire_hung();

  std::vector<Kept> kept_;  ///< oldest first
  Models hung_;             ///< were to go when a step of theirs hung
};

}  // namespace trireme::serve
