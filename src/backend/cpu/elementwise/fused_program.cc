// Runs fused elementwise programs tile by tile: operands become pointers, steps become calls of tile kernels.
#include "backend/cpu/elementwise/fused_program.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace trireme::cpu {
namespace {

using base::require;

// 512 floats: enough to hide the call of each step, few enough that 16 registers stay in L1 and L2.
constexpr int64_t kTile = 512;
// Shorter rows share a tile; longer ones are cut into tiles of their own.
constexpr int64_t kShortRow = 256;

// A resolved operand; if it is `scalar`, p[0] is its value everywhere.
struct Operand {
  const float* p;
  bool scalar;
};

// The part of the result that a tile covers, and the addresses of its operands.
struct Tile {
  const FusedProgram& program;
  std::array<Operand, kFusedInputs> inputs;
  std::array<float*, kFusedOutputs> outputs;
  float (*registers)[kTile];
  size_t n;

  Operand resolve(FusedRef ref) const {
    switch (ref.kind) {
      case FusedRef::Kind::reg: return {registers[ref.index], false};
      case FusedRef::Kind::input: return inputs[ref.index];
      case FusedRef::Kind::output: return {outputs[ref.index], false};
      case FusedRef::Kind::constant: return {&program.constants[ref.index], true};
      case FusedRef::Kind::none: break;
    }
    return {nullptr, true};
  }
  float* target(FusedRef ref) const {
    return ref.kind == FusedRef::Kind::output ? outputs[ref.index] : registers[ref.index];
  }
};

// Repeats the one value that a step with only scalar operands computes.
void spread(float* y, size_t n) { std::fill(y + 1, y + n, y[0]); }

void run_unary(const FusedStep& step, const Operand& a, float* y, size_t n) {
  const UnaryTile tile = unary_tile(static_cast<UnaryOp>(step.op));
  tile(a.p, y, a.scalar ? 1 : n, step.params);
  if (a.scalar) spread(y, n);
}

void run_binary(const FusedStep& step, const Operand& a, const Operand& b, float* y, size_t n) {
  const BinaryTiles& tiles = binary_tiles(static_cast<BinaryOp>(step.op));
  if (a.scalar && b.scalar) {
    tiles.vector_vector(a.p, b.p, y, 1);
    spread(y, n);
  } else if (b.scalar) {
    tiles.vector_scalar(a.p, b.p, y, n);
  } else if (a.scalar) {
    tiles.scalar_vector(a.p, b.p, y, n);
  } else {
    tiles.vector_vector(a.p, b.p, y, n);
  }
}

// A scalar operand (a gradient of ones, a constant) is repeated first, since derivatives have only one form.
void run_gradient(const FusedStep& step, Operand a, Operand b, float* y, size_t n) {
  alignas(64) float spread_a[kTile], spread_b[kTile];
  if (a.scalar) {
    std::fill_n(spread_a, n, a.p[0]);
    a.p = spread_a;
  }
  if (b.scalar) {
    std::fill_n(spread_b, n, b.p[0]);
    b.p = spread_b;
  }
  gradient_tile(static_cast<GradientOp>(step.op))(a.p, b.p, y, n, step.params);
}

void run_tile(const Tile& tile) {
  for (const FusedStep& step : tile.program.steps) {
    const Operand a = tile.resolve(step.a);
    float* y = tile.target(step.dst);
    if (step.kind == FusedKind::unary) {
      run_unary(step, a, y, tile.n);
      continue;
    }
    const Operand b = tile.resolve(step.b);
    if (step.kind == FusedKind::binary) {
      run_binary(step, a, b, y, tile.n);
      continue;
    }
    if (step.kind == FusedKind::gradient) {
      run_gradient(step, a, b, y, tile.n);
      continue;
    }
    const Operand c = tile.resolve(step.c);
    const SelectTile three = step.kind == FusedKind::select ? select_tile() : muladd_tile();
    three({c.p, a.p, b.p, c.scalar, a.scalar, b.scalar}, y, tile.n);
  }
}

// Memory on the stack for one thread's run of tiles.
struct Scratch {
  alignas(64) float registers[kFusedRegisters][kTile];
};

Tile start_tile(const FusedProgram& program, Scratch& scratch) {
  return {program, {}, {}, scratch.registers, 0};
}

// Case 1: no input varies by row or by column, so the result is one long row.
void run_flat(const FusedProgram& program, const FusedArgs& g, int64_t begin, int64_t end) {
  Scratch scratch;
  Tile tile = start_tile(program, scratch);
  for (int64_t at = begin; at < end; at += kTile) {
    tile.n = static_cast<size_t>(std::min(kTile, end - at));
    for (size_t i = 0; i < g.inputs.size(); ++i) {
      const bool full = g.inputs[i].shape == FusedShape::full;
      tile.inputs[i] = {g.inputs[i].data + (full ? at : 0), !full};
    }
    for (size_t i = 0; i < g.outputs.size(); ++i) tile.outputs[i] = g.outputs[i] + at;
    run_tile(tile);
  }
}

// Case 2, long rows: each tile lies inside one row, so an input that varies by row is a scalar in it.
void run_long_rows(const FusedProgram& program, const FusedArgs& g, int64_t begin, int64_t end) {
  Scratch scratch;
  Tile tile = start_tile(program, scratch);
  const int64_t pieces = (g.cols + kTile - 1) / kTile;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t row = t / pieces, col = t % pieces * kTile, at = row * g.cols + col;
    tile.n = static_cast<size_t>(std::min(kTile, g.cols - col));
    for (size_t i = 0; i < g.inputs.size(); ++i) {
      const float* p = g.inputs[i].data;
      switch (g.inputs[i].shape) {
        case FusedShape::full: tile.inputs[i] = {p + at, false}; break;
        case FusedShape::row: tile.inputs[i] = {p + col, false}; break;
        case FusedShape::column: tile.inputs[i] = {p + row, true}; break;
        case FusedShape::scalar: tile.inputs[i] = {p, true}; break;
      }
    }
    for (size_t i = 0; i < g.outputs.size(); ++i) tile.outputs[i] = g.outputs[i] + at;
    run_tile(tile);
  }
}

