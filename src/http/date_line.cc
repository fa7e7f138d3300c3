// The Date header, formatted once per second.
#include "http/date_line.h"

#include <array>
#include <ctime>

namespace trireme::http {

const std::string& DateLine::at(int64_t now_ns) {
  const int64_t second = now_ns / 1'000'000'000;
  if (second == second_) return text_;
  second_ = second;
  const std::time_t wall = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&wall, &utc);
  std::array<char, 64> text;
  const size_t bytes = std::strftime(text.data(), text.size(), "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &utc);
  text_.assign(text.data(), bytes);
  return text_;
}

}  // namespace trireme::http
