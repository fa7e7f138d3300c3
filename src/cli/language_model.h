// A language model ready to generate, as `generate` and `chat` share it: its options, session, tokenizer and
// template.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/report/env.h"
#include "cli/device_options.h"
#include "comm/mesh.h"
#include "data/template/chat_template.h"
#include "data/text/tokenizer.h"
#include "engine/decode/cache_options.h"
#include "engine/decode/decode_ranks.h"
#include "engine/decode/decode_session.h"
#include "engine/decode/draft_model.h"
#include "engine/decode/sampling.h"
#include "engine/ranks/inference_ranks.h"
#include "model/model.h"
#include "sched/text/token_scheduler.h"

namespace trireme::cli {

struct LanguageOptions {
  std::string model, tokenizer, characters, chat_template;
  int64_t max_tokens = 128;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  engine::SamplingOptions sampling{.temperature = 0};
  DeviceOptions on;
  int threads = 0;
  std::vector<int64_t> cpus;
  passes::Precision precision = passes::Precision::f32;
  passes::WeightOptions weights;
  engine::InferenceRanks ranks;
  engine::CacheOptions cache;
  std::vector<std::string> adapter;  ///< directories
  engine::SpeculationOptions speculation;

  void fields(base::OptionList& f);
  engine::DecodeOptions session() const;
};

/// One owner thread.
class LanguageModel {
 public:
  /// Loads the model; the session is opened by run().
  explicit LanguageModel(LanguageOptions options);

  /// Opens the session on its ranks and runs `body` on the first; the others follow until it is over.
  int run(const std::function<int()>& body, base::Env& env);
  engine::DecodeSession& session() { return *session_; }
  /// How its texts are scheduled; `clock` outlives what is scheduled so.
  sched::TextSchedule schedule(const base::Clock& clock) const;
  /// Says in the log what became of guessed tokens.
  static void report(const sched::DraftCounts& counts, base::Env& env);

  /// Opened where text is met: numbers of tokens need none. Throws invalid_argument for a model without one.
  const data::Tokenizer& tokenizer();
  bool has_tokenizer() const {
    return tokenizer_ != nullptr || !o_.tokenizer.empty() || !o_.characters.empty();
  }
  /// The template of --chat-template, or the model's. Throws not_found if there is none.
  const data::ChatTemplate& chat_template();
  /// Tokens that end an answer.
  const std::vector<int64_t>& end_tokens() const { return end_; }
  /// The adapters that were given, in their order; from run() on.
  const std::vector<std::shared_ptr<const engine::LoadedAdapter>>& adapters() const { return adapters_; }
  /// The tokens of a conversation; a template writes its special tokens itself.
  std::vector<int64_t> encode_chat(const base::Json& messages, const base::Json& tools,
                                   const data::ChatOptions& options);

 private:
  void open(comm::Mesh* mesh);
  void make_room();
  void open_draft();
  std::string tokenizer_directory() const;

  LanguageOptions o_;
  model::Model model_;
  std::vector<int64_t> end_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::optional<data::ChatTemplate> template_;
  std::shared_ptr<engine::DecodeModel> prepared_,
      draft_;  ///< `draft_` is null where nothing is drafted by it
  std::vector<std::shared_ptr<const engine::LoadedAdapter>> adapters_;
  std::unique_ptr<engine::DecodeSession> session_;
  std::unique_ptr<engine::Drafter> drafter_;
};

}  // namespace trireme::cli
