// Signals that ask a long run to stop before it has begun.
#pragma once

#include <csignal>
#include <unistd.h>

#include "cli/train_command.h"

namespace trireme::cli {

/// While nothing is done that could be lost, a signal to stop ends the program at once, with the exit code
/// that says "start it again": launchers take the end by a signal for a failure. Signals that are ignored
/// stay so. Made where a verb begins; begun() is called when the run holds its signals back.
class StartSignals {
 public:
  StartSignals() { change(SIG_DFL, &StartSignals::end); }
  ~StartSignals() { begun(); }
  StartSignals(const StartSignals&) = delete;
  StartSignals& operator=(const StartSignals&) = delete;

  /// From now on a signal that is not held back ends the program by itself.
  void begun() { change(&StartSignals::end, SIG_DFL); }

 private:
  using Handler = void (*)(int);
  static void end(int) { ::_exit(kInterrupted); }
  static void change(Handler from, Handler to) {
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
      struct sigaction now {};
      sigaction(signal, nullptr, &now);
      if ((now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != from) continue;
      now.sa_handler = to;
      sigaction(signal, &now, nullptr);
    }
  }
};

}  // namespace trireme::cli
