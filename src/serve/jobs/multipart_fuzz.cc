// Fuzzes forms from clients: parts lie inside the body, and nothing is read beyond it.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "serve/jobs/multipart.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t head = input.find('\n');
  if (head == std::string_view::npos) return 0;
  const std::string_view body = input.substr(head + 1);
  try {
    for (const serve::FormPart& part : serve::parse_form(input.substr(0, head), body)) {
      if (part.content.data() < body.data() ||
          part.content.data() + part.content.size() > body.data() + body.size())
        __builtin_trap();
    }
  } catch (const base::Error&) {
    return 0;
  }
  return 0;
}
