// Polling for the notice.
#include "batch/stop_notice.h"

#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/files/file.h"

namespace trireme::batch {

StopNotice::StopNotice(std::string source) : source_(std::move(source)) {
  if (!source_.empty()) thread_ = std::thread([this] { watch(); });
}

StopNotice::~StopNotice() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ending_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StopNotice::watch() {
  using std::chrono::milliseconds;
  const bool is_command = source_[0] == '!';
  const milliseconds pause(is_command ? 5000 : 250);
  std::unique_lock lock(mutex_);
  do {
    lock.unlock();
    // The command is the operator's own, from the job file.
    const bool came = is_command ? std::system(source_.c_str() + 1) == 0 : base::file_exists(source_);
    if (came) has_come_ = true;
    lock.lock();
  } while (!has_come_ && !ending_.wait_for(lock, pause, [&] { return ends_; }));
}

}  // namespace trireme::batch
