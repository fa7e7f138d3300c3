// A language model as a batch job sees it.
#include "batch/models/text_row_model.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "batch/models/answer_rows.h"
#include "data/text/answer_text.h"
#include "sched/current_error.h"

namespace trireme::batch {
namespace {

using engine::FinishReason;

enum Output : size_t { kText, kFinish, kPromptTokens, kCompletionTokens, kLogProbability };

}  // namespace

/// A piece under way.
struct TextRowModel::Work {
  Work(int64_t count, PieceSink s, std::vector<data::Field> fields)
      : sink(std::move(s)), rows(count), answers(std::move(fields), count), unanswered(count + 1) {}

  PieceSink sink;
  const int64_t rows;
  std::mutex mutex;
  AnswerRows answers;  // under the mutex
  std::atomic<int64_t> unanswered;
};

/// The answer to one row, as the service tells it.
class TextRowModel::Answer final : public sched::TextListener {
 public:
  Answer(TextRowModel& model, std::shared_ptr<Work> work, int64_t row, int64_t prompt_tokens)
      : model_(model),
        work_(std::move(work)),
        row_(row),
        prompt_tokens_(prompt_tokens),
        text_(*model.parts_.tokenizer, model.parts_.stop) {}

  void on_begin(int64_t) override {}
  bool on_token(const engine::GenerateEvent& event) override {
    ++tokens_;
    log_probability_ += event.log_probability;
    text_.push(event.token);
    if (!text_.is_stopped()) return true;
    finish(FinishReason::stop);
    return false;
  }
  void on_end(FinishReason reason) override {
    if (reason == FinishReason::cancelled || reason == FinishReason::expired)
      return on_error(given_up_error());
    text_.finish();
    finish(reason);
  }
  void on_error(const base::Error& error) override {
    {
      const std::lock_guard lock(work_->mutex);
      work_->answers.fail(row_, error);
    }
    model_.settle(*work_);
  }
  bool is_gone() const override { return model_.gate_.is_given_up(); }

 private:
  void finish(FinishReason reason) {
    using tensor::Tensor;
    {
      const std::lock_guard lock(work_->mutex);
      AnswerRows& answers = work_->answers;
      answers.set_strings(kText, row_, text_.text());
      answers.set_strings(kFinish, row_, std::string(engine::to_string(reason)));
      answers.set_number(kPromptTokens, row_, Tensor::scalar(prompt_tokens_));
      answers.set_number(kCompletionTokens, row_, Tensor::scalar(tokens_));
      answers.set_number(kLogProbability, row_, Tensor::scalar(log_probability_));
    }
    model_.tokens_ += prompt_tokens_ + tokens_;
    ++model_.rows_;
    model_.settle(*work_);
  }

  TextRowModel& model_;
  const std::shared_ptr<Work> work_;
  const int64_t row_, prompt_tokens_;
  int64_t tokens_ = 0;
  double log_probability_ = 0;
  data::AnswerText text_;
};

TextRowModel::TextRowModel(Parts parts, const base::Clock& clock)
    : parts_(std::move(parts)),
      gate_(std::max<int64_t>(1, parts_.window_rows)),
      service_(parts_.make, {.max_waiting = SIZE_MAX}, clock) {}  // the gate bounds what waits

TextRowModel::~TextRowModel() { gate_.wait_empty(); }

std::vector<data::Field> TextRowModel::outputs() const {
  using data::FieldKind;
  using tensor::DType;
  return {{.name = "text", .kind = FieldKind::text},
          {.name = "finish_reason", .kind = FieldKind::text},
          {.name = "prompt_tokens", .dtype = DType::i64},
          {.name = "completion_tokens", .dtype = DType::i64},
          {.name = "logprob", .dtype = DType::f64}};
}

int64_t TextRowModel::piece_rows() const { return std::max<int64_t>(1, parts_.window_rows / 4); }

std::vector<int64_t> TextRowModel::prompt_of(const data::Rows& piece, int64_t row) const {
  if (const base::Error* error = piece.error_at(row)) throw *error;
  const std::string text = parts_.prompt->of(piece, row);
  if (!parts_.chat_template) return parts_.tokenizer->encode(text);
  base::Json messages = base::Json::array();
  const auto add = [&](const char* role, const std::string& content) {
    messages.push_back(base::Json::object({{"role", role}, {"content", content}}));
  };
  if (!parts_.system.empty()) add("system", parts_.system);
  add("user", text);
  // The template writes the special tokens itself.
  return parts_.tokenizer->encode(parts_.chat_template->render(messages), false);
}

void TextRowModel::submit(std::shared_ptr<const data::Rows> piece, PieceSink sink) {
  if (!gate_.enter(piece->count)) return sink(given_up_answer(outputs(), piece->count));
  const auto work = std::make_shared<Work>(piece->count, std::move(sink), outputs());
  for (int64_t row = 0; row < piece->count; ++row) {
    std::shared_ptr<Answer> answer;
    try {
      if (gate_.is_given_up()) throw given_up_error();
      sched::TextRequest request{.generate = parts_.generate};
      request.generate.prompt = prompt_of(*piece, row);
      answer =
          std::make_shared<Answer>(*this, work, row, static_cast<int64_t>(request.generate.prompt.size()));
      request.listener = answer;
      service_.submit(std::move(request));
    } catch (...) {
      const base::Error error = sched::current_error();
      {
        const std::lock_guard lock(work->mutex);
        work->answers.fail(row, error);
      }
      settle(*work);
    }
  }
  settle(*work);
}

void TextRowModel::settle(Work& work) {
  if (work.unanswered.fetch_sub(1) != 1) return;
  const int64_t rows = work.rows;
  work.sink(work.answers.take());
  gate_.leave(rows);
}

ModelUse TextRowModel::use() const {
  return {.busy_ns = service_.stats().busy_ns, .rows = rows_, .tokens = tokens_};
}

}  // namespace trireme::batch
