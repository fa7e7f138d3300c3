// Implements the generate extension of KServe.
#include "serve/kserve/kserve_generate.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/text/shortened.h"
#include "serve/infer/data_writer.h"
#include "serve/infer/infer_parameter.h"
#include "serve/kserve/kserve_reply.h"
#include "serve/kserve/kserve_response.h"
#include "serve/infer/request_json.h"

namespace trireme::serve {
namespace {

using base::Json;

void put(DataWriter& out, const Json& value, const std::string& name) {
  if (value.is_bool()) return out.put(value.as_bool());
  if (value.is_string()) return out.put(std::string_view(value.as_string()));
  if (const auto* big = std::get_if<uint64_t>(&value.value())) return out.put(*big);
  if (value.is_integer()) return out.put(value.as_int());
  base::require(value.is_number(), "Unable to parse '", name, "': expected values, found ",
                value.type_name());
  out.put(value.as_double());
}

/// The extents of `count` values: an open extent takes what the others leave.
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

ParameterValue parameter_of(const std::string& key, const Json& value) {
  if (value.is_bool()) return value.as_bool();
  if (value.is_string()) return std::string_view(value.as_string());
  if (const auto* big = std::get_if<uint64_t>(&value.value())) return *big;
  if (value.is_integer()) return value.as_int();
  base::require(value.is_number(), "parameter '", key,
                "' has invalid type: it is no input of the model, and ", value.type_name(),
                " is no number, boolean or string");
  return value.as_double();
}

using InputsByName = std::map<std::string_view, const TensorConfig*>;

/// Reads the members of the request, or of its `parameters`: those named like inputs are inputs, all others
/// are parameters.
void read_members(const Json& json, const InputsByName& inputs, bool is_batched, InferRequest& request) {
  for (const auto& [key, value] : json.as_object()) {
    auto at = inputs.find(key);
    const bool is_only_text = key == "text_input" && inputs.size() == 1 && !inputs.begin()->second->type;
    if (is_only_text) at = inputs.begin();  // under its usual name
    if (at != inputs.end()) {
      request.inputs.push_back(tensor_of(*at->second, value, is_batched));
    } else {
      set_parameter(request, key, parameter_of(key, value));
    }
  }
}

std::string values_of(const WireTensor& t) {
  std::string json;
  if (t.type == tensor::DType::f16 || t.type == tensor::DType::bf16) {
    std::vector<float> wide;
    for (double v : t.values.to_doubles()) wide.push_back(static_cast<float>(v));
    WireTensor as_floats{.name = t.name, .type = tensor::DType::f32, .dims = t.dims};
    as_floats.values = tensor::Tensor::from<float>(t.dims, wide);
    append_values(json, as_floats);
  } else {
    append_values(json, t);
  }
  const bool is_one = tensor::element_count(t.dims) == 1;
  return is_one ? json.substr(1, json.size() - 2) : json;
}

}  // namespace

namespace {

/// The answers of one call, which the model gives from one thread at a time.
struct GenerateReply {
  GenerateReply(http::Reply sink, bool streams) : reply(std::move(sink)), is_stream(streams) {}

  KserveReply reply;
  const bool is_stream;
  std::optional<std::string> only;  ///< the answer so far, if one object is wanted

  void put(const InferResponse& response) {
    std::string json = generate_response(response);
    if (is_stream) return send("data: " + json + "\n\n");
    base::check(!only, kNotOne);
    only = std::move(json);
  }
  void end(InferResponse& response) {
    base::check(is_stream || only.has_value(), kNotOne);
    if (is_stream && !reply.is_open()) open();
    response.leave();
    is_stream ? reply.finish() : reply.send(http::json_response(200, std::move(*only)));
  }
  void fail(const base::Error& e) {
    if (!reply.is_open()) return reply.send(http::error_response(e));  // the status can still report it
    send("data: " + Json::object({{"error", base::shortened(e.message())}}).dump() + "\n\n");
    reply.finish();
  }

 private:
  static constexpr const char* kNotOne =
      "generate expects model to produce exactly 1 response, use generate_stream for other numbers";

  void open() {
    http::Response head;
    head.headers.emplace_back("Content-Type", "text/event-stream; charset=utf-8");
    head.headers.emplace_back("Cache-Control", "no-cache");
    reply.open(std::move(head));
  }
  void send(std::string event) {
    if (!reply.is_open()) open();
    reply.write(std::move(event));
  }
};

}  // namespace

InferSink generate_sink(http::Reply reply, bool is_stream, bool is_decoupled) {
  const auto shared = std::make_shared<GenerateReply>(std::move(reply), is_stream);
  return {.done =
              [shared, is_decoupled](InferResponse&& r) {
                if (!is_decoupled) shared->put(r);
                shared->end(r);
              },
          .failed = [shared](const base::Error& e) { shared->fail(e); },
          .cancelled = [shared] { return shared->reply.is_gone(); },
          .part = [shared](InferResponse&& r) { shared->put(r); }};
}

InferRequest generate_request(std::string_view body, const std::vector<TensorConfig>& inputs,
                              bool is_batched) {
  const Json json = request_json(body, {.nan_and_infinity = true});
  base::require(json.is_object(), "failed to parse the request JSON buffer: expected an object");
  InferRequest request;
  InputsByName by_name;
  for (const TensorConfig& input : inputs) by_name.emplace(input.name, &input);
  base::JsonObject others;
  for (const auto& [key, value] : json.as_object()) {
    const bool is_input = by_name.find(key) != by_name.end();
    if (key == "id" && !is_input) {
      base::require(value.is_string(), "Unable to parse 'id': expected a string");
      request.id = value.as_string();
      request.has_id = !request.id.empty();
    } else if (key == "parameters" && !is_input) {
      base::require(value.is_object(), "Expected JSON object for keyword: 'parameters'");
      read_members(value, by_name, is_batched, request);
    } else {
      others.push_back({key, value});
    }
  }
  read_members(Json(std::move(others)), by_name, is_batched, request);
  check_request_names(request);
  return request;
}

std::string generate_response(const InferResponse& response) {
  std::string json = "{";
  const auto member = [&json](std::string_view key, std::string_view value) {
    if (json.size() > 1) json += ',';
    base::append_json(json, key);
    json += ':';
    json += value;
  };
  const auto quoted = [](std::string_view text) {
    std::string out;
    base::append_json(out, text);
    return out;
  };
  if (response.has_id) member("id", quoted(response.id));
  member("model_name", quoted(response.model_name));
  member("model_version", quoted(response.model_version));
  for (const InferOutput& o : response.outputs) member(o.tensor.name, values_of(o.tensor));
  return json + '}';
}

}  // namespace trireme::serve
