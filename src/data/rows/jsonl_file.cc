// JSON lines as rows, and the lines of OpenAI's batch files.
#include <algorithm>

#include "base/error.h"
#include "base/text/json.h"
#include "data/readers/field_index.h"
#include "data/readers/json_fields.h"
#include "data/rows/text_walk.h"

namespace trireme::data {
namespace {

using base::Json;
using base::require;
using tensor::DType;

Json parse_line(const RowFrame& frame) {
  Json json;
  try {
    json = base::parse_json(frame.content, {.size_bytes = SIZE_MAX});
  } catch (const base::Error& e) {
    throw e.with(base::concat("line at byte ", frame.begin));
  }
  require(json.is_object(), "line is not a JSON object but ", json.type_name());
  return json;
}

void add_value(const Json& value, ColumnBuilder& column) {
  const Field& field = column.field();
  const bool is_scalar = field.kind == FieldKind::tensor && field.shape == tensor::Shape{};
  if (field.kind == FieldKind::text) {
    column.add(json_text(value));
  } else if (is_scalar && field.dtype == DType::i64 && is_i64(value)) {
    column.add_number(value.as_int());
  } else if (is_scalar && field.dtype == DType::f64 && value.is_number()) {
    column.add_number(value.as_double());
  } else if (is_scalar && field.dtype == DType::boolean && value.is_bool()) {
    column.add_number(value.as_bool());
  } else {
    column.add(json_tensor(field, value));
  }
}

class JsonDecoder : public RowDecoder {
 public:
  JsonDecoder(const FieldIndex& index, const std::vector<Field>& fields, ColumnChoice choice, bool openai)
      : index_(index), fields_(fields), choice_(std::move(choice)), openai_(openai) {}

  void decode(const RowFrame& frame, RowsBuilder& rows) override {
    const Json row = parse_line(frame);
    if (openai_) check_request(row);
    for (const base::JsonMember& member : row.as_object()) {
      const Field* field = index_.find(fields_, member.key);
      // A null, or a member that the first rows lack, counts as absent.
      if (field == nullptr || member.value.is_null()) continue;
      const size_t place = choice_.place_of[static_cast<size_t>(field - fields_.data())];
      if (place != kNoPlace) add_value(member.value, rows.column(place));
    }
  }

 private:
  static void check_request(const Json& row) {
    for (const std::string_view name : {"custom_id", "method", "url"}) {
      const Json* value = row.find(name);
      require(value != nullptr && value->is_string(), "line has no text '", name, "', as every request has");
    }
    const Json* body = row.find("body");
    require(body != nullptr && body->is_object(), "line has no object 'body', as every request has");
  }

  const FieldIndex& index_;
  const std::vector<Field>& fields_;
  ColumnChoice choice_;
  bool openai_;
};

class JsonlFile : public FramedFile {
 public:
  JsonlFile(RowSource source, bool openai)
      : FramedFile(openai ? "openai" : "jsonl", std::move(source)), openai_(openai) {
    first_byte_ = text_begin();
    if (openai) {
      for (const char* name : {"custom_id", "method", "url", "body"})
        index_.add(fields_, {name, FieldKind::text});
    } else {
      learn();
    }
  }

  std::unique_ptr<RowWalk> walk(std::unique_ptr<ByteStream> bytes) const override {
    return std::make_unique<TextWalk>(std::move(bytes), std::nullopt, source().options.most_row_bytes);
  }
  std::unique_ptr<RowDecoder> decoder(ColumnChoice choice) const override {
    return std::make_unique<JsonDecoder>(index_, fields_, std::move(choice), openai_);
  }

 private:
  /// Learns the columns. An invalid line is an error of its row; of the file only if no line is valid.
  void learn() {
    const std::unique_ptr<RowWalk> walk = walk_from(first_byte_);
    std::optional<base::Error> wrong;
    int64_t rows = 0, good = 0;
    for (RowFrame frame; rows < kLearnedRows && walk->next(frame, true); ++rows) {
      try {
        if (frame.damage) throw *frame.damage;
        learn_line(parse_line(frame));
        ++good;
      } catch (const base::Error& e) {
        if (fields_.size() == kMostFields) throw;
        if (!wrong) wrong = e;
      }
    }
    if (wrong && good == 0) throw wrong->with("no line of the first 64 is a JSON object");
    for (size_t c = 0; c < fields_.size(); ++c) {
      Field& field = fields_[c];
      const bool rounds = field.kind == FieldKind::tensor && field.dtype == DType::f64 && has_long_[c];
      if (rounds) field = {field.name, FieldKind::text};
    }
  }

  void learn_line(const Json& row) {
    for (const base::JsonMember& member : row.as_object()) {
      if (member.value.is_null()) continue;
      const Field field = json_field(member.key, member.value, TextNumbers::exact);
      const auto [place, is_new] = index_.add(fields_, field);
      if (!is_new) widen(fields_[place], field);
      has_long_.resize(fields_.size());
      if (field.kind == FieldKind::tensor && has_long_number(member.value)) has_long_[place] = true;
    }
  }

  bool openai_;
  FieldIndex index_;
  std::vector<bool> has_long_;  // by field, of the first lines: a whole number that no f64 keeps
};

}  // namespace

std::unique_ptr<RowFile> open_jsonl_rows(RowSource source, bool openai) {
  return std::make_unique<JsonlFile>(std::move(source), openai);
}

}  // namespace trireme::data
