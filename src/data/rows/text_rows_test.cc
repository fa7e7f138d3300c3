// JSON lines, requests and CSV as rows: all kinds of line breaks, rows that do not fit, compressed files.
#include <gtest/gtest.h>
#include <zlib.h>

#include "data/rows/row_trial.h"

namespace trireme::data {
namespace {

using namespace trial;  // NOLINT: this file's own vocabulary

std::string gzip(std::string_view plain) {
  z_stream z{};
  deflateInit2(&z, Z_BEST_SPEED, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, plain.size()) + 32, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  z.avail_in = static_cast<uInt>(plain.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::vector<std::string> lines_of(const std::string& path, int64_t span_rows = 2,
                                  RowFileOptions options = {}) {
  Dice dice(1);
  return read_lines(*open_rows(path, options), span_rows, dice, 3);
}

using Lines = std::vector<std::string>;

TEST(JsonlRows, LineBreaksOfEveryKind) {
  const TestDirectory dir;
  const Lines wanted = {"a=i64[] 1; ", "a=i64[] 2; ", "a=i64[] 3; "};
  const auto read = [&](const std::string& text) { return lines_of(dir.write("x.jsonl", text)); };
  EXPECT_EQ(read("{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n"), wanted);
  EXPECT_EQ(read("{\"a\":1}\r\n{\"a\":2}\r\n{\"a\":3}\r\n"), wanted);
  EXPECT_EQ(read("\n\n{\"a\":1} \t\n\r\n  \n{\"a\":2}\n\n{\"a\":3}"), wanted);
  EXPECT_EQ(read("\xef\xbb\xbf{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n\n\n"), wanted);
  EXPECT_EQ(read(""), Lines{});
  EXPECT_EQ(read("\n \n"), Lines{});
}

TEST(JsonlRows, ARowThatDoesNotFitHasAnError) {
  const TestDirectory dir;
  std::string text;
  for (int i = 0; i < 64; ++i) text += "{\"n\": 1, \"t\": \"x\", \"v\": [1.5, 2]}\n";
  text +=
      "{\"n\": \"one\"}\n{\"n\": 7, \"v\": [1]}\n{\"t\": {\"k\": [1]}, \"unknown\": 3}\nnot "
      "json\n[1]\n{\"n\": 2}\n";
  const Lines lines = lines_of(dir.write("x.jsonl", text), 9);
  ASSERT_EQ(lines.size(), 70u);
  EXPECT_EQ(lines[63], "n=i64[] 1; t='x'; v=f64[2] 1.5 2; ");
  EXPECT_EQ(lines[64], "error: row 64: member is not i64 as in the rows before: 'n'");
  EXPECT_EQ(lines[65], "error: row 65: value is not f64[2] as in the rows before: 'v', f64[1]");
  EXPECT_EQ(lines[66], "n=missing; t='{\"k\":[1]}'; v=missing; ");
  EXPECT_TRUE(lines[67].starts_with("error: row 67: line at byte ")) << lines[67];
  EXPECT_EQ(lines[68], "error: row 68: line is not a JSON object but array");
  EXPECT_EQ(lines[69], "n=i64[] 2; t=missing; v=missing; ");
}

TEST(JsonlRows, BrokenLinesAmongTheFirstAreErrorsOfTheirRows) {
  const TestDirectory dir;
  const Lines lines = lines_of(dir.write("x.jsonl", "{\"a\":1\n{\"a\":2}\n"));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].starts_with("error: row 0: ")) << lines[0];
  EXPECT_EQ(lines[1], "a=i64[] 2; ");
  EXPECT_THROW(open_rows(dir.write("x.jsonl", "no\nnone\n")), base::Error);
}

TEST(JsonlRows, ALongRowIsAnErrorWhereverItStands) {
  const TestDirectory dir;
  const std::string mega = "{\"a\":\"" + std::string(600'000, 'x') + "\"}\n",
                    kilo = "{\"a\":\"" + std::string(1000, 'x') + "\"}\n";
  const std::string small = "{\"a\":\"y\"}\n";
  const std::string path = dir.write("x.jsonl", small + mega + small + kilo + small);
  for (const int64_t limit : {500, 5000, 1'000'000}) {
    const Lines lines = lines_of(path, 2, {.most_row_bytes = limit});
    ASSERT_EQ(lines.size(), 5u);
    EXPECT_EQ(lines[1].starts_with("error: row 1: row of 600009 bytes at byte 10 is longer"), limit < 600'000)
        << lines[1].substr(0, 80);
    EXPECT_EQ(lines[3].starts_with("error: row 3: row of 1009 bytes"), limit < 1000)
        << lines[3].substr(0, 80);
    EXPECT_EQ(lines[4], "a='y'; ");
  }
}

/// Packed, a row of nothing but delimiters is a thousandth of its length.
TEST(TextRows, MoreFieldsThanAreTakenAreRefused) {
  const TestDirectory dir;
  const auto refusal = [&](const std::string& name, const std::string& text) -> std::string {
    try {
      open_rows(dir.write(name, text));
    } catch (const base::Error& e) {
      return e.message();
    }
    return "none";
  };
  std::string members, lines;
  for (int i = 0; i < 70'000; ++i) members += base::concat(i == 0 ? "" : ",", "\"a", i, "\":1");
  lines = "{" + members + "}\n";
  std::replace(members.begin(), members.end(), 'a', 'b');
  EXPECT_EQ(refusal("x.jsonl", lines), "none");
  lines += "{" + members + "}\n";
  EXPECT_NE(refusal("x.jsonl", lines).find("more than 131072 fields"), std::string::npos);
  EXPECT_EQ(refusal("x.csv", std::string(100'000, ',') + "\n"), "none");
  EXPECT_NE(refusal("x.csv", std::string(200'000, ',') + "\n").find("more than 131072 cells"),
            std::string::npos);
}

TEST(JsonlRows, RequestsKeepTheirBodies) {
  const TestDirectory dir;
  const std::string good =
      R"({"custom_id":"1","method":"POST","url":"/v1/x","body":{"model":"m","messages":[{"role":"user"}]}})";
  const std::string path = dir.write("x.jsonl", good + "\n{\"custom_id\":\"2\"}\n{\"custom_id\":3}\n");
  const Lines lines = lines_of(path, 5, {.format = "openai"});
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(
      lines[0],
      R"(custom_id='1'; method='POST'; url='/v1/x'; body='{"model":"m","messages":[{"role":"user"}]}'; )");
  EXPECT_EQ(lines[1], "error: row 1: line has no text 'method', as every request has");
  EXPECT_EQ(lines[2], "error: row 2: line has no text 'custom_id', as every request has");
}

TEST(CsvRows, QuotesDelimitersAndBlankLines) {
  const TestDirectory dir;
  const Lines wanted = {"a='x, \"y\"\nz'; n=i64[] 1; ", "a='it''s'; n=missing; ",
                        "a='5\" pipe'; n=i64[] 3; "};
  const auto read = [&](const std::string& text) {
    Lines lines = lines_of(dir.write("x.csv", text));
    for (std::string& line : lines) {
      for (size_t at; (at = line.find("\r\n")) != std::string::npos;) line.erase(at, 1);
    }
    return lines;
  };
  const std::string text = "a,n\n\"x, \"\"y\"\"\nz\",1\n\nit''s,\n5\" pipe,3\n";
  EXPECT_EQ(read(text), wanted);
  EXPECT_EQ(read(text.substr(0, text.size() - 1)), wanted);
  std::string breaks;
  for (const char c : text) breaks += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(read(breaks), wanted);
  EXPECT_EQ(lines_of(dir.write("x.tsv", "a\tb\n1,5\t2\n")), (Lines{"a='1,5'; b=i64[] 2; "}));
  EXPECT_EQ(lines_of(dir.write("y.csv", "1;2\n3;4\n"), 9, {.csv_header = false, .csv_delimiter = ';'}),
            (Lines{"0=i64[] 1; 1=i64[] 2; ", "0=i64[] 3; 1=i64[] 4; "}));
}

TEST(CsvRows, ARowThatDoesNotFitHasAnError) {
  const TestDirectory dir;
  std::string text = "n,x\n";
  for (int i = 0; i < 64; ++i) text += "1,2.5\n";
  const Lines lines = lines_of(dir.write("x.csv", text + "one,2\n3\n4,5,6\n7,\"8\"\"\"\n9,10\n"));
  ASSERT_EQ(lines.size(), 69u);
  EXPECT_TRUE(lines[64].starts_with("error: row 64: CSV cell is not an integer")) << lines[64];
  EXPECT_EQ(lines[65], "error: row 65: CSV row has 1 cells, the first row 2");
  EXPECT_EQ(lines[66], "error: row 66: CSV row has 3 cells, the first row 2");
  EXPECT_TRUE(lines[67].starts_with("error: row 67: CSV cell is not a number")) << lines[67];
  EXPECT_EQ(lines[68], "n=i64[] 9; x=f64[] 10; ");
}

TEST(CsvRows, AnOpenQuoteLosesNoRowSilently) {
  const TestDirectory dir;
  std::string text = "a,b\n";
  for (int i = 0; i < 100; ++i) text += "1,2\n";
  const auto file = open_rows(dir.write("x.csv", text + "\"3,4\n5,6\n"));
  EXPECT_THROW(spans_of(*file, 10), base::Error);
}

TEST(TextRows, AnEmptyFileHasNeitherColumnsNorRows) {
  const TestDirectory dir;
  for (const char* name : {"x.csv", "x.jsonl", "x.tfrecord"}) {
    for (const char* text : {"", "\xef\xbb\xbf", "\n\n"}) {
      if (text[0] != '\0' && std::string(name) == "x.tfrecord") continue;
      const auto file = open_rows(dir.write(name, text));
      EXPECT_TRUE(file->fields().empty()) << name;
      EXPECT_TRUE(spans_of(*file, 10).empty()) << name;
    }
  }
}

/// What a writer makes of the rows of a file: the numbers as they stood there.
std::string copied(const std::string& path) {
  Dice dice(1);
  const std::string to = path + ".jsonl";
  const auto file = open_rows(path);
  const Rows rows = read_span(*file, spans_of(*file, 1000).at(0), dice, 1000);
  for (const auto& error : rows.errors) EXPECT_FALSE(error.has_value()) << error->message();
  write_rows(to, rows, file->fields(), {.format = "jsonl"}, dice, 1000);
  return base::read_file(to);
}

TEST(TextRows, NumbersKeepTheirValues) {
  const TestDirectory dir;
  const std::string text =
      R"({"id":12345678901234567890,"ts":1700000000.25,"n":16777217.0,"v":[0.1,16777217.0]}
{"id":7,"ts":1700000001.5,"n":0.5,"v":[2.0,3.0]}
)";
  EXPECT_EQ(copied(dir.write("x.jsonl", text)), text);
  // A whole number among others that are not is one of theirs.
  EXPECT_EQ(copied(dir.write("y.jsonl", "{\"n\":16777217,\"v\":[18446744073709551615,1]}\n{\"n\":0.5}\n")),
            "{\"n\":16777217.0,\"v\":[18446744073709551615,1]}\n{\"n\":0.5,\"v\":null}\n");
  EXPECT_EQ(copied(dir.write("x.csv", "id,ts,n\n12345678901234567890,1700000000.25,16777217\n7,1.5,0.5\n")),
            "{\"id\":12345678901234567890,\"ts\":1700000000.25,\"n\":16777217.0}\n"
            "{\"id\":7,\"ts\":1.5,\"n\":0.5}\n");
  // Whole numbers that no one type holds stay text.
  EXPECT_EQ(copied(dir.write("y.csv", "a,b\n123456789012345678901234567890,-1\n5,12345678901234567890\n")),
            "{\"a\":\"123456789012345678901234567890\",\"b\":\"-1\"}\n"
            "{\"a\":\"5\",\"b\":\"12345678901234567890\"}\n");
}

TEST(TextRows, WhatNumbersWouldRoundStaysText) {
  const TestDirectory dir;
  const auto csv = [&](const std::string& text) { return copied(dir.write("z.csv", text)); };
  const std::string kept = "{\"a\":\"9007199254740993\"}\n{\"a\":\"1.5\"}\n";
  EXPECT_EQ(csv("a\n9007199254740993\n1.5\n"), kept);
  EXPECT_EQ(csv("a\n1.5\n9007199254740993\n"), "{\"a\":\"1.5\"}\n{\"a\":\"9007199254740993\"}\n");
  EXPECT_EQ(copied(dir.write("z.jsonl", "{\"a\":9007199254740993}\n{\"a\":1.5}\n")), kept);
  EXPECT_EQ(copied(dir.write("z.jsonl", "{\"a\":1.5}\n{\"a\":9007199254740993}\n")),
            "{\"a\":\"1.5\"}\n{\"a\":\"9007199254740993\"}\n");
  EXPECT_EQ(copied(dir.write("z.jsonl", "{\"a\":[9007199254740993,1.5]}\n")),
            "{\"a\":\"[9007199254740993,1.5]\"}\n");
  // Doubles that were printed without an exponent read back as they were.
  EXPECT_EQ(csv("a\n123456789012345680\n9007199254740994\n0.5\n"),
            "{\"a\":123456789012345680.0}\n{\"a\":9007199254740994.0}\n{\"a\":0.5}\n");
  EXPECT_EQ(csv("a\n0.5\n10000000000000000000000\n1152921504606846976\n"),
            "{\"a\":0.5}\n{\"a\":1e+22}\n{\"a\":1152921504606846976.0}\n");
  // Identifiers keep their zeros; a zero before a point is none.
  EXPECT_EQ(csv("zip,n\n01234,0\n94110,-0.5\n"),
            "{\"zip\":\"01234\",\"n\":0.0}\n{\"zip\":\"94110\",\"n\":-0.5}\n");
}

TEST(CsvRows, LinesThatEndWithCarriageReturnsAloneAreRefused) {
  const TestDirectory dir;
  const auto refusal = [&](const std::string& text, const RowFileOptions& options = {}) -> std::string {
    try {
      open_rows(dir.write("x.csv", text), options);
    } catch (const base::Error& e) {
      return e.message();
    }
    return "none";
  };
  EXPECT_NE(refusal("a,b\r1,2\r3,4\r").find("carriage returns alone"), std::string::npos);
  EXPECT_NE(refusal("1,2\r3,4\r", {.csv_header = false}).find("carriage returns alone"), std::string::npos);
  EXPECT_EQ(refusal("a,\"b\rc\"\r\n1,2\r\n"), "none");
  EXPECT_EQ(refusal("a,b\r"), "none");
}

TEST(TextRows, ANumberThatItsColumnDoesNotHoldIsAnErrorOfItsRow) {
  const TestDirectory dir;
  EXPECT_EQ(lines_of(dir.write("x.jsonl", "{\"n\":12345678901234567890}\n{\"n\":-1}\n"))[1],
            "error: row 1: member is not u64 as in the rows before: 'n'");
  std::string text = "n\n12345678901234567890\n";
  for (int i = 0; i < 64; ++i) text += "1\n";
  EXPECT_EQ(lines_of(dir.write("x.csv", text + "-1\n"))[65],
            "error: row 65: CSV cell is not an integer as in the rows before: 'n', '-1'");
}

TEST(PackedRows, SpansOfUnpackedBytesInAnyOrder) {
  const TestDirectory dir;
  std::string plain;
  Lines wanted;
  for (int i = 0; i < 20'000; ++i) {
    plain += base::concat("{\"n\":", i, ",\"t\":\"row number ", i, "\"}\n");
    wanted.push_back(base::concat("n=i64[] ", i, "; t='row number ", i, "'; "));
  }
  const std::string half = gzip(plain.substr(0, 100'000)) + gzip(plain.substr(100'000));
  for (const std::string& packed : {gzip(plain), half, half + std::string(512, '\0')}) {
    const std::string path = dir.write("x.jsonl.gz", packed);
    const auto file = open_rows(path);
    for (uint64_t seed = 0; seed < 4; ++seed) {
      Dice dice(seed);
      EXPECT_EQ(read_lines(*file, 3000, dice, 500), wanted);
    }
  }
  // Whichever byte of a compressed file is wrong, no row silently turns into another one.
  const std::string good = gzip(plain.substr(0, 5000));
  const Lines few = lines_of(dir.write("y.jsonl.gz", good), 50);
  Dice dice(9);
  for (int trial = 0; trial < 200; ++trial) {
    std::string bad = good;
    const auto at = static_cast<size_t>(dice.below(static_cast<int64_t>(bad.size())));
    if (dice.one_in(3)) bad.resize(at);
    if (at < bad.size()) bad[at] = static_cast<char>(bad[at] ^ (1 << dice.below(8)));
    if (bad == good) continue;
    try {
      EXPECT_EQ(lines_of(dir.write("z.jsonl.gz", bad), 50), few) << at;  // some header bytes have no effect
    } catch (const base::Error& e) {
      EXPECT_NE(e.code(), base::ErrorCode::internal) << e.message();
    }
  }
}

}  // namespace
}  // namespace trireme::data
