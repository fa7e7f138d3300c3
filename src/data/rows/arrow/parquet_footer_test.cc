// Footers of Parquet with some of their row groups: byte for byte those that a writer of these groups alone
// makes.
#include "data/rows/arrow/parquet_footer.h"

#include <gtest/gtest.h>

#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace trireme::data {
namespace {

/// Writes structures in Thrift's compact protocol.
class Writer {
 public:
  std::string bytes;

  void varint(uint64_t v) {
    for (; v >= 0x80; v >>= 7) bytes.push_back(static_cast<char>(0x80 | (v & 0x7f)));
    bytes.push_back(static_cast<char>(v));
  }
  void integer(int64_t v) { varint(static_cast<uint64_t>(v) << 1 ^ static_cast<uint64_t>(v >> 63)); }
  /// The head of a field behind the one numbered `before`.
  void field(int before, int id, int type) {
    if (id > before && id - before < 16) {
      bytes.push_back(static_cast<char>((id - before) << 4 | type));
    } else {
      bytes.push_back(static_cast<char>(type));
      integer(id);
    }
  }
  void list(size_t count, int type) {
    if (count < 15) {
      bytes.push_back(static_cast<char>(count << 4 | static_cast<size_t>(type)));
    } else {
      bytes.push_back(static_cast<char>(0xf0 | type));
      varint(count);
    }
  }
  void stop() { bytes.push_back(0); }
};

/// A value of any type, structures among them.
void any_value(base::Rng& rng, Writer& w, int type, int depth);

void any_struct(base::Rng& rng, Writer& w, int depth) {
  int id = 0;
  for (uint64_t n = rng.below(4); n > 0; --n) {
    const int before = std::exchange(id, id + 1 + static_cast<int>(rng.below(20)));
    const int type = 1 + static_cast<int>(rng.below(depth > 2 ? 8 : 12));
    w.field(before, id, type);
    any_value(rng, w, type, depth);
  }
  w.stop();
}

void any_value(base::Rng& rng, Writer& w, int type, int depth) {
  const auto element = [&](int of) {
    of <= 2 ? w.bytes.push_back(static_cast<char>(of)) : any_value(rng, w, of, depth + 1);
  };
  switch (type) {
    case 1:
    case 2: return;
    case 3: return w.bytes.push_back(static_cast<char>(rng.below(256)));
    case 4:
    case 5:
    case 6: return w.integer(static_cast<int64_t>(rng.below(1 << 20)) - (1 << 19));
    case 7: return static_cast<void>(w.bytes.append(8, static_cast<char>(rng.below(256))));
    case 8: {
      const uint64_t size = rng.below(200);
      w.varint(size);
      return static_cast<void>(w.bytes.append(size, static_cast<char>(rng.below(256))));
    }
    case 9:
    case 10: {
      const size_t count = rng.below(20);
      const int of = 1 + static_cast<int>(rng.below(depth > 2 ? 8 : 12));
      w.list(count, of);
      for (size_t i = 0; i < count; ++i) element(of);
      return;
    }
    case 11: {
      const uint64_t count = rng.below(4);
      w.varint(count);
      if (count == 0) return;
      w.bytes.push_back(static_cast<char>(8 << 4 | 5));
      for (uint64_t i = 0; i < count; ++i) element(8), element(5);
      return;
    }
    default: return any_struct(rng, w, depth + 1);
  }
}

std::string group(base::Rng& rng, int64_t rows) {
  Writer w;
  w.field(0, 1, 9);
  w.list(2, 12);
  any_struct(rng, w, 2);
  any_struct(rng, w, 2);
  w.field(1, 2, 6);
  w.integer(static_cast<int64_t>(rng.below(1 << 30)));
  w.field(2, 3, 6);
  w.integer(rows);
  w.field(3, 7, 4);
  w.integer(1);
  w.stop();
  return w.bytes;
}

/// A footer with these groups; what stands around them follows from `seed`.
std::string footer(uint64_t seed, std::span<const std::string> groups) {
  base::Rng rng(seed);
  Writer w;
  w.field(0, 1, 5);
  w.integer(2);
  w.field(1, 2, 9);
  w.list(20, 12);
  for (int i = 0; i < 20; ++i) any_struct(rng, w, 2);
  w.field(2, 3, 6);
  w.integer(123456);
  w.field(3, 4, 9);
  w.list(groups.size(), 12);
  for (const std::string& one : groups) w.bytes += one;
  int before = 4;
  for (int type = 1; type <= 12; ++type) {
    w.field(before, before + 3, type);
    any_value(rng, w, type, 1);
    before += 3;
  }
  w.stop();
  return w.bytes;
}

struct Made {
  std::vector<std::string> groups;
  std::string bytes;
};

Made make(uint64_t seed, size_t groups) {
  Made made;
  base::Rng rng(seed, 1);
  for (size_t g = 0; g < groups; ++g) made.groups.push_back(group(rng, static_cast<int64_t>(1000 + g)));
  made.bytes = footer(seed, made.groups);
  return made;
}

TEST(ParquetFooter, HasTheBytesOfTheGroupsInHand) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Made made = make(seed, seed % 4 == 0 ? 300 : seed);
    const ParquetFooter parts(made.bytes + "signature");
    ASSERT_EQ(parts.size(), made.bytes.size());
    ASSERT_EQ(parts.groups().size(), made.groups.size());
    for (size_t g = 0; g < made.groups.size(); ++g)
      EXPECT_EQ(parts.groups()[g].rows, static_cast<int64_t>(1000 + g));
    const size_t count = made.groups.size();
    for (const auto& [first, last] :
         {std::pair<size_t, size_t>{0, 0}, {0, count}, {count / 3, count / 2}, {count, count}}) {
      const std::span<const std::string> some(made.groups.data() + first, last - first);
      EXPECT_EQ(parts.with_groups(first, last), footer(seed, some))
          << seed << ": " << first << " to " << last;
    }
  }
}

TEST(ParquetFooter, DamageIsNamed) {
  const Made made = make(5, 16);
  const auto error_of = [](std::string bytes) {
    try {
      const ParquetFooter parts(std::move(bytes));
      return std::string();
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument) << e.message();
      return e.message();
    }
  };
  for (size_t bytes = 0; bytes < made.bytes.size(); ++bytes) {
    EXPECT_NE(error_of(made.bytes.substr(0, bytes)).find("damaged"), std::string::npos) << bytes;
  }
  base::Rng rng(9);
  for (int i = 0; i < 20000; ++i) {  // ends, and touches no byte but its own
    std::string bytes = made.bytes;
    for (uint64_t n = 1 + rng.below(4); n > 0; --n)
      bytes[rng.below(bytes.size())] = static_cast<char>(rng.below(256));
    (void)error_of(bytes);
  }
  EXPECT_NE(error_of(std::string(1, '\0')).find("no list of row groups"), std::string::npos);
  std::string deep(100, '\x1c');  // a structure in the first field of a structure in …
  EXPECT_NE(error_of(deep).find("inside of"), std::string::npos);
  std::string nested(1, '\x19');  // a list of one list of …
  nested.append(100, '\x19');
  EXPECT_NE(error_of(nested).find("inside of"), std::string::npos);
  EXPECT_NE(error_of(std::string("\x49\xfc\xff\xff\xff\xff\x0f", 7)).find("a list of"), std::string::npos);
  Writer silent;  // a row group that does not say its rows
  silent.field(0, 4, 9);
  silent.list(1, 12);
  silent.stop(), silent.stop();
  EXPECT_NE(error_of(silent.bytes).find("does not say its rows"), std::string::npos);
}

}  // namespace
}  // namespace trireme::data