// Case 3, short rows: a tile holds several whole rows; row and column inputs are expanded to its size first.
void run_short_rows(const FusedProgram& program, const FusedArgs& g, int64_t begin, int64_t end) {
  Scratch scratch;
  alignas(64) float spread_inputs[kFusedInputs][kTile];
  Tile tile = start_tile(program, scratch);
  const int64_t group = kTile / g.cols;
  for (size_t i = 0; i < g.inputs.size(); ++i) {
    if (g.inputs[i].shape != FusedShape::row) continue;
    const int64_t rows = std::min(group, end - begin);
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(g.inputs[i].data, g.cols, spread_inputs[i] + r * g.cols);
    }
  }
  for (int64_t row = begin; row < end; row += group) {
    const int64_t rows = std::min(group, end - row);
    tile.n = static_cast<size_t>(rows * g.cols);
    for (size_t i = 0; i < g.inputs.size(); ++i) {
      const float* p = g.inputs[i].data;
      const FusedShape shape = g.inputs[i].shape;
      if (shape == FusedShape::column) {
        for (int64_t r = 0; r < rows; ++r) std::fill_n(spread_inputs[i] + r * g.cols, g.cols, p[row + r]);
      }
      if (shape == FusedShape::full)
        tile.inputs[i] = {p + row * g.cols, false};
      else if (shape == FusedShape::scalar)
        tile.inputs[i] = {p, true};
      else
        tile.inputs[i] = {spread_inputs[i], false};
    }
    for (size_t i = 0; i < g.outputs.size(); ++i) tile.outputs[i] = g.outputs[i] + row * g.cols;
    run_tile(tile);
  }
}

// Number of tiles per piece, so that a piece takes some microseconds: programs with many or costly steps get
// smaller pieces.
int64_t tiles_per_piece(const FusedProgram& program) {
  int64_t cost = 4;
  for (const FusedStep& step : program.steps) {
    const bool costly = (step.kind == FusedKind::unary && is_costly(static_cast<UnaryOp>(step.op))) ||
                        (step.kind == FusedKind::gradient && is_costly(static_cast<GradientOp>(step.op)));
    cost += costly ? 6 : 1;
  }
  return std::max<int64_t>(1, 160 / cost);
}

/// Whether there is vector code for what a step computes.
bool is_function(const FusedStep& s) {
  switch (s.kind) {
    case FusedKind::unary:
      return s.op < static_cast<size_t>(UnaryOp::count_) && unary_tile(static_cast<UnaryOp>(s.op)) != nullptr;
    case FusedKind::binary:
      return s.op < static_cast<size_t>(BinaryOp::count_) &&
             binary_tiles(static_cast<BinaryOp>(s.op)).vector_vector != nullptr;
    case FusedKind::gradient:
      return s.op < static_cast<size_t>(GradientOp::count_) &&
             gradient_tile(static_cast<GradientOp>(s.op)) != nullptr;
    case FusedKind::select:
    case FusedKind::muladd: break;
  }
  return true;
}

