// Statistics over HTTP or gRPC.
#include "load/requests/server_times.h"

#include "base/error.h"
#include "load/requests/kserve_grpc.h"

namespace trireme::load {
namespace {

ServerTimes sums_of(const std::string& model, const base::Json& answer) {
  ServerTimes sums{.model = model};
  for (const base::Json& version : answer.at("model_stats").as_array()) {
    const base::Json& times = version.at("inference_stats");
    sums.requests += times.at("success").at("count").as_int();
    sums.inferences += version.at("inference_count").as_int();
    sums.batches += version.at("execution_count").as_int();
    sums.queue_ns += times.at("queue").at("ns").as_int();
    sums.compute_input_ns += times.at("compute_input").at("ns").as_int();
    sums.compute_infer_ns += times.at("compute_infer").at("ns").as_int();
    sums.compute_output_ns += times.at("compute_output").at("ns").as_int();
  }
  return sums;
}

}  // namespace

std::vector<ServerTimes> ask_server_times(const Target& target, const std::string& prefix,
                                          const std::vector<std::string>& models,
                                          const http::HeaderList& headers) {
  std::vector<ServerTimes> all;
  const std::string authority = http::Url{.host = target.host, .port = target.port}.authority();
  for (const std::string& model : models) {
    try {
      if (target.protocol == Protocol::grpc) {
        const std::string path = std::string(kGrpcService) + "ModelStatistics";
        all.push_back(
            sums_of(model, statistics_of_grpc(call(
                               target, grpc_request(path, headers, authority, encode_model_name(model))))));
      } else {
        const std::string path = prefix + "/v2/models/" + model + "/stats";
        all.push_back(sums_of(
            model, base::parse_json(call(target, http::request_head("GET", path, authority, 0, headers)))));
      }
    } catch (const base::Error&) {
      // Statistics may be switched off or forbidden; the load goes without them.
    }
  }
  return all;
}

std::vector<ServerTimes> difference(const std::vector<ServerTimes>& before,
                                    const std::vector<ServerTimes>& after) {
  std::vector<ServerTimes> all;
  for (const ServerTimes& a : after) {
    for (const ServerTimes& b : before) {
      if (a.model != b.model) continue;
      all.push_back({.model = a.model,
                     .requests = a.requests - b.requests,
                     .inferences = a.inferences - b.inferences,
                     .batches = a.batches - b.batches,
                     .queue_ns = a.queue_ns - b.queue_ns,
                     .compute_input_ns = a.compute_input_ns - b.compute_input_ns,
                     .compute_infer_ns = a.compute_infer_ns - b.compute_infer_ns,
                     .compute_output_ns = a.compute_output_ns - b.compute_output_ns});
    }
  }
  return all;
}

}  // namespace trireme::load
