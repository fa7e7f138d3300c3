// How requests for texts stand in the queue of their model: priorities, timeouts, and what is refused.
#include "serve/models/queue_rules.h"

#include <gtest/gtest.h>

namespace trireme::serve {
namespace {

constexpr int64_t kNowNs = 1000;

TEST(QueueRules, TimeoutsOfTextsBoundTheWait) {
  for (const bool is_aware : {false, true}) {
    ModelConfig config;
    ServeOptions options;
    options.deadline_aware = is_aware;
    options.request_timeout = {5 * base::kNsPerSecond};
    const QueueRules rules(config, options);
    const auto standing = [&](const InferRequest& request) { return rules.standing(request, kNowNs); };
    InferRequest request;
    EXPECT_EQ(standing(request).deadline_ns, kNowNs + 5 * base::kNsPerSecond) << is_aware;
    request.timeout_us = 2'000'000;
    EXPECT_EQ(standing(request).deadline_ns, kNowNs + 2 * base::kNsPerSecond) << is_aware;
    request.deadline_ns = kNowNs + base::kNsPerSecond;  // the caller's own
    EXPECT_EQ(standing(request).deadline_ns, kNowNs + base::kNsPerSecond) << is_aware;
    EXPECT_NE(standing(request).priority, sched::kBackground);
    request.is_background = true;
    EXPECT_EQ(standing(request).deadline_ns, 0) << is_aware;
    EXPECT_EQ(standing(request).priority, sched::kBackground);
  }
}

TEST(QueueRules, WhatQueuesOfTextsHaveNotIsRefused) {
  const auto is_taken = [](const ModelConfig& config) {
    try {
      check_text_queue(config);
      return true;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::unsupported);
      return false;
    }
  };
  ModelConfig bounded, late, level;
  bounded.queue.max_queue_size = 7;
  EXPECT_TRUE(is_taken(bounded));
  bounded.priority_levels = 2;
  EXPECT_FALSE(is_taken(bounded));
  late.queue.runs_late = true;
  EXPECT_FALSE(is_taken(late));
  level.priority_levels = 2;
  EXPECT_TRUE(is_taken(level));
  level.level_queues[1].default_timeout_us = 1000;
  EXPECT_TRUE(is_taken(level));
  level.level_queues[2].runs_late = true;
  EXPECT_FALSE(is_taken(level));
}

}  // namespace
}  // namespace trireme::serve
