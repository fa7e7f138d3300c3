// libFuzzer entry: arbitrary bytes in a plan's file either are that plan, or are reported and the plan is
// made anew; they never throw and are never taken for another plan.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "backend/cuda/kept/plan_file.h"
#include "backend/cuda/kept/plan_store.h"
#include "base/files/scratch.h"
#include "tests/fuzz_bounds.h"

namespace {

using namespace trireme;

constexpr std::string_view kKey = "GPU driver 13000 library 92600\nproduct";

/// Reads `content` as the file of the key; with `refuses`, the reader accepts no stored plan at first.
void look(const std::string& directory, std::string_view content, bool refuses) {
  const std::string path = directory + "/" + cuda::digest_of(kKey) + ".plan";
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
  cuda::PlanStore store(directory, int64_t{1} << 20);
  bool was_taken = false, was_made = false;
  store.get(
      std::string(kKey),
      [&](std::string_view body) {
        if (content != cuda::plan_file(kKey, body)) std::abort();
        return was_taken = !refuses;
      },
      [&] {
        was_made = true;
        return std::string("made");
      });
  if (was_taken == was_made || was_made == store.take_notice().empty()) std::abort();
  // The plan that was made is now stored for every process.
  bool is_there = was_taken;
  cuda::PlanStore(directory, int64_t{1} << 20)
      .get(
          std::string(kKey), [&](std::string_view body) { return is_there = is_there || body == "made"; },
          [] { return std::string(); });
  if (!is_there) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const fuzz::BoundedWork bounded(size);
  static const auto directory = base::make_scratch("trireme-fuzz-plans");
  const std::string_view content(reinterpret_cast<const char*>(bytes), size);
  look(*directory, content, false);
  // The same bytes with a valid header, which mutation alone hardly finds.
  const std::string whole = cuda::plan_file(kKey, content);
  look(*directory, whole, false);
  look(*directory, whole, content != "made");
  return 0;
}
