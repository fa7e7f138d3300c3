// Tests the error type: codes keep their names, context is prepended outermost first.
#include "base/error.h"

#include <gtest/gtest.h>

namespace trireme::base {
namespace {

TEST(Error, ContextIsPrependedOutermostFirst) {
  const Error inner(ErrorCode::not_found, "no tensor 'w'");
  const Error outer = inner.with("file 'm.onnx'").with("model 'm'");
  EXPECT_EQ(outer.message(), "model 'm': file 'm.onnx': no tensor 'w'");
  EXPECT_EQ(outer.code(), ErrorCode::not_found);
}

TEST(Error, RequireThrowsInvalidArgumentWithJoinedMessage) {
  try {
    require(1 + 1 == 3, "want ", 3, ", got ", 2);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_STREQ(e.what(), "want 3, got 2");
  }
}

}  // namespace
}  // namespace trireme::base
