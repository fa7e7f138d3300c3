// Measurements as they are made, on disk: an interrupted search goes on where it was.
#pragma once

#include <map>
#include <string>

#include "base/text/json.h"

namespace trireme::tune {

/// One line a measurement, appended and flushed to the disk before add() returns, each with a checksum: a
/// line that was cut short, or that is of another key (model, machine, program), counts as not there.
class Journal {
 public:
  /// Opens or makes the file. Throws unavailable if another process has it open.
  Journal(const std::string& path, std::string key);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// What was measured under this name, or null.
  const base::Json* find(const std::string& id) const;
  void add(const std::string& id, base::Json value);
  /// Measurements of this key that were there at the start.
  size_t resumed() const { return resumed_; }

 private:
  void read();

  const std::string path_, key_;
  int fd_ = -1;
  std::map<std::string, base::Json> entries_;
  size_t resumed_ = 0;
};

}  // namespace trireme::tune
