// What protocols of language models ask of a model, whatever is behind it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text/json.h"
#include "data/template/chat_template.h"
#include "data/text/tokenizer.h"
#include "engine/decode/generator.h"
#include "sched/text/grammar_filter.h"
#include "serve/access/quota.h"
#include "serve/models/pages_request.h"

namespace trireme::serve {

/// A model as the OpenAI API names it: MODEL, or MODEL:ADAPTER.
struct ModelName {
  std::string_view base, adapter;  ///< of the name that was split; an empty adapter: none
};
inline ModelName split_model_name(std::string_view name) {
  const size_t colon = name.find(':');
  if (colon == std::string_view::npos) return {name, {}};
  return {name.substr(0, colon), name.substr(colon + 1)};
}

/// A prompt to be continued. The model adds the tokens that end its texts to `generate.stop`.
struct TextAsk {
  engine::GenerateRequest generate;
  std::vector<std::string> stop;  ///< texts that end the answer, and are not part of it
  /// What the answer follows; null: nothing. Of the same model.
  std::shared_ptr<sched::AnswerGrammar> grammar = nullptr;
  bool ignores_end = false;    ///< goes on behind the tokens that end a text
  std::string tenant;          ///< the word that tells tenants apart
  uint64_t priority = 0;       ///< 0: the default, 1: highest
  uint64_t timeout_us = 0;     ///< it must have begun by then; 0: the server's
  int64_t received_ns = 0;     ///< steady clock
  bool is_background = false;  ///< it runs in what others leave, and waits as long as it takes
  std::shared_ptr<TokenCharge> charge = nullptr;  ///< that its tokens are counted on; null: none
};

/// What ends an answer at most, since each answer has a copy and looks for all of it behind every token:
/// texts, bytes of one, and tokens.
inline constexpr size_t kMostStops = 16, kMostStopBytes = 4096, kMostStopTokens = 1024;

/// What a token adds to an answer.
struct TextPiece {
  std::string_view text;       ///< whole characters; empty while one is open or a stop text may have begun
  int64_t token = -1;          ///< -1: none, what was held back comes last
  double log_probability = 0;  ///< natural logarithm, among the tokens that might have come
  std::span<const engine::TokenChance> likeliest = {};  ///< as many as were asked for, the likeliest first
  std::span<const engine::ScoredToken> prompt = {};     ///< with the first token, where the prompt is scored
};

/// How an answer ended, and how much there was.
struct TextEnd {
  engine::FinishReason reason = engine::FinishReason::none;  ///< stop or length
  int64_t prompt_tokens = 0;
  int64_t known_tokens = 0;  ///< of these, those that did not run because another text began so
  int64_t answer_tokens = 0;
};

/// Who reads an answer as it comes. Told on the model's thread, one call at a time, while no step runs: what
/// it does must be quick. The last call is on_end() or on_error().
class TextReader {
 public:
  virtual ~TextReader() = default;
  virtual void on_piece(const TextPiece& piece) = 0;
  virtual void on_end(const TextEnd& end) = 0;
  virtual void on_error(const base::Error& error) = 0;
  /// Nobody reads any more.
  virtual bool is_gone() const = 0;
};

/// One of the answers to a request, and who reads it.
struct AskedText {
  TextAsk ask;
  std::shared_ptr<TextReader> reader;
};

/// Who reads the pages of a prompt as they are computed. Told on the model's thread, one call at a time, the
/// last one on_end() or on_error(); what it does must be quick.
class PageReader {
 public:
  virtual ~PageReader() = default;
  /// A page as it travels (engine/pages/handed_pages.h). False: no more is taken.
  virtual bool on_page(std::string record) = 0;
  virtual void on_end() = 0;
  virtual void on_error(const base::Error& error) = 0;
  virtual bool is_gone() const = 0;
};

/// A conversation as the model's template takes it.
struct Chat {
  base::Json messages;  ///< an array of objects with a role
  base::Json tools;     ///< an array of schemas, or null
  data::ChatOptions options;
};

/// How a model writes calls of tools: <tool_call>{"name", "arguments"}</tool_call> (Hermes, Qwen), bare
/// objects with "name" and "parameters" (Llama 3), or an array of objects with "name" and "arguments"
/// (Mistral).
enum class ToolForm : uint8_t { tagged, bare, array };

/// Any thread.
class TextModel {
 public:
  virtual ~TextModel() = default;
  virtual const data::Tokenizer& tokenizer() const = 0;
  /// Tokens of prompt and answer at most: of what the model knows, and of what there are pages for.
  virtual int64_t max_length() const = 0;
  /// The prompt that a conversation becomes by the model's template. Throws unsupported where it has none,
  /// invalid_argument for messages that the template refuses.
  virtual std::string chat_prompt(const Chat& chat) const = 0;
  /// How the model's template writes calls.
  virtual ToolForm tool_form() const = 0;
  /// A grammar for answers of this model: compiled by `read`, or known from an equal `source`. May take some
  /// tenths of a second. Throws what is wrong with it.
  virtual std::shared_ptr<sched::AnswerGrammar> grammar(const std::string& source,
                                                        const std::function<data::Grammar()>& read) = 0;
  /// Whether adapters can be loaded, and the names of those that are.
  virtual bool takes_adapters() const = 0;
  virtual std::vector<std::string> adapters() const = 0;
  /// Throws not_found.
  virtual std::shared_ptr<const engine::LoadedAdapter> adapter(std::string_view name) const = 0;
  /// Throws what is wrong with the directory, or that there is no room.
  virtual void load_adapter(const std::string& name, const std::string& directory) = 0;
  /// Texts that began with it end with it. Throws not_found.
  virtual void unload_adapter(std::string_view name) = 0;
  /// Queues the answers of one request, all of them or none. Each is made once there is memory for those
  /// before it. Throws invalid_argument for a prompt that the model cannot take and for more answers than may
  /// ever wait, exhausted where too many wait, unavailable while it shuts down; otherwise the readers are
  /// told of everything.
  virtual void ask(size_t answers, const std::function<AskedText(size_t answer)>& make) = 0;
  /// Has the pages of a prompt computed for another server. Throws what ask() throws, not_found for an
  /// adapter that there is not, unsupported where pages are not given.
  virtual void give_pages(const PagesRequest& asked, std::shared_ptr<PageReader> reader) = 0;
};

}  // namespace trireme::serve
