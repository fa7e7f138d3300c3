// trireme chat: a conversation with a language model in the terminal, or turns from a pipe, one per line.
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iostream>

#include "base/files/file.h"
#include "cli/language_model.h"
#include "cli/verb.h"
#include "data/text/answer_text.h"
#include "sched/text/token_scheduler.h"

namespace trireme::cli {
namespace {

using base::Json;

struct ChatVerbOptions {
  LanguageOptions language{.max_tokens = 1024};
  std::string system, tools, variables;
  bool json = false;

  void fields(base::OptionList& f) {
    language.fields(f);
    f.add("system", &system, "what the model is told before the first turn");
    f.add("tools", &tools, "JSON file of the functions that the model may call");
    f.add("variables", &variables, "JSON file of an object: what else the template may ask for");
    f.add("json", &json, "one JSON object a turn instead of its text");
  }
};

/// Makes Ctrl-C something to poll for: SIGINT is blocked in this thread and in every thread that it starts.
class Interrupts {
 public:
  Interrupts() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    signal_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    base::check(signal_ >= 0, "signalfd failed");
  }
  ~Interrupts() {
    close(signal_);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  int descriptor() const { return signal_; }
  /// Whether the user has pressed Ctrl-C since the last call.
  bool take() {
    signalfd_siginfo info;
    bool any = false;
    while (read(signal_, &info, sizeof(info)) == sizeof(info)) any = true;
    return any;
  }

 private:
  sigset_t before_{};
  int signal_ = -1;
};

/// Reads lines of standard input; a Ctrl-C ends the wait for one.
class Lines {
 public:
  explicit Lines(Interrupts& interrupts) : interrupts_(interrupts) {}

  enum class Outcome { line, interrupted, end };
  Outcome next(std::string& line) {
    for (;;) {
      if (const size_t end = held_.find('\n'); end != std::string::npos) {
        line = held_.substr(0, end);
        held_.erase(0, end + 1);
        return Outcome::line;
      }
      if (is_over_) return Outcome::end;
      pollfd both[] = {{STDIN_FILENO, POLLIN, 0}, {interrupts_.descriptor(), POLLIN, 0}};
      if (poll(both, 2, -1) < 0) continue;
      if (interrupts_.take()) return Outcome::interrupted;
      read_some();
    }
  }

 private:
  void read_some() {
    char bytes[4096];
    const ssize_t n = read(STDIN_FILENO, bytes, sizeof(bytes));
    if (n > 0) {
      held_.append(bytes, static_cast<size_t>(n));
      base::require(held_.size() <= size_t{64} << 20, "a line of more than 64 MiB");
      return;
    }
    is_over_ = true;
    if (!held_.empty()) held_.push_back('\n');
  }

  Interrupts& interrupts_;
  std::string held_;
  bool is_over_ = false;
};

class ChatVerb {
 public:
  ChatVerb(ChatVerbOptions options, Interrupts& interrupts)
      : o_(std::move(options)),
        model_(o_.language),
        interrupts_(interrupts),
        lines_(interrupts),
        is_terminal_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
    model_.chat_template();
    if (!o_.tools.empty()) tools_ = base::parse_json(base::read_file(o_.tools));
    if (!o_.variables.empty()) variables_ = base::parse_json(base::read_file(o_.variables));
    reset();
  }

  LanguageModel& model() { return model_; }

  /// Takes turns until the input ends.
  int run(base::Env& env) {
    scheduler_.emplace(model_.session(), model_.schedule(env.clock));
    if (is_terminal_)
      std::cout
          << "/reset begins anew, /system TEXT sets the system turn, /exit ends. Ctrl-C ends an answer.\n";
    std::string line;
    for (;;) {
      if (is_terminal_) std::cout << "> " << std::flush;
      const Lines::Outcome outcome = lines_.next(line);
      if (outcome == Lines::Outcome::end) break;
      if (outcome == Lines::Outcome::interrupted) {
        if (is_terminal_) std::cout << "\n";
        continue;
      }
      if (line.ends_with('\r')) line.pop_back();
      if (line == "/exit" || line == "/quit") break;
      if (line.find_first_not_of(" \t") != std::string::npos && !command(line)) turn(line);
    }
    if (is_terminal_) std::cout << std::endl;
    LanguageModel::report(scheduler_->draft_counts(), env);
    scheduler_.reset();
    return 0;
  }

