// Writes a KServe v2 inference response.
#include "serve/kserve/kserve_response.h"

#include <algorithm>
#include <numeric>

#include "base/text/json.h"

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

/// Memory for the JSON of all outputs, so that it is not grown step by step.
size_t json_estimate(const InferResponse& response) {
  size_t bytes = 256;
  for (const InferOutput& o : response.outputs) {
    bytes += 128 + (o.is_binary || !o.tensor.type ? 0 : static_cast<size_t>(o.tensor.values.elements()) * 14);
  }
  return bytes;
}

/// One output after its name, type and shape; binary ones go to `blobs`.
void append_output(std::string& json, const InferOutput& o, std::vector<http::BodyPart>& blobs) {
  if (!o.span.region
           .empty()) {  // no word of the place: C++ clients take any parameters for those of binary data
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

/// The `kept` best of a row as "value:index" or "value:index:label".
template <class T>
void append_classes(const T* row, int64_t width, int64_t kept, const std::vector<std::string>& labels,
                    std::vector<std::string>& out) {
  std::vector<int64_t> order(static_cast<size_t>(width));
  std::iota(order.begin(), order.end(), int64_t{0});
  // Ties by index, so that the answer is the same everywhere; NaN sorts last.
  std::partial_sort(order.begin(), order.begin() + kept, order.end(), [row](int64_t a, int64_t b) {
    const bool a_nan = row[a] != row[a], b_nan = row[b] != row[b];
    if (a_nan != b_nan) return b_nan;
    return row[a] > row[b] || (!(row[a] < row[b]) && a < b);
  });
  for (int64_t k = 0; k < kept; ++k) {
    const auto index = static_cast<size_t>(order[static_cast<size_t>(k)]);
    std::string text = std::to_string(row[index]);
    text += ':' + std::to_string(index);
    if (index < labels.size()) text += ':' + labels[index];
    out.push_back(std::move(text));
  }
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

http::BodyPart tensor_bytes(const WireTensor& t) {
  if (!t.type) return http::BodyPart(bytes_of_strings(t.strings));
  const auto* data = reinterpret_cast<const char*>(t.values.raw());
  return http::BodyPart(std::string_view(data, static_cast<size_t>(t.values.bytes())), t.values.owner());
}

http::Response infer_http_response(InferResponse response) {
  std::string json;
  const size_t estimate = json_estimate(response);
  // Refused before it is written; the part that it becomes counts itself.
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

WireTensor classify(const WireTensor& scores, int64_t count, bool is_batched,
                    const std::vector<std::string>& labels) {
  base::require(scores.type.has_value(), "classification of output '", scores.name, "' of datatype BYTES");
  const int64_t elements = scores.values.elements();
  base::require(elements <= 1'000'000, "classification of output '", scores.name, "' with ", elements,
                " elements, at most 1000000");
  const int64_t rows = is_batched && !scores.dims.empty() ? scores.dims[0] : 1;
  const int64_t width = rows == 0 ? 0 : elements / rows;
  const int64_t kept = std::min(count, width);
  WireTensor out{.name = scores.name, .type = std::nullopt};
  out.dims = is_batched ? tensor::Dims{rows, kept} : tensor::Dims{kept};
  constexpr int64_t kClassBytes = 32;  // "value:index"; labels are the model's
  out.room = room_for_strings(rows * kept, rows * kept * kClassBytes);
  const auto rank_all = [&](const auto& values) {
    for (int64_t r = 0; r < rows; ++r)
      append_classes(values.data() + r * width, width, kept, labels, out.strings);
  };
  if (!tensor::is_float(*scores.type)) {  // integers compare and print as they are: a double holds 53 bits
    tensor::visit_dtype(*scores.type, [&]<class T>(T) {
      if constexpr (std::is_integral_v<T>) rank_all(scores.values.data<T>());
    });
  } else {
    rank_all(scores.values.to_doubles());
  }
  return out;
}

}  // namespace trireme::serve
