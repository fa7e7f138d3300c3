// The stand-in's memory: host memory that is out of reach while no stream is at work.
#pragma once

#include <sys/mman.h>

#include <map>
#include <memory>

#include "base/guarded.h"

namespace trireme::cuda {

class EmulatedMemory {
 public:
  std::shared_ptr<void> allocate(const std::shared_ptr<EmulatedMemory>& self, int64_t bytes);
  /// Counted: streams of several threads may be at work.
  void reach();
  void leave();

 private:
  struct State {
    std::map<void*, size_t> blocks;
    int at_work = 0;
  };
  static void protect(const State& state, int rights);
  base::Guarded<State> state_;
};

}  // namespace trireme::cuda
