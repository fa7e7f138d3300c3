// Reads the body of a KServe v2 inference request as JSON events, so that numbers need no nodes.
#include "serve/kserve/kserve_request.h"

#include <algorithm>
#include <charconv>
#include <variant>

#include "base/text/json.h"
#include "serve/infer/data_writer.h"
#include "serve/infer/infer_parameter.h"
#include "serve/infer/request_json.h"
#include "serve/core/shared_regions.h"

namespace trireme::serve {
namespace {

using Scalar = ParameterValue;

/// One input, as far as it has been read.
struct InputPart {
  WireTensor tensor;
  bool has_type = false, has_shape = false, has_data = false;
  std::optional<uint64_t> binary_bytes;
  RegionSpan span;
};

/// The parser's position in the document; `skip` is below an unknown key.
enum class At {
  before,
  root,
  parameters,
  inputs,
  input,
  input_parameters,
  shape,
  data,
  outputs,
  output,
  output_parameters,
  skip
};

class InferHandler : public base::JsonHandler {
 public:
  /// `known` holds the inputs of an earlier pass, for documents with data before its type or shape.
  InferHandler(size_t text_bytes, const std::vector<InputPart>* known)
      : text_bytes_(text_bytes), known_(known) {}

  void null() override { at_ == At::data ? writer_.put_null() : scalar(nullptr); }
  void boolean(bool value) override { at_ == At::data ? writer_.put(value) : scalar(value); }
  void integer(int64_t value) override { at_ == At::data ? writer_.put(value) : scalar(value); }
  void big_integer(uint64_t value) override { at_ == At::data ? writer_.put(value) : scalar(value); }
  void real(double value) override { at_ == At::data ? writer_.put(value) : scalar(value); }
  void string(std::string_view value) override { at_ == At::data ? writer_.put(value) : scalar(value); }
  void key(std::string_view key) override { key_ = key; }
  void start_object() override;
  void end_object() override { leave(); }
  void start_array() override;
  void end_array() override;

  InferRequest request;
  std::vector<InputPart> inputs;
  bool needs_second_pass = false;

 private:
  void enter(At at) { path_.push_back(std::exchange(at_, at)); }
  void leave() {
    at_ = path_.back();
    path_.pop_back();
  }
  void scalar(const Scalar& value);
  void root_scalar(const Scalar& value);
  void refuse_parameters(const Scalar& value) const;
  void parameter(const Scalar& value);
  void input_scalar(const Scalar& value);
  void input_parameter(const Scalar& value);
  void output_parameter(const Scalar& value);
  void start_data();
  At object_at() const;
  At array_at() const;

