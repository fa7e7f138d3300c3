// Loads the kinds of models that are served: the only place that names them all.
#include "serve/repository/load_served_model.h"

#include "serve/batched/batched_model.h"
#include "serve/batched/follow_tensors.h"
#include "serve/generative/generative_model.h"
#include "serve/generative/text_session.h"
#include "serve/models/ensemble_model.h"

namespace trireme::serve {

std::shared_ptr<ServedModel> load_served_model(const ModelSource& source, const ModelHost& host,
                                               const ModelMetrics* earlier) {
  if (source.config.ensemble) return std::make_shared<EnsembleModel>(source, host, earlier);
  if (is_generative(source)) return std::make_shared<GenerativeModel>(source, host, earlier);
  return std::make_shared<BatchedModel>(source, host, earlier);
}

std::shared_ptr<const engine::FollowSession> load_to_follow(const std::string& key,
                                                            const ServeOptions& options) {
  const FollowKey told = FollowKey::read(key);
  return told.continues_texts ? follow_texts(told, options) : follow_tensors(told, options);
}

}  // namespace trireme::serve
