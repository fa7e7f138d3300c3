// Prometheus registry: append-only lists that are searched and extended without locks, and the text format.
#include "serve/seeing/metrics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/utf8.h"
#include "serve/seeing/metric_summary.h"

namespace trireme::serve {

struct MetricRegistry::Series {
  MetricLabels labels;
  std::string label_text;  // name="value",... escaped, without braces
  std::unique_ptr<MetricCounter> counter;
  std::unique_ptr<MetricGauge> gauge;
  std::unique_ptr<MetricHistogram> histogram;
  std::unique_ptr<MetricSummary> summary;
  double scale = 1;  // of the summary
  std::function<double()> read;
  std::atomic<bool> hidden{false};
  Series* next = nullptr;
};

struct MetricRegistry::Family {
  std::string name;
  std::string help;
  Kind kind;
  std::atomic<Series*> series{nullptr};
  Family* next = nullptr;
};

namespace {

// Searches the list from its head. If no node fits, pushes the one that `make` builds, after searching the
// nodes that others pushed meanwhile. Nodes are never removed, so a failed exchange only means that the newer
// part must be searched.
template <class Node, class Fits, class Make>
Node& find_or_push(std::atomic<Node*>& head, const Fits& fits, const Make& make) {
  Node* seen_until = nullptr;
  Node* first = head.load();
  std::unique_ptr<Node> fresh;
  for (;;) {
    for (Node* n = first; n != seen_until; n = n->next) {
      if (fits(*n)) return *n;
    }
    if (fresh == nullptr) fresh = make();
    fresh->next = first;
    seen_until = first;
    if (head.compare_exchange_strong(first, fresh.get())) return *fresh.release();
  }
}

template <class Node>
std::vector<const Node*> oldest_first(const std::atomic<Node*>& head) {
  std::vector<const Node*> out;
  for (const Node* n = head.load(); n != nullptr; n = n->next) out.push_back(n);
  std::reverse(out.begin(), out.end());
  return out;
}

// Metric names are [a-zA-Z_:][a-zA-Z0-9_:]*, label names the same without colons.
bool is_name(std::string_view text, bool colon) {
  const auto ok = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c >= '0' && c <= '9') ||
           (colon && c == ':');
  };
  return !text.empty() && !(text[0] >= '0' && text[0] <= '9') && std::all_of(text.begin(), text.end(), ok);
}

/// Escapes names, which may come from files: a scraper rejects an exposition with a byte that is not UTF-8.
void append_escaped(std::string& out, std::string_view text, bool quotes) {
  for (size_t at = 0; at < text.size();) {
    const char32_t c = base::next_code_point(text, at);
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && quotes) {
      out += "\\\"";
    } else {
      base::append_utf8(out, c);
    }
  }
}

void append_value(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "NaN";
  } else if (std::isinf(value)) {
    out += value > 0 ? "+Inf" : "-Inf";
  } else {
    std::array<char, 40> digits;
    out.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr);
  }
}

// Whole numbers keep all their digits, without exponents such as 1e+07.
void append_value(std::string& out, uint64_t value) { out += std::to_string(value); }

template <class Value>
void append_sample(std::string& out, std::string_view name, std::string_view labels, Value value) {
  out += name;
  if (!labels.empty()) out.append("{").append(labels).append("}");
  out += ' ';
  append_value(out, value);
  out += '\n';
}

// Buckets are cumulative in the exposition, and the last one equals the count. All are summed from one
// reading, so that a scrape never shows a count below a bucket.
void append_histogram(std::string& out, const std::string& name, const std::string& labels,
                      const MetricHistogram& h) {
  const std::string comma = labels.empty() ? "" : labels + ",";
  uint64_t total = 0;
  for (size_t i = 0; i <= h.bounds().size(); ++i) {
    total += h.in_bucket(i);
    std::string le = comma + "le=\"";
    append_value(le, i < h.bounds().size() ? h.bounds()[i] : INFINITY);
    append_sample(out, name + "_bucket", le + "\"", total);
  }
  append_sample(out, name + "_sum", labels, h.sum());
  append_sample(out, name + "_count", labels, total);
}

