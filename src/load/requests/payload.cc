// Requests of the load generator: reading bodies and metadata, drawing random tensors, KServe v2 encoding.
#include "load/requests/payload.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/files/file.h"
#include "base/rng.h"
#include "load/requests/kserve_grpc.h"
#include "load/requests/text_payload.h"

namespace trireme::load {
namespace {

enum class Form : uint8_t { boolean, unsigned_integer, signed_integer, real, half, brain, text };

struct Datatype {
  std::string_view name;
  Form form;
  size_t bytes;
};

constexpr Datatype kDatatypes[] = {
    {"BOOL", Form::boolean, 1},
    {"UINT8", Form::unsigned_integer, 1},
    {"UINT16", Form::unsigned_integer, 2},
    {"UINT32", Form::unsigned_integer, 4},
    {"UINT64", Form::unsigned_integer, 8},
    {"INT8", Form::signed_integer, 1},
    {"INT16", Form::signed_integer, 2},
    {"INT32", Form::signed_integer, 4},
    {"INT64", Form::signed_integer, 8},
    {"FP16", Form::half, 2},
    {"BF16", Form::brain, 2},
    {"FP32", Form::real, 4},
    {"FP64", Form::real, 8},
    {"BYTES", Form::text, 0},
};

const Datatype& datatype_of(std::string_view name) {
  for (const Datatype& d : kDatatypes) {
    if (d.name == name) return d;
  }
  base::fail_unsupported("datatype is unknown: ", name);
}

template <class T>
void append_raw(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little, "tensor bytes travel little-endian");
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// f32 to f16 by truncation: random inputs need no exact rounding. Values beyond the range become the largest
// finite ones, those below the smallest normal one become zero.
uint16_t to_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const int exponent = static_cast<int>((bits >> 23) & 0xffu) - 127 + 15;
  if (exponent <= 0) return sign;
  if (exponent >= 31) return static_cast<uint16_t>(sign | 0x7bffu);
  return static_cast<uint16_t>(sign | (static_cast<uint32_t>(exponent) << 10) | ((bits >> 13) & 0x3ffu));
}

void append_bytes_element(std::string& out, std::string_view text) {
  append_raw(out, static_cast<uint32_t>(text.size()));
  out += text;
}

void append_random(std::string& out, const Datatype& type, base::Rng& rng, double low, double high) {
  const double real = low + (high - low) * rng.uniform();
  const double whole = std::floor(low + (std::floor(high) - low + 1) * rng.uniform());
  const auto integer = static_cast<int64_t>(std::min(whole, high));
  switch (type.form) {
    case Form::boolean: out.push_back(static_cast<char>(rng.below(2))); break;
    case Form::unsigned_integer:
    case Form::signed_integer: out.append(reinterpret_cast<const char*>(&integer), type.bytes); break;
    case Form::half: append_raw(out, to_half(static_cast<float>(real))); break;
    case Form::brain:
      append_raw(out, static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(real)) >> 16));
      break;
    case Form::real:
      if (type.bytes == 4) {
        append_raw(out, static_cast<float>(real));
      } else {
        append_raw(out, real);
      }
      break;
    case Form::text: {
      std::string word;
      for (uint64_t i = 0, n = 3 + rng.below(8); i < n; ++i)
        word.push_back(static_cast<char>('a' + rng.below(26)));
      append_bytes_element(out, word);
      break;
    }
  }
}

// One element as a JSON token; moves `at` past it.
void append_json_element(std::string& out, const Datatype& type, std::string_view bytes, size_t& at) {
  const auto load = [&]<class T>(T value) {
    std::memcpy(&value, bytes.data() + at, sizeof value);
    at += sizeof value;
    return value;
  };
  if (type.form == Form::text) {
    const auto length = load(uint32_t{});
    base::append_json(out, bytes.substr(at, length));
    at += length;
  } else if (type.form == Form::boolean) {
    out += bytes[at++] != 0 ? "true" : "false";
  } else if (type.form == Form::real) {
    if (type.bytes == 4) {
      base::append_json(out, load(float{}));
    } else {
      base::append_json(out, load(double{}));
    }
  } else {
    uint64_t raw = 0;
    std::memcpy(&raw, bytes.data() + at, type.bytes);
    at += type.bytes;
    const unsigned unused =
        static_cast<unsigned>(64 - 8 * type.bytes);  // sign extension by shifting there and back
    if (type.form == Form::signed_integer) {
      base::append_json(out, static_cast<int64_t>(raw << unused) >> unused);
    } else {
      base::append_json(out, raw);
    }
  }
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    out.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

template <class T>
T number(const std::string& text, std::string_view whole) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  base::require(error == std::errc() && end == text.data() + text.size(), "not a number in: ", whole);
  return value;
}

