// Launchers of recurrent layers.
#include "backend/cuda/rnn/recurrent.h"

#include "backend/cuda/rnn/recurrent_grad_kernels.h"
#include "backend/cuda/rnn/recurrent_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

template <RecurrentPhase kPhase>
using PhaseConstant = std::integral_constant<RecurrentPhase, kPhase>;

/// Calls f(phase) with the phase as a compile-time constant.
template <class F>
void by_phase(RecurrentPhase phase, F f) {
  using P = RecurrentPhase;
  switch (phase) {
    case P::rnn: return f(PhaseConstant<P::rnn>{});
    case P::lstm: return f(PhaseConstant<P::lstm>{});
    case P::gru: return f(PhaseConstant<P::gru>{});
    case P::gru_gates: return f(PhaseConstant<P::gru_gates>{});
    case P::gru_candidate: return f(PhaseConstant<P::gru_candidate>{});
  }
}

template <class T, RecurrentPhase kPhase>
void run_step(tensor::Stream& stream, const RecurrentStep& s) {
  const RecurrentFinish<T, kPhase> finish{s};
  if (s.product != nullptr) {
    launch(stream, "recurrent_cells", flat_launch(stream, s.shape.cells()),
           RecurrentCells<T, kPhase>{finish, static_cast<const T*>(s.product)});
    return;
  }
  constexpr int kThreads = 128, kWarps = kThreads / kWarp;
  const int64_t units = s.shape.directions * s.shape.hidden;
  const Launch grid{blocks_for(cuda_stream(stream), (units + kWarps - 1) / kWarps, 16), kThreads};
  const auto* vector = static_cast<const T*>(kPhase == RecurrentPhase::gru_candidate ? s.reset_h : s.h);
  if (s.shape.hidden % kPack<T> == 0) {
    launch(stream, "recurrent_units", grid, RecurrentUnits<T, kPhase, true>{finish, vector});
  } else {
    launch(stream, "recurrent_units", grid, RecurrentUnits<T, kPhase, false>{finish, vector});
  }
}

}  // namespace

void recurrent_step(On on, const RecurrentStep& s) {
  if (s.shape.cells() == 0) return;
  by_float(on.dtype, [&](auto zero) {
    by_phase(s.phase, [&](auto phase) { run_step<decltype(zero), decltype(phase)::value>(on.stream, s); });
  });
}

void recurrent_back(On on, const RecurrentBack& s) {
  if (s.shape.cells() == 0) return;
  by_float(on.dtype, [&](auto zero) {
    by_phase(s.phase, [&](auto phase) {
      launch(on.stream, "recurrent_back", flat_launch(on.stream, s.shape.cells()),
             RecurrentBackCells<decltype(zero), decltype(phase)::value>{s});
    });
  });
}

void load_recurrent_states(On on, const RecurrentStates& s) {
  if (s.shape.cells() == 0) return;
  by_float(on.dtype, [&](auto zero) {
    launch(on.stream, "load_states", flat_launch(on.stream, s.shape.cells()),
           RecurrentStateMoves<decltype(zero), true>{s});
  });
}

void store_recurrent_states(On on, const RecurrentStates& s) {
  if (s.shape.cells() == 0 || (s.h_result == nullptr && s.c_result == nullptr)) return;
  by_float(on.dtype, [&](auto zero) {
    launch(on.stream, "store_states", flat_launch(on.stream, s.shape.cells()),
           RecurrentStateMoves<decltype(zero), false>{s});
  });
}

void recurrent_peepholes(On on, const RecurrentShape& shape, const void* dpre, const RecurrentTape& tape,
                         void* dpeephole) {
  const int64_t count = shape.directions * 3 * shape.hidden;
  if (count == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(on.stream, "recurrent_peepholes", flat_launch(on.stream, count),
           RecurrentPeepholes<T>{shape, static_cast<const T*>(dpre), tape, static_cast<T*>(dpeephole)});
  });
}

}  // namespace trireme::cuda
