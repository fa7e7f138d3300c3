// Files of workers: made under another name and locked before they appear, so that nobody takes a new one for
// that of a dead worker.
#include "batch/state/worker_seat.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <system_error>

#include "base/error.h"
#include "base/files/directory.h"
#include "base/keyed_hash.h"

namespace trireme::batch {

std::string worker_name(uint64_t worker) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(worker));
  return text;
}

std::string this_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return base::concat(host.data(), ":", ::getpid());
}

uint64_t draw_number() { return base::KeyedHash::random_key()[0]; }

WorkerSeat::WorkerSeat(std::string directory)
    : worker_(draw_number()), path_(std::move(directory) + "/" + worker_name(worker_)) {
  const std::string hidden = path_ + kNewSeat;
  constexpr int kTries = 10;  // a worker that tidies up may take the file before it is locked
  for (int left = kTries; true; --left) {
    file_ = std::make_unique<PosixFile>(hidden, O_RDWR | O_CREAT | O_EXCL);
    base::check(file_->try_lock(), "somebody holds a file that was just made: '", hidden, "'");
    write_count();  // not flushed: a file that stays hidden for long is taken for one of the dead
    try {
      rename_file(hidden, path_);
      break;
    } catch (const base::Error& e) {
      if (e.code() != base::ErrorCode::not_found || left == 0) throw;
    }
  }
  file_->set_path(path_);
}

WorkerSeat::~WorkerSeat() {
  (void)::unlink(path_.c_str());  // what stays is removed by the next who starts
}

void WorkerSeat::write_count() {
  char text[32];
  std::snprintf(text, sizeof text, "%020llu\n", static_cast<unsigned long long>(++beats_));
  file_->write(0, text);
}

void WorkerSeat::beat() {
  write_count();
  file_->sync();  // else the client of a network file system may keep the bytes to itself for long
}

std::vector<uint64_t> workers_in(const std::string& directory) {
  std::error_code error;
  std::vector<uint64_t> workers;
  for (const std::string& name : base::names_in(directory, error)) {
    uint64_t worker = 0;
    const auto [end, wrong] = std::from_chars(name.data(), name.data() + name.size(), worker, 16);
    if (wrong == std::errc() && end == name.data() + name.size() && name.size() == 16)
      workers.push_back(worker);
  }
  return workers;
}

}  // namespace trireme::batch
