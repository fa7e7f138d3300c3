// Embeddings of texts, and scores of pairs, over the OpenAI API.
#include "serve/openai/embedding_call.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/text/base64.h"
#include "base/text/json.h"
#include "serve/infer/request_json.h"
#include "serve/openai/openai_error.h"

namespace trireme::serve {
namespace {

using base::ErrorCode;
using base::Json;

constexpr size_t kMostBackgroundTexts = 4;
constexpr const char *kText = "text", *kPair = "text_pair";
constexpr const char *kScore = "score", *kLogits = "logits";

[[noreturn]] void fail(const char* member, const std::string& what) {
  throw MemberError(ErrorCode::invalid_argument, member, what);
}

/// The rows that a request needs: one per scored pair, else one per text.
size_t rows_of(const EmbeddingRequest& request) { return request.texts.size() - request.firsts; }

/// The texts or pairs of one request, run in several batches that end in any order.
class EmbeddingCall {
 public:
  using Answer = std::function<std::string(const Embedded&)>;
  EmbeddingCall(EmbeddingRequest request, std::shared_ptr<http::Reply> reply, size_t batches, Answer answer)
      : request_(std::move(request)),
        reply_(std::move(reply)),
        answer_(std::move(answer)),
        rows_(rows_of(request_)),
        left_(batches) {}

  const EmbeddingRequest& request() const { return request_; }
  bool is_gone() const {
    const std::lock_guard lock(mutex_);  // batches end on several threads
    return is_over_ || reply_->client_gone();
  }

  /// Stores the rows from `first` on.
  void take(size_t first, const InferResponse& response) {
    const tensor::Tensor& values = response.outputs.at(0).tensor.values;
    const auto width = static_cast<size_t>(values.dims().back());
    const float* row = values.data<float>().data();
    for (size_t i = 0; i < static_cast<size_t>(values.dims()[0]); ++i, row += width)
      rows_.at(first + i).assign(row, row + width);
    tokens_ += response.tokens;
    if (--left_ > 0) return;
    if (request_.charge) {
      request_.charge->spend(tokens_);
      request_.charge->settle();
    }
    http::Response reply =
        http::json_response(200, answer_({std::move(rows_), tokens_.load(), request_.firsts > 0}));
    reply.headers.insert(reply.headers.end(), request_.headers.begin(), request_.headers.end());
    end(std::move(reply));
  }
  void fail(const base::Error& error) { end(openai_error(error)); }

 private:
  void end(http::Response response) {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(is_over_, true)) reply_->send(std::move(response));
  }

  const EmbeddingRequest request_;
  const std::shared_ptr<http::Reply> reply_;
  const Answer answer_;
  std::vector<std::vector<float>> rows_;  // each row is written by one batch
  std::atomic<size_t> left_;
  std::atomic<int64_t> tokens_{0};
  mutable std::mutex mutex_;
  bool is_over_ = false;  // guarded by the mutex
};

/// The first `dimensions` numbers of a row, normalised to length 1 again; 0 leaves the row unchanged.
std::vector<float> shortened(const std::vector<float>& row, int64_t dimensions) {
  const auto wanted = static_cast<size_t>(dimensions);
  if (wanted == 0 || wanted >= row.size()) return row;
  std::vector<float> cut(row.begin(), row.begin() + static_cast<ptrdiff_t>(wanted));
  double squares = 0;
  for (float v : cut) squares += static_cast<double>(v) * static_cast<double>(v);
  const auto scale = static_cast<float>(squares > 0 ? 1 / std::sqrt(squares) : 1);
  for (float& v : cut) v *= scale;
  return cut;
}

void append_row(std::string& out, const std::vector<float>& row, bool is_base64) {
  if (is_base64) {
    out += '"';
    out += base::encode_base64({reinterpret_cast<const char*>(row.data()), row.size() * sizeof(float)});
    out += '"';
    return;
  }
  out += '[';
  for (size_t i = 0; i < row.size(); ++i) {
    if (i > 0) out += ',';
    base::append_json(out, row[i]);
  }
  out += ']';
}

}  // namespace

EmbeddingRequest embedding_request(std::string_view body) {
  const Json json = request_json(body);
  base::require(json.is_object(), "expected a JSON object, found ", json.type_name());
  EmbeddingRequest r;
  const Json* model = json.find("model");
  if (model == nullptr || !model->is_string()) fail("model", "expected a string");
  r.model = model->as_string();
  const Json* input = json.find("input");
  if (input == nullptr) fail("input", "is missing");
  const base::JsonArray list = input->is_array() ? input->as_array() : base::JsonArray{*input};
  if (list.empty() || list.size() > kMostTexts)
    fail("input", base::concat("expected 1 to ", kMostTexts, " texts, found ", list.size()));
  for (const Json& text : list) {
    if (!text.is_string()) fail("input", "expected texts; tokens are not served");
    if (text.as_string().empty()) fail("input", "a text is empty");
    r.texts.push_back(text.as_string());
  }
  const Json* format = json.find("encoding_format");
  if (format != nullptr && !format->is_null()) {
    if (!format->is_string() || (format->as_string() != "float" && format->as_string() != "base64"))
      fail("encoding_format", "expected float or base64");
    r.is_base64 = format->as_string() == "base64";
  }
  const Json* dimensions = json.find("dimensions");
  if (dimensions != nullptr && !dimensions->is_null()) {
    if (!dimensions->is_integer() || dimensions->as_double() < 1 || dimensions->as_double() > INT32_MAX)
      fail("dimensions", "expected an integer above 0");
    r.dimensions = dimensions->as_int();
  }
  return r;
}

