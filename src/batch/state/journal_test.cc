// The journal: every torn tail is cut, damage in the middle is refused, and two workers add to one file.
#include "batch/state/journal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/files/file.h"
#include "batch/state/test_directory.h"

namespace trireme::batch {
namespace {

constexpr uint64_t kJob = 77;
constexpr int64_t kChunks = 10;

Record lease(int64_t chunk, uint64_t worker, uint64_t token) {
  return {.kind = RecordKind::lease, .worker = worker, .token = token, .chunk = chunk, .wall_ns = 5};
}

Record done(int64_t chunk, uint64_t worker, uint64_t token, int64_t rows) {
  Record r = lease(chunk, worker, token);
  r.kind = RecordKind::done;
  r.result = {.rows = rows, .errors = 1, .bytes = 100, .error_bytes = 10, .crc = 7, .error_crc = 8};
  r.effort = {.elapsed_ns = 1,
              .read_ns = 2,
              .blocked_ns = 3,
              .waiting_ns = 4,
              .write_ns = 5,
              .commit_ns = 6,
              .busy_ns = 7,
              .instances = 8,
              .elements = 9,
              .padded = 10,
              .tokens = 11,
              .retried = 12};
  return r;
}

void add(Journal& journal, const std::vector<Record>& records) {
  journal.transact([&](Transaction& t) {
    for (const Record& r : records) t.add(r);
  });
}

/// A journal with chunks 0..4 done and a lease on 5; gives its bytes.
std::string write_sample(const std::string& path) {
  Journal journal(path, kJob, kChunks);
  for (int64_t c = 0; c < 5; ++c) add(journal, {lease(c, 1, 10 + c), done(c, 1, 10 + c, 3)});
  add(journal, {lease(5, 1, 20)});
  return base::read_file(path);
}

int64_t done_of(const Journal& journal) {
  int64_t count = -1;
  journal.look([&](const ChunkTable& t) { count = t.done(); });
  return count;
}

TEST(Record, ComesBackWhole) {
  Record r = done(3, 0xffffffffffffffff, 4, 9);
  r.text = "a \"text\"";
  const std::string bytes = encode(r);
  const std::optional<Decoded> back = decode(bytes + "more");
  ASSERT_TRUE(back);
  EXPECT_EQ(back->bytes, bytes.size());
  EXPECT_EQ(encode(back->record), bytes);
  EXPECT_EQ(back->record.result, r.result);
  EXPECT_EQ(back->record.effort.retried, 12);
  EXPECT_EQ(back->record.text, r.text);
}

TEST(Record, EveryChangedBitAndEveryCutIsSeen) {
  const std::string bytes = encode(done(3, 2, 4, 9));
  for (size_t at = 0; at < bytes.size(); ++at) {
    EXPECT_FALSE(decode(bytes.substr(0, at))) << at;
    for (int bit = 0; bit < 8; ++bit) {
      std::string wrong = bytes;
      wrong[at] = static_cast<char>(wrong[at] ^ (1 << bit));
      EXPECT_FALSE(decode(wrong)) << at << " bit " << bit;
    }
  }
}

TEST(Journal, IsReadAgain) {
  const std::string path = fresh("journal") + "/journal";
  write_sample(path);
  const Journal again(path, kJob, kChunks);
  again.look([](const ChunkTable& t) {
    EXPECT_EQ(t.done(), 5);
    EXPECT_EQ(t.rows(), 15);
    EXPECT_EQ(t.errors(), 5);
    ASSERT_NE(t.lease_of(5), nullptr);
    EXPECT_EQ(*t.lease_of(5), (Lease{1, 20}));
  });
}

TEST(Journal, IsCutAtEveryByteAndGoesOn) {
  const std::string path = fresh("torn") + "/journal";
  const std::string whole = write_sample(path);
  std::vector<size_t> ends;  // of the records that say `done`
  for (size_t at = 16; at < whole.size();) {
    const std::optional<Decoded> next = decode(std::string_view(whole).substr(at));
    ASSERT_TRUE(next);
    at += next->bytes;
    if (next->record.kind == RecordKind::done) ends.push_back(at);
  }
  ASSERT_EQ(ends.size(), 5U);
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    overwrite(path, whole.substr(0, cut));
    const auto expected = std::count_if(ends.begin(), ends.end(), [&](size_t end) { return end <= cut; });
    Journal journal(path, kJob, kChunks);
    ASSERT_EQ(done_of(journal), expected) << "cut at " << cut;
    add(journal, {lease(9, 2, 1), done(9, 2, 1, 4)});
    ASSERT_EQ(done_of(Journal(path, kJob, kChunks)), expected + 1) << "cut at " << cut;
  }
}

TEST(Journal, GarbageBehindIsCutAndDamageInTheMiddleIsRefused) {
  const std::string path = fresh("damage") + "/journal";
  const std::string whole = write_sample(path);
  overwrite(path, whole + std::string(5000, '\0'));  // what a power cut may leave
  EXPECT_EQ(done_of(Journal(path, kJob, kChunks)), 5);
  EXPECT_EQ(base::read_file(path).size(), whole.size());
  for (size_t at = 16; at + 200 < whole.size(); at += 13) {
    std::string wrong = whole;
    wrong[at] = static_cast<char>(wrong[at] ^ 0x10);
    overwrite(path, wrong);
    const std::string error = error_of([&] { Journal(path, kJob, kChunks); });
    EXPECT_NE(error.find("is damaged at byte"), std::string::npos) << at << ": " << error;
    EXPECT_NE(error.find("truncate -s"), std::string::npos) << error;
    EXPECT_EQ(base::read_file(path), wrong) << "a damaged journal was changed";
  }
}

TEST(Journal, OfAnotherJobOrVersionIsRefused) {
  const std::string path = fresh("other") + "/journal";
  std::string bytes = write_sample(path);
  EXPECT_NE(error_of([&] { Journal(path, kJob + 1, kChunks); }).find("another job"), std::string::npos);
  EXPECT_NE(error_of([&] { Journal(path, kJob, 3); }).find("chunk 3"), std::string::npos);
  bytes[7] = '2';
  overwrite(path, bytes);
  EXPECT_NE(error_of([&] { Journal(path, kJob, kChunks); }).find("version '2'"), std::string::npos);
  overwrite(path, "something that is no journal at all");
  EXPECT_NE(error_of([&] { Journal(path, kJob, kChunks); }).find("is no journal"), std::string::npos);
}

TEST(Journal, WhatThrowsAddsNothing) {
  const std::string path = fresh("throws") + "/journal";
  Journal journal(path, kJob, kChunks);
  const std::string before = base::read_file(path);
  EXPECT_EQ(error_of([&] {
              journal.transact([](Transaction& t) {
                t.add(lease(1, 1, 1));
                base::fail_invalid("changed its mind");
              });
            }),
            "changed its mind");
  EXPECT_EQ(base::read_file(path), before);
  journal.transact([](Transaction& t) { EXPECT_EQ(t.table().lease_of(1), nullptr); });
}

TEST(Journal, OneThatIsCutMeanwhileIsReadAgain) {
  const std::string path = fresh("cut_meanwhile") + "/journal";
  const std::string whole = write_sample(path);
  for (const size_t kept : {whole.size() - 1, whole.size() / 2, size_t{16}, size_t{5}, size_t{0}}) {
    overwrite(path, whole);
    Journal journal(path, kJob, kChunks);
    ASSERT_EQ(done_of(journal), 5);
    std::filesystem::resize_file(path, kept);
    add(journal, {lease(9, 2, 1), done(9, 2, 1, 4)});
    const int64_t count = done_of(journal);
    EXPECT_EQ(count == 6, kept + 1 == whole.size()) << "cut at " << kept;
    EXPECT_EQ(done_of(Journal(path, kJob, kChunks)), count) << "cut at " << kept;
  }
}

TEST(Journal, WhatThrowsLeavesWhatIsKnownEvenIfTheFileCannotBeCut) {
  const std::string sample = write_sample(fresh("sealed") + "/journal");
  const int memory = ::memfd_create("journal", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_GE(memory, 0);
  const std::string path = "/proc/self/fd/" + std::to_string(memory);
  PosixFile(path, O_RDWR).write(0, sample);
  Journal journal(path, kJob, kChunks);
  ASSERT_EQ(done_of(journal), 5);
  const std::string error = error_of([&] {
    journal.transact([&](Transaction& t) {
      PosixFile(path, O_RDWR).write(static_cast<int64_t>(sample.size()), encode(lease(7, 3, 1)));
      ASSERT_EQ(::fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK), 0);
      t.add(lease(6, 2, 1));
      base::fail_invalid("changed its mind");
    });
  });
  EXPECT_NE(error.find("cannot cut"), std::string::npos) << error;
  journal.refresh();
  EXPECT_EQ(done_of(journal), 5);
  EXPECT_EQ(journal.owners(), (std::set<uint64_t>{1, 3}));
  ::close(memory);
}

TEST(Journal, ThreadsAndProcessesTakeEachChunkOnce) {
  constexpr int64_t kMany = 400;
  const std::string path = fresh("many") + "/journal";
  const auto work = [&](uint64_t worker) {
    Journal journal(path, kJob, kMany);
    for (bool more = true; more;) {
      journal.transact([&](Transaction& t) {
        const int64_t chunk = t.table().next_open();
        more = chunk >= 0;
        if (more) t.add(lease(chunk, worker, 1));
      });
    }
  };
  std::vector<pid_t> children;
  for (uint64_t p = 0; p < 3; ++p) {
    const pid_t child = ::fork();
    if (child == 0) {
      work(100 + p);
      ::_exit(0);
    }
    children.push_back(child);
  }
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 2; ++t) threads.emplace_back(work, t);
  for (std::thread& t : threads) t.join();
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  std::vector<int> taken(kMany);
  read_journal(path, kJob, [&](const Record& r) { ++taken.at(static_cast<size_t>(r.chunk)); });
  EXPECT_EQ(taken, std::vector<int>(kMany, 1));
}

