// 8-bit floats on CPU: codes and scales against a search of all codes, products against plain sums.
#include <cmath>

#include "backend/cpu/elementwise/cast_float8.h"
#include "base/threads/float_controls.h"
#include "tests/half_tensors.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using tests::random_tensor;
using tests::rounded_to;

constexpr DType kSourceTypes[] = {DType::f32, DType::f16, DType::bf16};

cpu::Float8 form_of(bool e5m2) { return e5m2 ? cpu::Float8::e5m2 : cpu::Float8::e4m3fn; }

const uint8_t* codes_of(const Tensor& t) { return reinterpret_cast<const uint8_t*>(t.raw()); }

/// The smallest power of two, at least 2^-126, for which |x| / scale is in range for all x; found by trying.
double scale_of(const std::vector<double>& x, bool e5m2) {
  double most = 0;
  for (double v : x) {
    if (!std::isfinite(v)) return NAN;
    most = std::max(most, std::abs(v));
  }
  if (most == 0) return 1;
  double scale = std::ldexp(1.0, -126);
  while (most / scale > (e5m2 ? 57344.0 : 448.0)) scale *= 2;
  return scale;
}

/// The nearest of all codes; of two, the even one.
int code_of(double v, bool e5m2) {
  if (std::isnan(v)) return 0x7f;
  int best = 0;
  double least = INFINITY;
  for (int c = 0; c < 128; ++c) {
    const double value = cpu::float8_decode(form_of(e5m2), static_cast<uint8_t>(c));
    if (!std::isfinite(value)) continue;
    const double off = std::abs(std::abs(v) - value);
    if (off < least || (off == least && c % 2 == 0)) least = off, best = c;
  }
  return best | (std::signbit(v) ? 0x80 : 0);
}

void expect_float8_codes(const std::vector<double>& x, bool e5m2, const uint8_t* codes, float scale,
                         const std::string& what) {
  const double want = scale_of(x, e5m2);
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(scale)) << what;
  } else {
    ASSERT_EQ(scale, want) << what;
  }
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_EQ(codes[i], code_of(x[i] / want, e5m2)) << what << " at " << i;
}

std::vector<Tensor> evaluated(const char* op, const std::vector<Tensor>& in, size_t results,
                              const ir::Attrs& attrs = {}) {
  base::ThreadPool pool(3);
  return evaluate(table().need(op), attrs, in, results, pool);
}

ir::Attrs form_attrs(bool e5m2) { return {{"e5m2", int64_t{e5m2}}}; }

/// Tests rows and columns of x [rows, n] against the definition.
void expect_quantized(const Tensor& x, bool e5m2) {
  const std::vector<Tensor> rows = evaluated("float8_rows", {x}, 2, form_attrs(e5m2)),
                            columns = evaluated("float8_columns", {x}, 2, form_attrs(e5m2)),
                            both = evaluated("float8_both", {x}, 4, form_attrs(e5m2));
  const int64_t count = x.dims()[0], n = x.dims()[1], padded = (count + 15) / 16 * 16;
  ASSERT_EQ(columns[0].dims(), (Dims{n, padded}));
  const std::vector<double> values = x.to_doubles();
  for (int64_t r = 0; r < count; ++r) {
    const std::vector<double> row(values.begin() + r * n, values.begin() + (r + 1) * n);
    expect_float8_codes(row, e5m2, codes_of(rows[0]) + r * n, rows[1].data<float>()[static_cast<size_t>(r)],
                        "row");
  }
  for (int64_t c = 0; c < n; ++c) {
    std::vector<double> column;
    for (int64_t r = 0; r < count; ++r) column.push_back(values[static_cast<size_t>(r * n + c)]);
    const uint8_t* codes = codes_of(columns[0]) + c * padded;
    expect_float8_codes(column, e5m2, codes, columns[1].data<float>()[static_cast<size_t>(c)], "column");
    for (int64_t r = count; r < padded; ++r) ASSERT_EQ(codes[r], 0);
  }
  EXPECT_TRUE(both[0].same_as(rows[0]));
  EXPECT_TRUE(both[2].same_as(columns[0]));
  for (const auto& [got, want] : {std::pair{&both[1], &rows[1]}, {&both[3], &columns[1]}})
    EXPECT_EQ(std::memcmp(got->raw(), want->raw(), static_cast<size_t>(want->bytes())), 0);
}

TEST(Float8, CodesAndScalesOfRowsAndColumns) {
  for (const DType type : kSourceTypes) {
    for (const bool e5m2 : {false, true}) {
      for (const Dims& dims :
           {Dims{1, 1}, Dims{3, 16}, Dims{5, 7}, Dims{17, 33}, Dims{64, 64}, Dims{70, 130}})
        expect_quantized(rounded_to(type, random_tensor(dims, 3, 0.02f)), e5m2);
    }
  }
}

TEST(Float8, RowsOfZerosInfinitiesAndOfTheSmallestAndLargestNumbers) {
  Tensor x = random_tensor({9, 16}, 4);
  auto v = x.mutable_data<float>();
  const auto fill = [&](size_t row, float value) { std::fill_n(v.begin() + row * 16, 16, value); };
  fill(0, 0.0f);
  fill(1, -0.0f);
  v[2 * 16 + 5] = INFINITY;
  v[3 * 16 + 2] = -NAN;
  fill(4, 1e-40f);
  v[4 * 16] = -3e-45f;
  fill(5, 448.0f);
  fill(6, std::nextafter(448.0f, 500.0f));
  v[7 * 16] = 3.4028234e38f;
  fill(8, 1e-30f);
  for (const bool e5m2 : {false, true}) expect_quantized(x, e5m2);
  const Tensor scale = evaluated("float8_rows", {x}, 2)[1];
  EXPECT_EQ(scale.data<float>()[0], 1.0f);
  EXPECT_EQ(scale.data<float>()[4], std::ldexp(1.0f, -126));
  EXPECT_EQ(scale.data<float>()[5], 1.0f);
  EXPECT_EQ(scale.data<float>()[6], 2.0f);
}

