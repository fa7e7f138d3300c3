// Tests shortened messages: both ends stay, and characters stay whole.
#include "base/text/shortened.h"

#include <gtest/gtest.h>

#include "base/report/log.h"
#include "base/utf8.h"

namespace trireme::base {
namespace {

TEST(Shortened, KeepsBothEnds) {
  EXPECT_EQ(shortened(""), "");
  EXPECT_EQ(shortened(std::string(kMostMessageBytes, 'x')), std::string(kMostMessageBytes, 'x'));
  const std::string text = shortened("begin " + std::string(1'000'000, 'x') + " end");
  EXPECT_LT(text.size(), kMostMessageBytes + 40);
  EXPECT_EQ(text.find("begin xxx"), 0u);
  EXPECT_NE(text.find(" bytes left out] "), std::string::npos);
  EXPECT_EQ(text.substr(text.size() - 4), " end");
}

TEST(Shortened, CutsBetweenCharacters) {
  for (size_t offset = 0; offset < 8; ++offset) {
    std::string text(offset, 'a');
    for (int i = 0; i < 1000; ++i) text += "\xF0\x9F\x9A\xA3";  // a rowing boat
    const std::string cut = shortened(text, 100);
    for (size_t at = 0; at < cut.size();) EXPECT_NE(next_code_point(cut, at), 0xFFFDu) << offset;
  }
  EXPECT_LT(shortened(std::string(10'000, '\x80'), 100).size(), 140u);  // invalid UTF-8
}

TEST(Shortened, BoundsTheLinesOfTheLog) {
  std::string line;
  Log log(LogLevel::info, -1, [&](std::string_view text) { line = text; });
  log.info("serve", "failed", {{"error", std::string(1'000'000, 'x')}});
  EXPECT_LT(line.size(), 5000u);
}

}  // namespace
}  // namespace trireme::base
