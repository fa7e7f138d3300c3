// Tests strings to numbers and handles and back: every type, and every kind of text that is refused.
#include "serve/batched/string_ports.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme::serve {
namespace {

using tensor::DType;
using tensor::Tensor;

/// Ports for one input of the type, whose value is also the output, both declared as strings of the form.
StringPorts ports(DType type, model::StringPort::Form form) {
  model::Model model;
  const ir::ValueId x = model.graph.add_input("x", {type, tensor::Shape({tensor::Dim::symbol("n")})});
  model.graph.add_output(x, "y");
  model.string_inputs = {{.name = "x", .form = form}};
  model.string_outputs = {{.name = "y", .form = form}};
  return StringPorts(model);
}

WireTensor strings(std::vector<std::string> values) {
  const auto count = static_cast<int64_t>(values.size());
  return {.name = "x", .type = std::nullopt, .dims = {count}, .values = {}, .strings = std::move(values)};
}

std::vector<std::string> there_and_back(DType type, std::vector<std::string> values) {
  const StringPorts p = ports(type, model::StringPort::Form::number);
  StringTable table;
  const Tensor numbers = p.enter(strings(std::move(values)), table);
  EXPECT_TRUE(table.empty());
  return p.leave("y", numbers, table).strings;
}

using Texts = std::vector<std::string>;

TEST(StringPorts, NumbersKeepTheirValue) {
  EXPECT_EQ(there_and_back(DType::i32, {"0", "-17", "+5", "2147483647", "007"}),
            (Texts{"0", "-17", "5", "2147483647", "7"}));
  EXPECT_EQ(there_and_back(DType::u8, {"255"}), Texts{"255"});
  EXPECT_EQ(there_and_back(DType::u64, {"18446744073709551615"}), Texts{"18446744073709551615"});
  EXPECT_EQ(there_and_back(DType::i64, {"-9223372036854775808"}), Texts{"-9223372036854775808"});
  EXPECT_EQ(there_and_back(DType::f32, {"0.1", "1e-5", "INF", "-inf", "NaN", "3"}),
            (Texts{"0.1", "1e-05", "INF", "-INF", "NaN", "3"}));
  EXPECT_EQ(there_and_back(DType::f64, {"0.1", "3.141592653589793"}), (Texts{"0.1", "3.141592653589793"}));
}

TEST(StringPorts, RefusesWhatIsNoNumber) {
  for (const char* text : {"", " 1", "1 ", "x", "1x", "+-1", "+", "2147483648", "1.5", "0x10"}) {
    EXPECT_THROW(there_and_back(DType::i32, {text}), base::Error) << text;
  }
  EXPECT_THROW(there_and_back(DType::u8, {"-1"}), base::Error);
  EXPECT_THROW(there_and_back(DType::f32, {"1e99"}), base::Error);
  EXPECT_THROW(there_and_back(DType::f32, {std::string("1\0", 2)}), base::Error);
  using Form = model::StringPort::Form;
  for (DType type : {DType::boolean, DType::f16, DType::bf16})
    EXPECT_THROW(ports(type, Form::number), base::Error);
}

TEST(StringPorts, HandlesNameTheStringsOfTheirRequest) {
  const StringPorts p = ports(DType::i64, model::StringPort::Form::handle);
  StringTable table{"of another input"};
  const Tensor handles = p.enter(strings({"a", std::string("b\0c", 3), ""}), table);
  EXPECT_EQ(handles.to_ints(), (std::vector<int64_t>{1, 2, 3}));
  const WireTensor back = p.leave("y", Tensor::from<int64_t>({4}, {3, 2, 0, 2}), table);
  EXPECT_EQ(back.strings, (Texts{"", std::string("b\0c", 3), "of another input", std::string("b\0c", 3)}));
  EXPECT_EQ(back.dims, (tensor::Dims{4}));
  EXPECT_THROW(p.leave("y", Tensor::from<int64_t>({1}, {4}), table), base::Error);
  EXPECT_THROW(p.leave("y", Tensor::from<int64_t>({1}, {-1}), table), base::Error);
}

}  // namespace
}  // namespace trireme::serve