bool readable(FusedRef ref, const FusedProgram& program, int inputs, uint32_t regs, uint32_t outs) {
  switch (ref.kind) {
    case FusedRef::Kind::reg: return ref.index < kFusedRegisters && (regs >> ref.index & 1) != 0;
    case FusedRef::Kind::output: return ref.index < kFusedOutputs && (outs >> ref.index & 1) != 0;
    case FusedRef::Kind::input: return ref.index < inputs;
    case FusedRef::Kind::constant: return ref.index < program.constants.size();
    case FusedRef::Kind::none: break;
  }
  return false;
}

}  // namespace

FusedStep fused_unary(UnaryOp op, FusedRef dst, FusedRef a, UnaryParams params) {
  return {FusedKind::unary, static_cast<uint8_t>(op), dst, a, {}, {}, params};
}
FusedStep fused_binary(BinaryOp op, FusedRef dst, FusedRef a, FusedRef b) {
  return {FusedKind::binary, static_cast<uint8_t>(op), dst, a, b, {}, {}};
}
FusedStep fused_gradient(GradientOp op, FusedRef dst, FusedRef a, FusedRef b, UnaryParams params) {
  return {FusedKind::gradient, static_cast<uint8_t>(op), dst, a, b, {}, params};
}
FusedStep fused_select(FusedRef dst, FusedRef c, FusedRef a, FusedRef b) {
  return {FusedKind::select, 0, dst, a, b, c, {}};
}
FusedStep fused_muladd(FusedRef dst, FusedRef a, FusedRef b, FusedRef c) {
  return {FusedKind::muladd, 0, dst, a, b, c, {}};
}

void verify_fused(const FusedProgram& program, int inputs) {
  require(inputs <= kFusedInputs, "fused program has too many inputs: ", inputs, " of ", kFusedInputs);
  require(program.outputs >= 1 && program.outputs <= kFusedOutputs,
          "fused program has too many outputs: ", program.outputs, " of ", kFusedOutputs);
  uint32_t regs = 0, outs = 0;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const FusedStep& s = program.steps[i];
    require(is_function(s), "fused step has an unknown function: step ", i);
    const bool two = s.kind == FusedKind::binary || s.kind == FusedKind::gradient;
    const int reads = s.kind == FusedKind::unary ? 1 : two ? 2 : 3;
    const FusedRef refs[3] = {s.a, s.b, s.c};
    for (int r = 0; r < reads; ++r) {
      require(readable(refs[r], program, inputs, regs, outs), "fused step reads what nobody wrote: step ", i,
              " operand ", r);
    }
    const bool to_reg = s.dst.kind == FusedRef::Kind::reg && s.dst.index < kFusedRegisters;
    const bool to_out = s.dst.kind == FusedRef::Kind::output && s.dst.index < program.outputs;
    require(to_reg || to_out, "fused step writes to no register and no output: step ", i);
    (to_reg ? regs : outs) |= 1u << s.dst.index;
  }
  require(outs == (1u << program.outputs) - 1, "fused program leaves an output unwritten");
}

void run_fused(const FusedProgram& program, const FusedArgs& args, base::ThreadPool& pool) {
  if (args.rows <= 0 || args.cols <= 0) return;
  bool flat = true;
  for (const FusedInput& in : args.inputs)
    flat &= in.shape == FusedShape::full || in.shape == FusedShape::scalar;
  const int64_t grain = tiles_per_piece(program);
  if (flat || args.rows == 1) {
    // With one row, an input of the shape of a row is full, and one of the shape of a column is a scalar.
    std::array<FusedInput, kFusedInputs> inputs;
    for (size_t i = 0; i < args.inputs.size(); ++i) {
      const FusedShape s = args.inputs[i].shape;
      const bool whole = s == FusedShape::full || s == FusedShape::row;
      inputs[i] = {args.inputs[i].data, whole ? FusedShape::full : FusedShape::scalar};
    }
    const FusedArgs row = {{inputs.data(), args.inputs.size()}, args.outputs, 1, args.rows * args.cols};
    pool.for_range((row.cols + kTile - 1) / kTile, grain, [&](int64_t begin, int64_t end) {
      run_flat(program, row, begin * kTile, std::min(row.cols, end * kTile));
    });
  } else if (args.cols >= kShortRow) {
    const int64_t tiles = args.rows * ((args.cols + kTile - 1) / kTile);
    pool.for_range(tiles, grain,
                   [&](int64_t begin, int64_t end) { run_long_rows(program, args, begin, end); });
  } else {
    const int64_t group = kTile / args.cols;
    pool.for_range((args.rows + group - 1) / group, grain, [&](int64_t begin, int64_t end) {
      run_short_rows(program, args, begin * group, std::min(args.rows, end * group));
    });
  }
}

}  // namespace trireme::cpu
