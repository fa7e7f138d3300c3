// Mixtures of experts (Shazeer et al. 2017): each token goes through a few of many feed-forward layers.
#pragma once

#include "model/net.h"
#include "model/zoo/decoder.h"

namespace trireme::model::zoo {

struct MixtureSpec {
  const ExpertSpec& experts;
  int64_t width = 0;  ///< channels of the residual stream
  std::string activation = "silu";
  const DecoderNames& names;
  Init weight, branch;  ///< of projections from and to the residual stream
};

/// x [batch, seq, width] -> sum over the chosen experts e of p(e) down_e(act(gate_e(x)) * up_e(x)), p the
/// softmax of the router's scores. Weights: router [experts, width]; of all experts together gate and up
/// [experts, inner, width], down [experts, width, inner]. What was not chosen is neither read nor computed.
ir::ValueId mixture(const Net& at, ir::ValueId x, const MixtureSpec& spec);

}  // namespace trireme::model::zoo