// "name:a,b,c" -> the numbers for that name.
template <class T>
std::map<std::string, std::vector<T>> named_numbers(const std::vector<std::string>& specs,
                                                    std::string_view option) {
  std::map<std::string, std::vector<T>> out;
  for (const std::string& spec : specs) {
    const size_t colon = spec.rfind(':');
    base::require(colon != std::string::npos && colon > 0, "--", option, " is not name:numbers: ", spec);
    for (const std::string& part : split(std::string_view(spec).substr(colon + 1), ',')) {
      out[spec.substr(0, colon)].push_back(number<T>(part, spec));
    }
  }
  return out;
}

std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  for (std::string& line : split(base::read_file(path), '\n')) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
  }
  base::require(!lines.empty(), "text file has no lines: ", path);
  return lines;
}

struct ModelInput {
  std::string name;
  std::string datatype;
  std::vector<int64_t> shape;  // open dimensions filled in
};

// An open first dimension is the batch; every other open one must be named by --shape.
std::vector<int64_t> close_shape(const base::Json& input, const std::vector<int64_t>& asked, int64_t batch) {
  std::vector<int64_t> shape = asked;
  if (shape.empty()) {
    for (const base::Json& dim : input.at("shape").as_array()) shape.push_back(dim.as_int());
    if (!shape.empty() && shape[0] < 0) shape[0] = batch;
  }
  for (const int64_t dim : shape) {
    base::require(dim >= 0, "input has an open dimension, give --shape ", input.at("name").as_string(),
                  ":...: ", input.at("shape").dump());
  }
  return shape;
}

/// The model's metadata as the HTTP route gives it.
base::Json metadata_of(const LoadOptions& options, const Payload& payload, const std::string& path) {
  const std::string authority = payload.url.authority();
  try {
    if (payload.target.protocol == Protocol::grpc)
      return metadata_of_grpc(
          call(payload.target, grpc_request(std::string(kGrpcService) + "ModelMetadata", payload.headers,
                                            authority, encode_model_name(options.model))));
    return base::parse_json(
        call(payload.target, http::request_head("GET", path, authority, 0, payload.headers)));
  } catch (const base::Error& e) {
    throw e.with("model metadata of " + options.model);
  }
}

std::vector<ModelInput> model_inputs(const LoadOptions& options, const base::Json& metadata) {
  const auto shapes = named_numbers<int64_t>(options.shape, "shape");
  std::vector<ModelInput> inputs;
  std::vector<std::string> names;
  for (const base::Json& input : metadata.at("inputs").as_array()) {
    const std::string& name = input.at("name").as_string();
    const auto asked = shapes.find(name);
    names.push_back(name);
    inputs.push_back(
        {name, input.at("datatype").as_string(),
         close_shape(input, asked == shapes.end() ? std::vector<int64_t>() : asked->second, options.batch)});
  }
  for (const auto& [name, shape] : shapes) {
    base::require(std::find(names.begin(), names.end(), name) != names.end(),
                  "--shape names no input of the model: ", name);
  }
  return inputs;
}

int64_t element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) {
    base::require(dim == 0 || count <= (int64_t{1} << 32) / dim, "input shape is too large");
    count *= dim;
  }
  return count;
}

