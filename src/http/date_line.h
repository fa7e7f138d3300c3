// Internal to the HTTP server: the Date header of answers.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::http {

/// `Date: ...\r\n`, renewed once a second of the steady clock.
class DateLine {
 public:
  const std::string& at(int64_t now_ns);

 private:
  int64_t second_ = -1;
  std::string text_;
};

}  // namespace trireme::http
