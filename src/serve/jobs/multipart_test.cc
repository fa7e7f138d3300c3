// Tests forms with files: what clients send, byte for byte, and invalid forms.
#include "serve/jobs/multipart.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace trireme::serve {
namespace {

constexpr const char* kType = "multipart/form-data; boundary=xYz";

TEST(Multipart, PartsAreWhatWasSent) {
  const std::string content("\x00\xff\r\n--xY\r\n--\r\n", 14);
  const std::string body =
      "--xYz\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--xYz\r\n"
      "content-type: text/plain\r\nCONTENT-DISPOSITION: form-data; name=file; "
      "filename=\"a \\\"b\\\"; c.jsonl\"\r\n\r\n" +
      content + "\r\n--xYz--\r\n";
  const std::vector<FormPart> parts = parse_form(kType, body);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].name, "purpose");
  EXPECT_EQ(parts[0].content, "batch");
  EXPECT_EQ(parts[0].filename, "");
  EXPECT_EQ(parts[1].name, "file");
  EXPECT_EQ(parts[1].filename, "a \"b\"; c.jsonl");
  EXPECT_EQ(parts[1].content, content);
  // Text before the first boundary is ignored, and the boundary may be quoted.
  EXPECT_EQ(parse_form("Multipart/Form-Data; charset=x; boundary=\"xYz\"", "preamble\r\n" + body).size(), 2u);
  EXPECT_TRUE(parse_form(kType, "--xYz--").empty());
}

TEST(Multipart, EmptyFilesAreFiles) {
  const std::vector<FormPart> parts = parse_form(
      kType, "--xYz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"e\"\r\n\r\n\r\n--xYz--");
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].content, "");
}

TEST(Multipart, EveryCutIsRefusedOrShorter) {
  const std::string body =
      "--xYz\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--xYz\r\n"
      "Content-Disposition: form-data; name=\"b\"\r\n\r\n2\r\n--xYz--\r\n";
  ASSERT_EQ(parse_form(kType, body).size(), 2u);
  for (size_t cut = 0; cut + 2 < body.size(); ++cut) {
    try {
      EXPECT_EQ(parse_form(kType, std::string_view(body).substr(0, cut)).size(), 2u) << cut;
      EXPECT_GE(cut, body.size() - 2) << cut;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
    }
  }
}

TEST(Multipart, RefusesWhatIsNoForm) {
  const auto refused = [](const char* type, const std::string& body) {
    try {
      parse_form(type, body);
    } catch (const base::Error& e) {
      return e.message();
    }
    return std::string("taken");
  };
  EXPECT_NE(refused("application/json", "{}").find("multipart/form-data"), std::string::npos);
  EXPECT_NE(refused("multipart/form-data", "--x--").find("boundary"), std::string::npos);
  EXPECT_NE(refused(kType, "nothing").find("no boundary"), std::string::npos);
  EXPECT_NE(refused(kType, "--xYz\r\nX: y\r\n\r\nno name\r\n--xYz--").find("no name"), std::string::npos);
  EXPECT_NE(refused(kType, "--xYz\r\nContent-Disposition: form-data; name=\"a\"\r\n--xYz--")
                .find("end of its head"),
            std::string::npos);
  std::string many;
  for (int i = 0; i < 65; ++i) many += "--xYz\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n";
  EXPECT_NE(refused(kType, many + "--xYz--").find("more than 64"), std::string::npos);
}

TEST(Multipart, HoldsItsBoundsOnNoise) {
  std::mt19937 random(1);
  const std::string pieces[] = {"--xYz", "\r\n", "--", "Content-Disposition: form-data; name=\"a\"",
                                "\"",    ";",    "x",  "=\\"};
  for (int i = 0; i < 20000; ++i) {
    std::string body;
    for (size_t n = random() % 12; n > 0; --n) body += pieces[random() % std::size(pieces)];
    try {
      for (const FormPart& part : parse_form(kType, body)) {
        ASSERT_GE(part.content.data(), body.data());
        ASSERT_LE(part.content.data() + part.content.size(), body.data() + body.size());
      }
    } catch (const base::Error&) {
      continue;
    }
  }
}

}  // namespace
}  // namespace trireme::serve