// Sum and count include all observations, as Prometheus demands; only the quantiles are of recent ones.
void append_summary(std::string& out, const std::string& name, const std::string& labels, MetricSummary& s,
                    double scale) {
  const std::vector<double> values = s.read();
  for (size_t i = 0; i < values.size(); ++i) {
    std::string quantile = labels.empty() ? "quantile=\"" : labels + ",quantile=\"";
    append_value(quantile, MetricSummary::kQuantiles[i]);
    append_sample(out, name, quantile + "\"", values[i] * scale);
  }
  append_sample(out, name + "_sum", labels, s.histogram().sum() * scale);
  append_sample(out, name + "_count", labels, s.histogram().count());
}

constexpr int kKeyShift = 49;  // keeps the first three of a double's 52 fraction bits

uint64_t key_of(double value) { return std::bit_cast<uint64_t>(value) >> kKeyShift; }

}  // namespace

MetricHistogram::MetricHistogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), buckets_(std::make_unique<std::atomic<uint64_t>[]>(bounds_.size() + 1)) {
  base::check(std::is_sorted(bounds_.begin(), bounds_.end(), std::less_equal<>()),
              "histogram bounds do not ascend");
  if (bounds_.empty() || bounds_.front() <= 0) return;
  first_key_ = key_of(bounds_.front());
  for (uint64_t key = first_key_; key <= key_of(bounds_.back()); ++key) {
    const double least = std::bit_cast<double>(key << kKeyShift);
    const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), least);
    table_.push_back(static_cast<uint16_t>(at - bounds_.begin()));
  }
}

/// The first bound that is not below the value, because bounds are inclusive (le).
size_t MetricHistogram::bucket_of(double value) const {
  size_t i = 0;
  if (!table_.empty() && value > 0) {
    const uint64_t key = key_of(value);
    if (key >= first_key_) i = key - first_key_ < table_.size() ? table_[key - first_key_] : bounds_.size();
  }
  while (i < bounds_.size() && bounds_[i] < value) ++i;
  return i;
}

