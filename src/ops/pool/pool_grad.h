// Gradient rules of the pooling family and the ops they add.
#pragma once

#include "ops/grad.h"

namespace trireme::ops {

using PoolRule = Gradients (*)(GradBuilder&);

Gradients max_pool_gradients(GradBuilder& g);
Gradients average_pool_gradients(GradBuilder& g);
Gradients lp_pool_gradients(GradBuilder& g);
Gradients global_average_pool_gradients(GradBuilder& g);  ///< any layout: dy has extents 1 where x is pooled
Gradients global_max_pool_gradients(GradBuilder& g);
Gradients global_lp_pool_gradients(GradBuilder& g);
Gradients max_unpool_gradients(GradBuilder& g);
Gradients roi_align_gradients(GradBuilder& g);
Gradients max_pool_nhwc_gradients(GradBuilder& g);
Gradients average_pool_nhwc_gradients(GradBuilder& g);

ir::OpSchema max_pool_grad();
ir::OpSchema average_pool_grad();
ir::OpSchema roi_align_grad();

}  // namespace trireme::ops
