// The generate extension.
#include "serve/kserve_generate.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "serve/kserve_data.h"
#include "serve/kserve_parameter.h"

namespace trireme::serve {
namespace {

using base::Json;

void put(DataWriter& out, const Json& value, const std::string& name) {
  if (value.is_bool()) return out.put(value.as_bool());
  if (value.is_string()) return out.put(std::string_view(value.as_string()));
  if (value.is_integer()) return out.put(value.as_int());
  base::require(value.is_number(), "Unable to parse '", name, "': expected values, found ",
                value.type_name());
  out.put(value.as_double());
}

/// The extents that `count` values have: the open one takes what the others leave.
tensor::Dims dims_of(const TensorConfig& input, bool is_batched, int64_t count) {
  tensor::Dims dims = input.dims;
  int64_t known = 1;
  for (int64_t d : dims) known *= d == -1 ? 1 : d;
  bool is_taken = false;
  for (int64_t& d : dims) {
    if (d != -1) continue;
    d = is_taken ? 1 : count / std::max<int64_t>(1, known);
    is_taken = true;
  }
  if (is_batched) dims.insert(dims.begin(), 1);
  return dims;
}

WireTensor tensor_of(const TensorConfig& input, const Json& value, bool is_batched) {
  const base::JsonArray values = value.is_array() ? value.as_array() : base::JsonArray{value};
  WireTensor out{.name = input.name, .type = input.type};
  out.dims = dims_of(input, is_batched, static_cast<int64_t>(values.size()));
  DataWriter writer(out, values.size());
  writer.start_array();
  for (const Json& v : values) put(writer, v, input.name);
  writer.end_array();
  return out;
}

void read_parameters(const Json& parameters, InferRequest& request) {
  base::require(parameters.is_object(), "Unable to parse 'parameters': expected an object");
  for (const auto& [key, value] : parameters.as_object()) {
    if (value.is_bool()) {
      set_parameter(request, key, value.as_bool());
    } else if (value.is_string()) {
      set_parameter(request, key, std::string_view(value.as_string()));
    } else if (value.is_integer()) {
      set_parameter(request, key, value.as_int());
    } else {
      set_parameter(request, key, value.as_double());
    }
  }
}

Json values_of(const WireTensor& t) {
  Json list = Json::array();
  if (!t.type) {
    for (const std::string& s : t.strings) list.push_back(s);
  } else if (tensor::is_float(*t.type)) {
    for (double v : t.values.to_doubles()) list.push_back(v);
  } else {
    for (int64_t v : t.values.to_ints()) list.push_back(v);
  }
  return list.size() == 1 ? list.at(0) : list;
}

}  // namespace

namespace {

/// The reply of one call. Its model calls from one thread at a time.
struct GenerateReply {
  HttpReply reply;
  HttpStream stream;
  bool is_stream = false, is_open = false;
  std::optional<std::string> only;  ///< the answer so far, where one object is wanted

  void put(const InferResponse& response) {
    std::string json = generate_response(response).dump({.nan_and_infinity = true});
    if (is_stream) return send("data: " + json + "\n\n");
    base::check(!only, kNotOne);
    only = std::move(json);
  }
  void end(InferResponse& response) {
    base::check(is_stream || only.has_value(), kNotOne);
    if (is_stream && !is_open) open();
    response.leave();
    is_stream ? stream.finish() : reply.send(http_json(200, std::move(*only)));
  }
  void fail(const base::Error& e) {
    if (!is_open) return reply.send(http_error(e));  // the status can still say it
    send("data: " + Json::object({{"error", e.message()}}).dump() + "\n\n");
    stream.finish();
  }
  bool is_gone() const { return is_open ? stream.client_gone() : reply.client_gone(); }

 private:
  static constexpr const char* kNotOne =
      "generate expects model to produce exactly 1 response, use generate_stream for other numbers";

  void open() {
    HttpResponse head;
    head.headers.emplace_back("Content-Type", "text/event-stream; charset=utf-8");
    head.headers.emplace_back("Cache-Control", "no-cache");
    stream = reply.stream(std::move(head));
    is_open = true;
  }
  void send(std::string event) {
    if (!is_open) open();
    stream.write(std::move(event));
  }
};

}  // namespace

InferSink generate_sink(HttpReply reply, bool is_stream, bool is_decoupled) {
  const auto shared = std::make_shared<GenerateReply>();
  shared->reply = std::move(reply);
  shared->is_stream = is_stream;
  return {.done =
              [shared, is_decoupled](InferResponse&& r) {
                if (!is_decoupled) shared->put(r);
                shared->end(r);
              },
          .failed = [shared](const base::Error& e) { shared->fail(e); },
          .cancelled = [shared] { return shared->is_gone(); },
          .part = [shared](InferResponse&& r) { shared->put(r); }};
}

InferRequest generate_request(std::string_view body, const std::vector<TensorConfig>& inputs,
                              bool is_batched) {
  const Json json = base::parse_json(body, {.nan_and_infinity = true});
  base::require(json.is_object(), "failed to parse the request JSON buffer: expected an object");
  InferRequest request;
  for (const auto& [key, value] : json.as_object()) {
    const auto at = std::find_if(inputs.begin(), inputs.end(), [&](const auto& t) { return t.name == key; });
    if (at != inputs.end()) {
      request.inputs.push_back(tensor_of(*at, value, is_batched));
    } else if (key == "id") {
      request.id = value.as_string();
      request.has_id = true;
    } else if (key == "parameters") {
      read_parameters(value, request);
    } else if (key == "text_input" && inputs.size() == 1 && !inputs[0].type) {
      request.inputs.push_back(tensor_of(inputs[0], value, is_batched));  // the one text, by its usual name
    } else {
      base::fail_invalid("the model has no input '", key, "'");
    }
  }
  return request;
}

Json generate_response(const InferResponse& response) {
  Json json = Json::object({{"model_name", response.model_name}, {"model_version", response.model_version}});
  if (response.has_id) json.set("id", response.id);
  for (const InferOutput& o : response.outputs) json.set(o.tensor.name, values_of(o.tensor));
  return json;
}

}  // namespace trireme::serve
