// Gradient rules of the normalisations; the schemas stand in norms.cc and pooling_norms.cc.
#pragma once

#include "ir/schema.h"

namespace trireme::ops {

ir::GradFn batch_norm_gradient();  ///< in inference: by the given statistics
ir::GradFn group_norm_gradient();  ///< of instance_norm too
ir::GradFn layer_norm_gradient();  ///< of rms_norm too
ir::GradFn add_layer_norm_gradient();
ir::GradFn lp_norm_gradient();
ir::GradFn mean_variance_gradient();
ir::GradFn lrn_gradient();
ir::GradFn l2_normalize_gradient();
ir::GradFn masked_mean_pool_gradient();

}  // namespace trireme::ops
