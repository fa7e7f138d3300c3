// A worker's two threads: one reads and asks the model, one writes and commits.
#include "batch/worker.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"

namespace trireme::batch {
namespace {

constexpr int64_t kLookNs = 50 * base::kNsPerMs;   // between looks at signals
constexpr int64_t kShowNs = base::kNsPerSecond;    // between progress
constexpr int64_t kIdleNs = 200 * base::kNsPerMs;  // while others have all that is left
constexpr int64_t kShortWaitNs = 5 * base::kNsPerMs;
constexpr int64_t kFirstPauseNs = 500 * base::kNsPerMs;  // after a failure that may pass
constexpr int64_t kLongestPauseNs = 30 * base::kNsPerSecond;
constexpr int64_t kSampleSpanNs = 60 * base::kNsPerSecond;
constexpr int64_t kRecentNs = 10 * base::kNsPerSecond;
constexpr int64_t kLineBytes = int64_t{192} << 20;
constexpr double kGraceShare = 0.8;  // of the time that is left, so that the end of a chunk fits too

/// A chunk beside what the model has under way: a commit that takes no longer than the chunk did is not
/// waited for.
LineLimits limits_of(const JobOptions& options, int64_t piece_rows) {
  constexpr int64_t kPieces = 8;
  return {.rows = options.chunk_rows + kPieces * piece_rows,
          .bytes = kLineBytes,
          .retries = options.retries,
          .retry_wait_ns = options.retry_wait.ns};
}

/// What is read: the model's columns and those that are carried through, each once.
std::vector<std::string> columns_to_read(const RowModel& model, const std::vector<std::string>& keep) {
  std::vector<std::string> columns = model.columns();
  for (const std::string& name : keep) {
    if (std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
  }
  return columns;
}

/// Throws FinalError where more rows have failed than the job allows. `failed`: one of them, and why.
void check_errors(const WorkerParts& parts, int64_t errors, const std::string& failed) {
  const int64_t most = parts.options.max_errors;
  if (most < 0 || errors <= most) return;
  throw FinalError(base::Error(
      base::ErrorCode::exhausted,
      base::concat(errors, " rows failed, more than max_errors = ", most, "; one of them: ", failed,
                   "; those of finished chunks are in '", parts.form.directory.errors(),
                   "'; run again with a larger max_errors to go on")));
}

bool is_passing(const base::Error& error) {
  return error.code() == base::ErrorCode::exhausted || error.code() == base::ErrorCode::unavailable;
}

}  // namespace

/// What one run of the two threads has; after a failure that may pass there is another.
struct Worker::Pass {
  PieceLine& line;
  std::unique_ptr<ChunkFiles> files;  ///< of the chunk that is written
  std::string failed = {};            ///< the last row that failed, and why
  int64_t waiting_ns = 0, write_ns = 0;
  int64_t write_begin_ns = 0;
  bool has_ended = false;
};

Worker::Worker(const WorkerParts& parts, WorkerHooks hooks)
    : parts_(parts), hooks_(std::move(hooks)), columns_(columns_to_read(parts.model, parts.form.keep)) {}

std::shared_ptr<const data::RowFile> Worker::input(uint32_t file) {
  if (file != open_file_) {
    const InputFile& planned = parts_.manifest.files.at(file);
    open_input_ = data::open_row_file(data::store_of(planned.path), planned.path,
                                      parts_.options.row_file_options(parts_.manifest.partitions));
    base::require(open_input_->content_id() == planned.content_id,
                  "the file has changed since the job was planned");
    open_file_ = file;
  }
  return open_input_;
}

bool Worker::is_late() const { return stops_ && parts_.env.clock.now_ns() >= stop_by_ns_; }

bool Worker::finishes_in_time(int64_t rows) const {
  const int64_t now = parts_.env.clock.now_ns(), written = rows_written_;
  if (written == 0) return false;
  const double per_row = static_cast<double>(now - begin_ns_) / static_cast<double>(written);
  return per_row * static_cast<double>(rows) < kGraceShare * static_cast<double>(stop_by_ns_ - now);
}

bool Worker::read_chunk(PieceLine& line, const std::shared_ptr<ChunkWork>& work) {
  const base::Clock& clock = parts_.env.clock;
  const Chunk& chunk = parts_.manifest.chunks.at(static_cast<size_t>(work->chunk));
  work->begin_ns = clock.now_ns();
  work->path = parts_.manifest.files[chunk.file].path;
  try {
    work->input = input(chunk.file);
    const std::unique_ptr<data::RowStream> stream = work->input->open(chunk.span, columns_);
    int64_t row = chunk.span.first_row;
    bool stays = false;  // it was decided that the chunk is finished though the worker stops
    while (true) {
      if (stops_ && !stays) {
        stays = finishes_in_time(line.rows() + chunk.span.first_row + chunk.span.rows - row);
        if (!stays) return line.push({.kind = LineItem::Kind::chunk_dropped, .work = work});
      }
      data::Rows rows;
      const int64_t begin = clock.now_ns();
      const bool has_rows = stream->next(parts_.model.piece_rows(), rows);
      const int64_t read = clock.now_ns();
      work->read_ns += read - begin;
      if (!has_rows) break;
      hooks_.at("read");
      const int64_t first = std::exchange(row, row + rows.count);
      auto piece = std::make_shared<Piece>(std::move(rows), parts_.form.keep, first);
      if (!line.push({.work = work, .piece = std::move(piece)})) return false;
      work->blocked_ns += clock.now_ns() - read;
    }
    base::require(row == chunk.span.first_row + chunk.span.rows,
                  "the input has changed: ", row - chunk.span.first_row, " rows where there were ",
                  chunk.span.rows);
  } catch (const base::Error& e) {
    throw e.with(base::concat("'", work->path, "', rows from ", chunk.span.first_row));
  }
  work->end_ns = clock.now_ns();
  return line.push({.kind = LineItem::Kind::chunk_end, .work = work});
}

bool Worker::all_done() const {
  bool all_done = false;
  parts_.desk.look([&](const ChunkTable& table) { all_done = table.all_done(); });
  return all_done;
}

bool Worker::waits_for_others(PieceLine& line) const {
  // Its own chunks that are still in the line end while it waits: the last of them ends the job.
  for (int64_t waited = 0; waited < kIdleNs; waited += kShortWaitNs) {
    if (all_done() || !line.wait(kShortWaitNs)) return false;
  }
  return true;
}

void Worker::read_chunks(PieceLine& line) {
  try {
    while (!stops_) {
      const std::optional<int64_t> chunk = parts_.desk.take();
      if (chunk) {
        hooks_.at("taken");
        auto work = std::make_shared<ChunkWork>();
        work->chunk = *chunk;
        if (!read_chunk(line, work)) return;
        continue;
      }
      if (!waits_for_others(line)) break;
    }
    line.push({.kind = LineItem::Kind::last});
  } catch (...) {
    line.fail(std::current_exception());
  }
}

void Worker::write_piece(Pass& pass, const LineItem& item) {
  const base::Clock& clock = parts_.env.clock;
  const int64_t begin = clock.now_ns();
  if (pass.files == nullptr) {
    pass.files = std::make_unique<ChunkFiles>(parts_.form, item.work->chunk, item.work->path);
    pass.write_begin_ns = begin;
  }
  if (!data::holds_non_finite(parts_.form.writer.format)) item.piece->refuse_non_finite(parts_.form.outputs);
  pass.files->write(*item.piece);
  rows_written_ += item.piece->rows();
  pass.write_ns += clock.now_ns() - begin;
  hooks_.at("written");
  if (item.piece->failures().empty()) return;
  const Piece::Failure& last = item.piece->failures().back();
  pass.failed = base::concat("'", item.work->path, "', row ", item.piece->first_row() + last.row, ": ",
                             last.error.message());
  int64_t errors = pass.files->errors();
  parts_.desk.look([&](const ChunkTable& table) { errors += table.errors(); });
  check_errors(parts_, errors, pass.failed);
}

void Worker::commit(Pass& pass, ChunkWork& work) {
  const base::Clock& clock = parts_.env.clock;
  const int64_t begin = clock.now_ns();
  if (pass.files == nullptr) {
    pass.files = std::make_unique<ChunkFiles>(parts_.form, work.chunk, work.path);
    pass.write_begin_ns = begin;
  }
  const ChunkResult result = pass.files->seal(*work.input);
  hooks_.at("sealed");
  const ModelUse use = parts_.model.use();
  const int64_t retried = pass.line.retried();
  const ChunkDesk::Verdict verdict = parts_.desk.commit(work.chunk, result, [&](const ChunkTable& table) {
    // Others may have committed rows that failed since this worker looked.
    if (result.errors > 0) check_errors(parts_, table.errors() + result.errors, pass.failed);
    pass.files->publish();
    hooks_.at("published");
    const int64_t now = clock.now_ns();
    return Effort{.elapsed_ns = now - last_commit_ns_,
                  .read_ns = work.read_ns,
                  .blocked_ns = work.blocked_ns,
                  .waiting_ns = pass.waiting_ns,
                  .write_ns = pass.write_ns,
                  .commit_ns = now - begin,
                  .busy_ns = use.busy_ns - last_use_.busy_ns,
                  .instances = use.instances,
                  .elements = use.elements - last_use_.elements,
                  .padded = use.padded - last_use_.padded,
                  .tokens = use.tokens - last_use_.tokens,
                  .retried = retried - last_retried_};
  });
  const int64_t end = clock.now_ns();
  if (verdict == ChunkDesk::Verdict::committed) {
    ++commits_;
    hooks_.at("committed");
    last_use_ = use;
    last_retried_ = retried;
    last_commit_ns_ = end;
    pass.waiting_ns = pass.write_ns = 0;
  } else {
    parts_.env.log.warning("batch", "lost_chunk",
                           {{"chunk", work.chunk}, {"because", "another worker took it over"}});
  }
  pass.files.reset();
  parts_.trace.add("read", "read", work.chunk, work.begin_ns, work.end_ns);
  parts_.trace.add("write", "write", work.chunk, pass.write_begin_ns, begin);
  parts_.trace.add("write", "commit", work.chunk, begin, end);
}

bool Worker::take_item(Pass& pass, const LineItem& item) {
  switch (item.kind) {
    case LineItem::Kind::piece: write_piece(pass, item); return true;
    case LineItem::Kind::chunk_end: commit(pass, *item.work); return true;
    case LineItem::Kind::chunk_dropped: pass.files.reset(); return true;
    case LineItem::Kind::last: return false;
  }
  return false;
}

void Worker::write_items(Pass& pass) {
  const base::Clock& clock = parts_.env.clock;
  while (true) {
    look_at_signals();
    if (is_late()) return;
    const int64_t begin = clock.now_ns();
    const std::optional<LineItem> item = pass.line.next(kLookNs);
    pass.waiting_ns += clock.now_ns() - begin;
    if (item && !take_item(pass, *item)) return;
  }
}

void Worker::pass() {
  PieceLine line(parts_.model, limits_of(parts_.options, parts_.model.piece_rows()));
  last_retried_ = 0;
  last_commit_ns_ = parts_.env.clock.now_ns();
  open_file_ = UINT32_MAX;  // what failed may have been the open file
  Pass pass{.line = line};
  std::thread reader([&] { read_chunks(line); });
  std::exception_ptr error;
  try {
    write_items(pass);
  } catch (...) {
    error = std::current_exception();
  }
  line.end();
  if (is_late()) parts_.model.give_up();  // the reader may be waiting for it
  reader.join();
  if (error) std::rethrow_exception(error);
}

bool Worker::wait_out(int64_t ns) {
  const base::Clock& clock = parts_.env.clock;
  for (const int64_t end = clock.now_ns() + ns; clock.now_ns() < end && !stops_;) {
    look_at_signals();
    std::this_thread::sleep_for(std::chrono::nanoseconds(kLookNs));
  }
  return !stops_;
}

WorkerEnd Worker::run() {
  const base::Clock& clock = parts_.env.clock;
  begin_ns_ = clock.now_ns();
  last_use_ = parts_.model.use();
  int64_t trouble_ns = -1, commits = 0, pause = kFirstPauseNs;  // trouble: since when nothing was committed
  while (true) {
    std::string why;
    try {
      pass();
      const bool is_done = all_done();
      if (!is_done) parts_.desk.give_back_all(reason_);
      parts_.desk.leave(is_done ? "done" : reason_);
      return {.all_done = is_done, .reason = reason_};
    } catch (const FinalError& e) {
      parts_.desk.give_back_all(e.message());
      parts_.desk.leave(e.message());
      throw;
    } catch (const base::Error& e) {
      parts_.desk.give_back_all(e.message());
      if (!is_passing(e)) {
        parts_.desk.leave(e.message());
        throw;
      }
      why = e.message();
    }
    if (std::exchange(commits, commits_) != commits_ || trouble_ns < 0) {
      trouble_ns = clock.now_ns();
      pause = kFirstPauseNs;
    }
    const bool is_over = clock.now_ns() - trouble_ns + pause > parts_.options.patience.ns;
    parts_.env.log.warning("batch", is_over ? "gave_up" : "waits", {{"error", why}});
    if (is_over || !wait_out(pause)) {
      if (is_over) reason_ = why;
      parts_.desk.leave(reason_);
      return {.all_done = false, .reason = reason_};
    }
    pause = std::min(2 * pause, kLongestPauseNs);
  }
}

void Worker::look_at_signals() {
  const int64_t now = parts_.env.clock.now_ns();
  if (now - last_look_ns_ < kLookNs) return;
  last_look_ns_ = now;
  if (!stops_) {
    reason_ = hooks_.stop_reason();
    if (!reason_.empty()) {
      stop_by_ns_ = now + parts_.options.grace.ns;
      stops_ = true;
      parts_.env.log.info("batch", "stopping", {{"reason", reason_}});
    }
  }
  if (samples_.empty() || now - samples_.back().at_ns >= kShowNs) show_progress();
}

void Worker::show_progress() {
  Progress p;
  p.rows = parts_.manifest.rows();
  parts_.desk.look([&](const ChunkTable& table) {
    p.chunks = table.chunks();
    p.chunks_done = table.done();
    p.rows_done = table.rows() + table.errors();
    p.errors = table.errors();
    p.bytes = table.bytes();
  });
  const ModelUse use = parts_.model.use();
  const Sample now{.at_ns = parts_.env.clock.now_ns(),
                   .written = rows_written_,
                   .job_rows = p.rows_done,
                   .busy_ns = use.busy_ns};
  while (!samples_.empty() && now.at_ns - samples_.front().at_ns > kSampleSpanNs) samples_.pop_front();
  const auto per_s = [&](int64_t amount, const Sample& since) {
    const auto ns = static_cast<double>(now.at_ns - since.at_ns);
    return ns <= 0 ? 0 : static_cast<double>(amount) * base::kNsPerSecond / ns;
  };
  if (!samples_.empty()) {
    const auto recent = std::find_if(samples_.begin(), samples_.end(),
                                     [&](const Sample& s) { return now.at_ns - s.at_ns <= kRecentNs; });
    const Sample& near = recent == samples_.end() ? samples_.back() : *recent;
    const Sample& far = samples_.front();
    p.rows_per_s = per_s(now.written - near.written, near);
    // A batch counts when it ends: near its begin the share may seem to pass 1.
    p.busy = std::min(
        1.0, per_s(now.busy_ns - near.busy_ns, near) / base::kNsPerSecond / std::max(1, use.instances));
    p.job_rows_per_s = std::max(p.rows_per_s, per_s(now.job_rows - far.job_rows, far));
    if (p.job_rows_per_s > 0) p.left_s = static_cast<double>(p.rows - p.rows_done) / p.job_rows_per_s;
  }
  samples_.push_back(now);
  hooks_.progress(p);
}

}  // namespace trireme::batch
