// Offers the ranks of a launched job to sessions: the first rank opens a group for each session, which the
// other ranks follow.
#include "engine/ranks/rank_service.h"

#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "engine/ranks/rank_group.h"

namespace trireme::engine {
namespace {

constexpr const char* kSource = "sessions of the job";

void send_key(comm::Communicator& world, std::string key) {
  auto bytes = static_cast<int64_t>(key.size());
  world.broadcast(comm::as_bytes(std::span<int64_t>(&bytes, 1)), 0, kSource);
  if (bytes > 0) world.broadcast(comm::as_bytes(std::span<char>(key.data(), key.size())), 0, kSource);
}

std::string receive_key(comm::Communicator& world) {
  int64_t bytes = 0;
  world.broadcast(comm::as_bytes(std::span<int64_t>(&bytes, 1)), 0, kSource);
  std::string key(static_cast<size_t>(bytes), ' ');
  if (bytes > 0) world.broadcast(comm::as_bytes(std::span<char>(key.data(), key.size())), 0, kSource);
  return key;
}

/// Follows one session. A rank that is gone ends it, and with it the job; what else goes wrong here would
/// leave the others waiting for ever, so it ends this process and its launcher starts the job again.
void follow_session(const FollowSession& follow, comm::Communicator& group) {
  try {
    follow(group);
  } catch (const AgreedError&) {
    // the first rank says so
  } catch (const base::Error& e) {
    if (e.code() != base::ErrorCode::unavailable) throw;
  }
}

using Load = std::function<std::shared_ptr<const FollowSession>(const std::string& key)>;

/// Null where it fails, and why.
std::shared_ptr<const FollowSession> try_load(const Load& load, const std::string& key,
                                              std::optional<base::Error>& failure) {
  try {
    return load(key);
  } catch (const base::Error& e) {
    failure = e;
  } catch (const std::bad_alloc&) {
    failure = base::Error(base::ErrorCode::exhausted, "no memory left");
  } catch (const std::exception& e) {
    failure = base::Error(base::ErrorCode::internal, e.what());
  }
  return nullptr;
}

/// Collective: whether all ranks have loaded the model. `failure`: why this one has not.
bool is_loaded(comm::Communicator& world, const std::optional<base::Error>& failure) {
  try {
    require_all_well(world, failure);
    return true;
  } catch (const AgreedError&) {
    return false;
  }
}

}  // namespace

RankService::~RankService() {
  try {
    send_key(world_, "");
  } catch (const base::Error&) {
    is_lost_ = true;  // the others have already ended
  }
}

std::unique_ptr<comm::Communicator> RankService::open(const std::string& key) {
  while (busy_.test_and_set(std::memory_order_acquire)) busy_.wait(true);
  std::unique_ptr<comm::Communicator> group;
  std::exception_ptr failure;
  try {
    send_key(world_, key);
    require_all_well(world_, std::nullopt);
    group = world_.split(0, world_.rank());
  } catch (const AgreedError&) {
    failure = std::current_exception();
  } catch (...) {
    failure = std::current_exception();
    say_lost();
  }
  busy_.clear(std::memory_order_release);
  busy_.notify_one();
  if (failure) std::rethrow_exception(failure);
  return group;
}

void follow_service(comm::Communicator& world, const Load& load) {
  std::map<std::string, std::weak_ptr<const FollowSession>> models;
  std::vector<std::unique_ptr<comm::Communicator>> groups;
  std::vector<std::thread> sessions;
  std::exception_ptr failure;
  try {
    for (std::string key = receive_key(world); !key.empty(); key = receive_key(world)) {
      std::erase_if(models, [](const auto& known) { return known.second.expired(); });
      std::optional<base::Error> error;
      std::shared_ptr<const FollowSession> model = models[key].lock();
      if (model == nullptr) models[key] = model = try_load(load, key, error);
      if (!is_loaded(world, error)) continue;
      groups.push_back(world.split(0, world.rank()));
      sessions.emplace_back([held = std::move(model), &group = *groups.back()]() mutable {
        follow_session(*held, group);
        held.reset();  // the thread is joined much later
      });
    }
  } catch (...) {
    failure = std::current_exception();  // sessions get the error from their groups
  }
  for (std::thread& t : sessions) t.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace trireme::engine
