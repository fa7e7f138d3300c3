// A language model as a batch job sees it: every row is a prompt that is continued.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "batch/models/prompt_text.h"
#include "batch/models/row_gate.h"
#include "batch/row_model.h"
#include "data/template/chat_template.h"
#include "data/text/tokenizer.h"
#include "sched/text/text_service.h"

namespace trireme::batch {

/// Rows run side by side with continuous batching. Its outputs: "text", "finish_reason" ("stop" or "length"),
/// "prompt_tokens" and "completion_tokens" i64, "logprob" f64: the sum over the answer's tokens.
class TextRowModel final : public RowModel {
 public:
  struct Parts {
    std::unique_ptr<data::Tokenizer> tokenizer;
    std::optional<data::ChatTemplate>
        chat_template;                 ///< a prompt is what the user says; none: it is continued
    std::string system;                ///< what the system says before, with a template
    std::optional<PromptText> prompt;  ///< always there
    engine::GenerateRequest generate;  ///< of every row, but for its prompt
    std::vector<std::string> stop;     ///< texts that end an answer
    int64_t window_rows = 0;
    sched::TextService::MakeSession make;
    base::Json identity;
  };
  /// Throws what making a session throws. `clock` outlives the model.
  TextRowModel(Parts parts, const base::Clock& clock);
  ~TextRowModel() override;

  std::vector<std::string> columns() const override { return parts_.prompt->columns(); }
  std::vector<data::Field> outputs() const override;
  int64_t piece_rows() const override;
  void submit(std::shared_ptr<const data::Rows> piece, PieceSink sink) override;
  void give_up() override { gate_.give_up(); }
  ModelUse use() const override;
  base::Json identity() const override { return parts_.identity; }

 private:
  class Answer;
  struct Work;
  std::vector<int64_t> prompt_of(const data::Rows& piece, int64_t row) const;
  void settle(Work& work);

  const Parts parts_;
  RowGate gate_;
  std::atomic<int64_t> rows_{0}, tokens_{0};
  sched::TextService service_;  ///< its thread uses the others
};

}  // namespace trireme::batch