  size_t text_bytes_;
  const std::vector<InputPart>* known_;
  At at_ = At::before;
  std::vector<At> path_;
  std::string key_;
  DataWriter writer_;
};

At InferHandler::object_at() const {
  const bool is_parameters = key_ == "parameters";
  switch (at_) {
    case At::before: return At::root;
    case At::root:
      base::require(key_ != "id" && key_ != "inputs" && key_ != "outputs", "Unable to parse '", key_,
                    "': unexpected JSON object");
      return is_parameters ? At::parameters : At::skip;
    case At::inputs: return At::input;
    case At::outputs: return At::output;
    case At::input: return is_parameters ? At::input_parameters : At::skip;
    case At::output: return is_parameters ? At::output_parameters : At::skip;
    case At::skip: return At::skip;
    case At::parameters:
      if (key_ == "headers") return At::skip;  // MLServer's clients put their HTTP headers here
      [[fallthrough]];
    default: base::fail_invalid("Unable to parse '", key_, "': unexpected JSON object");
  }
}

void InferHandler::start_object() {
  enter(object_at());
  if (at_ == At::input) {
    check_tensor_room(inputs.size());
    inputs.emplace_back();
  }
  if (at_ == At::output) {
    check_tensor_room(request.outputs.size());
    request.outputs.emplace_back();
  }
}

At InferHandler::array_at() const {
  const bool has_parameters = at_ == At::root || at_ == At::input || at_ == At::output;
  if (has_parameters) refuse_parameters(0.0);
  switch (at_) {
    case At::before: base::fail_invalid("failed to parse the request JSON buffer: expected an object");
    case At::root:
      base::require(key_ != "id", "Unable to parse 'id': unexpected JSON array");
      return key_ == "inputs" ? At::inputs : key_ == "outputs" ? At::outputs : At::skip;
    case At::input: return key_ == "shape" ? At::shape : key_ == "data" ? At::data : At::skip;
    case At::output:
    case At::skip: return At::skip;
    default: base::fail_invalid("Unable to parse '", key_, "': unexpected JSON array");
  }
}

void InferHandler::start_array() {
  if (at_ == At::data) return writer_.start_array();
  enter(array_at());
  if (at_ == At::shape) {
    base::require(!inputs.back().has_shape, "Unable to parse 'shape': given twice");
    inputs.back().has_shape = true;
  }
  if (at_ == At::data) start_data();
}

void InferHandler::start_data() {
  InputPart& input = inputs.back();
  base::require(!input.has_data, "Unable to parse 'data': given twice");
  input.has_data = true;
  if (known_ != nullptr) {
    const InputPart& before = known_->at(inputs.size() - 1);
    input.tensor.name = before.tensor.name;
    input.tensor.type = before.tensor.type;
    input.tensor.dims = before.tensor.dims;
  } else if (!input.has_type || !input.has_shape) {
    needs_second_pass = true;
    at_ = At::skip;
    return;
  }
  writer_ = DataWriter(input.tensor, text_bytes_);
  writer_.start_array();
}

void InferHandler::end_array() {
  if (at_ == At::data) {
    writer_.end_array();
    if (!writer_.is_over()) return;
  }
  leave();
}

void InferHandler::scalar(const Scalar& value) {
  switch (at_) {
    case At::root: return root_scalar(value);
    case At::parameters: return parameter(value);
    case At::input: return input_scalar(value);
    case At::input_parameters: return input_parameter(value);
    case At::output_parameters: return output_parameter(value);
    case At::output:
      if (key_ == "name") request.outputs.back().name = parameter_text(value, key_);
      return refuse_parameters(value);
    case At::shape: {
      const auto* extent = std::get_if<int64_t>(&value);
      base::require(extent != nullptr && *extent >= 0, "Unable to parse 'shape': input '",
                    inputs.back().tensor.name, "' has a dimension that is not a non-negative integer");
      if (known_ != nullptr) return;
      check_dim_room(inputs.back().tensor.dims.size());
      inputs.back().tensor.dims.push_back(*extent);
      return;
    }
    case At::data:
    case At::skip: return;
    default: base::fail_invalid("failed to parse the request JSON buffer: expected an object");
  }
}

/// Clients that write every known field use null for those that they do not need.
bool is_null(const Scalar& value) { return std::holds_alternative<std::nullptr_t>(value); }

void InferHandler::root_scalar(const Scalar& value) {
  if (is_null(value) && key_ != "inputs") return;
  base::require(key_ != "inputs" && key_ != "outputs", "Unable to parse '", key_, "': expected an array");
  refuse_parameters(value);
  if (key_ != "id") return;
  request.id = parameter_text(value, key_);
  request.has_id = true;
}

/// A value instead of the parameters' object would be silently ignored.
void InferHandler::refuse_parameters(const Scalar& value) const {
  base::require(key_ != "parameters" || is_null(value), "Unable to parse 'parameters': expected an object");
}

void InferHandler::parameter(const Scalar& value) { set_parameter(request, key_, value); }

void InferHandler::input_scalar(const Scalar& value) {
  WireTensor& tensor = inputs.back().tensor;
  if (key_ == "name") tensor.name = parameter_text(value, key_);
  if (key_ == "datatype") {
    base::require(!inputs.back().has_type, "Unable to parse 'datatype': given twice");
    tensor.type = wire_type(parameter_text(value, key_));
    inputs.back().has_type = true;
  }
  base::require(key_ != "shape" && key_ != "data", "Unable to parse '", key_, "': expected an array");
  refuse_parameters(value);
}

void InferHandler::input_parameter(const Scalar& value) {
  if (key_ == "binary_data_size") inputs.back().binary_bytes = parameter_unsigned(value, key_);
  set_input_parameter(inputs.back().span, key_, value);
}

void InferHandler::output_parameter(const Scalar& value) {
  set_output_parameter(request.outputs.back(), key_, value);
}

/// Assigns binary inputs their bytes in order, and all bytes must be used; others use shared memory.
void attach_blobs(std::vector<InputPart>& inputs, const WireBytes& blobs, const SharedRegions* regions) {
  size_t at = 0;
  for (InputPart& input : inputs) {
    WireTensor& t = input.tensor;
    base::require(input.has_type, "Unable to parse 'datatype': input '", t.name, "' has none");
    base::require(input.has_shape, "Unable to parse 'shape': input '", t.name, "' has none");
    const int sources = input.has_data + input.binary_bytes.has_value() + !input.span.region.empty();
    base::require(sources == 1, "input '", t.name,
                  "' must have exactly one of 'data' and the parameters 'binary_data_size' and "
                  "'shared_memory_region'");
    if (!input.span.region.empty()) {
      if (regions == nullptr) base::fail_unsupported("shared memory is not served here");
      t = regions->read(std::move(t), input.span, blobs.model);
    }
    if (!input.binary_bytes) continue;
    const size_t left = blobs.bytes.size() - at;
    base::require(*input.binary_bytes <= left, "unexpected size of binary data: input '", t.name, "' needs ",
                  *input.binary_bytes, " bytes, ", left, " follow");
    const std::string_view bytes = blobs.bytes.substr(at, *input.binary_bytes);
    at += bytes.size();
    t = tensor_from_bytes(std::move(t.name), t.type, std::move(t.dims), {bytes, blobs.owner, blobs.model});
  }
  base::require(at == blobs.bytes.size(), "unexpected additional input data: ", blobs.bytes.size() - at,
                " bytes after the last binary input");
}

}  // namespace

InferRequest parse_infer_request(std::string_view body, size_t json_bytes,
                                 const std::shared_ptr<const void>& owner, const SharedRegions* regions,
                                 std::string_view model) {
  const std::string_view text = body.substr(0, json_bytes);
  const base::JsonLimits limits{.nan_and_infinity = true};
  InferHandler handler(text.size(), nullptr);
  parse_request_json(text, handler, limits);
  std::vector<InputPart> inputs = std::move(handler.inputs);
  handler.inputs.clear();
  if (handler.needs_second_pass) {
    for (const InputPart& i : inputs) {
      base::require(!i.has_data || (i.has_type && i.has_shape), "Unable to parse 'data': input '",
                    i.tensor.name, "' lacks its datatype or shape");
    }
    InferHandler again(text.size(), &inputs);
    parse_request_json(text, again, limits);
    for (InputPart& i : again.inputs) {  // inputs without data keep the tensor of the first pass
      if (!i.has_data) i.tensor = inputs[static_cast<size_t>(&i - again.inputs.data())].tensor;
    }
    inputs = std::move(again.inputs);
  }
  attach_blobs(inputs, {body.substr(json_bytes), owner, model}, regions);
  for (InputPart& input : inputs) handler.request.inputs.push_back(std::move(input.tensor));
  check_request_names(handler.request);
  return std::move(handler.request);
}

size_t infer_json_bytes(std::string_view header, bool has_header, size_t body_bytes) {
  if (!has_header) return body_bytes;
  size_t bytes = 0;
  const auto [end, error] = std::from_chars(header.data(), header.data() + header.size(), bytes);
  base::require(error == std::errc() && end == header.data() + header.size() && !header.empty(),
                "Unable to parse Inference-Header-Content-Length, got '", header, "'");
  base::require(bytes <= body_bytes, "Inference-Header-Content-Length ", bytes,
                " is larger than the body of ", body_bytes, " bytes");
  return bytes;
}

}  // namespace trireme::serve
