// Reads instance_group of a model's configuration.
#include "serve/config/instance_config.h"

#include "base/error.h"
#include "serve/config/field_readers.h"

namespace trireme::serve {
namespace {

using Fields = std::vector<TextField>;

constexpr int64_t kMostInstances = 1024;  ///< of a group

sched::RateNeed read_resource(const Fields& fields) {
  sched::RateNeed need{.count = 0};
  for (const TextField& f : fields) {
    if (f.name == "name") {
      need.name = f.as_string();
    } else if (f.name == "global") {
      need.is_global = f.as_bool();
    } else if (f.name == "count") {
      need.count = f.as_int();
      base::require(need.count >= 0, "line ", f.line, ": a resource's count is negative: ", need.count);
    } else {
      refuse_field("instance_group.rate_limiter.resources", f);
    }
  }
  base::require(!need.name.empty(), "instance_group.rate_limiter.resources: a resource has no name");
  return need;
}

sched::RateClaim read_claim(const Fields& fields) {
  sched::RateClaim claim{.priority = 0};
  for (const TextField& f : fields) {
    if (f.name == "resources") {
      claim.needs.push_back(read_resource(f.as_message()));
    } else if (f.name == "priority") {
      const int64_t priority = f.as_int();
      base::require(priority >= 0 && priority <= 1'000'000, "line ", f.line, ": rate_limiter priority ",
                    priority);
      claim.priority = static_cast<uint32_t>(priority);
    } else {
      refuse_field("instance_group.rate_limiter", f);
    }
  }
  return claim;
}

}  // namespace

InstanceGroup read_instance_group(const Fields& fields) {
  InstanceGroup group{.claim = {.priority = 0}};
  for (const TextField& f : fields) {
    if (f.name == "count") {
      const int64_t count = f.as_int();
      base::require(count >= 0 && count <= kMostInstances, "line ", f.line, ": instance_group.count ", count,
                    " is not within 0 and ", kMostInstances);
      group.count = count == 0 ? 1 : static_cast<int>(count);
    } else if (f.name == "kind") {
      constexpr std::string_view kKinds[] = {"KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"};
      group.kind = kKinds[read_choice(f, kKinds)];
      group.has_kind = true;
    } else if (f.name == "name") {
      group.name = f.as_string();
    } else if (f.name == "gpus") {
      const int64_t gpu = f.as_int();
      base::require(gpu >= 0 && gpu <= 1024, "line ", f.line, ": instance_group gpus ", gpu);
      group.gpus.push_back(static_cast<int>(gpu));
    } else if (f.name == "rate_limiter") {
      group.claim = read_claim(f.as_message());
    } else {
      refuse_field("instance_group", f);
    }
  }
  base::require(group.gpus.empty() || group.kind == "KIND_GPU", "instance_group.gpus without kind KIND_GPU");
  const int64_t all = group.count * static_cast<int64_t>(group.gpus.size());
  base::require(all <= kMostInstances, "instance_group: count ", group.count, " on each of ",
                group.gpus.size(), " gpus makes more than ", kMostInstances, " instances");
  return group;
}

std::vector<std::string> InstanceGroup::devices() const {
  std::vector<std::string> list;
  if (kind != "KIND_GPU")
    list.assign(static_cast<size_t>(count), has_kind && kind == "KIND_CPU" ? "cpu" : "");
  if (kind == "KIND_GPU" && gpus.empty()) list.assign(static_cast<size_t>(count), "cuda:0");
  for (int gpu : gpus) list.insert(list.end(), static_cast<size_t>(count), base::concat("cuda:", gpu));
  return list;
}

void name_device(std::vector<InstanceGroup>& groups, int instances, const std::string& device) {
  constexpr std::string_view kGpu = "cuda:";
  const std::string number = device.starts_with(kGpu) ? device.substr(kGpu.size()) : "";
  if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos) return;
  if (groups.empty()) groups.push_back({.count = instances, .claim = {.priority = 0}});
  for (InstanceGroup& group : groups) {
    if (group.has_kind) continue;
    group.kind = "KIND_GPU";
    group.gpus = {std::stoi(number)};
  }
}

base::Json instance_group_json(const InstanceGroup& group) {
  using base::Json;
  Json resources = Json::array(), gpus = Json::array();
  for (const int gpu : group.gpus) gpus.push_back(gpu);
  for (const sched::RateNeed& need : group.claim.needs) {
    resources.push_back(
        Json::object({{"name", need.name}, {"global", need.is_global}, {"count", need.count}}));
  }
  return Json::object({{"name", group.name},
                       {"kind", group.kind},
                       {"count", group.count},
                       {"gpus", std::move(gpus)},
                       {"rate_limiter", Json::object({{"resources", std::move(resources)},
                                                      {"priority", group.claim.priority}})},
                       {"passive", false}});
}

}  // namespace trireme::serve
