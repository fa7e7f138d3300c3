// The options of a served language model's sessions, and what another rank of a job does in them.
#include "serve/generative/text_session.h"

#include "engine/decode/decode_ranks.h"
#include "serve/models/model_file.h"

namespace trireme::serve {

engine::DecodeOptions session_options(const RunConfig& run, const ServeOptions& options) {
  engine::DecodeOptions o;
  options.cache.apply(o);
  o.cache_share = 0.25;  // other models live here too
  o.device = options.device;
  o.threads = run.threads > 0 ? run.threads : options.threads;
  o.strategy = strategy_of(run, options);
  const engine::SpeculationOptions& speculation =
      run.speculation ? *run.speculation : options.texts.speculation;
  o.counts_ahead = speculation.speculate != engine::Speculation::off;
  return o;
}

std::shared_ptr<const engine::FollowSession> follow_texts(const FollowKey& key, const ServeOptions& options) {
  const engine::DecodeOptions own = session_options(RunConfig::of(key.parameters), options);
  const model::Model model = open_model(key.path, options.others);
  const auto prepared = std::make_shared<const engine::DecodeModel>(model.graph, own, model.files);
  return std::make_shared<const engine::FollowSession>(
      [prepared, own](comm::Communicator& group) { engine::follow_decoding(prepared, own, group); });
}

}  // namespace trireme::serve