TEST(Journal, IsReadWhileOthersWrite) {
  constexpr int64_t kMany = 3000;
  const std::string path = fresh("read_while") + "/journal";
  Journal journal(path, kJob, kMany);
  const std::jthread writer([&] {
    for (int64_t c = 0; c < kMany; ++c) add(journal, {lease(c, 1, 1), done(c, 1, 1, 3)});
  });
  int64_t records = 0, before = 0, reads = 0;
  while (records < 2 * kMany) {
    records = 0;
    read_journal(path, kJob, [&](const Record& r) { EXPECT_EQ(r.chunk, records++ / 2); });
    ASSERT_GE(records, before);
    before = records;
    ++reads;
  }
  EXPECT_GT(reads, 2);
}

TEST(Journal, ALockThatIsHeldForTooLongIsSaid) {
  const std::string path = fresh("held") + "/journal";
  Journal journal(path, kJob, kChunks);
  PosixFile other(path, 2 /* O_RDWR */);
  ASSERT_TRUE(other.try_lock());
  const std::string error = error_of([&] { journal.transact([](Transaction&) {}, 20 * base::kNsPerMs); });
  EXPECT_NE(error.find("another worker holds the lock"), std::string::npos) << error;
  other.unlock();
  journal.transact([](Transaction&) {});
}

TEST(ChunkTable, GivesTheLowestOpenChunk) {
  ChunkTable table(130);
  for (int64_t c = 0; c < 130; ++c) {
    ASSERT_EQ(table.next_open(), c);
    table.apply(lease(c, 1, 1));
  }
  EXPECT_EQ(table.next_open(), -1);
  Record back = lease(65, 1, 1);
  back.kind = RecordKind::given_back;
  table.apply(back);
  EXPECT_EQ(table.next_open(), 65);
  table.apply(lease(65, 2, 1));
  table.apply(done(65, 1, 1, 3));  // of a lease that is no longer the newest
  EXPECT_FALSE(table.is_done(65));
  table.apply(done(65, 2, 1, 3));
  EXPECT_TRUE(table.is_done(65));
  EXPECT_EQ(table.rows(), 3);
}

}  // namespace
}  // namespace trireme::batch