std::string embedding_answer(const EmbeddingRequest& request, const Embedded& embedded) {
  std::string out = "{\"object\":\"list\",\"data\":[";
  for (size_t i = 0; i < embedded.rows.size(); ++i) {
    out += i > 0 ? ",{" : "{";
    out += "\"object\":\"embedding\",\"index\":";
    base::append_json(out, static_cast<int64_t>(i));
    out += ",\"embedding\":";
    append_row(out, shortened(embedded.rows[i], request.dimensions), request.is_base64);
    out += '}';
  }
  out += "],\"model\":";
  base::append_json(out, std::string_view(request.model));
  for (const char* member : {"],\"usage\":{\"prompt_tokens\":", ",\"total_tokens\":"}) {
    out += member[0] == ']' ? member + 1 : member;
    base::append_json(out, embedded.tokens);
  }
  return out + "}}";
}

namespace {

bool is_text(const ModelConfig& config, size_t input, const char* name) {
  return config.inputs.size() > input && config.inputs[input].name == name && !config.inputs[input].type;
}

bool embeds_texts(const ModelConfig& config) {
  return is_text(config, 0, kText) && !is_text(config, 1, kPair) && config.is_batched() &&
         config.outputs.size() == 1 && config.outputs[0].type == tensor::DType::f32 &&
         config.outputs[0].dims.size() == 1;
}

/// Whether a model scores pairs of texts (model/hf/pair_scores.h).
bool scores_pairs(const ModelConfig& config) {
  return is_text(config, 0, kText) && is_text(config, 1, kPair) && config.is_batched();
}

bool has_output(const ModelConfig& config, const std::string& name) {
  return std::any_of(config.outputs.begin(), config.outputs.end(),
                     [&](const TensorConfig& t) { return t.name == name; });
}

/// Throws not_found for a model that cannot do what is asked, and invalid_argument for more dimensions than
/// it has; for a model that embeds, turns pairs into single texts.
void fit_to_model(EmbeddingRequest& request, const ModelConfig& config) {
  if (scores_pairs(config)) {
    if (request.firsts == 0)
      base::fail(ErrorCode::not_found, "The model `", request.model,
                 "` scores pairs of texts (/v1/rerank, /v1/score) and makes no embeddings");
    const char* output = request.is_raw ? kLogits : kScore;
    if (!has_output(config, output))
      base::fail(ErrorCode::not_found, "The model `", request.model, "` is configured without its output ",
                 output);
    return;
  }
  if (embeds_texts(config)) {
    const int64_t width = config.outputs[0].dims[0];
    if (width > 0 && request.dimensions > width)
      fail("dimensions", base::concat("the model's embeddings have ", width));
    request.firsts = 0;
    return;
  }
  if (request.firsts == 0)
    base::fail(ErrorCode::not_found, "The model `", request.model, "` makes no embeddings of texts");
  base::fail(ErrorCode::not_found, "The model `", request.model,
             "` ranks no texts: it is neither an encoder of texts nor a classifier of pairs with one label "
             "and a WordPiece tokenizer");
}

/// The texts for one side of the pairs, for rows first .. first + count - 1.
WireTensor pair_texts(const EmbeddingRequest& request, const TensorConfig& input, size_t first,
                      size_t count) {
  WireTensor tensor{.name = input.name, .type = std::nullopt};
  const bool is_second = input.name == kPair;
  for (size_t row = first; row < first + count; ++row) {
    const size_t place = is_second ? request.firsts + row : request.firsts == 1 ? 0 : row;
    tensor.strings.push_back(request.texts[place]);
  }
  tensor.dims = {static_cast<int64_t>(count)};
  if (!input.dims.empty()) tensor.dims.push_back(1);
  return tensor;
}

}  // namespace

void embed(const KserveCore& core, const std::shared_ptr<ServedModel>& model, EmbeddingRequest request,
           const std::shared_ptr<http::Reply>& reply, std::function<std::string(const Embedded&)> answer) {
  const ModelConfig& config = model->config();
  fit_to_model(request, config);
  auto most = static_cast<size_t>(*config.max_batch_size);
  // A running batch is not interrupted, so background requests use few texts at a time.
  if (request.is_background) most = std::min(most, kMostBackgroundTexts);
  const size_t count = rows_of(request);
  const size_t texts = request.firsts > 0 ? 2 : 1;
  const auto call = std::make_shared<EmbeddingCall>(std::move(request), reply, (count + most - 1) / most,
                                                    std::move(answer));
  for (size_t first = 0; first < count && !call->is_gone(); first += most) {
    const EmbeddingRequest& asked = call->request();
    InferRequest part;
    for (size_t i = 0; i < texts; ++i)
      part.inputs.push_back(pair_texts(asked, config.inputs[i], first, std::min(most, count - first)));
    if (asked.firsts > 0) part.outputs.push_back({.name = asked.is_raw ? kLogits : kScore});
    part.priority = asked.priority;
    part.timeout_us = asked.timeout_us;
    part.tenant = asked.tenant;
    part.is_background = asked.is_background;
    part.binary_output = true;
    InferSink sink{.done =
                       [call, first](InferResponse&& r) {
                         r.leave();
                         call->take(first, r);
                       },
                   .failed = [call](const base::Error& e) { call->fail(e); },
                   .cancelled = [call] { return call->is_gone(); },
                   .received_ns = call->request().received_ns,
                   .begun_ns = call->request().begun_ns};
    try {
      core.infer(model, std::move(part), std::move(sink));
    } catch (const base::Error& error) {
      call->fail(error);
    }
  }
}

}  // namespace trireme::serve