std::vector<std::vector<InputTensor>> random_requests(const LoadOptions& options,
                                                      const std::vector<ModelInput>& inputs) {
  const auto ranges = named_numbers<double>(options.range, "range");
  std::vector<std::vector<InputTensor>> requests;
  for (int v = 0; v < options.variants; ++v) {
    std::vector<InputTensor>& request = requests.emplace_back();
    for (size_t i = 0; i < inputs.size(); ++i) {
      double low = 0, high = 1;
      if (const auto asked = ranges.find(inputs[i].name); asked != ranges.end()) {
        base::require(asked->second.size() == 2 && asked->second[0] <= asked->second[1],
                      "--range is not name:low,high with low <= high: ", inputs[i].name);
        low = asked->second[0];
        high = asked->second[1];
      }
      const uint64_t stream = (static_cast<uint64_t>(options.seed) << 20) + static_cast<uint64_t>(v) * 64 + i;
      request.push_back(
          {inputs[i].name, inputs[i].datatype, inputs[i].shape,
           random_elements(inputs[i].datatype, element_count(inputs[i].shape), low, high, stream)});
    }
  }
  return requests;
}

// --batch sentences a request, in file order, wrapping around: every sentence is sent equally often.
std::vector<std::vector<InputTensor>> text_requests(const LoadOptions& options,
                                                    const std::vector<ModelInput>& inputs) {
  base::require(inputs.size() == 1 && inputs[0].datatype == "BYTES",
                "--text-file needs a model with one BYTES input, this one has ", inputs.size(), " inputs");
  const std::vector<std::string> lines = read_lines(options.text_file);
  const int64_t per_request = element_count(inputs[0].shape);
  base::require(per_request > 0, "text input has no elements");
  std::vector<std::vector<InputTensor>> requests;
  for (size_t first = 0; first < lines.size(); first += static_cast<size_t>(per_request)) {
    InputTensor tensor{inputs[0].name, "BYTES", inputs[0].shape, ""};
    for (int64_t i = 0; i < per_request; ++i) {
      append_bytes_element(tensor.bytes, lines[(first + static_cast<size_t>(i)) % lines.size()]);
    }
    requests.push_back({std::move(tensor)});
  }
  return requests;
}

http::HeaderList parse_headers(const std::vector<std::string>& lines) {
  http::HeaderList headers;
  for (const std::string& line : lines) {
    const size_t colon = line.find(':');
    base::require(colon != std::string::npos && colon > 0 && line.find_first_of("\r\n") == std::string::npos,
                  "--header is not 'Name: value': ", line);
    const size_t value = line.find_first_not_of(' ', colon + 1);
    headers.emplace_back(line.substr(0, colon), value == std::string::npos ? "" : line.substr(value));
  }
  return headers;
}

std::string model_request(const LoadOptions& options, const Payload& payload,
                          const std::vector<InputTensor>& inputs) {
  const std::string authority = payload.url.authority();
  if (payload.target.protocol == Protocol::grpc)
    return grpc_request(payload.url.target, payload.headers, authority,
                        encode_grpc_infer(options.model, inputs));
  const bool is_binary = !options.stream && options.format == Format::binary;
  size_t json_bytes = 0;
  const std::string body =
      options.stream ? encode_generate(inputs) : encode_infer(inputs, options.format, &json_bytes);
  http::HeaderList all = payload.headers;
  all.emplace_back("Content-Type", is_binary ? "application/octet-stream" : "application/json");
  if (is_binary) all.emplace_back("Inference-Header-Content-Length", std::to_string(json_bytes));
  return http::request_head("POST", payload.url.target, authority, body.size(), all) + body;
}

void add_model_requests(const LoadOptions& options, Payload& payload) {
  payload.prefix = payload.url.target;
  while (!payload.prefix.empty() && payload.prefix.back() == '/') payload.prefix.pop_back();
  payload.models = {options.model};
  const bool is_grpc = payload.target.protocol == Protocol::grpc;
  base::require(!is_grpc || payload.prefix.empty(), "a gRPC URL has no path: ", options.url);
  const std::string model = payload.prefix + "/v2/models/" + options.model;
  const std::vector<ModelInput> inputs = model_inputs(options, metadata_of(options, payload, model));
  payload.items_per_request =
      !inputs.empty() && !inputs[0].shape.empty() ? std::max<int64_t>(inputs[0].shape[0], 1) : 1;
  payload.url.target = is_grpc
                           ? std::string(kGrpcService) + (options.stream ? "ModelStreamInfer" : "ModelInfer")
                           : model + (options.stream ? "/generate_stream" : "/infer");
  const bool text = !options.text_file.empty();
  for (const auto& request : text ? text_requests(options, inputs) : random_requests(options, inputs))
    payload.requests.push_back(model_request(options, payload, request));
}

}  // namespace

