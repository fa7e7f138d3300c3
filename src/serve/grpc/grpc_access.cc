// Checks whether a gRPC caller may make a call.
#include "serve/grpc/grpc_access.h"

#include "base/error.h"

namespace trireme::serve {
namespace {

Caller caller_of(const GrpcCall& call, Category category) {
  Caller caller;
  caller.header = [&call](const std::string& name) {
    const std::string_view value = call.field(name);
    return value.empty() ? call.field("triton-grpc-protocol-" + name) : value;
  };
  const auto plain = [&call](const std::string& name) { return call.field(name); };
  caller.is_local = is_control(category) && call.is_local() && !is_forwarded(plain);
  return caller;
}

void require(Category category, Access access) {
  if (access == Access::allowed) return;
  base::fail(base::ErrorCode::unavailable, "This protocol is ", AccessRules::refusal(category, access));
}

}  // namespace

void require_access(const AccessRules& rules, const GrpcCall& call, Category category) {
  require(category, rules.judge_before_reading(category, caller_of(call, category)));
}

void require_access(const AccessRules& rules, const GrpcCall& call, Category category,
                    std::string_view model) {
  require(category, rules.judge(category, model, caller_of(call, category)));
}

}  // namespace trireme::serve
