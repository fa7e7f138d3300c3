// What every session of ours needs to use nghttp2 safely: memory that goes back whole, callbacks that may
// throw.
#pragma once

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <exception>
#include <tuple>

namespace trireme::http {

/// Memory of one nghttp2 session; what is left of it goes back with this object. That is how a session ends:
/// nghttp2_session_del() would free the same blocks one by one, and some of them twice if an allocation had
/// failed before (in 1.52 session_attach_stream_item() keeps an item that its caller frees).
class Http2Memory {
 public:
  Http2Memory();
  virtual ~Http2Memory();
  Http2Memory(const Http2Memory&) = delete;
  Http2Memory& operator=(const Http2Memory&) = delete;

  /// For nghttp2_session_*_new3(); good as long as this object.
  nghttp2_mem* functions() { return &functions_; }
  /// The session is in no known state and must not be called any more.
  bool has_failed() const { return has_failed_; }

 protected:
  /// As std::realloc().
  virtual void* resize(void* old, size_t bytes);

 private:
  struct alignas(std::max_align_t) Block {
    Block *before, *after;
  };
  struct Functions;
  void* take(void* old, size_t bytes);
  void give(void* block);

  nghttp2_mem functions_;
  Block blocks_;  // a ring
  bool has_failed_ = false;
};

/// nghttp2 is C, through which nothing may be thrown: what a callback throws ends the session, and so does a
/// call of the library within a callback that leaves its `Owner` (the callback's last argument) lost.
template <class Owner, auto kCallback>
struct Http2Callback;
template <class Owner, class Result, class... Args, Result (*kCallback)(Args...)>
struct Http2Callback<Owner, kCallback> {
  static Result call(Args... args) {
    try {
      const Result result = kCallback(args...);
      const void* user = std::get<sizeof...(Args) - 1>(std::forward_as_tuple(args...));
      return static_cast<const Owner*>(user)->is_lost() ? Result{NGHTTP2_ERR_CALLBACK_FAILURE} : result;
    } catch (const std::exception&) {
      return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
  }
};

}  // namespace trireme::http
