// Measurements as they are made, on disk.
#include "tune/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/files/file.h"

namespace trireme::tune {
namespace {

int64_t checksum(const std::string& key, const std::string& id, const base::Json& value) {
  return base::crc32c(base::concat(key, '\n', id, '\n', value.dump()));
}

void write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) base::fail(base::ErrorCode::exhausted, "cannot write '", path, "': ", std::strerror(errno));
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

Journal::Journal(const std::string& path, std::string key) : path_(path), key_(std::move(key)) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) base::fail(base::ErrorCode::not_found, "cannot open '", path, "': ", std::strerror(errno));
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd_);
    base::fail(base::ErrorCode::unavailable, "another search writes '", path, "'");
  }
  read();
  resumed_ = entries_.size();
}

Journal::~Journal() { ::close(fd_); }

void Journal::read() {
  const std::string text = base::read_file(path_);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    try {
      const base::Json line = base::parse_json(std::string_view(text).substr(at, end - at));
      const std::string& id = line.at("id").as_string();
      const base::Json& value = line.at("value");
      if (line.at("key").as_string() == key_ && line.at("crc").as_int() == checksum(key_, id, value))
        entries_[id] = value;
    } catch (const base::Error&) {
      // Cut short or damaged: as if it had not been measured.
    }
    at = end + 1;
  }
  // What follows a line that was cut short begins on a line of its own.
  if (!text.empty() && text.back() != '\n') write_all(fd_, "\n", path_);
}

const base::Json* Journal::find(const std::string& id) const {
  const auto at = entries_.find(id);
  return at == entries_.end() ? nullptr : &at->second;
}

void Journal::add(const std::string& id, base::Json value) {
  // As it will be read: numbers printed and parsed are the same numbers.
  const base::Json line =
      base::Json::object({{"key", key_}, {"id", id}, {"crc", checksum(key_, id, value)}, {"value", value}});
  write_all(fd_, line.dump() + "\n", path_);
  if (::fdatasync(fd_) != 0)
    base::fail(base::ErrorCode::exhausted, "cannot flush '", path_, "': ", std::strerror(errno));
  entries_[id] = std::move(value);
}

}  // namespace trireme::tune
