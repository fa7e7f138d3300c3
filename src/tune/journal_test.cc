// The journal after interruptions: whole lines count, others do not, and it goes on behind them.
#include "tune/journal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"

namespace trireme::tune {
namespace {

using base::Json;

class JournalFile : public testing::Test {
 protected:
  JournalFile() {
    std::string text = (std::filesystem::temp_directory_path() / "trireme-journal-XXXXXX").string();
    directory_ = mkdtemp(text.data());
    path_ = directory_ + "/journal.jsonl";
  }
  ~JournalFile() override { std::filesystem::remove_all(directory_); }
  std::string directory_, path_;
};

TEST_F(JournalFile, KeepsWhatWasAdded) {
  {
    Journal journal(path_, "k");
    EXPECT_EQ(journal.resumed(), 0u);
    journal.add("a", Json::array({1.5, 0.1, 3e9}));
    journal.add("b", Json::object({{"x", "line\nbreak"}}));
    EXPECT_EQ(journal.find("a")->at(1).as_double(), 0.1);
  }
  Journal again(path_, "k");
  EXPECT_EQ(again.resumed(), 2u);
  EXPECT_EQ(again.find("a")->at(2).as_double(), 3e9);
  EXPECT_EQ(again.find("b")->at("x").as_string(), "line\nbreak");
  EXPECT_EQ(again.find("c"), nullptr);
}

/// Cut at every byte: all lines before the cut are there, and what is added next as well.
TEST_F(JournalFile, ACutLosesAtMostOneLine) {
  {
    Journal journal(path_, "k");
    for (int i = 0; i < 3; ++i) journal.add(std::to_string(i), Json(i * 0.25));
  }
  const std::string whole = base::read_file(path_);
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    base::write_file_atomic(path_, whole.substr(0, cut));
    // A line counts once all but its end is there.
    const std::string ended = whole.substr(0, cut + 1);
    const auto lines = static_cast<size_t>(std::count(ended.begin(), ended.end(), '\n'));
    {
      Journal journal(path_, "k");
      ASSERT_EQ(journal.resumed(), lines) << cut;
      journal.add("next", Json(7));
    }
    Journal again(path_, "k");
    ASSERT_EQ(again.resumed(), lines + 1) << cut;
    ASSERT_EQ(again.find("next")->as_int(), 7);
  }
}

TEST_F(JournalFile, IgnoresOtherKeysAndDamage) {
  {
    Journal journal(path_, "old model");
    journal.add("a", Json(1));
  }
  {
    Journal journal(path_, "new model");
    EXPECT_EQ(journal.resumed(), 0u);
    journal.add("a", Json(2));
    journal.add("b", Json(3));
  }
  std::string text = base::read_file(path_);
  text[text.rfind('3')] = '4';
  base::write_file_atomic(path_, text);
  Journal journal(path_, "new model");
  EXPECT_EQ(journal.find("a")->as_int(), 2);
  EXPECT_EQ(journal.find("b"), nullptr);
}

TEST_F(JournalFile, HasOneWriter) {
  const Journal one(path_, "k");
  EXPECT_THROW(Journal(path_, "k"), base::Error);
}

}  // namespace
}  // namespace trireme::tune
