// Offers the ranks of a launched job to sessions: the first rank opens a group for each session, which the
// other ranks follow.
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

/// Follows one session, which ends with the job if a rank is lost. Any other error must end this process,
/// since other ranks would wait forever; the launcher then restarts the job.
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
    is_lost_ = true;  // the others have already ended
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
    failure = std::current_exception();  // sessions get the error from their groups
  }
  for (std::thread& t : sessions) t.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace trireme::engine