void MetricHistogram::observe(double value) {
  buckets_[bucket_of(value)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

uint64_t MetricHistogram::count() const {
  uint64_t total = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i) total += in_bucket(i);
  return total;
}

std::vector<double> metric_buckets(double low, double factor, int count) {
  std::vector<double> bounds;
  for (int i = 0; i < count; ++i) {
    // Three significant digits, because queries must repeat the bounds as label texts.
    std::array<char, 40> text;
    const double exact = low * std::pow(factor, i);
    char* end =
        std::to_chars(text.data(), text.data() + text.size(), exact, std::chars_format::general, 3).ptr;
    double rounded = 0;
    std::from_chars(text.data(), end, rounded);
    bounds.push_back(rounded);
  }
  return bounds;
}

MetricRegistry::MetricRegistry() = default;

MetricRegistry::~MetricRegistry() {
  for (Family* f = families_.load(); f != nullptr;) {
    for (Series* s = f->series.load(); s != nullptr;) delete std::exchange(s, s->next);
    delete std::exchange(f, f->next);
  }
}

MetricRegistry::Family& MetricRegistry::family(std::string_view name, std::string_view help, Kind kind) {
  base::check(is_name(name, true), "metric name is not allowed: ", name);
  Family& found = find_or_push(
      families_, [&](const Family& f) { return f.name == name; },
      [&] {
        auto fresh = std::make_unique<Family>();
        fresh->name = name;
        fresh->help = help;
        fresh->kind = kind;
        return fresh;
      });
  base::check(found.kind == kind, "metric is registered with two kinds: ", name);
  return found;
}

MetricRegistry::Series& MetricRegistry::series(Family& family, const MetricLabels& labels,
                                               const std::function<void(Series&)>& make) {
  return find_or_push(
      family.series, [&](const Series& s) { return s.labels == labels; },
      [&] {
        auto fresh = std::make_unique<Series>();
        fresh->labels = labels;
        for (const auto& [name, value] : labels) {
          base::check(is_name(name, false), "metric label is not allowed: ", name);
          fresh->label_text += fresh->label_text.empty() ? name + "=\"" : "," + name + "=\"";
          append_escaped(fresh->label_text, value, true);
          fresh->label_text += '"';
        }
        make(*fresh);
        return fresh;
      });
}

MetricCounter& MetricRegistry::counter(std::string_view name, std::string_view help,
                                       const MetricLabels& labels) {
  Series& s = series(family(name, help, Kind::counter), labels,
                     [](Series& fresh) { fresh.counter = std::make_unique<MetricCounter>(); });
  base::check(s.counter != nullptr, "metric is read by a function: ", name);
  return *s.counter;
}

MetricGauge& MetricRegistry::gauge(std::string_view name, std::string_view help, const MetricLabels& labels) {
  Series& s = series(family(name, help, Kind::gauge), labels,
                     [](Series& fresh) { fresh.gauge = std::make_unique<MetricGauge>(); });
  base::check(s.gauge != nullptr, "metric is read by a function: ", name);
  return *s.gauge;
}

MetricHistogram& MetricRegistry::histogram(std::string_view name, std::string_view help,
                                           const std::vector<double>& bounds, const MetricLabels& labels) {
  const auto make = [&](Series& fresh) { fresh.histogram = std::make_unique<MetricHistogram>(bounds); };
  return *series(family(name, help, Kind::histogram), labels, make).histogram;
}

void MetricRegistry::summary_of(std::string_view name, std::string_view help, const MetricLabels& labels,
                                const SummarySource& source) {
  series(family(name, help, Kind::summary), labels, [&](Series& fresh) {
    fresh.summary = std::make_unique<MetricSummary>(source.histogram, source.clock);
    fresh.scale = source.scale;
  });
}

void MetricRegistry::gauge_from(std::string_view name, std::string_view help, const MetricLabels& labels,
                                std::function<double()> read) {
  series(family(name, help, Kind::gauge), labels, [&](Series& fresh) { fresh.read = std::move(read); });
}

void MetricRegistry::counter_from(std::string_view name, std::string_view help, const MetricLabels& labels,
                                  std::function<double()> read) {
  series(family(name, help, Kind::counter), labels, [&](Series& fresh) { fresh.read = std::move(read); });
}

void MetricRegistry::show_only(const std::pair<std::string, std::string>& of, std::string_view by,
                               const std::vector<std::string>& values) {
  for (Family* f = families_.load(); f != nullptr; f = f->next) {
    for (Series* s = f->series.load(); s != nullptr; s = s->next) {
      if (std::find(s->labels.begin(), s->labels.end(), of) == s->labels.end()) continue;
      const bool is_shown = std::any_of(s->labels.begin(), s->labels.end(), [&](const auto& l) {
        return l.first == by && std::find(values.begin(), values.end(), l.second) != values.end();
      });
      s->hidden.store(!is_shown);
    }
  }
}

std::string MetricRegistry::expose() const {
  static constexpr std::array<std::string_view, 4> kKinds = {"counter", "gauge", "histogram", "summary"};
  std::string out;
  for (const Family* f : oldest_first(families_)) {
    out.append("# HELP ").append(f->name).append(" ");
    append_escaped(out, f->help, false);
    out.append("\n# TYPE ")
        .append(f->name)
        .append(" ")
        .append(kKinds[static_cast<size_t>(f->kind)])
        .append("\n");
    for (const Series* s : oldest_first(f->series)) {
      if (s->hidden.load()) continue;
      if (s->histogram) {
        append_histogram(out, f->name, s->label_text, *s->histogram);
      } else if (s->summary) {
        append_summary(out, f->name, s->label_text, *s->summary, s->scale);
      } else if (s->counter) {
        append_sample(out, f->name, s->label_text, s->counter->value());
      } else if (s->gauge) {
        append_sample(out, f->name, s->label_text, s->gauge->value());
      } else if (const double value = s->read(); !std::isnan(value)) {
        append_sample(out, f->name, s->label_text, value);
      }
    }
  }
  return out;
}

}  // namespace trireme::serve
