// Members of requests for texts: what ends an answer has bounds, and calls of tools come back as they were.
#include "serve/openai/completion_request.h"

#include <gtest/gtest.h>

#include "serve/openai/openai_error.h"

namespace trireme::serve {
namespace {

using base::Json;

/// The member that a request is refused for; empty: none.
std::string refused_member(const char* name, const Json& value, bool is_chat = false) {
  Json body = Json::object({{"model", "talk"}});
  if (is_chat) {
    body.set("messages", Json::array({Json::object({{"role", "user"}, {"content", "x"}})}));
  } else {
    body.set("prompt", "x");
  }
  body.set(name, value);
  try {
    is_chat ? chat_request(body, 1) : completion_request(body.dump(), 1);
  } catch (const MemberError& error) {
    return error.member();
  }
  return {};
}

TEST(CompletionRequest, WhatEndsAnAnswerIsBounded) {
  EXPECT_EQ(refused_member("stop", std::string(4096, 'y')), "");
  EXPECT_EQ(refused_member("stop", std::string(4097, 'y')), "stop");
  EXPECT_EQ(refused_member("stop", Json::array({"a", std::string(5000, 'y')})), "stop");
  EXPECT_EQ(refused_member("cache_salt", std::string(1024, 'y')), "");
  EXPECT_EQ(refused_member("cache_salt", std::string(1025, 'y')), "cache_salt");
  Json tokens = Json::array();
  for (int i = 0; i < 1024; ++i) tokens.push_back(1);
  EXPECT_EQ(refused_member("stop_token_ids", tokens), "");
  tokens.push_back(1);
  EXPECT_EQ(refused_member("stop_token_ids", tokens), "stop_token_ids");
}

TEST(CompletionRequest, WhatWouldChangeTheAnswerIsRefused) {
  for (const bool is_chat : {false, true}) {
    for (const bool value : {false, true}) {
      const auto is_refused = [&](const char* name) { return refused_member(name, value, is_chat) == name; };
      EXPECT_EQ(is_refused("include_stop_str_in_output"), value);
      EXPECT_EQ(is_refused("skip_special_tokens"), !value);
      EXPECT_EQ(is_refused("add_special_tokens"), value == is_chat);
      EXPECT_EQ(is_refused("use_beam_search"), value);
    }
    EXPECT_EQ(refused_member("skip_special_tokens", Json(), is_chat), "");
    EXPECT_EQ(refused_member("skip_special_tokens", "no", is_chat), "skip_special_tokens");
  }
}

TEST(CompletionRequest, WhatWouldChangeAChatIsRefused) {
  const auto refused = [](const char* name, const Json& value) { return refused_member(name, value, true); };
  EXPECT_EQ(refused("chat_template", "{{ messages }}"), "chat_template");
  EXPECT_EQ(refused("documents", Json::array({Json::object({{"text", "x"}})})), "documents");
  EXPECT_EQ(refused("documents", Json::array()), "");
  EXPECT_EQ(refused("documents", Json()), "");
  EXPECT_EQ(refused("web_search_options", Json::object()), "web_search_options");
  EXPECT_EQ(refused("audio", Json::object({{"voice", "alloy"}})), "audio");
  EXPECT_EQ(refused("modalities", Json::array({"text", "audio"})), "modalities");
  EXPECT_EQ(refused("modalities", Json::array({"text"})), "");
  const Json function = Json::object({{"name", "f"}});
  EXPECT_EQ(refused("tools", Json::array({Json::object({{"type", "custom"}, {"function", function}})})),
            "tools");
  EXPECT_EQ(refused("tools", Json::array({Json::object({{"type", "function"}, {"function", function}})})),
            "");
  Json body = Json::object({{"model", "talk"}, {"prompt", "x"}, {"stream", true}, {"stream_options", 5}});
  EXPECT_THROW(completion_request(body.dump(), 1), MemberError);
}

/// The arguments of an earlier call as a template is given them.
Json arguments_for_template(const char* sent) {
  const Json call = Json::object(
      {{"type", "function"}, {"function", Json::object({{"name", "weather"}, {"arguments", sent}})}});
  const Json said =
      Json::object({{"role", "assistant"}, {"content", Json()}, {"tool_calls", Json::array({call})}});
  const Json body = Json::object({{"model", "talk"}, {"messages", Json::array({said})}});
  const CompletionRequest r = chat_request(body, 1);
  return r.chat.messages.as_array()[0].at("tool_calls").as_array()[0].at("function").at("arguments");
}

TEST(CompletionRequest, ArgumentsOfCallsAreObjectsWhereTheyAreJson) {
  EXPECT_EQ(arguments_for_template(R"({"city": "Oslo"})"), Json::object({{"city", "Oslo"}}));
  EXPECT_EQ(arguments_for_template(""), Json::object());
  EXPECT_EQ(arguments_for_template(R"({"city": "Os)"), Json(R"({"city": "Os)")) << "cut off";
  EXPECT_EQ(arguments_for_template("[1]"), Json("[1]"));
}

}  // namespace
}  // namespace trireme::serve