TEST(Float8, SumsOfColumnsAreOfTheValuesAsTheyWere) {
  const Tensor x = random_tensor({37, 20}, 5);
  const std::vector<double> values = x.to_doubles();
  for (const auto& [op, count] : {std::pair{"float8_columns", size_t{3}}, {"float8_both", size_t{5}}}) {
    std::vector<double> want(20);
    for (size_t i = 0; i < values.size(); ++i) want[i % 20] += values[i];
    tests::expect_close(evaluated(op, {x}, count).back(), want, 1e-6, 1e-6, op);
  }
}

TEST(Float8, NoRowsAndNoColumns) {
  for (const Dims& dims : {Dims{0, 16}, Dims{3, 0}}) {
    const Tensor x = Tensor::zeros(DType::f32, dims);
    EXPECT_EQ(evaluated("float8_both", {x}, 4)[2].dims(), (Dims{dims[1], (dims[0] + 15) / 16 * 16}));
  }
}

TEST(Float8, ARowDoesNotKnowItsMates) {
  const Tensor x = random_tensor({7, 48}, 5);
  const std::vector<Tensor> all = evaluated("float8_rows", {x}, 2);
  for (int64_t r = 0; r < 7; ++r) {
    const std::vector<Tensor> one = evaluated("float8_rows", {x.rows(r, r + 1).clone()}, 2);
    EXPECT_TRUE(one[0].same_as(all[0].rows(r, r + 1).clone()));
    EXPECT_TRUE(one[1].same_as(all[1].rows(r, r + 1).clone()));
  }
}

TEST(Float8, ValuesAreExactInBf16) {
  const Tensor x = random_tensor({5, 40}, 6);
  for (const bool e5m2 : {false, true}) {
    const std::vector<Tensor> q = evaluated("float8_rows", {x}, 2, form_attrs(e5m2));
    for (const char* type : {"f32", "bf16"}) {
      const std::vector<double> got =
          evaluated("float8_values", q, 1, {{"type", std::string(type)}})[0].to_doubles();
      for (size_t i = 0; i < got.size(); ++i) {
        const double code = cpu::float8_decode(form_of(e5m2), codes_of(q[0])[i]);
        ASSERT_EQ(got[i], code * double(q[1].data<float>()[i / 40])) << type;
      }
    }
  }
}

TEST(Float8, SubnormalCodesKeepTheirValuesInPrograms) {
  const base::SubnormalsAreZero as_programs_run;
  for (const bool e5m2 : {false, true}) {
    const int mantissa = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
    for (int code = 1; code < 1 << mantissa; ++code)
      EXPECT_EQ(cpu::float8_decode(form_of(e5m2), static_cast<uint8_t>(code)),
                std::ldexp(code, 1 - bias - mantissa));
  }
}

/// The product in double from codes and scales.
std::vector<double> plain_product(const std::vector<Tensor>& in, bool a5, bool b5) {
  const int64_t m = in[1].elements(), n = in[3].elements(), k = in[2].dims()[1];
  std::vector<double> y;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l)
        sum += double(cpu::float8_decode(form_of(a5), codes_of(in[0])[i * k + l])) *
               double(cpu::float8_decode(form_of(b5), codes_of(in[2])[j * k + l]));
      sum *= double(in[1].data<float>()[static_cast<size_t>(i)]) *
             double(in[3].data<float>()[static_cast<size_t>(j)]);
      sum += in[4].to_doubles()[static_cast<size_t>(j)];
      y.push_back(std::max(0.0, sum + in[5].to_doubles()[static_cast<size_t>(i * n + j)]));
    }
  }
  return y;
}

TEST(Float8, ProductsOfCodesWithTheirScales) {
  Tensor x = random_tensor({6, 40}, 7), w = random_tensor({24, 40}, 8);
  // Rows of very different magnitudes reveal a scale that is omitted or taken from another row.
  for (int64_t r = 0; r < 6; ++r) {
    for (int64_t i = 0; i < 40; ++i)
      x.mutable_data<float>()[size_t(r * 40 + i)] *= std::ldexp(1.0f, int(2 * r));
  }
  for (const auto& [a5, b5] : {std::pair{false, false}, {true, false}, {false, true}}) {
    std::vector<Tensor> in = evaluated("float8_rows", {x}, 2, form_attrs(a5));
    for (const Tensor& t : evaluated("float8_rows", {w}, 2, form_attrs(b5))) in.push_back(t);
    for (const DType type : kSourceTypes) {
      std::vector<Tensor> all = in;
      all.push_back(rounded_to(type, random_tensor({24}, 9)));
      all.push_back(rounded_to(type, random_tensor({6, 24}, 10)));
      const ir::Attrs attrs{{"type", std::string(name_of(type))}, {"activation", std::string("relu")}};
      const Tensor y = evaluated("float8_product", all, 1, attrs)[0];
      ASSERT_EQ(y.dtype(), type);
      const double off = type == DType::f32 ? 1e-5 : type == DType::f16 ? 1e-3 : 8e-3;
      tests::expect_close(y, plain_product(all, a5, b5), off, off * 10, std::string(name_of(type)));
    }
  }
}

}  // namespace
}  // namespace trireme::ops
