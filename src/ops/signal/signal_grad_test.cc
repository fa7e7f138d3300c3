// Gradients of dft, stft, einsum and det against finite differences.
#include "ops/test_grad.h"

namespace trireme::ops {
namespace {

using namespace testing;  // NOLINT: the tests' own vocabulary

Tensor number(int64_t v) { return Tensor::scalar(v); }

TEST(SignalGrad, Dft) {
  for (int64_t n : {5, 6}) {
    for (int64_t inverse : {0, 1}) {
      const ir::Attrs attrs{{"inverse", inverse}};
      expect_gradient({.op = "dft", .in = {values({2, n, 2})}, .attrs = attrs});
      expect_gradient({.op = "dft", .in = {values({2, n, 1})}, .attrs = attrs});
      expect_gradient({.op = "dft", .in = {values({n, 3, 2}), number(n - 2), number(0)}, .attrs = attrs});
      expect_gradient({.op = "dft", .in = {values({2, n, 2}), number(n + 3), number(-2)}, .attrs = attrs});
    }
    expect_gradient({.op = "dft", .in = {values({2, n, 1})}, .attrs = {{"onesided", int64_t{1}}}});
    const ir::Attrs back{{"onesided", int64_t{1}}, {"inverse", int64_t{1}}};
    expect_gradient({.op = "dft", .in = {values({2, n, 2})}, .attrs = back});
    expect_gradient({.op = "dft", .in = {values({2, n, 2}), number(7)}, .attrs = back});
  }
}

TEST(SignalGrad, Stft) {
  const Tensor window = random_tensor(DType::f64, {4}, 0.2, 1, 5);
  for (int64_t half : {0, 1}) {
    const ir::Attrs attrs{{"onesided", half}};
    expect_gradient({.op = "stft", .in = {values({2, 11, 1}), number(2), window}, .attrs = attrs});
    expect_gradient({.op = "stft", .in = {values({2, 11, 1}), number(3), window, number(7)}, .attrs = attrs});
    expect_gradient(
        {.op = "stft", .in = {values({1, 10, 1}), number(2), Tensor(), number(5)}, .attrs = attrs});
  }
  expect_gradient(
      {.op = "stft", .in = {values({1, 10, 2}), number(2), window}, .attrs = {{"onesided", int64_t{0}}}});
}

TEST(EinsumGrad, MatchesDifferences) {
  const auto check = [](const char* equation, std::vector<Tensor> in) {
    expect_gradient({.op = "einsum", .in = std::move(in), .attrs = {{"equation", std::string(equation)}}});
  };
  check("ij,jk->ik", {values({2, 3}), values({3, 4}, 2)});
  check("bij,bkj->bik", {values({2, 2, 3}), values({2, 4, 3}, 2)});
  check("...ij,...jk->...ik", {values({2, 1, 2, 3}), values({4, 3, 2}, 2)});
  check("ij,ij->i", {values({2, 3}), values({2, 1}, 2)});  // the gradient of the first is repeated along j
  check("ij,ij->ij", {values({1, 3}), values({2, 1}, 2)});
  check("ij->j", {values({2, 3})});
  check("ij->", {values({2, 3})});
  check("ii->i", {values({3, 3})});
  check("iij,j->i", {values({3, 3, 2}), values({2}, 2)});
  check("i,j,k->kji", {values({2}), values({3}, 2), values({4}, 3)});
  check("ij,j", {values({2, 3}), values({3}, 2)});
  check("bhqd,bhkd->bhqk", {values({2, 2, 3, 2}), values({2, 2, 4, 2}, 2)});
}

TEST(DetGrad, MatchesDifferences) {
  expect_gradient({.op = "det", .in = {values({2, 3, 3})}});
  expect_gradient({.op = "det", .in = {values({1, 1})}});
  expect_gradient({.op = "det", .in = {values({5, 5})}});
  // A singular matrix has no inverse, but its determinant has a gradient.
  expect_gradient({.op = "det", .in = {Tensor::from<double>({2, 2}, std::vector<double>{1, 2, 2, 4})}});
}

}  // namespace
}  // namespace trireme::ops
