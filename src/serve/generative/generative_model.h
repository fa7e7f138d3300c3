// A language model that continues texts: one session whose steps all texts under way share.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/decode/decode_model.h"
#include "model/model.h"
#include "serve/generative/grammar_cache.h"
#include "serve/generative/served_adapters.h"
#include "serve/generative/text_call.h"
#include "serve/generative/text_services.h"
#include "serve/models/border.h"
#include "serve/models/preparing_threads.h"
#include "serve/models/queue_rules.h"
#include "serve/models/served_model.h"
#include "serve/models/text_model.h"

namespace trireme::serve {

/// True for what this kind serves: a Hugging Face directory of a causal language model with its tokenizer, or
/// a GGUF file, unless a config.pbtxt names inputs, by which it is served as tensors.
bool is_generative(const ModelSource& source);

/// As a tensor model it takes `text_input` and gives `text_output`, in parts where the client takes several:
/// what /v2/models/NAME/generate, generate_stream and ModelStreamInfer show.
class GenerativeModel final : public ServedModel, public TextModel {
 public:
  /// Loads the model and its tokenizer and compiles the smallest step; throws what is wrong with them.
  GenerativeModel(const ModelSource& source, const ModelHost& host, const ModelMetrics* earlier);
  ~GenerativeModel() override;

  TextModel* texts() override { return this; }
  const data::Tokenizer& tokenizer() const override { return *tokenizer_; }
  int64_t max_length() const override { return services_->answering().limits().most_length(); }
  std::string chat_prompt(const Chat& chat) const override;
  ToolForm tool_form() const override;
  std::shared_ptr<sched::AnswerGrammar> grammar(const std::string& source,
                                                const std::function<data::Grammar()>& read) override {
    return grammars_.find(source, read);
  }
  bool takes_adapters() const override { return adapters_.has_room(); }
  std::vector<std::string> adapters() const override { return adapters_.names(); }
  std::shared_ptr<const engine::LoadedAdapter> adapter(std::string_view name) const override;
  void load_adapter(const std::string& name, const std::string& directory) override;
  void unload_adapter(std::string_view name) override;
  void ask(size_t answers, const std::function<AskedText(size_t answer)>& make) override;
  void give_pages(const PagesRequest& asked, std::shared_ptr<PageReader> reader) override;

  void infer(InferRequest request, InferSink sink) override;
  size_t waiting() const override { return tokenizing_.waiting() + services_->answering().stats().waiting; }
  bool is_well() const override { return services_->is_well(); }
  MemoryUse memory() const override;
  void drain() override {
    tokenizing_.drain();
    services_->drain();
  }
  void stop() override;

 private:
  struct Parts;
  class PartsReader;
  GenerativeModel(Parts parts, const ModelSource& source, const ModelHost& host, const ModelMetrics* earlier);
  static Parts load(const ModelSource& source, const ModelHost& host);
  struct Wanted;
  void submit(size_t answers, const std::function<Wanted(size_t answer)>& make);
  sched::TextRequest request_of(TextAsk ask, const std::shared_ptr<TextCall>& call);
  TextAsk ask_of(InferRequest& request) const;
  void begin(InferRequest& request, const std::shared_ptr<PartsReader>& reader, int64_t received_ns);

  const std::unique_ptr<data::Tokenizer> tokenizer_;
  const std::optional<data::ChatTemplate> template_;
  const std::vector<int64_t> end_tokens_;
  GrammarCache grammars_;
  ServedAdapters adapters_;
  const Border border_;
  const QueueRules queue_rules_;
  const bool shares_by_tenant_;
  const int64_t weight_bytes_;
  TextMetrics text_metrics_;
  TextCall::Host call_host_;
  std::unique_ptr<TextServices> services_;  ///< their threads use the others
  PreparingThreads tokenizing_;             ///< of long texts; last: its thread uses all
};

}  // namespace trireme::serve
