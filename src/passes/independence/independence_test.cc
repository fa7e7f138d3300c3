// Which graphs treat rows independently, and the reason for those that do not: tests every rule used by the
// proof, and the ways in which the number of rows enters a graph.
#include "passes/independence/independence.h"

#include <gtest/gtest.h>

#include "ops/table.h"
#include "tensor/absent.h"

namespace trireme::passes {
namespace {

/// The reason for input x f32[n, 4, 6] and a constant c f32[4, 6]; empty if rows are independent.
std::string reason(const std::string& body, tensor::Dims shape = {1, 4, 6}) {
  std::string dims = "n";
  for (size_t d = 1; d < shape.size(); ++d) dims += "," + std::to_string(shape[d]);
  const std::string text =
      "graph \"g\"\n  %0 = input \"x\" : f32[" + dims + "]\n  %1 = const : f32[4,6]#zeros\n" + body;
  return why_rows_mix(ir::parse(text, ops::table()), {std::move(shape)});
}

struct Case {
  const char* name;
  const char* body;
};

std::string name_of(const testing::TestParamInfo<Case>& one) { return one.param.name; }

class RowsApart : public testing::TestWithParam<Case> {};
TEST_P(RowsApart, AreShown) { EXPECT_EQ(reason(GetParam().body), ""); }

INSTANTIATE_TEST_SUITE_P(
    Ops, RowsApart,
    testing::Values(
        Case{"elementwise", "  %2 = add(%0, %1)\n  %3 = relu(%2)\n  return %3 \"y\"\n"},
        Case{"softmax_of_columns", "  %2 = softmax(%0) {axis=-1}\n  return %2 \"y\"\n"},
        Case{"swap_inside", "  %2 = transpose(%0) {perm=[0, 2, 1]}\n  return %2 \"y\"\n"},
        Case{"there_and_back",
             "  %2 = transpose(%0) {perm=[1, 0, 2]}\n  %3 = softmax(%2) {axis=2}\n"
             "  %4 = transpose(%3) {perm=[1, 0, 2]}\n  return %4 \"y\"\n"},
        Case{"mean_of_columns",
             "  %2 = const : i64[1]{2}\n  %3 = reduce_mean(%0, %2) {keepdims=1}\n  return %3 \"y\"\n"},
        Case{"weights", "  %2 = const : f32[6,5]#zeros\n  %3 = matmul(%0, %2)\n  return %3 \"y\"\n"},
        Case{"scores",
             "  %2 = transpose(%0) {perm=[0, 2, 1]}\n  %3 = matmul(%0, %2)\n  %4 = softmax(%3)\n"
             "  %5 = matmul(%4, %0)\n  return %5 \"y\"\n"},
        Case{"joined_and_split",
             "  %2 = const : i64[2]{-1, 6}\n  %3 = reshape(%0, %2)\n  %4 = const : f32[6,8]#zeros\n"
             "  %5 = matmul(%3, %4)\n  %6 = const : i64[3]{-1, 4, 8}\n  %7 = reshape(%5, %6)\n"
             "  return %7 \"y\"\n"},
        Case{"inner_part_of_a_dimension",
             "  %2 = transpose(%0) {perm=[1, 0, 2]}\n  %3 = const : i64[2]{-1, 6}\n  %4 = reshape(%2, %3)\n"
             "  %5 = relu(%4)\n  %6 = const : i64[3]{4, -1, 6}\n  %7 = reshape(%5, %6)\n"
             "  %8 = transpose(%7) {perm=[1, 0, 2]}\n  return %8 \"y\"\n"},
        Case{"heads_split_by_the_number_of_rows",
             "  %2 = shape(%0) {start=0, end=1}\n  %3 = const : i64[3]{4, 2, 3}\n"
             "  %4 = concat(%2, %3) {axis=0}\n  %5 = reshape(%0, %4)\n"
             "  %6 = transpose(%5) {perm=[0, 2, 1, 3]}\n  return %6 \"y\"\n"},
        Case{"elements_over_columns",
             "  %2 = size(%0)\n  %3 = const : i64[]{24}\n  %4 = div(%2, %3)\n  %5 = const : i64[1]{0}\n"
             "  %6 = unsqueeze(%4, %5)\n  %7 = const : i64[1]{24}\n  %8 = concat(%6, %7) {axis=0}\n"
             "  %9 = reshape(%0, %8)\n  return %9 \"y\"\n"},
        Case{
            "one_row_for_all",
            "  %2 = shape(%0) {start=0, end=1}\n  %3 = const : i64[2]{4, 6}\n  %4 = concat(%2, %3) {axis=0}\n"
            "  %5 = expand(%1, %4)\n  %6 = concat(%5, %0) {axis=1}\n  return %6 \"y\"\n"},
        Case{"shape_in_32_bits",
             "  %2 = shape(%0)\n  %3 = cast(%2) {to=6}\n  %4 = const : i64[1]{0}\n  %5 = const : i64[1]{1}\n"
             "  %6 = slice(%3, %4, %5)\n  %7 = const : i32[2]{4, 6}\n  %8 = concat(%6, %7) {axis=0}\n"
             "  %9 = cast(%8) {to=7}\n  %10 = expand(%1, %9)\n  return %10 \"y\"\n"},
        Case{"as_exporters_expand",  // where(shape == -1, ones, shape)
             "  %2 = shape(%0)\n  %3 = const : i64[]{-1}\n  %4 = equal(%2, %3)\n  %5 = const : i64[3]{1, 1, "
             "1}\n"
             "  %6 = where(%4, %5, %2)\n  %7 = expand(%1, %6)\n  %8 = add(%7, %0)\n  return %8 \"y\"\n"},
        Case{"ones_of_the_rows",
             "  %2 = shape(%0)\n  %3 = constant_of_shape(%2)\n  %4 = add(%3, %0)\n  return %4 \"y\"\n"},
        // The mask of attention as torch.export writes it: mask[batch_number, key].
        Case{"looks_its_own_entries_up",
             "  %2 = shape(%0)\n  %3 = const : i64[]{0}\n  %4 = gather(%2, %3) {axis=0}\n"
             "  %5 = const : i64[]{0}\n  %6 = const : i64[]{1}\n  %7 = range(%5, %4, %6)\n"
             "  %8 = const : i64[3]{1, 2, 3}\n  %9 = unsqueeze(%7, %8)\n  %10 = const : i64[4]{0, 1, 2, 3}\n"
             "  %11 = max(%9, %10)\n  %12 = shape(%11)\n  %13 = expand(%9, %12)\n"
             "  %14 = expand(%10, %12)\n  %15 = const : i64[1]{-1}\n  %16 = unsqueeze(%13, %15)\n"
             "  %17 = unsqueeze(%14, %15)\n  %18 = concat(%16, %17) {axis=-1}\n"
             "  %19 = gather_nd(%0, %18)\n  return %19 \"y\"\n"},
        // The same as PyTorch's older exporter writes it, with flat indices.
        Case{"looks_its_own_flat_places_up",
             "  %2 = shape(%0)\n  %3 = const : i64[]{0}\n  %4 = gather(%2, %3) {axis=0}\n"
             "  %5 = const : i64[]{0}\n  %6 = const : i64[]{1}\n  %7 = range(%5, %4, %6)\n"
             "  %8 = const : i64[1]{1}\n  %9 = unsqueeze(%7, %8)\n  %10 = const : i64[]{4}\n"
             "  %11 = mul(%9, %10)\n  %12 = const : i64[4]{0, 1, 2, 3}\n  %13 = add(%12, %11)\n"
             "  %14 = const : i64[2]{-1, 6}\n  %15 = reshape(%0, %14)\n  %16 = gather(%15, %13) {axis=0}\n"
             "  return %16 \"y\"\n"},
        // The last token of each sequence, found from its content.
        Case{"looks_up_where_its_content_says",
             "  %2 = shape(%0)\n  %3 = const : i64[]{0}\n  %4 = gather(%2, %3) {axis=0}\n"
             "  %5 = const : i64[]{0}\n  %6 = const : i64[]{1}\n  %7 = range(%5, %4, %6)\n"
             "  %8 = arg_max(%0) {axis=1, keepdims=0}\n  %9 = const : i64[]{0}\n"
             "  %10 = gather(%8, %9) {axis=1}\n  %11 = const : i64[1]{-1}\n  %12 = unsqueeze(%7, %11)\n"
             "  %13 = unsqueeze(%10, %11)\n  %14 = concat(%12, %13) {axis=-1}\n"
             "  %15 = gather_nd(%0, %14)\n  return %15 \"y\"\n"},
        Case{"resized_to_extents_of_the_rows",
             "  %2 = shape(%0) {start=0, end=1}\n  %3 = const : i64[2]{4, 12}\n  %4 = concat(%2, %3) "
             "{axis=0}\n"
             "  %5 = resize(%0, _, _, %4) {mode=\"linear\"}\n  return %5 \"y\"\n"},
        Case{"resized_along_the_last_axis",
             "  %2 = const : i64[1]{9}\n  %3 = resize(%0, _, _, %2) {axes=[2]}\n  return %3 \"y\"\n"},
        Case{"a_table_repeated_for_the_rows",
             "  %2 = shape(%0) {start=0, end=1}\n  %3 = const : i64[1]{1}\n  %4 = concat(%2, %3) {axis=0}\n"
             "  %5 = tile(%1, %4)\n  %6 = const : i64[3]{-1, 4, 6}\n  %7 = reshape(%5, %6)\n"
             "  %8 = add(%7, %0)\n  return %8 \"y\"\n"},
        Case{"pooled_image",
             "  %2 = const : i64[4]{0, 1, 4, 6}\n  %3 = reshape(%0, %2)\n"
             "  %4 = max_pool(%3) {kernel_shape=[2, 2], strides=[2, 2]}\n  return %4 \"y\"\n"},
        Case{"normal_batch_norm",
             "  %2 = const : f32[4]#zeros\n  %3 = batch_norm(%0, %2, %2, %2, %2)\n  return %3 \"y\"\n"}),
    name_of);

class RowsMixed : public testing::TestWithParam<Case> {};
TEST_P(RowsMixed, AreRefused) { EXPECT_NE(reason(GetParam().body), ""); }

INSTANTIATE_TEST_SUITE_P(
    Ops, RowsMixed,
    testing::Values(
        Case{"softmax_over_rows", "  %2 = softmax(%0) {axis=0}\n  return %2 \"y\"\n"},
        Case{"swapped", "  %2 = transpose(%0) {perm=[2, 1, 0]}\n  return %2 \"y\"\n"},
        // Rows after the summed axis: their number decides the order in which kernels add.
        Case{"softmax_before_the_rows",
             "  %2 = transpose(%0) {perm=[2, 1, 0]}\n  %3 = softmax(%2) {axis=1}\n"
             "  %4 = transpose(%3) {perm=[2, 1, 0]}\n  return %4 \"y\"\n"},
        Case{"rows_against_columns",
             "  %2 = const : i64[2]{-1, 24}\n  %3 = reshape(%0, %2)\n  %4 = transpose(%3) {perm=[1, 0]}\n"
             "  %5 = matmul(%3, %4)\n  return %5 \"y\"\n"},
        Case{"mean_of_rows",
             "  %2 = const : i64[1]{-3}\n  %3 = reduce_mean(%0, %2) {keepdims=1}\n  %4 = sub(%0, %3)\n"
             "  return %4 \"y\"\n"},
        Case{"running_sum", "  %2 = const : i64[]{0}\n  %3 = cum_sum(%0, %2)\n  return %3 \"y\"\n"},
        Case{"rows_cut_through", "  %2 = const : i64[2]{4, -1}\n  %3 = reshape(%0, %2)\n  return %3 \"y\"\n"},
        Case{"rows_in_pairs",
             "  %2 = const : i64[3]{-1, 8, 6}\n  %3 = reshape(%0, %2)\n  %4 = softmax(%3) {axis=1}\n"
             "  %5 = const : i64[3]{-1, 4, 6}\n  %6 = reshape(%4, %5)\n  return %6 \"y\"\n"},
        Case{"first_row",
             "  %2 = const : i64[]{0}\n  %3 = gather(%0, %2) {axis=0}\n  %4 = add(%0, %3)\n"
             "  return %4 \"y\"\n"},
        Case{"no_rows_in_result", "  %2 = relu(%0)\n  return %2 \"y\", %1 \"c\"\n"},
        Case{"statistics_of_the_batch",
             "  %2 = const : f32[4]#zeros\n  %3, %4, %5 = batch_norm(%0, %2, %2, %2, %2) {training_mode=1}\n"
             "  return %3 \"y\"\n"},
        Case{"places_in_the_whole_tensor",
             "  %2 = const : i64[4]{0, 1, 4, 6}\n  %3 = reshape(%0, %2)\n"
             "  %4, %5 = max_pool(%3) {kernel_shape=[2, 2]}\n  return %4 \"y\", %5 \"at\"\n"},
        Case{"divided_by_the_rows",
             "  %2 = shape(%0) {start=0, end=1}\n  %3 = cast(%2) {to=1}\n  %4 = div(%0, %3)\n"
             "  return %4 \"y\"\n"},
        Case{"numbered_rows",
             "  %2 = shape(%0)\n  %3 = const : i64[]{0}\n  %4 = gather(%2, %3) {axis=0}\n"
             "  %5 = const : i64[]{1}\n  %6 = range(%3, %4, %5)\n  %7 = cast(%6) {to=1}\n"
             "  %8 = const : i64[2]{1, 2}\n  %9 = unsqueeze(%7, %8)\n  %10 = add(%0, %9)\n  return %10 "
             "\"y\"\n"},
        Case{"looks_the_next_row_up",
             "  %2 = shape(%0)\n  %3 = const : i64[]{0}\n  %4 = gather(%2, %3) {axis=0}\n"
             "  %5 = const : i64[]{0}\n  %6 = const : i64[]{1}\n  %7 = range(%5, %4, %6)\n"
             "  %8 = add(%7, %6)\n  %9 = gather(%0, %8) {axis=0}\n  return %9 \"y\"\n"},
        Case{"looks_rows_up_from_the_end",
             "  %2 = shape(%0)\n  %3 = const : i64[]{0}\n  %4 = gather(%2, %3) {axis=0}\n"
             "  %5 = const : i64[]{0}\n  %6 = const : i64[]{1}\n  %7 = range(%5, %4, %6)\n"
             "  %8 = sub(%5, %7)\n  %9 = gather(%0, %8) {axis=0}\n  return %9 \"y\"\n"},
        Case{"looks_columns_up_by_the_number_of_the_row",
             "  %2 = shape(%0)\n  %3 = const : i64[]{0}\n  %4 = gather(%2, %3) {axis=0}\n"
             "  %5 = const : i64[]{0}\n  %6 = const : i64[]{1}\n  %7 = range(%5, %4, %6)\n"
             "  %8 = const : i64[1]{-1}\n  %9 = unsqueeze(%7, %8)\n"
             "  %10 = concat(%9, %9) {axis=-1}\n  %11 = gather_nd(%0, %10)\n  return %11 \"y\"\n"},
        Case{"flat_places_that_reach_the_next_row",
             "  %2 = shape(%0)\n  %3 = const : i64[]{0}\n  %4 = gather(%2, %3) {axis=0}\n"
             "  %5 = const : i64[]{0}\n  %6 = const : i64[]{1}\n  %7 = range(%5, %4, %6)\n"
             "  %8 = const : i64[1]{1}\n  %9 = unsqueeze(%7, %8)\n"
             "  %10 = const : i64[]{4}\n  %11 = mul(%9, %10)\n  %12 = const : i64[4]{1, 2, 3, 4}\n"
             "  %13 = add(%12, %11)\n  %14 = const : i64[2]{-1, 6}\n  %15 = reshape(%0, %14)\n"
             "  %16 = gather(%15, %13) {axis=0}\n  return %16 \"y\"\n"},
        Case{"looks_a_table_up_by_the_number_of_the_row",
             "  %2 = shape(%0)\n  %3 = const : i64[]{0}\n  %4 = gather(%2, %3) {axis=0}\n"
             "  %5 = const : i64[]{0}\n  %6 = const : i64[]{1}\n  %7 = range(%5, %4, %6)\n"
             "  %8 = gather(%1, %7) {axis=0}\n  return %8 \"y\"\n"},
        Case{"flat_places_of_another_step",
             "  %2 = shape(%0)\n  %3 = const : i64[]{0}\n  %4 = gather(%2, %3) {axis=0}\n"
             "  %5 = const : i64[]{0}\n  %6 = const : i64[]{1}\n  %7 = range(%5, %4, %6)\n"
             "  %8 = const : i64[]{2}\n  %9 = mul(%7, %8)\n"
             "  %10 = const : i64[2]{-1, 6}\n  %11 = reshape(%0, %10)\n  %12 = gather(%11, %9) {axis=0}\n"
             "  return %12 \"y\"\n"},
        // As many rows as before and nearly the same scale: each row but the first moves by one.
        Case{"resized_by_almost_one",
             "  %2 = const : f32[3]{1.00000012, 1, 1}\n"
             "  %3 = resize(%0, _, %2) {coordinate_transformation_mode=\"asymmetric\", "
             "nearest_mode=\"floor\"}\n"
             "  return %3 \"y\"\n"},
        Case{"cropped_to_as_many_rows",
             "  %2 = const : f32[6]{0.4, 0, 0, 1, 1, 1}\n  %3 = const : f32[3]{1, 1, 1}\n"
             "  %4 = resize(%0, %2, %3) {coordinate_transformation_mode=\"tf_crop_and_resize\"}\n"
             "  return %4 \"y\"\n"},
        Case{"a_table_repeated_along_its_columns",
             "  %2 = shape(%0) {start=0, end=1}\n  %3 = const : i64[1]{1}\n  %4 = concat(%3, %2) {axis=0}\n"
             "  %5 = tile(%1, %4)\n  %6 = const : i64[3]{-1, 4, 6}\n  %7 = reshape(%5, %6)\n"
             "  return %7 \"y\"\n"},
        Case{"padded_before_and_cropped_behind",
             "  %2 = const : i64[6]{1, 0, 0, -1, 0, 0}\n  %3 = pad(%0, %2)\n  return %3 \"y\"\n"},
        Case{"in_reverse",
             "  %2 = const : i64[1]{-1}\n  %3 = const : i64[1]{-9223372036854775807}\n  %4 = const : "
             "i64[1]{0}\n"
             "  %5 = slice(%0, %2, %3, %4, %2)\n  return %5 \"y\"\n"},
        Case{"a_triangle_of_the_rows",
             "  %2 = const : i64[2]{0, -1}\n  %3 = reshape(%0, %2)\n  %4 = trilu(%3)\n  return %4 \"y\"\n"},
        Case{
            "a_diagonal_of_the_rows",
            "  %2 = const : i64[2]{0, -1}\n  %3 = reshape(%0, %2)\n  %4 = eye_like(%3)\n  return %4 \"y\"\n"},
        Case{"rows_in_reverse_of_time",
             "  %2 = const : i64[4]{1, 2, 3, 4}\n"
             "  %3 = reverse_sequence(%0, %2) {time_axis=0, batch_axis=1}\n  return %3 \"y\"\n"},
        Case{"transform_over_the_rows",
             "  %2 = const : i64[3]{0, -1, 1}\n  %3 = reshape(%0, %2)\n  %4 = const : i64[]{0}\n"
             "  %5 = dft(%3, _, %4)\n  return %5 \"y\"\n"},
        Case{"other_with_more_than_eight",
             "  %2 = shape(%0) {start=0, end=1}\n  %3 = const : i64[1]{8}\n  %4 = greater(%2, %3)\n"
             "  %5 = relu(%0)\n  %6 = where(%4, %5, %0)\n  return %6 \"y\"\n"},
        Case{"another_shape_with_more_than_eight",
             "  %2 = shape(%0) {start=0, end=1}\n  %3 = const : i64[1]{8}\n  %4 = greater(%2, %3)\n"
             "  %5 = const : i64[1]{1}\n  %6 = where(%4, %5, %2)\n  %7 = const : i64[1]{-1}\n"
             "  %8 = concat(%6, %7) {axis=0}\n  %9 = reshape(%0, %8)\n  %10 = softmax(%9) {axis=1}\n"
             "  return %10 \"y\"\n"},
        Case{"columns_by_the_rows",
             "  %2 = shape(%0) {start=0, end=1}\n  %3 = const : i64[1]{-1}\n  %4 = concat(%3, %2) {axis=0}\n"
             "  %5 = reshape(%0, %4)\n  return %5 \"y\"\n"},
        Case{"one_more_than_the_rows",
             "  %2 = shape(%0) {start=0, end=1}\n  %3 = const : i64[1]{1}\n  %4 = add(%2, %3)\n"
             "  %5 = constant_of_shape(%4)\n  return %5 \"y\"\n"},
        Case{"noise", "  %2 = random_normal_like(%0)\n  %3 = add(%0, %2)\n  return %3 \"y\"\n"},
        Case{"steps_of_the_whole_tensor", "  %2, %3, %4 = dynamic_quantize_linear(%0)\n  return %2 \"y\"\n"}),
    name_of);

TEST(Independence, NamesTheNodeAndWhatItDoes) {
  const std::string why = reason("  %2 = softmax(%0) {axis=0}\n  return %2 \"y\"\n");
  EXPECT_NE(why.find("softmax"), std::string::npos) << why;
  EXPECT_NE(why.find("dimension 0"), std::string::npos) << why;
}

TEST(Independence, WeightsMayBeTypesAlone) {
  const std::string text =
      "graph \"g\"\n  %0 = input \"x\" : f32[n,4,6]\n  %1 = const : f32[4,6]#zeros\n"
      "  %2 = add(%0, %1)\n  return %2 \"y\"\n";
  ir::Graph graph = ir::parse(text, ops::table());
  graph.value(ir::ValueId(1)).data = tensor::absent(tensor::DType::f32, {4, 6});
  EXPECT_EQ(why_rows_mix(graph, {{1, 4, 6}}), "");
}

// The constant fits batches of eight (or one row, which it repeats), so nothing holds for all batches.
TEST(Independence, AConstantWithRowsFixesTheirNumber) {
  EXPECT_THROW(reason("  %2 = const : f32[8,4,6]#zeros\n  %3 = add(%0, %2)\n  return %3 \"y\"\n"),
               base::Error);
}

}  // namespace
}  // namespace trireme::passes
