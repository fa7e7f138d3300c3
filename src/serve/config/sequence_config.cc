// Reads sequence_batching of a model's configuration.
#include "serve/config/sequence_config.h"

#include <algorithm>

#include "serve/config/field_readers.h"

namespace trireme::serve {
namespace {

using base::Json;
using tensor::DType;
using Fields = std::vector<TextField>;
using Control = SequenceConfig::Control;

constexpr std::string_view kControlKinds[] = {"CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_READY",
                                              "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_CORRID"};

Control read_control(const TextField& field, const std::string& name) {
  Control out;
  out.name = name;
  std::vector<double> values;
  bool has_type = false;
  for (const TextField& f : field.as_message()) {
    if (f.name == "kind") {
      out.kind = static_cast<Control::Kind>(read_choice(f, kControlKinds));
    } else if (f.name == "int32_false_true" || f.name == "fp32_false_true" || f.name == "bool_false_true") {
      out.type = f.name[0] == 'i' ? DType::i32 : f.name[0] == 'f' ? DType::f32 : DType::boolean;
      values.push_back(read_number(f));
    } else if (f.name == "data_type") {
      out.type = read_data_type(f);
      has_type = true;
    } else {
      refuse_field("sequence_batching.control_input.control", f);
    }
  }
  if (out.kind == Control::Kind::corrid) {
    base::require(has_type, "line ", field.line, ": control '", name, "' needs a data_type");
    return out;
  }
  base::require(values.size() == 2, "line ", field.line, ": control '", name,
                "' needs a value for false and one for true");
  out.when_false = values[0];
  out.when_true = values[1];
  return out;
}

void read_control_input(const TextField& field, SequenceConfig& config) {
  std::string name;
  for (const TextField& f : field.as_message()) {
    if (f.name == "name") name = f.as_string();
  }
  size_t count = 0;
  for (const TextField& f : field.as_message()) {
    if (f.name == "name") continue;
    if (f.name != "control") refuse_field("sequence_batching.control_input", f);
    config.controls.push_back(read_control(f, name));
    ++count;
  }
  base::require(!name.empty() && count == 1, "line ", field.line,
                ": a control_input needs a name and one control");
}

/// The state's type and dims also apply to its initial value; if given again there, they must be equal.
void read_initial(const TextField& field, SequenceConfig::State& state) {
  tensor::Dims dims;
  for (const TextField& f : field.as_message()) {
    if (f.name == "data_file") {
      state.initial_file = f.as_string();
    } else if (f.name == "zero_data") {
      base::require(f.as_bool(), "line ", f.line, ": zero_data is false");
    } else if (f.name == "data_type") {
      base::require(read_data_type(f) == state.type, "line ", f.line, ": initial_state is ", f.text,
                    ", the state '", state.input, "' is ", config_type_name(state.type));
    } else if (f.name == "dims") {
      dims.push_back(f.as_int());
    } else if (f.name != "name") {
      refuse_field("sequence_batching.state.initial_state", f);
    }
  }
  base::require(dims.empty() || dims == state.dims, "line ", field.line, ": initial_state has dims ",
                tensor::to_string(dims), ", the state '", state.input, "' has ",
                tensor::to_string(state.dims));
}

SequenceConfig::State read_state(const TextField& field) {
  SequenceConfig::State out;
  bool has_type = false;
  std::vector<const TextField*> initial;
  for (const TextField& f : field.as_message()) {
    if (f.name == "input_name") {
      out.input = f.as_string();
    } else if (f.name == "output_name") {
      out.output = f.as_string();
    } else if (f.name == "data_type") {
      out.type = read_data_type(f);
      has_type = true;
    } else if (f.name == "dims") {
      out.dims.push_back(f.as_int());
      base::require(out.dims.back() >= 1, "line ", f.line, ": dims of a state must be at least 1");
    } else if (f.name == "initial_state") {
      initial.push_back(&f);
    } else {
      refuse_field("sequence_batching.state", f);
    }
  }
  base::require(!out.input.empty() && !out.output.empty() && has_type && out.type.has_value(), "line ",
                field.line, ": a state needs input_name, output_name and a numeric data_type");
  base::require(initial.size() <= 1, "line ", field.line, ": state '", out.input, "' has ", initial.size(),
                " initial states");
  if (!initial.empty()) read_initial(*initial[0], out);
  return out;
}

void read_strategy(const TextField& field, SequenceConfig& config) {
  config.is_oldest = field.name == "oldest";
  const std::string path = "sequence_batching." + field.name;
  for (const TextField& f : field.as_message()) {
    if (f.name == "max_queue_delay_microseconds") {
      config.queue_delay_us = read_microseconds(f);
    } else if (config.is_oldest && f.name == "max_candidate_sequences") {
      config.max_candidates = read_natural(f);
    } else if (config.is_oldest && f.name == "preferred_batch_size") {
      config.preferred.push_back(read_natural(f));
    } else {
      refuse_field(path, f);
    }
  }
}

Json numbers(const std::vector<int64_t>& list) {
  Json json = Json::array();
  for (int64_t v : list) json.push_back(v);
  return json;
}

Json control_json(const Control& c) {
  Json control = Json::object({{"kind", kControlKinds[static_cast<size_t>(c.kind)]},
                               {"int32_false_true", Json::array()},
                               {"fp32_false_true", Json::array()},
                               {"bool_false_true", Json::array()},
                               {"data_type", "TYPE_INVALID"}});
  if (c.kind == Control::Kind::corrid) {
    control.set("data_type", config_type_name(c.type));
  } else if (c.type == DType::f32) {
    control.set("fp32_false_true", Json::array({c.when_false, c.when_true}));
  } else if (c.type == DType::boolean) {
    control.set("bool_false_true", Json::array({c.when_false != 0, c.when_true != 0}));
  } else {
    control.set("int32_false_true",
                Json::array({static_cast<int64_t>(c.when_false), static_cast<int64_t>(c.when_true)}));
  }
  return Json::object({{"name", c.name}, {"control", Json::array({std::move(control)})}});
}

}  // namespace

bool SequenceConfig::makes_input(const std::string& name) const {
  return std::any_of(controls.begin(), controls.end(), [&](const auto& c) { return c.name == name; }) ||
         std::any_of(states.begin(), states.end(), [&](const auto& s) { return s.input == name; });
}

bool SequenceConfig::keeps_output(const std::string& name) const {
  return std::any_of(states.begin(), states.end(), [&](const auto& s) { return s.output == name; });
}

SequenceConfig read_sequence_config(const Fields& fields) {
  SequenceConfig config;
  for (const TextField& f : fields) {
    if (f.name == "max_sequence_idle_microseconds") {
      const int64_t idle_us = read_microseconds(f);
      if (idle_us > 0) config.idle_us = idle_us;  // in protobuf, 0 means "not set"
    } else if (f.name == "control_input") {
      read_control_input(f, config);
    } else if (f.name == "state") {
      config.states.push_back(read_state(f));
    } else if (f.name == "direct" || f.name == "oldest") {
      read_strategy(f, config);
    } else {
      refuse_field("sequence_batching", f);
    }
  }
  return config;
}

Json sequence_config_json(const SequenceConfig& config) {
  Json controls = Json::array(), states = Json::array();
  for (const Control& c : config.controls) controls.push_back(control_json(c));
  for (const SequenceConfig::State& s : config.states) {
    states.push_back(Json::object({{"input_name", s.input},
                                   {"output_name", s.output},
                                   {"data_type", config_type_name(s.type)},
                                   {"dims", numbers(s.dims)}}));
    if (s.initial_file.empty()) continue;
    states.as_array().back().set("initial_state",
                                 Json::array({Json::object({{"name", s.input},
                                                            {"data_type", config_type_name(s.type)},
                                                            {"dims", numbers(s.dims)},
                                                            {"data_file", s.initial_file}})}));
  }
  Json json = Json::object({{"max_sequence_idle_microseconds", config.idle_us},
                            {"control_input", std::move(controls)},
                            {"state", std::move(states)}});
  const int64_t delay_us = config.queue_delay_us.value_or(0);
  if (config.is_oldest) {
    json.set("oldest", Json::object({{"max_candidate_sequences", config.max_candidates},
                                     {"preferred_batch_size", numbers(config.preferred)},
                                     {"max_queue_delay_microseconds", delay_us}}));
  } else {
    json.set("direct",
             Json::object({{"max_queue_delay_microseconds", delay_us}, {"minimum_slot_utilization", 0.0}}));
  }
  return json;
}

}  // namespace trireme::serve
