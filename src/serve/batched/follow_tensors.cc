// What another rank of a job does of a model of tensors that the first one serves.
#include "serve/batched/follow_tensors.h"

#include "engine/ranks/sharded_session.h"
#include "serve/config/run_config.h"
#include "serve/models/model_file.h"

namespace trireme::serve {

std::shared_ptr<const engine::FollowSession> follow_tensors(const FollowKey& key,
                                                            const ServeOptions& options) {
  const RunConfig run = RunConfig::of(key.parameters);
  const passes::Strategy strategy = strategy_of(run, options);
  model::Model model = open_as_tensors(key.path, options.others);
  keep_outputs(model.graph, key.kept_outputs);
  engine::widen_floats_for(model.graph, strategy, options.device);
  const auto prepared =
      std::make_shared<const engine::PreparedModel>(std::move(model.graph), passes::PassOptions{}, strategy);
  const engine::SessionOptions own{.device = options.device,
                                   .threads = run.threads > 0 ? run.threads : options.threads,
                                   .strategy = strategy};
  return std::make_shared<const engine::FollowSession>(
      [prepared, own](comm::Communicator& group) { engine::follow(prepared, own, group); });
}

}  // namespace trireme::serve
