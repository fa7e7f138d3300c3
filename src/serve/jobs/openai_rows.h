// Requests of the OpenAI API as the rows of a batch job: each line of a batch file is answered as a client
// would be.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "batch/models/row_gate.h"
#include "batch/row_model.h"
#include "http/message.h"
#include "http/reply.h"
#include "serve/openai/openai.h"

namespace trireme::serve {

/// Columns custom_id, method, url and body in; what a line of the API's output file has beside its custom_id
/// out: id, response {status_code, request_id, body} and error. What an answer holds beside the model's words
/// does not change from run to run: its id and, where the request has none, its seed follow from the request,
/// and it was created at second 0. A request that is refused (a status of 400 and more) is a row with an
/// error.
class OpenAiRows final : public batch::RowModel {
 public:
  struct Parts {
    const OpenAiApi& api;       ///< outlives this
    int64_t window_rows = 256;  ///< requests under way at most; more by a piece
    std::string endpoint;       ///< the only url that lines may have; empty: any of the API's
    std::string model;          ///< answers, whatever the lines name; empty: the one that they name
    bool has_adapters = false;  ///< of `model`, which lines name behind a colon
    OpenAiApi::Own own;         ///< who asks; id, seed and time are filled in for each row
    base::Json identity;
    std::function<int64_t()> busy_ns = [] { return int64_t{0}; };  ///< of the models so far
  };
  explicit OpenAiRows(Parts parts) : parts_(std::move(parts)), gate_(parts_.window_rows) {}
  /// Gives up the requests under way.
  ~OpenAiRows() override {
    *nobody_waits_ = true;
    gate_.wait_empty();
  }

  std::vector<std::string> columns() const override { return {"custom_id", "method", "url", "body"}; }
  std::vector<data::Field> outputs() const override;
  int64_t piece_rows() const override { return std::max<int64_t>(1, parts_.window_rows / 8); }
  void submit(std::shared_ptr<const data::Rows> piece, batch::PieceSink sink) override;
  void give_up() override {
    *nobody_waits_ = true;
    gate_.give_up();
  }
  batch::ModelUse use() const override;
  base::Json identity() const override { return parts_.identity; }

 private:
  struct Work;
  void ask(const std::shared_ptr<Work>& work, int64_t row);
  void answer(Work& work, int64_t row, http::Response&& response);
  void settle(Work& work);

  const Parts parts_;
  const std::shared_ptr<std::atomic<bool>> nobody_waits_ = std::make_shared<std::atomic<bool>>(false);
  batch::RowGate gate_;
  std::atomic<int64_t> rows_{0};
};

/// The id of the answer to a line, which follows from it: 16 hexadecimal digits.
std::string request_id(std::string_view custom_id, std::string_view body);

}  // namespace trireme::serve
