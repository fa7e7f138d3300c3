// Signals that ask a long run to stop: held back in all threads, and looked for when asked.
#pragma once

#include <csignal>
#include <ctime>
#include <pthread.h>

namespace trireme::cli {

/// No handler, no global. Made before the threads of the run, which inherit the mask.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGUSR1);  // batch systems warn of the end with it
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  /// The first signal that came, from then on; 0: none. A second one then ends the program at once.
  int seen() {
    const timespec now{};
    if (seen_ == 0) {
      const int signal = sigtimedwait(&set_, nullptr, &now);
      if (signal > 0) {
        seen_ = signal;
        pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
      }
    }
    return seen_;
  }

 private:
  sigset_t set_;
  int seen_ = 0;
};

}  // namespace trireme::cli
