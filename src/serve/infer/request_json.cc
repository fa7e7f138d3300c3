// Parses JSON of requests: values are counted as events, at little cost, before objects are built.
#include "serve/infer/request_json.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::serve {
namespace {

constexpr size_t kMaxValues = 1'000'000;
constexpr size_t kSmallBytes = 1'000'000;  // cannot contain that many values

class ValueCounter final : public base::JsonHandler {
 public:
  void null() override { count(); }
  void boolean(bool) override { count(); }
  void integer(int64_t) override { count(); }
  void big_integer(uint64_t) override { count(); }
  void real(double) override { count(); }
  void string(std::string_view) override { count(); }
  void key(std::string_view) override {}
  void start_object() override { count(); }
  void end_object() override {}
  void start_array() override { count(); }
  void end_array() override {}

 private:
  void count() {
    base::require(++values_ <= kMaxValues, "request JSON has more values than the limit of ", kMaxValues);
  }
  size_t values_ = 0;
};

/// Parses within the listener's size limit; the parser's own errors are prefixed with what was parsed.
template <class Parse>
void named(std::string_view body, base::JsonLimits& limits, const Parse& parse) {
  limits.size_bytes = std::max(limits.size_bytes, body.size());
  try {
    parse();
  } catch (const base::Error& e) {
    if (e.message().rfind("JSON ", 0) != 0) throw;  // thrown by the handler
    throw e.with("failed to parse the request JSON buffer");
  }
}

}  // namespace

void parse_request_json(std::string_view body, base::JsonHandler& handler, base::JsonLimits limits) {
  named(body, limits, [&] { base::parse_json(body, handler, limits); });
}

base::Json request_json(std::string_view body, base::JsonLimits limits) {
  if (body.size() > kSmallBytes) {
    ValueCounter counter;
    parse_request_json(body, counter, limits);
  }
  base::Json json;
  named(body, limits, [&] { json = base::parse_json(body, limits); });
  return json;
}

}  // namespace trireme::serve
