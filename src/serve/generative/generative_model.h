// A language model that continues texts: one session whose steps all texts under way share.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/decode/decode_model.h"
#include "model/model.h"
#include "sched/text/text_service.h"
#include "serve/generative/text_call.h"
#include "serve/models/border.h"
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
  int64_t max_length() const override { return service_->limits().max_length; }
  std::string chat_prompt(const Chat& chat) const override;
  void ask(TextAsk ask, std::shared_ptr<TextReader> reader) override;

  void infer(InferRequest request, InferSink sink) override;
  size_t waiting() const override { return service_->stats().waiting; }
  /// A step that takes longer than the server's --instance-timeout hangs.
  bool is_well() const override;
  MemoryUse memory() const override;
  void drain() override { service_->drain(); }
  void stop() override;

 private:
  struct Parts;
  GenerativeModel(Parts parts, const ModelSource& source, const ModelHost& host, const ModelMetrics* earlier);
  static Parts load(const ModelSource& source, const ModelHost& host);
  static void add_turn_end(Parts& parts);
  void submit(TextAsk ask, const std::shared_ptr<TextCall>& call);
  TextAsk ask_of(InferRequest& request) const;

  const std::unique_ptr<data::Tokenizer> tokenizer_;
  const std::optional<data::ChatTemplate> template_;
  const std::vector<int64_t> end_tokens_;
  const Border border_;
  const QueueRules queue_rules_;
  const int64_t step_timeout_ns_, weight_bytes_;
  TextMetrics text_metrics_;
  TextCall::Host call_host_;
  bool is_abandoned_ = false;                    ///< a step that hangs still uses the service
  std::unique_ptr<sched::TextService> service_;  ///< its thread uses the others
};

}  // namespace trireme::serve
