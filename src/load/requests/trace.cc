// Reading arrival traces of three forms; the replay.
#include "load/requests/trace.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/text/json.h"

namespace trireme::load {
namespace {

using Cells = std::vector<std::string_view>;

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\"");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\"") - begin + 1);
}

Cells cells_of(std::string_view line) {
  Cells cells;
  for (size_t cut; (cut = line.find(',')) != std::string_view::npos; line.remove_prefix(cut + 1))
    cells.push_back(trimmed(line.substr(0, cut)));
  cells.push_back(trimmed(line));
  return cells;
}

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

// A time of a log must fit an int64_t of nanoseconds with room for differences.
int64_t ns_of(double value, double unit_ns) {
  const double ns = value * unit_ns;
  base::require(std::isfinite(ns) && std::abs(ns) < 4e18, "time is out of range: ", value);
  return std::llround(ns);
}

// "2023-11-16 18:17:03.9799600", also with T, and with Z or +00:00 behind; in integers, for a double of
// seconds since 1970 resolves 240 ns only.
std::optional<int64_t> date_ns(std::string_view text) {
  if (text.ends_with("+00:00")) text.remove_suffix(6);
  if (text.ends_with('Z')) text.remove_suffix(1);
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' || text[13] != ':' || text[16] != ':') return {};
  const auto year = number_of<int>(text.substr(0, 4));
  const auto month = number_of<unsigned>(text.substr(5, 2)), day = number_of<unsigned>(text.substr(8, 2));
  const auto hour = number_of<int64_t>(text.substr(11, 2)), minute = number_of<int64_t>(text.substr(14, 2));
  const auto second = number_of<int64_t>(text.substr(17, 2));
  if (!year || !month || !day || !hour || !minute || !second) return {};
  // Nanoseconds since 1970 fit an int64_t until 2262; a sign is no digit.
  if (*year < 1900 || *year > 2200 || *hour < 0 || *minute < 0 || *second < 0) return {};
  const std::chrono::year_month_day date{std::chrono::year(*year), std::chrono::month(*month),
                                         std::chrono::day(*day)};
  if (!date.ok()) return {};
  int64_t fraction_ns = 0;
  if (text.size() > 19) {
    std::string digits(text.substr(20, 9));
    if (text[19] != '.' || digits.empty()) return {};
    digits.resize(9, '0');
    const auto fraction = number_of<int64_t>(digits);
    if (!fraction || *fraction < 0) return {};
    fraction_ns = *fraction;
  }
  const int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return (((days * 24 + *hour) * 60 + *minute) * 60 + *second) * base::kNsPerSecond + fraction_ns;
}

class CsvColumns {
 public:
  explicit CsvColumns(std::string_view head) {
    const Cells names = cells_of(head);
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] == "TIMESTAMP" || names[i] == "timestamp") time_ = i;
      if (names[i] == "ContextTokens" || names[i] == "length" || names[i] == "input_length") length_ = i;
      if (names[i] == "GeneratedTokens" || names[i] == "output_length") answer_ = i;
      if (names[i] == "model") model_ = i;
    }
    base::require(time_ != kNone, "trace's head line has no column timestamp: ", head);
  }

  Arrival read(std::string_view line) const {
    const Cells cells = cells_of(line);
    Arrival out;
    const std::string_view time = cell(cells, time_);
    if (const auto date = date_ns(time)) {
      out.at_ns = *date;
    } else {
      const auto seconds = number_of<double>(time);
      base::require(seconds.has_value(), "trace has no time in '", time, "'");
      out.at_ns = ns_of(*seconds, 1e9);
    }
    if (length_ != kNone) out.length = length_of(cell(cells, length_));
    if (answer_ != kNone) out.answer_length = length_of(cell(cells, answer_));
    if (model_ != kNone) out.model = cell(cells, model_);
    return out;
  }

 private:
  static int64_t length_of(std::string_view text) {
    const auto length = number_of<int64_t>(text);
    base::require(length && *length >= 0, "trace has no length in '", text, "'");
    return *length;
  }
  static std::string_view cell(const Cells& cells, size_t at) {
    base::require(at < cells.size(), "trace's line has too few columns");
    return cells[at];
  }
  static constexpr size_t kNone = std::string_view::npos;
  size_t time_ = kNone, length_ = kNone, answer_ = kNone, model_ = kNone;
};

Arrival read_json(std::string_view line) {
  const base::Json json = base::parse_json(line);
  Arrival out;
  out.at_ns = ns_of(json.at("timestamp").as_double(), 1e6);
  out.length = json.get_or<int64_t>("input_length", 0);
  out.model = json.get_or("model", "");
  out.answer_length = json.get_or<int64_t>("output_length", 0);
  base::require(out.length >= 0 && out.answer_length >= 0, "trace has a negative length");
  if (const base::Json* blocks = json.find("hash_ids")) {
    for (const base::Json& block : blocks->as_array()) out.blocks.push_back(block.as_int());
  }
  return out;
}

// Line by line; the first line tells which form the trace has.
class TraceReader {
 public:
  void add(std::string_view line) {
    if (line.starts_with('{')) {
      arrivals.push_back(read_json(line));
    } else if (columns_) {
      if (!line.empty()) arrivals.push_back(columns_->read(line));
    } else if (const auto gap_us = number_of<double>(line); gap_us && (gaps || arrivals.empty())) {
      base::require(*gap_us >= 0, "trace has a negative gap: ", *gap_us);
      gaps = true;
      const int64_t last = arrivals.empty() ? 0 : arrivals.back().at_ns, gap = ns_of(*gap_us, 1e3);
      base::require(gap < INT64_MAX - last, "trace's gaps add up to more than 292 years");
      arrivals.push_back({.at_ns = last + gap});
    } else if (!line.empty()) {
      base::require(arrivals.empty(), "trace's line is of another form than those before: ", line);
      columns_ = std::make_unique<CsvColumns>(line);
    }
  }
  std::vector<Arrival> arrivals;
  bool gaps = false;

 private:
  std::unique_ptr<CsvColumns> columns_;
};

}  // namespace

std::vector<Arrival> parse_trace(std::string_view text) {
  TraceReader reader;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    try {
      reader.add(trimmed(text.substr(0, end)));
    } catch (const base::Error& e) {
      throw e.with(base::concat("trace line ", number));
    }
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  std::vector<Arrival>& arrivals = reader.arrivals;
  base::require(!arrivals.empty(), "trace has no arrivals");
  std::stable_sort(arrivals.begin(), arrivals.end(),
                   [](const Arrival& a, const Arrival& b) { return a.at_ns < b.at_ns; });
  const int64_t first_ns = reader.gaps ? 0 : arrivals.front().at_ns;
  for (Arrival& a : arrivals) a.at_ns -= first_ns;
  return std::move(arrivals);
}

TracePacer::TracePacer(const std::vector<Arrival>& arrivals, std::vector<size_t> requests, double speed)
    : requests_(std::move(requests)) {
  base::require(speed > 0 && std::isfinite(speed), "trace needs a positive speed, not ", speed);
  base::check(requests_.size() == arrivals.size(), "trace has a request for each arrival");
  for (const Arrival& a : arrivals) times_ns_.push_back(ns_of(static_cast<double>(a.at_ns), 1 / speed));
}

int64_t TracePacer::next_ns() const { return done() ? kNever : times_ns_[next_]; }

Send TracePacer::take(int64_t) {
  const Send send{times_ns_[next_], requests_[next_], static_cast<int64_t>(next_)};
  ++next_;
  return send;
}

void TracePacer::answered(int64_t, int64_t, bool) {}

}  // namespace trireme::load
