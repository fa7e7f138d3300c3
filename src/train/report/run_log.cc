// Writes the run's log: JSON lines, TensorBoard events, and progress.
#include "train/report/run_log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "base/files/file.h"
#include "base/report/svg_plot.h"

namespace trireme::train {
namespace {

using base::Json;

constexpr base::JsonDumpOptions kLine{.nan_and_infinity = true};
constexpr int64_t kFlushNs = base::kNsPerSecond / 2;
constexpr base::JsonLimits kLineLimits{.nan_and_infinity = true};

template <class... Args>
std::string format(const char* pattern, Args... args) {
  std::array<char, 256> text;
  const int bytes = std::snprintf(text.data(), text.size(), pattern, args...);
  return {text.data(), static_cast<size_t>(std::clamp(bytes, 0, 255))};
}

/// The value in the line, or null if the line is incomplete.
Json parse_line(std::string_view line) {
  try {
    return base::parse_json(line, kLineLimits);
  } catch (const base::Error&) {
    return nullptr;
  }
}

template <class Body>
void for_lines(const std::string& text, const Body& body) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) return;  // the last line is incomplete
    body(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
}

/// Keeps the lines up to `step`; later steps will run again.
void cut_log(const std::string& path, int64_t step) {
  if (!base::file_exists(path)) return;
  if (step == 0) return base::write_file_atomic(path, "");
  std::string kept;
  for_lines(base::read_file(path), [&](std::string_view line) {
    const Json value = parse_line(line);
    if (!value.is_object() || value.get_or<int64_t>("step", 0) > step) return;
    if (value.get_or("event", "") == "end") return;
    kept += line;
    kept += '\n';
  });
  base::write_file_atomic(path, kept);
}

StepRecord step_of(const Json& j) {
  StepRecord r;
  r.step = j.get_or<int64_t>("step", 0);
  r.epoch = j.get_or("epoch", 0.0);
  r.samples = j.get_or<int64_t>("samples", 0);
  r.targets = j.get_or<int64_t>("targets", 0);
  r.loss = j.get_or("loss", 0.0);
  r.accuracy = j.get_or("accuracy", -1.0);
  r.lr = j.get_or("lr", 0.0);
  r.grad_norm = j.get_or("grad_norm", 0.0);
  r.skipped = j.get_or("skipped", false);
  r.loss_scale = j.get_or("loss_scale", 1.0);
  r.data_wait_ms = j.get_or("data_wait_ms", 0.0);
  r.forward_ms = j.get_or("forward_ms", 0.0);
  r.backward_ms = j.get_or("backward_ms", 0.0);
  r.update_ms = j.get_or("update_ms", 0.0);
  r.communication_ms = j.get_or("communication_ms", 0.0);
  r.exposed_ms = j.get_or("exposed_ms", 0.0);
  r.bubble = j.get_or("bubble", -1.0);
  r.expected_bubble = j.get_or("expected_bubble", -1.0);
  r.step_ms = j.get_or("step_ms", 0.0);
  r.samples_per_s = j.get_or("samples_per_s", 0.0);
  r.mfu = j.get_or("mfu", -1.0);
  return r;
}

double rounded(double value, double per_unit) { return std::round(value * per_unit) / per_unit; }

}  // namespace

void LogOptions::fields(base::OptionList& f) {
  f.add("progress", &progress, "time between progress lines on stderr; 0s: none");
  f.add("jsonl", &jsonl, "write log.jsonl: one object a step");
  f.add("tensorboard", &tensorboard, "write event files to tensorboard/");
  f.add("every", &every, "steps between lines of log.jsonl and TensorBoard points").at_least(1);
  f.add("report", &report, "write report.md with plots at the end");
}

Json to_json(const StepRecord& r) {
  const auto ms = [](double value) { return rounded(value, 1e3); };
  Json j = Json::object({{"event", "step"},
                         {"step", r.step},
                         {"epoch", r.epoch},
                         {"samples", r.samples},
                         {"targets", r.targets},
                         {"loss", r.loss},
                         {"lr", r.lr},
                         {"grad_norm", r.grad_norm},
                         {"skipped", r.skipped},
                         {"data_wait_ms", ms(r.data_wait_ms)},
                         {"forward_ms", ms(r.forward_ms)},
                         {"backward_ms", ms(r.backward_ms)},
                         {"update_ms", ms(r.update_ms)},
                         {"step_ms", ms(r.step_ms)},
                         {"samples_per_s", ms(r.samples_per_s)}});
  if (r.accuracy >= 0) j.set("accuracy", r.accuracy);
  if (r.loss_scale != 1) j.set("loss_scale", r.loss_scale);
  if (r.mfu >= 0) j.set("mfu", rounded(r.mfu, 1e6));
  if (r.communication_ms > 0) {
    j.set("communication_ms", ms(r.communication_ms));
    j.set("exposed_ms", ms(r.exposed_ms));
  }
  if (r.bubble >= 0) {
    j.set("bubble", rounded(r.bubble, 1e6));
    j.set("expected_bubble", rounded(r.expected_bubble, 1e6));
  }
  return j;
}