std::string random_elements(std::string_view datatype, int64_t count, double low, double high,
                            uint64_t seed) {
  const Datatype& type = datatype_of(datatype);
  base::Rng rng(seed);
  std::string out;
  out.reserve(static_cast<size_t>(count) * std::max<size_t>(type.bytes, 12));
  for (int64_t i = 0; i < count; ++i) append_random(out, type, rng, low, high);
  return out;
}

std::string encode_infer(const std::vector<InputTensor>& inputs, Format format, size_t* json_bytes) {
  std::string json = "{\"inputs\":[";
  std::string blobs;
  for (const InputTensor& input : inputs) {
    const Datatype& type = datatype_of(input.datatype);
    if (json.back() == '}') json += ',';
    json += "{\"name\":";
    base::append_json(json, std::string_view(input.name));
    json += ",\"datatype\":\"" + input.datatype + "\",\"shape\":[";
    for (size_t i = 0; i < input.shape.size(); ++i)
      json += (i > 0 ? "," : "") + std::to_string(input.shape[i]);
    if (format == Format::binary) {
      json += "],\"parameters\":{\"binary_data_size\":" + std::to_string(input.bytes.size()) + "}}";
      blobs += input.bytes;
      continue;
    }
    if (type.form == Form::half || type.form == Form::brain) {
      base::fail_unsupported("datatype has no JSON form, use --format binary: ", input.datatype);
    }
    json += "],\"data\":[";
    for (size_t at = 0; at < input.bytes.size();) {
      if (at > 0) json += ',';
      append_json_element(json, type, input.bytes, at);
    }
    json += "]}";
  }
  json += format == Format::binary ? "],\"parameters\":{\"binary_data_output\":true}}" : "]}";
  *json_bytes = json.size();
  return json + blobs;
}

std::string encode_generate(const std::vector<InputTensor>& inputs) {
  std::string json = "{";
  for (const InputTensor& input : inputs) {
    const Datatype& type = datatype_of(input.datatype);
    if (type.form == Form::half || type.form == Form::brain)
      base::fail_unsupported("datatype has no JSON form: ", input.datatype);
    if (json.size() > 1) json += ',';
    base::append_json(json, std::string_view(input.name));
    json += ':';
    const size_t first = json.size();
    int64_t count = 0;
    for (size_t at = 0; at < input.bytes.size(); ++count) {
      if (count > 0) json += ',';
      append_json_element(json, type, input.bytes, at);
    }
    if (count == 1) continue;
    json.insert(first, "[");
    json += ']';
  }
  return json + "}";
}

Payload make_payload(const LoadOptions& options) {
  Payload payload;
  payload.url = parse_url(options.url);
  payload.target = target_of(options, payload.url);
  payload.headers = parse_headers(options.header);
  base::require(payload.target.protocol == Protocol::http || !options.model.empty(),
                "a gRPC URL needs --model: ", options.url);
  base::require(options.text_file.empty() || !options.model.empty(), "--text-file needs --model");
  base::require(options.body.empty() || options.model.empty(), "--body and --model exclude each other");
  base::require(!options.text.completions || !options.model.empty(), "--completions needs --model");
  base::require(options.text.lengths.empty() || (options.text.completions && options.trace.empty()),
                "--lengths needs --completions, and goes without --trace, which has lengths of its own");
  std::string method = options.method;
  if (!options.model.empty()) {
    base::require(method.empty() || method == "POST", "--model requests are POST, not ", method);
    method = "POST";
    options.text.completions ? add_text_requests(options, payload) : add_model_requests(options, payload);
  } else {
    const std::string body = options.body.empty() ? std::string() : base::read_file(options.body);
    if (method.empty()) method = options.body.empty() ? "GET" : "POST";
    payload.requests.push_back(http::request_head(method, payload.url.target, payload.url.authority(),
                                                  body.size(), payload.headers) +
                               body);
  }
  payload.description = base::concat(method, " ", payload.url.target, ", ", payload.requests.size(),
                                     " variants, ", payload.requests.front().size(), " bytes, ",
                                     payload.items_per_request, " items a request");
  return payload;
}

}  // namespace trireme::load
