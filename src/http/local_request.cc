// Requests that the process sends to itself.
#include "http/local_request.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "http/exchange.h"

namespace trireme::http {

Request local_request(std::string_view method, std::string_view path, std::string_view body) {
  Request request;
  request.head = std::make_unique<char[]>(method.size() + path.size());
  std::memcpy(request.head.get(), method.data(), method.size());
  std::memcpy(request.head.get() + method.size(), path.data(), path.size());
  request.method = {request.head.get(), method.size()};
  request.target = {request.head.get() + method.size(), path.size()};
  const size_t query = request.target.find('?');
  request.path = request.target.substr(0, query);
  if (query != std::string_view::npos) request.query = request.target.substr(query + 1);
  request.body.append(body);
  request.begun_ns = request.received_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  request.is_local = true;
  return request;
}

Reply local_reply(std::function<void(Response&&)> take,
                  std::shared_ptr<const std::atomic<bool>> nobody_waits) {
  auto exchange = std::make_unique<Exchange>();
  exchange->references = 1;  // the sink holds the only reference
  exchange->local = std::move(take);
  exchange->nobody_waits = std::move(nobody_waits);
  return Reply(ExchangeRef(exchange.release()));
}

void apply_local_step(Exchange* exchange, Step step, std::string&& piece) {
  switch (step) {
    case Step::start_stream: return;  // response already holds the head and first pieces
    case Step::piece: exchange->response.body.emplace_back(std::move(piece)); return;
    case Step::respond:
    case Step::finish: exchange->local(std::move(exchange->response)); return;
    case Step::drop:
    case Step::abort: exchange->local(error_response(500, "the request was not answered")); return;
  }
}

}  // namespace trireme::http
