// Writes a KServe v2 inference response.
#include "serve/kserve/kserve_response.h"

#include <utility>

#include "base/text/json.h"
#include "serve/core/tensor_bytes.h"

namespace trireme::serve {
namespace {

using tensor::DType;

void append_dims(std::string& json, const tensor::Dims& dims) {
  json += '[';
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) json += ',';
    base::append_json(json, dims[i]);
  }
  json += ']';
}

template <class T>
void append_value(std::string& json, T value) {
  if constexpr (std::is_same_v<T, bool>) {
    json += value ? "true" : "false";
  } else if constexpr (std::is_floating_point_v<T>) {
    base::append_json(json, value, true);
  } else if constexpr (std::is_signed_v<T>) {
    base::append_json(json, static_cast<int64_t>(value));
  } else {
    base::append_json(json, static_cast<uint64_t>(value));
  }
}

/// Estimates the memory for the JSON of all outputs, so that it need not grow step by step.
size_t json_estimate(const InferResponse& response) {
  size_t bytes = 256;
  for (const InferOutput& o : response.outputs) {
    bytes += 128 + (o.is_binary || !o.tensor.type ? 0 : static_cast<size_t>(o.tensor.values.elements()) * 14);
  }
  return bytes;
}

/// Appends the rest of an output after its name, type and shape; binary ones go to `blobs`.
void append_output(std::string& json, const InferOutput& o, std::vector<http::BodyPart>& blobs) {
  if (!o.span.region
           .empty()) {  // the region is not named: C++ clients take any parameters for those of binary data
    json += '}';
    return;
  }
  if (o.is_binary) {
    blobs.push_back(tensor_bytes(o.tensor));
    json += ",\"parameters\":{\"binary_data_size\":";
    base::append_json(json, static_cast<uint64_t>(blobs.back().bytes().size()));
    json += "}}";
    return;
  }
  json += ",\"data\":";
  append_values(json, o.tensor);
  json += '}';
}

}  // namespace

void append_values(std::string& json, const WireTensor& t) {
  json += '[';
  if (!t.type) {
    for (size_t i = 0; i < t.strings.size(); ++i) {
      if (i > 0) json += ',';
      base::append_json(json, std::string_view(t.strings[i]));
    }
  } else {
    tensor::visit_dtype(*t.type, [&]<class T>(T) {
      if constexpr (std::is_same_v<T, tensor::Half> || std::is_same_v<T, tensor::BFloat16>) {
        base::fail_invalid("output '", t.name, "' has datatype ", wire_name(t.type),
                           ", which JSON cannot carry; ask for binary data");
      } else {
        const auto values = t.values.data<T>();
        for (size_t i = 0; i < values.size(); ++i) {
          if (i > 0) json += ',';
          append_value(json, values[i]);
        }
      }
    });
  }
  json += ']';
}

http::Response infer_http_response(InferResponse response) {
  std::string json;
  const size_t estimate = json_estimate(response);
  // Refused before it is written; the body part accounts for its own memory.
  base::MemoryLease lease(base::MemoryUse::answers, static_cast<int64_t>(estimate));
  json.reserve(estimate);
  json += '{';
  if (response.has_id) {
    json += "\"id\":";
    base::append_json(json, std::string_view(response.id));
    json += ',';
  }
  json += "\"model_name\":";
  base::append_json(json, std::string_view(response.model_name));
  json += ",\"model_version\":";
  base::append_json(json, std::string_view(response.model_version));
  json += ",\"outputs\":[";
  std::vector<http::BodyPart> blobs;
  for (size_t i = 0; i < response.outputs.size(); ++i) {
    const InferOutput& o = response.outputs[i];
    json += i > 0 ? ",{\"name\":" : "{\"name\":";
    base::append_json(json, std::string_view(o.tensor.name));
    json += ",\"datatype\":\"";
    json += wire_name(o.tensor.type);
    json += "\",\"shape\":";
    append_dims(json, o.tensor.dims);
    append_output(json, o, blobs);
  }
  json += "]}";
  http::Response http;
  if (blobs.empty()) {
    http.headers.emplace_back("Content-Type", "application/json");
  } else {
    http.headers.emplace_back("Content-Type", "application/octet-stream");
    http.headers.emplace_back("Inference-Header-Content-Length", std::to_string(json.size()));
  }
  if (!response.traceparent.empty()) http.headers.emplace_back("traceparent", response.traceparent);
  lease = base::MemoryLease();
  http.body.emplace_back(std::move(json));
  for (http::BodyPart& blob : blobs) http.body.push_back(std::move(blob));
  return http;
}

}  // namespace trireme::serve
