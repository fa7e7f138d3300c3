// Reads ensemble_scheduling of a model's configuration.
#include "serve/config/ensemble_config.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "base/error.h"

namespace trireme::serve {
namespace {

using base::Json;
using Step = EnsembleConfig::Step;

std::pair<std::string, std::string> read_pair(const TextField& field) {
  std::pair<std::string, std::string> out;
  for (const TextField& f : field.as_message()) {
    if (f.name == "key") {
      out.first = f.as_string();
    } else if (f.name == "value") {
      out.second = f.as_string();
    } else {
      refuse_field("ensemble_scheduling.step." + field.name, f);
    }
  }
  base::require(!out.first.empty() && !out.second.empty(), "line ", field.line, ": ", field.name,
                " needs a key and a value");
  return out;
}

Step read_step(const TextField& field) {
  Step out;
  for (const TextField& f : field.as_message()) {
    if (f.name == "model_name") {
      out.model = f.as_string();
    } else if (f.name == "model_version") {
      out.version = f.as_int();
    } else if (f.name == "input_map") {
      out.inputs.push_back(read_pair(f));
      const auto twice = [&](const auto& in) { return in.first == out.inputs.back().first; };
      base::require(std::count_if(out.inputs.begin(), out.inputs.end(), twice) == 1, "line ", f.line,
                    ": input_map gives input '", out.inputs.back().first, "' twice");
    } else if (f.name == "output_map") {
      out.outputs.push_back(read_pair(f));
    } else {
      refuse_field("ensemble_scheduling.step", f);
    }
  }
  base::require(!out.model.empty() && !out.inputs.empty() && !out.outputs.empty(), "line ", field.line,
                ": a step needs model_name, input_map and output_map");
  return out;
}

Json map_json(const Step::Map& map) {
  Json json = Json::object();
  for (const auto& [key, value] : map) json.set(key, value);
  return json;
}

}  // namespace

EnsembleConfig read_ensemble_config(const std::vector<TextField>& fields) {
  EnsembleConfig config;
  for (const TextField& f : fields) {
    if (f.name == "step") {
      config.steps.push_back(read_step(f));
    } else if (f.name == "max_inflight_requests") {
      config.max_inflight = f.as_int();
      base::require(config.max_inflight >= 0, "line ", f.line, ": max_inflight_requests is negative");
    } else {
      refuse_field("ensemble_scheduling", f);
    }
  }
  base::require(!config.steps.empty(), "ensemble_scheduling has no step");
  return config;
}

Json ensemble_config_json(const EnsembleConfig& config) {
  Json steps = Json::array();
  for (const Step& s : config.steps) {
    steps.push_back(Json::object({{"model_name", s.model},
                                  {"model_version", s.version},
                                  {"input_map", map_json(s.inputs)},
                                  {"output_map", map_json(s.outputs)}}));
  }
  return Json::object({{"step", std::move(steps)}, {"max_inflight_requests", config.max_inflight}});
}

void check_ensemble(const EnsembleConfig& config, const std::vector<std::string>& inputs,
                    const std::vector<std::string>& outputs) {
  std::set<std::string> known(inputs.begin(), inputs.end());
  std::vector<const Step*> left;
  for (const Step& s : config.steps) {
    left.push_back(&s);
    for (const auto& [key, tensor] : s.outputs) {
      const bool is_input = std::find(inputs.begin(), inputs.end(), tensor) != inputs.end();
      base::require(!is_input, "ensemble tensor '", tensor, "' is an input and written by step '", s.model,
                    "'");
    }
  }
  std::set<std::string> written;
  for (const Step* s : left) {
    for (const auto& [key, tensor] : s->outputs)
      base::require(written.insert(tensor).second, "ensemble tensor '", tensor, "' is written twice");
  }
  while (!left.empty()) {
    const auto at = std::find_if(left.begin(), left.end(), [&](const Step* s) {
      return std::all_of(s->inputs.begin(), s->inputs.end(),
                         [&](const auto& in) { return known.count(in.second) > 0; });
    });
    if (at == left.end()) {
      for (const auto& [key, tensor] : left[0]->inputs) {
        base::require(known.count(tensor) > 0 || written.count(tensor) > 0, "ensemble tensor '", tensor,
                      "', which step '", left[0]->model, "' reads, is not written by any step");
      }
      base::fail_invalid("the steps of the ensemble form a circle at model '", left[0]->model, "'");
    }
    for (const auto& [key, tensor] : (*at)->outputs) known.insert(tensor);
    left.erase(at);
  }
  for (const std::string& name : outputs)
    base::require(written.count(name) > 0, "output '", name, "' of the ensemble is not written by any step");
}

std::vector<bool> unread_steps(const EnsembleConfig& config, std::vector<std::string> outputs) {
  std::map<std::string_view, size_t> writers;
  for (size_t i = 0; i < config.steps.size(); ++i) {
    for (const auto& [key, tensor] : config.steps[i].outputs) writers[tensor] = i;
  }
  std::vector<bool> is_unread(config.steps.size(), true);
  while (!outputs.empty()) {
    const auto writer = writers.find(outputs.back());
    outputs.pop_back();
    if (writer == writers.end() || !is_unread[writer->second]) continue;
    is_unread[writer->second] = false;
    for (const auto& [key, tensor] : config.steps[writer->second].inputs) outputs.push_back(tensor);
  }
  return is_unread;
}

}  // namespace trireme::serve
