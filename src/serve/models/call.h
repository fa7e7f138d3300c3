// One client's request from the border of a model to its answer.
#pragma once

#include <cstdint>
#include <string>

#include "sched/current_error.h"
#include "serve/access/tenants.h"
#include "serve/infer/infer_sink.h"

namespace trireme::serve {

class ServedModel;

/// The one thing between a protocol's sink and whatever computes the answer, the same for every kind of
/// model: hands answers over and counts what became of the request, in the model's metrics, its tenant's and,
/// by the sink's observer, in a trace. Its calls come one at a time, the last of them is answer(), fail() or
/// drop().
class Call {
 public:
  /// The model outlives it.
  Call(const ServedModel& model, const InferRequest& request, InferSink sink);

  bool is_cancelled() const { return sink_.cancelled && sink_.cancelled(); }
  /// True where the client takes several answers.
  bool takes_parts() const { return sink_.part != nullptr; }
  int64_t received_ns() const { return sink_.received_ns; }
  const Tenant& tenant() const { return tenant_; }
  void set_tenant(const Tenant& tenant) { tenant_ = tenant; }
  /// An answer without outputs.
  InferResponse head() const;

  /// The next of several answers: it took `infer_ns` to compute and was begun to be written at `begin_ns`.
  void give_part(InferResponse&& response, int64_t infer_ns, int64_t begin_ns);
  /// How many there were.
  int64_t parts() const { return parts_; }
  /// Gives the last answer, which `make` makes. What is thrown on the way is the request's failure.
  template <class Make>
  void answer(const Make& make) {
    try {
      hand_over(make());
    } catch (const std::exception&) {
      count_refusal();
      drop(sched::current_error());
    }
  }
  /// Tells why there is no answer.
  void fail(const base::Error& error, sched::Ending ending, const sched::Timing& timing = {});
  /// The same, of what was counted already.
  void drop(const base::Error& error);
  /// Counts a request that is told by what is thrown, or by drop().
  void count_refusal() const;

 private:
  void hand_over(InferResponse&& response);

  const ServedModel& model_;
  const std::string id_;
  const bool has_id_;
  const InferSink sink_;
  Tenant tenant_;
  int64_t parts_ = 0;
};

}  // namespace trireme::serve
