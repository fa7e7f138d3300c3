// trireme tokenize: converts texts to tokens and back, and conversations to the text that a model reads.
#include <chrono>
#include <iostream>

#include "base/error.h"
#include "base/files/file.h"
#include "cli/verb.h"
#include "data/template/chat_template.h"
#include "data/text/tokenizer.h"

namespace trireme::cli {
namespace {

using base::Json;

struct TokenizeOptions {
  std::string tokenizer;
  std::vector<std::string> text;
  std::string lines, messages, tools, variables;
  bool special = true, decode = false, generation_prompt = true, continue_final_message = false;
  int64_t bench = 0;

  void fields(base::OptionList& f) {
    f.add("tokenizer", &tokenizer, "directory of a model, or a tokenizer's file").positional().required();
    f.add("text", &text, "print its tokens as JSON; may be given several times");
    f.add("lines", &lines, "file of JSON lines: strings, or with --decode arrays of tokens; - is stdin");
    f.add("special", &special, "put the tokens around a text that the tokenizer asks for");
    f.add("decode", &decode, "from tokens to text");
    f.add("messages", &messages, "JSON file of a conversation: print the text of the model's chat template");
    f.add("tools", &tools, "JSON file of the functions that the model may call");
    f.add("variables", &variables, "JSON file of an object: what else the template may ask for");
    f.add("generation_prompt", &generation_prompt, "end with the text that begins an answer");
    f.add("continue_final_message", &continue_final_message, "end with the last message, open");
    f.add("bench", &bench, "instead tokenize the lines so many times on one thread and print MB/s")
        .at_least(0);
  }
};

std::string text_of(const std::string& path) {
  if (path != "-") return base::read_file(path);
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

template <class Each>
void each_line(const std::string& text, Each each) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (!line.empty()) each(line);
  }
}

void print_tokens(const data::Tokenizer& tokenizer, std::string_view text, bool special) {
  Json ids = Json::array();
  for (const int64_t id : tokenizer.encode(text, special)) ids.push_back(id);
  std::cout << ids.dump() << "\n";
}

void print_line(const data::Tokenizer& tokenizer, std::string_view line, const TokenizeOptions& o) {
  const Json given = base::parse_json(line);
  if (!o.decode) return print_tokens(tokenizer, given.as_string(), o.special);
  std::vector<int64_t> ids;
  for (const Json& id : given.as_array()) ids.push_back(id.as_int());
  std::string streamed;
  const auto stream = tokenizer.stream();
  for (const int64_t id : ids) streamed += stream->push(id);
  streamed += stream->finish();
  std::cout << Json::object({{"text", tokenizer.decode(ids)}, {"streamed", streamed}}).dump() << "\n";
}

void bench(const data::Tokenizer& tokenizer, const TokenizeOptions& o) {
  std::vector<std::string> texts;
  size_t bytes = 0, tokens = 0;
  each_line(text_of(o.lines), [&](std::string_view line) {
    texts.push_back(base::parse_json(line).as_string());
    bytes += texts.back().size();
  });
  Json rates = Json::array();
  for (int64_t i = 0; i < o.bench; ++i) {
    tokens = 0;
    const auto start = std::chrono::steady_clock::now();
    for (const std::string& text : texts) tokens += tokenizer.encode(text, o.special).size();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    rates.push_back(static_cast<double>(bytes) / time.count() / 1e6);
  }
  std::cout << Json::object({{"mb_per_s", rates}, {"bytes", bytes}, {"tokens", tokens}}).dump() << "\n";
}

int render(const TokenizeOptions& o) {
  const auto json_of = [](const std::string& path) {
    return path.empty() ? Json() : base::parse_json(text_of(path));
  };
  const Json tools = json_of(o.tools);
  const auto chat = data::ChatTemplate::of_directory(o.tokenizer);
  if (!chat) base::fail(base::ErrorCode::not_found, "'", o.tokenizer, "' has no chat template");
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  data::ChatOptions options{.add_generation_prompt = o.generation_prompt,
                            .continue_final_message = o.continue_final_message,
                            .now_s = std::chrono::duration_cast<std::chrono::seconds>(now).count()};
  if (!o.variables.empty()) options.variables = json_of(o.variables);
  std::cout << chat->render(json_of(o.messages), tools, options);
  return 0;
}

}  // namespace

int tokenize_main(std::span<const std::string> words, base::Env&) {
  TokenizeOptions o;
  if (!parse(o, words, "tokenize")) return 0;
  if (!o.messages.empty()) return render(o);
  base::require(!o.text.empty() || !o.lines.empty(), "nothing to do: give --text, --lines or --messages");
  const auto tokenizer = data::open_tokenizer(o.tokenizer);
  if (o.bench > 0) {
    bench(*tokenizer, o);
    return 0;
  }
  for (const std::string& text : o.text) print_tokens(*tokenizer, text, o.special);
  if (!o.lines.empty())
    each_line(text_of(o.lines), [&](std::string_view line) { print_line(*tokenizer, line, o); });
  return 0;
}

std::string tokenize_markdown() { return options_markdown<TokenizeOptions>(); }

}  // namespace trireme::cli
