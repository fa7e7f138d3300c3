// Reads model_warmup of a model's configuration.
#include "serve/config/warmup_config.h"

#include <algorithm>
#include <random>

#include "base/files/file.h"
#include "serve/config/field_readers.h"
#include "serve/config/regular_file.h"

namespace trireme::serve {
namespace {

using base::Json;
using tensor::Tensor;

WarmupConfig::Input read_input(const TextField& field) {
  WarmupConfig::Input out;
  bool has_type = false;
  for (const TextField& f : field.as_message()) {
    if (f.name == "key") {
      out.name = f.as_string();
      continue;
    }
    if (f.name != "value") refuse_field("model_warmup.inputs", f);
    for (const TextField& g : f.as_message()) {
      if (g.name == "data_type") {
        out.type = read_data_type(g);
        has_type = true;
      } else if (g.name == "dims") {
        out.dims.push_back(g.as_int());
        base::require(out.dims.back() >= 1, "line ", g.line, ": dims of a warmup input must be at least 1");
      } else if (g.name == "zero_data" || g.name == "random_data") {
        base::require(g.as_bool(), "line ", g.line, ": ", g.name, " is false");
        out.data = g.name[0] == 'z' ? WarmupConfig::Input::Data::zero : WarmupConfig::Input::Data::random;
      } else if (g.name == "input_data_file") {
        out.data = WarmupConfig::Input::Data::file;
        out.file = g.as_string();
      } else {
        refuse_field("model_warmup.inputs.value", g);
      }
    }
  }
  base::require(!out.name.empty() && has_type, "line ", field.line,
                ": a warmup input needs a name and a data_type");
  return out;
}

Tensor random_tensor(tensor::DType type, const tensor::Dims& dims) {
  Tensor out = Tensor::empty(type, dims);
  std::mt19937_64 random(1);  // the same numbers at every load
  tensor::visit_dtype(type, [&]<class T>(T) {
    for (T& v : out.template mutable_data<T>()) {
      const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
      if constexpr (std::is_same_v<T, bool>) {
        v = unit < 0.5;
      } else if constexpr (std::is_integral_v<T>) {
        v = static_cast<T>(unit * 100);
      } else {
        v = static_cast<T>(static_cast<float>(unit));
      }
    }
  });
  return out;
}

}  // namespace

WarmupConfig read_warmup_config(const std::vector<TextField>& fields) {
  WarmupConfig config;
  for (const TextField& f : fields) {
    if (f.name == "name") {
      config.name = f.as_string();
    } else if (f.name == "batch_size") {
      config.batch_size = f.as_int();
    } else if (f.name == "count") {
      config.count = std::max<int64_t>(1, read_natural(f));  // in protobuf, 0 means "not set"
      base::require(config.count <= 10'000, "line ", f.line, ": model_warmup.count ", f.text,
                    " is beyond 10000");
    } else if (f.name == "inputs") {
      config.inputs.push_back(read_input(f));
    } else {
      refuse_field("model_warmup", f);
    }
  }
  return config;
}

Json warmup_config_json(const WarmupConfig& config) {
  Json inputs = Json::object();
  for (const WarmupConfig::Input& i : config.inputs) {
    Json dims = Json::array();
    for (int64_t d : i.dims) dims.push_back(d);
    Json json = Json::object({{"data_type", config_type_name(i.type)}, {"dims", std::move(dims)}});
    if (i.data == WarmupConfig::Input::Data::file) {
      json.set("input_data_file", i.file);
    } else {
      json.set(i.data == WarmupConfig::Input::Data::zero ? "zero_data" : "random_data", true);
    }
    inputs.set(i.name, std::move(json));
  }
  return Json::object({{"name", config.name},
                       {"batch_size", config.batch_size},
                       {"inputs", std::move(inputs)},
                       {"count", config.count}});
}

WireTensor warmup_tensor(const WarmupConfig::Input& input, bool is_batched, const std::string& root) {
  using Data = WarmupConfig::Input::Data;
  WireTensor out{.name = input.name, .type = input.type, .dims = input.dims};
  if (is_batched) out.dims.insert(out.dims.begin(), 1);
  if (input.data == Data::file) {
    auto bytes = std::make_shared<const std::string>(
        read_regular_file(base::safe_join(root, "warmup/" + input.file), size_t{1} << 30));
    return tensor_from_bytes(input.name, input.type, std::move(out.dims), {*bytes, bytes});
  }
  if (!input.type) {
    out.strings.assign(static_cast<size_t>(wire_elements(input.name, out.dims)), "0");
  } else {
    out.values = input.data == Data::random ? random_tensor(*input.type, out.dims)
                                            : Tensor::zeros(*input.type, out.dims);
  }
  return out;
}

}  // namespace trireme::serve
