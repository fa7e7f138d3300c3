// The members of a JSON object: in order, found by key in the same time however many there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::base {

/// A template only so that it may be named before Json is complete.
template <class Value>
struct BasicJsonMember {
  std::string key;
  Value value;
  bool operator==(const BasicJsonMember& other) const = default;
};

/// Places in a list by a hash whose key is drawn once a process: who sends keys cannot choose ones that meet.
class JsonKeyIndex {
 public:
  static constexpr size_t kNone = SIZE_MAX;
  static uint32_t hash_of(std::string_view key);

  /// The place of this hash for which `is_it(place)` holds; kNone: there is none.
  template <class IsIt>
  size_t find(uint32_t hash, const IsIt& is_it) const {
    if (slots_.empty()) return kNone;
    const size_t mask = slots_.size() - 1;
    for (size_t at = hash & mask; slots_[at].place != kFree; at = (at + 1) & mask) {
      if (slots_[at].hash == hash && is_it(slots_[at].place)) return slots_[at].place;
    }
    return kNone;
  }
  /// Makes room for `places`; throws where there is no memory, and then nothing has changed.
  void reserve(size_t places);
  /// There is room for it.
  void add(uint32_t hash, size_t place) noexcept;

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  struct Slot {
    uint32_t hash = 0, place = kFree;
  };
  std::vector<Slot> slots_;  // a power of two of them, at most two thirds in use
};

/// Members in the order of their insertion. A key may occur twice (push_back() does not look): the first one
/// is found. Finding and adding cost the same whatever the number of members.
template <class Value>
class BasicJsonObject {
 public:
  using Member = BasicJsonMember<Value>;

  BasicJsonObject() = default;
  BasicJsonObject(const BasicJsonObject& other)
      : members_(other.members_),
        index_(other.index_ ? std::make_unique<JsonKeyIndex>(*other.index_) : nullptr) {}
  // Moves are in json.cc: seen through, GCC 12 takes what a variant does not hold for uninitialised.
  BasicJsonObject(BasicJsonObject&& other) noexcept;
  BasicJsonObject& operator=(const BasicJsonObject& other) {
    if (this != &other) *this = BasicJsonObject(other);
    return *this;
  }
  BasicJsonObject& operator=(BasicJsonObject&& other) noexcept;
  ~BasicJsonObject() = default;

  auto begin() const { return members_.begin(); }
  auto end() const { return members_.end(); }
  size_t size() const { return members_.size(); }
  bool empty() const { return members_.empty(); }

  /// The first member with the key, or null.
  const Value* find(std::string_view key) const {
    const size_t place = place_of(key);
    return place == JsonKeyIndex::kNone ? nullptr : &members_[place].value;
  }
  Value* find(std::string_view key) { return const_cast<Value*>(std::as_const(*this).find(key)); }
  /// Adds a member at the end and gives its value.
  Value& push_back(Member member) {
    if (members_.size() >= kFew) index(members_.size() + 1);
    members_.push_back(std::move(member));
    if (index_) add_to(*index_, members_.size() - 1);
    return members_.back().value;
  }
  /// Takes out all members with the key; false: there is none. Linear.
  bool erase(std::string_view key) {
    const bool any = std::erase_if(members_, [key](const Member& m) { return m.key == key; }) > 0;
    if (any) index_.reset();
    if (any && members_.size() > kFew) index(members_.size());
    return any;
  }

  bool operator==(const BasicJsonObject& other) const { return members_ == other.members_; }

 private:
  static constexpr size_t kFew = 16;  // so many are looked through as fast as they are hashed

  size_t place_of(std::string_view key) const {
    if (index_)
      return index_->find(JsonKeyIndex::hash_of(key), [&](size_t at) { return members_[at].key == key; });
    for (size_t at = 0; at < members_.size(); ++at) {
      if (members_[at].key == key) return at;
    }
    return JsonKeyIndex::kNone;
  }
  /// Sees to an index of all members, with room for `members`.
  void index(size_t members) {
    if (index_) return index_->reserve(members);
    auto made = std::make_unique<JsonKeyIndex>();
    made->reserve(members);
    for (size_t at = 0; at < members_.size(); ++at) add_to(*made, at);
    index_ = std::move(made);
  }
  /// Of equal keys the first alone: a million of them would all meet.
  void add_to(JsonKeyIndex& index, size_t place) const {
    const std::string& key = members_[place].key;
    const uint32_t hash = JsonKeyIndex::hash_of(key);
    const auto is_key = [&](size_t at) { return members_[at].key == key; };
    if (index.find(hash, is_key) == JsonKeyIndex::kNone) index.add(hash, place);
  }

  std::vector<Member> members_;
  std::unique_ptr<JsonKeyIndex> index_;  // null: few members
};

}  // namespace trireme::base
