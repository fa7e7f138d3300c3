// Turns and deferred deletion of an event loop's connections.
#include "http/connection_list.h"

#include <utility>

namespace trireme::http {

void ConnectionList::make_room() {
  if (connections_.size() == connections_.capacity()) connections_.reserve(2 * connections_.size() + 8);
  for (std::vector<LoopConnection*>* list : {&revisits_, &revisiting_, &retired_})
    list->reserve(connections_.capacity());
}

LoopConnection& ConnectionList::add(std::unique_ptr<LoopConnection> connection) {
  connection->index = connections_.size();
  connections_.push_back(std::move(connection));
  return *connections_.back();
}

void ConnectionList::revisit(LoopConnection& connection) {
  if (connection.revisit_queued || connection.closed()) return;
  connection.revisit_queued = true;
  revisits_.push_back(&connection);
}

void ConnectionList::handle_revisits() {
  revisiting_.swap(revisits_);
  for (LoopConnection* connection : revisiting_) {
    connection->revisit_queued = false;
    if (!connection->closed()) take_turn(*connection, [&] { connection->advance(); });
  }
  revisiting_.clear();
}

void ConnectionList::check_deadlines() {
  for (const auto& connection : connections_) take_turn(*connection, [&] { connection->check_deadline(); });
}

size_t ConnectionList::bury() {
  const size_t count = retired_.size();
  bool is_any_queued = false;
  for (const LoopConnection* dead : retired_) is_any_queued |= dead->revisit_queued;
  if (is_any_queued) std::erase_if(revisits_, [](const LoopConnection* one) { return one->closed(); });
  for (const LoopConnection* dead : retired_) {
    const size_t at = dead->index;
    std::swap(connections_[at], connections_.back());
    connections_[at]->index = at;
    connections_.pop_back();
  }
  retired_.clear();
  return count;
}

void ConnectionList::close_all() {
  for (const auto& connection : connections_) connection->close();
}

}  // namespace trireme::http
