// Runs and requests as lines of comma-separated values.
#include <algorithm>
#include <array>

#include "load/report/report.h"

namespace trireme::load {
namespace {

std::string us(double ns) { return format_number(ns / 1e3, 1); }

/// The name of the first column and its value, as perf_analyzer has them where it has that kind of load.
std::string load_name(const LoadResult& r) {
  if (!r.title.empty()) return "Load";
  return r.concurrency > 0 ? "Concurrency" : "Request Rate";
}
std::string load_value(const LoadResult& r) {
  if (!r.title.empty()) return r.title;
  return r.concurrency > 0 ? std::to_string(r.concurrency) : format_number(r.offered_rate, 2);
}

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

/// All models together.
ServerTimes sum_of(const std::vector<ServerTimes>& models) {
  ServerTimes sum;
  for (const ServerTimes& s : models) {
    sum.requests += s.requests;
    sum.queue_ns += s.queue_ns;
    sum.compute_input_ns += s.compute_input_ns;
    sum.compute_infer_ns += s.compute_infer_ns;
    sum.compute_output_ns += s.compute_output_ns;
  }
  return sum;
}

std::string run_line(const Report& report, const Measured& m) {
  const LoadResult& r = m.result;
  const ServerTimes server = sum_of(m.server);
  const double answers = static_cast<double>(std::max<int64_t>(1, r.succeeded));
  const double send = r.send_ns / answers, receive = r.receive_ns / answers;
  const std::array<int64_t, 4> inside = {server.queue_ns, server.compute_input_ns, server.compute_infer_ns,
                                         server.compute_output_ns};
  double between = r.service.mean() - send - receive;
  for (const int64_t sum : inside) between -= server.mean_of(sum);
  std::string out = load_value(r) + "," +
                    format_number(r.throughput() * static_cast<double>(report.items_per_request), 2) + "," +
                    us(send) + "," + us(std::max(0.0, between));
  for (const int64_t sum : inside) out += "," + us(server.mean_of(sum));
  out += "," + us(receive);
  for (const double q : {0.5, 0.9, 0.95, 0.99}) out += "," + us(static_cast<double>(r.latency.quantile(q)));
  return out + "," + us(r.latency.mean()) + "," + std::to_string(r.error_count()) + "\n";
}

}  // namespace

std::string csv_report(const Report& report) {
  std::string out =
      (report.runs.empty() ? "Load" : load_name(report.runs[0].result)) +
      ",Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
      "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,"
      "p99 latency,Avg latency,Failed\n";
  for (const Measured& m : report.runs) out += run_line(report, m);
  return out;
}

std::string record_csv(const Report& report) {
  std::string out = "load,scheduled_us,sent_us,first_byte_us,ended_us,request,parts,error\n";
  for (const Measured& m : report.runs) {
    const std::string label = label_of(m.result);
    for (const Record& r : m.result.records) {
      out += label + "," + format_number(static_cast<double>(r.scheduled_ns) / 1e3, 3);
      // 0: it did not come to that.
      for (const int64_t ns : {r.sent_ns, r.first_ns, r.ended_ns})
        out += "," + (ns == 0 ? std::string() : format_number(static_cast<double>(ns) / 1e3, 3));
      out += "," + std::to_string(r.request) + "," + std::to_string(r.parts) + "," + quoted(r.error) + "\n";
    }
  }
  return out;
}

}  // namespace trireme::load
