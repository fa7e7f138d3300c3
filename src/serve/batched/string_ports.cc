// Converts strings of requests to the numbers that replace them in a model's graph, and back.
#include "serve/batched/string_ports.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <numeric>

namespace trireme::serve {
namespace {

using tensor::DType;
using tensor::Tensor;

template <class T>
constexpr bool kIsSpelt = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

void require_spelt(DType type, const std::string& name) {
  tensor::visit_dtype(type, [&]<class T>(T) {
    if constexpr (!kIsSpelt<T>)
      base::fail_unsupported("'", name, "': strings are not cast to or from ", tensor::name_of(type));
  });
}

template <class T>
T parsed(const std::string& text, const std::string& name) {
  // from_chars does not accept a plus sign, so it is skipped; "+-1" is not a number.
  const size_t skip = text.size() > 1 && text[0] == '+' && text[1] != '-';
  T value{};
  const auto [end, error] = std::from_chars(text.data() + skip, text.data() + text.size(), value);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  base::require(is_whole, "input '", name, "' holds '", text.substr(0, 40), "' where the text of a ",
                tensor::name_of(tensor::dtype_of<T>()), " is wanted");
  return value;
}

/// The shortest text that reads as the same number; NaN and infinities are written as in ONNX Runtime.
template <class T>
std::string printed(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "INF" : "-INF";
  }
  std::array<char, 64> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  base::check(error == std::errc(), "a number does not fit its text");
  return {text.data(), end};
}

}  // namespace

void parse_number(const std::string& text, DType type, const std::string& name, void* to) {
  tensor::visit_dtype(type, [&]<class T>(T) {
    if constexpr (kIsSpelt<T>) {
      *static_cast<T*>(to) = parsed<T>(text, name);
    } else {
      require_spelt(type, name);
    }
  });
}

StringPorts::StringPorts(const model::Model& model) {
  const ir::Graph& graph = model.graph;
  using Form = model::StringPort::Form;
  const auto form = [](const std::vector<model::StringPort>& list, const std::string& name) {
    return std::find_if(list.begin(), list.end(), [&](const auto& p) { return p.name == name; });
  };
  for (ir::ValueId id : graph.inputs()) {
    const std::string& name = graph.value(id).name;
    const auto port = form(model.string_inputs, name);
    if (port == model.string_inputs.end()) continue;
    inputs_[name] = {port->form == Form::handle, graph.type(id).dtype};
    require_spelt(graph.type(id).dtype, name);
  }
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const std::string& name = graph.output_names()[i];
    const auto port = form(model.string_outputs, name);
    if (port == model.string_outputs.end()) continue;
    outputs_[name] = {port->form == Form::handle, graph.type(graph.outputs()[i]).dtype};
    require_spelt(outputs_[name].type, name);
  }
}

void StringPorts::add_picture(const ir::Graph& graph, data::PixelValues values, bool is_batched) {
  tensor::Dims dims;
  if (graph.inputs().size() == 1 && graph.type(graph.inputs()[0]).dtype == DType::f32) {
    const auto& shape = graph.type(graph.inputs()[0]).shape;
    for (size_t d = is_batched ? 1 : 0; shape.has_rank() && d < shape.rank(); ++d)
      dims.push_back(shape[d].is_static() ? shape[d].value() : -1);
  }
  const auto picture = data::PictureInput::of(dims, values);
  if (!picture) {
    base::fail_unsupported(
        "image_input needs one input, FP32 [height, width, 3] or [3, height, width] behind the "
        "batch");
  }
  inputs_[graph.value(graph.inputs()[0]).name] = {.type = DType::f32, .picture = picture};
}

const tensor::Dims* StringPorts::picture_dims(const std::string& input) const {
  const auto at = inputs_.find(input);
  return at == inputs_.end() || !at->second.picture ? nullptr : &at->second.picture->dims();
}

/// Decodes files [batch, 1] or [1] to pixels [batch, picture...] or [picture...].
Tensor StringPorts::decode(const data::PictureInput& picture, const WireTensor& given) {
  tensor::Dims dims = picture.dims();
  if (given.dims.size() == 2) dims.insert(dims.begin(), given.dims[0]);
  Tensor out = Tensor::empty(DType::f32, dims);
  std::span<float> to = out.mutable_data<float>();
  for (const std::string& file : given.strings) {
    try {
      picture.decode(file, to.first(picture.elements()));
    } catch (const base::Error& e) {
      throw e.with("input '" + given.name + "'");
    }
    to = to.subspan(picture.elements());
  }
  return out;
}

Tensor StringPorts::enter(WireTensor given, StringTable& table) const {
  const Port& port = inputs_.at(given.name);
  if (port.picture) return decode(*port.picture, given);
  Tensor out = Tensor::empty(port.type, given.dims);
  base::check(out.elements() == static_cast<int64_t>(given.strings.size()), "strings do not fit their shape");
  if (port.is_handle) {
    const auto handles = out.mutable_data<int64_t>();
    std::iota(handles.begin(), handles.end(), static_cast<int64_t>(table.size()));
    std::move(given.strings.begin(), given.strings.end(), std::back_inserter(table));
    return out;
  }
  const int64_t step = tensor::bits_of(port.type) / 8;
  std::byte* to = out.mutable_raw();
  for (const std::string& text : given.strings) {
    parse_number(text, port.type, given.name, to);
    to += step;
  }
  return out;
}

WireTensor StringPorts::leave(const std::string& name, const Tensor& values, const StringTable& table) const {
  const Port& port = outputs_.at(name);
  WireTensor out{.name = name, .type = std::nullopt, .dims = values.dims()};
  constexpr int64_t kPrintedBytes = 24;
  int64_t bytes = kPrintedBytes * values.elements();
  if (port.is_handle) {
    bytes = 0;  // one long string may be output many times
    for (int64_t handle : values.data<int64_t>()) {
      const bool is_known = handle >= 0 && handle < static_cast<int64_t>(table.size());
      bytes += is_known ? static_cast<int64_t>(table[static_cast<size_t>(handle)].size()) : 0;
    }
  }
  out.room = room_for_strings(values.elements(), bytes);
  out.strings.reserve(static_cast<size_t>(values.elements()));
  if (port.is_handle) {
    for (int64_t handle : values.data<int64_t>()) {
      // Other requests in the batch have their own tables, so a model that mixes rows is detected here.
      base::check(handle >= 0 && handle < static_cast<int64_t>(table.size()), "output '", name,
                  "' names a string that its request does not have; serve this model with max_batch_size 0");
      out.strings.push_back(table[static_cast<size_t>(handle)]);
    }
    return out;
  }
  tensor::visit_dtype(port.type, [&]<class T>(T) {
    if constexpr (kIsSpelt<T>) {
      for (T v : values.data<T>()) out.strings.push_back(printed(v));
    }
  });
  return out;
}

}  // namespace trireme::serve