RunLog::RunLog(const LogOptions& options, const std::string& directory, int64_t resumed_step, base::Env env)
    : options_(options), env_(env), terminal_(::isatty(STDERR_FILENO) != 0), first_step_(resumed_step) {
  const std::string lines = directory + "/log.jsonl";
  if (options_.jsonl) {
    cut_log(lines, resumed_step);
    jsonl_ = std::make_unique<AppendFile>(lines);
  }
  if (options_.tensorboard) {
    const std::string events = directory + "/tensorboard";
    std::filesystem::create_directories(events);
    const int64_t first = resumed_step > 0 ? resumed_step + 1 : 0;
    tensorboard_ = std::make_unique<TensorboardWriter>(events, env_.clock.wall_ns(), first);
  }
  start_ns_ = shown_ns_ = env_.clock.now_ns();
}

void RunLog::tell_errors() {
  for (const std::string& error :
       {jsonl_ ? jsonl_->error() : "", tensorboard_ ? tensorboard_->error() : ""}) {
    if (!error.empty()) env_.log.warning("train", "log_lost", {{"error", error}});
  }
}

void RunLog::event(const std::string& name, Json fields) {
  if (!jsonl_) return;
  Json line = Json::object({{"event", name}});
  for (const auto& [key, value] : fields.as_object()) line.set(key, value);
  jsonl_->append(line.dump(kLine) + "\n");
  flush();
}

void RunLog::flush() {
  if (jsonl_) jsonl_->flush();
  if (tensorboard_) tensorboard_->flush();
  flushed_ns_ = env_.clock.now_ns();
  tell_errors();
}

void RunLog::flush_if_due() {
  if (env_.clock.now_ns() - flushed_ns_ >= kFlushNs) flush();
}

void RunLog::step(const StepRecord& r) {
  if (r.step % options_.every != 0) return;
  if (jsonl_) jsonl_->append(to_json(r).dump(kLine) + "\n");
  if (tensorboard_) {
    std::vector<Scalar> scalars{{"train/loss", r.loss},
                                {"train/lr", r.lr},
                                {"train/grad_norm", r.grad_norm},
                                {"train/skipped", r.skipped ? 1.0 : 0.0},
                                {"rate/samples_per_s", r.samples_per_s},
                                {"time/data_wait_ms", r.data_wait_ms},
                                {"time/forward_ms", r.forward_ms},
                                {"time/backward_ms", r.backward_ms},
                                {"time/update_ms", r.update_ms},
                                {"time/step_ms", r.step_ms}};
    if (r.accuracy >= 0) scalars.push_back({"train/accuracy", r.accuracy});
    if (r.mfu >= 0) scalars.push_back({"rate/mfu", r.mfu});
    if (r.loss_scale != 1) scalars.push_back({"train/loss_scale", r.loss_scale});
    if (r.communication_ms > 0) {
      scalars.push_back({"time/communication_ms", r.communication_ms});
      scalars.push_back({"time/exposed_ms", r.exposed_ms});
    }
    if (r.bubble >= 0) scalars.push_back({"rate/bubble", r.bubble});
    tensorboard_->write(r.step, env_.clock.wall_ns(), scalars);
  }
  flush_if_due();
}

void RunLog::eval(const EvalRecord& r) {
  Json fields = Json::object({{"step", r.step}, {"targets", r.targets}, {"loss", r.loss}});
  std::vector<Scalar> scalars{{"eval/loss", r.loss}};
  if (r.rank_correlation >= -1) {
    fields.set("rank_correlation", r.rank_correlation);
    scalars.push_back({"eval/rank_correlation", r.rank_correlation});
  }
  if (r.accuracy >= 0) {
    fields.set("accuracy", r.accuracy);
    scalars.push_back({"eval/accuracy", r.accuracy});
  }
  fields.set("seconds", rounded(r.seconds, 1e3));
  event("eval", std::move(fields));
  if (tensorboard_) tensorboard_->write(r.step, env_.clock.wall_ns(), scalars);
}

