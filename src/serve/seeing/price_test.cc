// Tests prices from an option and a file, and compares the cost of a million inferences with a manual count.
#include "serve/seeing/price.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"
#include "serve/seeing/model_metrics.h"

namespace trireme::serve {
namespace {

class PriceFile : public testing::Test {
 protected:
  PriceFile() {
    path_ = (std::filesystem::temp_directory_path() / "trireme-prices-XXXXXX").string();
    close(mkstemp(path_.data()));
  }
  ~PriceFile() override { std::filesystem::remove(path_); }
  Prices read(const std::string& text, double per_hour = 0) {
    base::write_file_atomic(path_, text);
    return Prices::read(per_hour, path_, 8);
  }
  std::string path_;
};

TEST_F(PriceFile, PricesOfPartsGoBeforeTheMachines) {
  const Prices option = Prices::read(0.4, "", 8);
  EXPECT_DOUBLE_EQ(option.core_per_hour, 0.05);
  EXPECT_DOUBLE_EQ(option.gpu_per_hour, 0.4);
  EXPECT_DOUBLE_EQ(option.per_busy_second("cpu", 2), 0.1 / 3600);
  EXPECT_DOUBLE_EQ(option.per_busy_second("cuda:0", 2), 0.4 / 3600);
  const Prices file = read("machine: 8\ngpu: 2.5  # one\n", 0.4);
  EXPECT_DOUBLE_EQ(file.core_per_hour, 1);
  EXPECT_DOUBLE_EQ(file.gpu_per_hour, 2.5);
  EXPECT_DOUBLE_EQ(read("{\"core\": 0.02}").core_per_hour, 0.02);
  EXPECT_FALSE(Prices::read(0, "", 8).is_known());
}

TEST_F(PriceFile, RefusesWhatIsNoPrice) {
  for (const char* bad : {"disk: 1", "core: cheap", "core: -1", "- 3", "core: [1]"})
    EXPECT_THROW(read(bad), base::Error) << bad;
  EXPECT_THROW(Prices::read(-1, "", 8), base::Error);
  EXPECT_THROW(Prices::read(1, "/no/such/prices.yaml", 8), base::Error);
}

/// The value of a series in the text exposition.
double shown(const MetricRegistry& registry, const std::string& series) {
  const std::string text = registry.expose();
  const size_t at = text.find("\n" + series + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size() + 2));
}

TEST(Cost, IsBusyTimeTimesPriceOverInferences) {
  MetricRegistry registry;
  const MetricLabels labels{{"model", "m"}, {"version", "1"}};
  ModelMetrics metrics(registry, labels, 8, nullptr);
  // A price of 3.6 per hour for 4 cores: an instance with 2 threads costs 5e-4 per second.
  metrics.show_cost(registry, labels, Prices::read(3.6, "", 4).per_busy_second("cpu", 2));
  const std::string cost = "trireme_cost_per_million_inferences{model=\"m\",version=\"1\"}";
  EXPECT_EQ(shown(registry, cost), 0);
  // 3 ms for 4 rows (padding and waiting do not count) and 2 ms for 1 row: 5 ms and 5 inferences.
  metrics.count_batch({.enqueued_ns = 0,
                       .started_ns = 9'000'000,
                       .computed_ns = 9'500'000,
                       .finished_ns = 12'000'000,
                       .batch_rows = 4,
                       .padded_rows = 8});
  metrics.count_batch({.started_ns = 20'000'000,
                       .computed_ns = 20'100'000,
                       .finished_ns = 22'000'000,
                       .batch_rows = 1,
                       .padded_rows = 1});
  EXPECT_NEAR(shown(registry, cost), 5e-3 * 5e-4 / 5 * 1e6, 1e-9);
  EXPECT_NEAR(shown(registry, "trireme_cost_total{model=\"m\",version=\"1\"}"), 2.5e-6, 1e-12);
  // Reloaded with four threads: earlier work keeps its price.
  ModelMetrics again(registry, labels, 8, &metrics);
  again.show_cost(registry, labels, Prices::read(3.6, "", 4).per_busy_second("cpu", 4));
  again.count_batch({.started_ns = 0, .computed_ns = 0, .finished_ns = 1'000'000, .batch_rows = 5});
  EXPECT_NEAR(shown(registry, cost), (5e-3 * 5e-4 + 1e-3 * 1e-3) / 10 * 1e6, 1e-9);
}

}  // namespace
}  // namespace trireme::serve
