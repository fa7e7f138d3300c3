// What the other ranks of a job are told of a model that the first rank serves.
#include "serve/models/follow_key.h"

#include "base/text/json.h"

namespace trireme::serve {

using base::Json;

std::string FollowKey::text() const {
  Json all = Json::array();
  for (const auto& [key, value] : parameters) all.push_back(Json::array({key, value}));
  return Json::object({{"path", path},
                       {"continues_texts", continues_texts},
                       {"parameters", std::move(all)},
                       {"kept_outputs", kept_outputs},
                       {"load", static_cast<int64_t>(load)}})
      .dump();
}

FollowKey FollowKey::read(const std::string& text) {
  const Json json = base::parse_json(text);
  FollowKey key{.path = json.at("path").as_string(),
                .continues_texts = json.at("continues_texts").as_bool(),
                .parameters = {},
                .kept_outputs = json.at("kept_outputs").as_string(),
                .load = static_cast<uint64_t>(json.at("load").as_int())};
  for (const Json& pair : json.at("parameters").as_array())
    key.parameters.emplace_back(pair.at(0).as_string(), pair.at(1).as_string());
  return key;
}

}  // namespace trireme::serve
