// Fuzzes bodies of OpenAI requests: any text is a request with members in range, or is refused.
#include <cstdint>
#include <cstdlib>

#include "serve/openai/completion_request.h"
#include "serve/openai/embedding_call.h"
#include "serve/openai/openai_error.h"
#include "serve/openai/responses_request.h"
#include "serve/openai/score_request.h"
#include "tests/fuzz_bounds.h"

namespace {

using namespace trireme;

void need(bool holds) {
  if (!holds) std::abort();
}

void check(const serve::CompletionRequest& r) {
  const engine::SamplingOptions& s = r.ask.generate.sampling;
  need(!r.model.empty() && r.choices >= 1 && r.best_of >= r.choices && r.best_of <= 128);
  need(s.temperature >= 0 && s.temperature <= 2 && s.top_p >= 0 && s.top_p <= 1 && s.top_k >= 0);
  need(s.min_p >= 0 && s.min_p <= 1 && s.repetition_penalty > 0 && r.ask.generate.max_tokens > 0);
  need(static_cast<int64_t>(r.prompts.size()) * r.best_of <= 2048);
  need(r.is_chat ? r.chat.messages.size() > 0 : !r.prompts.empty());
  s.check();
  const engine::GenerateRequest& g = r.ask.generate;
  need(g.likeliest >= 0 && g.likeliest <= 20 && g.biases.size() <= 300 && g.least_tokens >= 0);
  need(r.ask.stop.size() <= serve::kMostStops && g.stop.size() <= serve::kMostStopTokens);
  need(g.salt.size() <= serve::PagesRequest::kMostSalt);
  need(!r.must_call || (r.finds_calls && r.chat.tools.size() > 0));
  // Reading a form must end in a grammar or an error; automata have their own fuzz target.
  for (const serve::ToolForm how : {serve::ToolForm::tagged, serve::ToolForm::bare, serve::ToolForm::array}) {
    const serve::WantedForm form = r.whole_form(how);
    if (form.any()) need(!form.read().rules.empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const fuzz::BoundedWork bounded(size);
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    switch (data[0] % 6) {
      case 0: check(serve::completion_request(body, 1)); break;
      case 1: check(serve::chat_request(body, 1)); break;
      case 2: {
        const auto earlier = [](const std::string& id) {
          return base::Json::array(
              {base::Json::object({{"role", "assistant"}, {"content", id}, {"id", "a"}})});
        };
        const serve::ResponsesRequest r = serve::responses_request(body, 1, earlier);
        for (size_t i = 0; r.is_kept && i < r.items.size(); ++i)
          need(r.items.as_array()[i].at("id").is_string() && r.items.as_array()[i].at("type").is_string());
        check(r.chat);
        need(r.chat.is_chat && r.chat.choices == 1 && r.settings.is_object());
        break;
      }
      case 3: {
        const serve::RerankRequest r = serve::rerank_request(body);
        need(r.embedding.firsts == 1 && r.embedding.texts.size() > 1 && r.most > 0 &&
             r.most < r.embedding.texts.size());
        break;
      }
      case 4: {
        const serve::ScoreRequest r = serve::score_request(body);
        const size_t first = r.embedding.firsts, second = r.embedding.texts.size() - first;
        need(first > 0 && second > 0 && (first == 1 || first == second));
        break;
      }
      default: {
        const serve::EmbeddingRequest r = serve::embedding_request(body);
        need(!r.model.empty() || body.find("\"\"") != std::string_view::npos);
        need(!r.texts.empty() && r.dimensions >= 0);
      }
    }
  } catch (const base::Error& e) {
    need(e.code() != base::ErrorCode::internal);
    need(serve::openai_error(e).status >= 400);
  }
  return 0;
}
