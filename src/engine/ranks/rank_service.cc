// The ranks of a launched job as a service to sessions: the first rank opens groups, the others follow each
// of them.
#include "engine/ranks/rank_service.h"

#include <map>
#include <thread>
#include <vector>

#include "engine/ranks/sharded_session.h"

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
void follow_session(const std::shared_ptr<const PreparedModel>& model, const SessionOptions& options,
                    comm::Communicator& group) {
  try {
    follow(model, options, group);
  } catch (const base::Error& e) {
    if (e.code() != base::ErrorCode::unavailable) throw;
  }
}

}  // namespace

RankService::~RankService() {
  try {
    send_key(world_, "");
  } catch (const base::Error&) {
    is_lost_ = true;  // the others have ended already
  }
}

std::unique_ptr<comm::Communicator> RankService::open(const std::string& key) {
  while (busy_.test_and_set(std::memory_order_acquire)) busy_.wait(true);
  std::unique_ptr<comm::Communicator> group;
  std::exception_ptr failure;
  try {
    send_key(world_, key);
    group = world_.split(0, world_.rank());
  } catch (...) {
    failure = std::current_exception();
    say_lost();
  }
  busy_.clear(std::memory_order_release);
  busy_.notify_one();
  if (failure) std::rethrow_exception(failure);
  return group;
}

void follow_service(comm::Communicator& world, const SessionOptions& options,
                    const std::function<std::shared_ptr<const PreparedModel>(const std::string& key)>& load) {
  std::map<std::string, std::weak_ptr<const PreparedModel>> models;
  std::vector<std::unique_ptr<comm::Communicator>> groups;
  std::vector<std::thread> sessions;
  std::exception_ptr failure;
  try {
    for (std::string key = receive_key(world); !key.empty(); key = receive_key(world)) {
      std::shared_ptr<const PreparedModel> model = models[key].lock();
      if (model == nullptr) models[key] = model = load(key);
      groups.push_back(world.split(0, world.rank()));
      sessions.emplace_back(
          [model, &options, &group = *groups.back()] { follow_session(model, options, group); });
    }
  } catch (...) {
    failure = std::current_exception();  // the sessions learn it from their groups
  }
  for (std::thread& t : sessions) t.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace trireme::engine
