// Gives other servers the pages of prompts.
#include "serve/pages/pages_api.h"

#include <memory>
#include <mutex>
#include <utility>

#include "serve/models/pages_request.h"
#include "serve/models/text_model.h"

namespace trireme::serve {
namespace {

constexpr size_t kMostBacklog = size_t{256} << 20;  // bytes of an answer that its reader has not taken yet

/// Writes pages as they come. The head goes out once the request is taken in, so that who asked can tell a
/// server that works from one that is silent.
class PageStream final : public PageReader {
 public:
  PageStream(std::shared_ptr<http::Reply> reply, std::shared_ptr<ServedModel> model)
      : reply_(std::move(reply)), model_(std::move(model)) {}

  void begin() {
    const std::lock_guard lock(mutex_);
    open();
  }
  bool on_page(std::string record) override {
    const std::lock_guard lock(mutex_);
    open();
    if (has_ended_ || stream_.backlog_bytes() > kMostBacklog) return false;
    return stream_.write(std::move(record));
  }
  void on_end() override {
    const std::lock_guard lock(mutex_);
    open();
    finish();
  }
  void on_error(const base::Error& error) override {
    const std::lock_guard lock(mutex_);
    if (is_open_) return finish();
    is_open_ = has_ended_ = true;
    reply_->send(http::error_response(error));
  }
  bool is_gone() const override {
    const std::lock_guard lock(mutex_);
    return has_ended_ || (is_open_ ? stream_.client_gone() : reply_->client_gone());
  }

 private:
  void open() {
    if (std::exchange(is_open_, true)) return;
    http::Response head;
    head.headers.emplace_back("Content-Type", "application/octet-stream");
    head.compressible = false;
    stream_ = reply_->stream(std::move(head));
  }
  void finish() {
    if (!std::exchange(has_ended_, true)) stream_.finish();
  }

  mutable std::mutex mutex_;
  const std::shared_ptr<http::Reply> reply_;
  const std::shared_ptr<ServedModel> model_;  // that computes them
  http::Stream stream_;
  bool is_open_ = false, has_ended_ = false;
};

bool is_pages_path(std::string_view path) {
  constexpr std::string_view kModels = "/v2/models/", kPages = "/pages";
  return path.starts_with(kModels) && path.ends_with(kPages) &&
         path.size() > kModels.size() + kPages.size() &&
         path.find('/', kModels.size()) == path.size() - kPages.size();
}

}  // namespace

void PagesApi::handle(http::Request&& request, http::Reply reply) const {
  if (!is_pages_path(request.path)) return reply.send(http::error_response(404, "Not Found"));
  if (request.method != "POST") {
    http::Response refusal = http::error_response(405, "Method Not Allowed");
    refusal.headers.emplace_back("Allow", "POST");
    return reply.send(std::move(refusal));
  }
  const auto shared = std::make_shared<http::Reply>(std::move(reply));
  try {
    give(request, shared);
  } catch (const base::Error& error) {
    shared->send(http::error_response(error));
  }
}

/// Throws what is wrong with the request; then the reply is still unused.
void PagesApi::give(const http::Request& request, const std::shared_ptr<http::Reply>& reply) const {
  const std::string name = model_of_path(request.path);
  const Caller caller{.header = [&](const std::string& header) { return request.header(header); }};
  if (const Access access = core_.rules().judge(Category::inference, name, caller); access != Access::allowed)
    return reply->send(http::error_response(
        403, base::concat("This API is ", AccessRules::refusal(Category::inference, access))));
  core_.require_loaded();
  if (core_.is_draining()) base::fail(base::ErrorCode::unavailable, "the server is shutting down");
  const std::shared_ptr<ServedModel> model = core_.find(name, "");
  if (model->texts() == nullptr) base::fail_unsupported("pages of '", name, "', which continues no texts");
  const auto stream = std::make_shared<PageStream>(reply, model);
  model->texts()->give_pages(pages_request(request.body.view()), stream);
  stream->begin();
}

}  // namespace trireme::serve