std::string mebibytes(int64_t bytes) {
  return base::concat(base::format_number(static_cast<double>(bytes) / 1048576.0, 1), " MiB");
}

std::string short_time(double seconds) {
  const auto s = static_cast<long long>(std::llround(std::max(0.0, seconds)));
  if (s >= 3600) return format("%lldh%02lldm", s / 3600, s / 60 % 60);
  if (s >= 60) return format("%lldm%02llds", s / 60, s % 60);
  return format("%llds", s);
}

std::string progress_text(const StepRecord& r, int64_t total_steps, double seconds_left) {
  std::string text = format("step %lld/%lld  epoch %.2f  loss %.4f", static_cast<long long>(r.step),
                            static_cast<long long>(total_steps), r.epoch, r.loss);
  if (r.accuracy >= 0) text += format("  accuracy %.1f %%", r.accuracy * 100);
  text += format("  lr %.3g  grad %.3g  %.4g samples/s", r.lr, r.grad_norm, r.samples_per_s);
  if (r.mfu >= 0) text += format("  MFU %.1f %%", r.mfu * 100);
  if (r.step_ms > 0) text += format("  data wait %.1f %%", 100 * r.data_wait_ms / r.step_ms);
  if (r.skipped) text += "  SKIPPED";
  if (seconds_left >= 0) text += "  left " + short_time(seconds_left);
  return text;
}

void RunLog::progress(const StepRecord& record, int64_t total_steps, bool force) {
  if (options_.progress.ns == 0) return;
  const int64_t now = env_.clock.now_ns();
  if (!force && now - shown_ns_ < options_.progress.ns) return;
  shown_ns_ = now;
  const auto done = static_cast<double>(record.step - first_step_);
  const double seconds = static_cast<double>(now - start_ns_) * 1e-9;
  const double left = done > 0 ? seconds / done * static_cast<double>(total_steps - record.step) : -1;
  const std::string text = progress_text(record, total_steps, left);
  // On a terminal, the line overwrites the previous one; elsewhere, each is a new line.
  std::cerr << (terminal_ ? "\r\x1b[K" : "") << text << (terminal_ ? "" : "\n") << std::flush;
  line_open_ = terminal_;
}

void RunLog::end_line() {
  if (line_open_) std::cerr << "\n" << std::flush;
  line_open_ = false;
}

LostWork work_after(const std::string& log, int64_t step, int64_t wall_ns) {
  LostWork lost;
  struct stat facts {};
  if (::stat(log.c_str(), &facts) != 0) return lost;
  const int64_t written_ns = facts.st_mtim.tv_sec * base::kNsPerSecond + facts.st_mtim.tv_nsec;
  lost.down_seconds = std::max(0.0, static_cast<double>(wall_ns - written_ns) * 1e-9);
  double logged_s = 0;
  int64_t logged = 0;
  for (const StepRecord& r : read_log(log).steps) {
    if (r.step <= step) continue;
    lost.steps = std::max(lost.steps, r.step - step);
    logged_s += r.step_ms * 1e-3;
    ++logged;
  }
  // With log.every > 1, each line stands for the steps since the one before.
  if (logged > 0) lost.seconds = logged_s * static_cast<double>(lost.steps) / static_cast<double>(logged);
  return lost;
}

LoggedRun read_log(const std::string& path) {
  LoggedRun run;
  for_lines(base::read_file(path), [&](std::string_view line) {
    const Json value = parse_line(line);
    if (!value.is_object()) return;
    const std::string kind = value.get_or("event", "");
    if (kind == "step") run.steps.push_back(step_of(value));
    if (kind == "eval") {
      run.evals.push_back({value.get_or<int64_t>("step", 0), value.get_or<int64_t>("targets", 0),
                           value.get_or("loss", 0.0), value.get_or("accuracy", -1.0),
                           value.get_or("rank_correlation", -2.0), value.get_or("seconds", 0.0)});
    }
    if (kind == "restarted") {
      run.restarts.push_back({value.get_or<int64_t>("lost_steps", 0), value.get_or("lost_seconds", 0.0),
                              value.get_or("down_seconds", 0.0)});
    }
    if (kind == "start") run.start = value;
    if (kind == "end") run.end = value;
  });
  return run;
}

}  // namespace trireme::train
