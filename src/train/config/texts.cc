// Converts texts to rows of tokens with the model's own tokenizer.
#include "train/config/texts.h"

#include <charconv>
#include <memory>

#include "base/error.h"
#include "data/text/wordpiece.h"

namespace trireme::train {
namespace {

using data::Field;
using data::FieldKind;
using data::Sample;
using tensor::DType;
using tensor::Tensor;

/// The number in a column: a numeric value, or a text that contains a number.
double number_in(const Sample& sample, const std::string& column) {
  const data::Value* cell = sample.find(column);
  if (cell != nullptr && cell->tensor.defined()) return cell->tensor.to_doubles().at(0);
  const std::string& text = sample.text(column);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  base::require(error == std::errc() && end == text.data() + text.size(), "column '", column,
                "' holds no number: '", text, "'");
  return value;
}

void need_column(const data::DatasetInfo& info, const std::string& name, bool may_be_number) {
  const Field* field = info.find(name);
  if (field != nullptr && (may_be_number || field->kind == FieldKind::text)) return;
  std::string all;
  for (const Field& f : info.fields) all += (all.empty() ? "" : ", ") + f.name;
  base::fail(base::ErrorCode::not_found, "the data has no ", may_be_number ? "" : "text ", "column '", name,
             "'; it has: ", all);
}

/// Replaces the texts of a sample with rows of tokens.
class Tokenize {
 public:
  Tokenize(const TextOptions& options, const std::string& directory, bool is_class)
      : options_(options),
        words_(std::make_shared<data::WordPiece>(data::WordPiece::from_directory(directory))),
        is_class_(is_class) {}

  tensor::Dims dims() const {
    const auto rows = static_cast<int64_t>(options_.columns.size());
    return rows == 1 ? tensor::Dims{options_.max_tokens} : tensor::Dims{rows, options_.max_tokens};
  }

  void operator()(Sample& sample) const {
    Tensor ids = Tensor::empty(DType::i64, dims());  // [columns, max_tokens]
    Tensor mask = Tensor::zeros(DType::i64, dims());
    std::ranges::fill(ids.mutable_data<int64_t>(), words_->pad_id());
    for (size_t row = 0; row < options_.columns.size(); ++row) {
      const auto limit = static_cast<size_t>(options_.max_tokens);
      const data::Encoding encoding = words_->encode(sample.text(options_.columns[row]), limit);
      std::copy(encoding.ids.begin(), encoding.ids.end(), ids.mutable_data<int64_t>().begin() + row * limit);
      std::fill_n(mask.mutable_data<int64_t>().begin() + row * limit, encoding.ids.size(), 1);
    }
    const double target = number_in(sample, options_.target);
    Sample made;
    made.set("input_ids", std::move(ids));
    made.set("attention_mask", std::move(mask));
    made.set("token_type_ids", Tensor::zeros(DType::i64, dims()));
    made.set("labels", is_class_ ? Tensor::scalar(static_cast<int64_t>(target))
                                 : Tensor::scalar(static_cast<float>(options_.target_scale * target)));
    sample = std::move(made);
  }

 private:
  TextOptions options_;
  std::shared_ptr<const data::WordPiece> words_;
  bool is_class_;
};

}  // namespace

void TextOptions::fields(base::OptionList& f) {
  f.add("columns", &columns, "text columns of a sample, each a row of the encoder's batch: two for pairs");
  f.add("target", &target, "column of the number to predict");
  f.add("target_scale", &target_scale, "factor on the target: 0.2 for scores from 0 to 5");
  f.add("max_tokens", &max_tokens, "longer texts are cut, shorter ones padded").at_least(2);
  f.add("tokenizer", &tokenizer, "directory of the tokenizer; empty: the model's own");
}

data::DatasetPtr tokenized(data::DatasetPtr texts, const TextOptions& options,
                           const std::string& model_directory, bool is_class) {
  base::require(!options.target.empty(), "texts need a target column");
  for (const std::string& column : options.columns) need_column(texts->info(), column, false);
  need_column(texts->info(), options.target, true);
  const std::string& directory = options.tokenizer.empty() ? model_directory : options.tokenizer;
  if (directory.empty()) {
    base::fail(base::ErrorCode::not_found, "the model brings no tokenizer; say texts.tokenizer");
  }
  Tokenize tokenize(options, directory, is_class);
  const tensor::Shape rows = tensor::Shape::of(tokenize.dims());
  std::vector<Field> fields;
  for (const char* name : {"input_ids", "attention_mask", "token_type_ids"}) {
    fields.push_back({name, FieldKind::tensor, DType::i64, rows, false});
  }
  fields.push_back({"labels", FieldKind::tensor, is_class ? DType::i64 : DType::f32, {}, true});
  return data::map(std::move(texts), std::move(fields), tokenize);
}

}  // namespace trireme::train
