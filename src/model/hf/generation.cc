// Reads what a Hugging Face directory states about generating text.
#include "model/hf/generation.h"

#include "base/files/file.h"

namespace trireme::model::hf {
namespace {

std::vector<int64_t> ids_of(const base::Json& config) {
  const base::Json* eos = config.find("eos_token_id");
  std::vector<int64_t> ids;
  if (eos == nullptr || eos->is_null()) return ids;
  if (!eos->is_array()) return {eos->as_int()};
  for (const base::Json& id : eos->as_array()) ids.push_back(id.as_int());
  return ids;
}

}  // namespace

std::vector<int64_t> end_tokens(const Model& model) {
  const std::string path = model.directory + "/generation_config.json";
  if (!model.directory.empty() && base::file_exists(path)) {
    std::vector<int64_t> ids = ids_of(base::parse_json(base::read_file(path)));
    if (!ids.empty()) return ids;
  }
  return ids_of(model.config);
}

}  // namespace trireme::model::hf
