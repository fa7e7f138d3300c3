// Requests of the OpenAI API as the rows of a batch job.
#include "serve/jobs/openai_rows.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/crc32c.h"
#include "base/text/json.h"
#include "batch/models/answer_rows.h"
#include "serve/models/text_model.h"
#include "http/local_request.h"
#include "sched/current_error.h"

namespace trireme::serve {
namespace {

enum Output : size_t { kId, kResponse, kError };

const std::string& text_at(const data::Rows& rows, const char* name, int64_t row) {
  const data::Column* column = rows.find(name);
  base::require(
      column != nullptr && column->field.kind == data::FieldKind::text && !column->is_missing_at(row),
      "the line has no ", name);
  return column->strings[static_cast<size_t>(row)];
}

base::ErrorCode code_of(int status) {
  switch (status) {
    case 404: return base::ErrorCode::not_found;
    case 429: return base::ErrorCode::exhausted;
    case 501: return base::ErrorCode::unsupported;
    case 503: return base::ErrorCode::unavailable;
    default: return status >= 500 ? base::ErrorCode::internal : base::ErrorCode::invalid_argument;
  }
}

/// The error message in an answer of the API, or else the body as it is.
std::string message_of(const std::string& body) {
  try {
    const base::Json json = base::parse_json(body);
    return json.at("error").at("message").as_string();
  } catch (const base::Error&) {
    return body;
  }
}

std::string hexadecimal(uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (size_t i = text.size(); i > 0; value >>= 4) text[--i] = kDigits[value & 15];
  return text;
}

/// The body with the job's model instead of its own; a named adapter is kept if the model has adapters.
std::string body_for(const std::string& body, const OpenAiRows::Parts& parts) {
  if (parts.model.empty()) return body;
  base::Json json = base::parse_json(body);
  base::require(json.is_object(), "the line's body is no object");
  const base::Json* named = json.find("model");
  const std::string name = named != nullptr && named->is_string() ? named->as_string() : std::string();
  const std::string adapter(parts.has_adapters ? split_model_name(name).adapter : std::string_view());
  json.set("model", adapter.empty() ? parts.model : parts.model + ":" + adapter);
  return json.dump({.nan_and_infinity = true});
}

uint64_t number_of(std::string_view custom_id, std::string_view body) {
  return uint64_t{base::crc32c(custom_id)} << 32 | base::crc32c(body, base::crc32c(custom_id));
}

}  // namespace

std::string request_id(std::string_view custom_id, std::string_view body) {
  return hexadecimal(number_of(custom_id, body));
}

struct OpenAiRows::Work {
  Work(std::shared_ptr<const data::Rows> rows, batch::PieceSink s, std::vector<data::Field> fields)
      : piece(std::move(rows)),
        sink(std::move(s)),
        answers(std::move(fields), piece->count),
        unanswered(piece->count + 1) {}

  const std::shared_ptr<const data::Rows> piece;
  batch::PieceSink sink;
  std::mutex mutex;
  batch::AnswerRows answers;  // guarded by the mutex
  std::atomic<int64_t> unanswered;
};

std::vector<data::Field> OpenAiRows::outputs() const {
  const auto text = [](const char* name) { return data::Field{.name = name, .kind = data::FieldKind::text}; };
  return {text("id"), text("response"), text("error")};
}

void OpenAiRows::submit(std::shared_ptr<const data::Rows> piece, batch::PieceSink sink) {
  if (!gate_.enter(piece->count)) return sink(batch::given_up_answer(outputs(), piece->count));
  const auto work = std::make_shared<Work>(std::move(piece), std::move(sink), outputs());
  for (int64_t row = 0; row < work->piece->count; ++row) {
    try {
      if (gate_.is_given_up()) throw batch::given_up_error();
      ask(work, row);
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

void OpenAiRows::ask(const std::shared_ptr<Work>& work, int64_t row) {
  if (const base::Error* error = work->piece->error_at(row)) throw *error;
  const std::string& url = text_at(*work->piece, "url", row);
  const std::string& body = text_at(*work->piece, "body", row);
  base::require(text_at(*work->piece, "method", row) == "POST", "the line's method is not POST");
  base::require(parts_.endpoint.empty() || url == parts_.endpoint, "the line's url '", url,
                "' is not the batch's endpoint ", parts_.endpoint);
  base::require(OpenAiApi::makes_answers(url), "the line's url '", url, "' is none that batches have");
  OpenAiApi::Own own = parts_.own;
  const uint64_t number = number_of(text_at(*work->piece, "custom_id", row), body);
  own.id = hexadecimal(number);
  own.seed = static_cast<int64_t>(number >> 1);
  http::Reply reply = http::local_reply(
      [this, work, row](http::Response&& response) { answer(*work, row, std::move(response)); },
      nobody_waits_);
  parts_.api.handle_own(http::local_request("POST", url, body_for(body, parts_)), std::move(reply),
                        std::move(own));
}

void OpenAiRows::answer(Work& work, int64_t row, http::Response&& response) {
  std::string body;
  for (const http::BodyPart& part : response.body) body += part.bytes();
  {
    const std::lock_guard lock(work.mutex);
    if (response.status >= 400) {
      work.answers.fail(row, {code_of(response.status), message_of(body)});
    } else {
      const std::string& custom_id = text_at(*work.piece, "custom_id", row);
      const std::string id = request_id(custom_id, text_at(*work.piece, "body", row));
      work.answers.set_strings(kId, row, "batch_req_" + id);
      work.answers.set_strings(kResponse, row,
                               base::concat("{\"status_code\":", response.status, ",\"request_id\":\"", id,
                                            "\",\"body\":", body, "}"));
      work.answers.set_strings(kError, row, "null");
      ++rows_;
    }
  }
  settle(work);
}

void OpenAiRows::settle(Work& work) {
  if (work.unanswered.fetch_sub(1) != 1) return;
  const int64_t rows = work.piece->count;
  work.sink(work.answers.take());
  gate_.leave(rows);
}

batch::ModelUse OpenAiRows::use() const { return {.busy_ns = parts_.busy_ns(), .rows = rows_}; }

}  // namespace trireme::serve