 private:
  void reset() {
    messages_ = Json::array();
    if (!o_.system.empty()) add("system", o_.system);
  }

  void add(const char* role, const std::string& content) {
    messages_.push_back(Json::object({{"role", role}, {"content", content}}));
  }

  /// Executes a line that is a command; returns false for any other line.
  bool command(const std::string& line) {
    if (line == "/reset") {
      reset();
    } else if (line == "/system" || line.starts_with("/system ")) {
      o_.system = line.size() > 8 ? line.substr(8) : "";
      reset();
    } else if (line.starts_with('/')) {
      std::cerr << "no such command: " << line << "; there are /reset, /system TEXT, /exit" << std::endl;
    } else {
      return false;
    }
    return true;
  }

  /// One question and its answer. A question that cannot be answered is removed from the conversation.
  void turn(const std::string& line) {
    add("user", line);
    try {
      answer();
    } catch (const base::Error& e) {
      if (!is_terminal_) throw;
      std::cerr << e.message() << std::endl;
      messages_.as_array().pop_back();
    }
  }

  void answer() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const data::ChatOptions options{.variables = variables_,
                                    .now_s = std::chrono::duration_cast<std::chrono::seconds>(now).count()};
    engine::GenerateRequest request{.prompt = model_.encode_chat(messages_, tools_, options),
                                    .max_tokens = o_.language.max_tokens,
                                    .stop = model_.end_tokens(),
                                    .sampling = o_.language.sampling};
    if (!model_.adapters().empty()) request.adapter = model_.adapters()[0];
    const size_t prompt_tokens = request.prompt.size();
    const int64_t shared_before = scheduler_->shared_tokens();
    interrupts_.take();
    data::AnswerText text(model_.tokenizer(), o_.language.stop);
    const int64_t number = scheduler_->add(std::move(request));
    int64_t tokens = 0;
    const engine::FinishReason finish = generate(number, text, tokens);
    add("assistant", text.text());
    if (!o_.json) {
      std::cout << std::endl;
      return;
    }
    std::cout << Json::object({{"text", text.text()},
                               {"finish", engine::to_string(finish)},
                               {"prompt_tokens", prompt_tokens},
                               {"known_tokens", scheduler_->shared_tokens() - shared_before},
                               {"tokens", tokens}})
                     .dump()
              << std::endl;
  }

  engine::FinishReason generate(int64_t number, data::AnswerText& text, int64_t& tokens) {
    engine::FinishReason finish = engine::FinishReason::none;
    const auto show = [&](const std::string& part) {
      if (!o_.json) std::cout << part << std::flush;
    };
    while (!scheduler_->is_idle()) {
      if (interrupts_.take()) scheduler_->cancel(number);
      for (const engine::GenerateEvent& event : scheduler_->step()) {
        if (event.request != number || finish != engine::FinishReason::none) continue;
        if (event.token >= 0) {
          ++tokens;
          show(text.push(event.token));
        }
        finish = event.finish;
        if (text.is_stopped() && finish == engine::FinishReason::none) {
          finish = engine::FinishReason::stop;
          scheduler_->cancel(number);
        }
      }
    }
    show(text.finish());
    return finish;
  }

  ChatVerbOptions o_;
  LanguageModel model_;
  Interrupts& interrupts_;
  Lines lines_;
  bool is_terminal_;
  Json messages_, tools_, variables_ = Json::object();
  std::optional<sched::TokenScheduler> scheduler_;
};

}  // namespace

int chat_main(std::span<const std::string> words, base::Env& env) {
  ChatVerbOptions options;
  if (!parse(options, words, "chat")) return 0;
  Interrupts interrupts;
  ChatVerb verb(std::move(options), interrupts);
  return verb.model().run([&] { return verb.run(env); }, env);
}

std::string chat_markdown() { return options_markdown<ChatVerbOptions>(); }

}  // namespace trireme::cli
