// A line plot as an SVG element: axes with round ticks, up to eight series, a legend; colours come from CSS
// classes.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::base {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending
};

struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<PlotSeries> series;
  bool log_y = false;                                   // points with y <= 0 are left out
  bool markers = false;                                 // a dot on each point
  std::vector<std::pair<double, std::string>> x_ticks;  // empty: chosen
};

/// The `<svg>` element. Colours are the classes s0..s7, grid and text the classes grid, axis and label.
std::string svg_of(const Plot& plot);

/// A file of its own: svg_of with a white ground and the styles that a page would give. Any number of points:
/// series longer than 1,000 are thinned to the mean of equal pieces.
std::string svg_document(Plot plot);

/// Fixed-point text with `digits` decimals.
std::string format_number(double value, int digits);

/// Text safe between tags and in attributes.
std::string html_escape(const std::string& text);

/// Round ticks (1, 2, 5 times a power of ten) from at most `low` to at least `high`, about `wanted` of them.
std::vector<double> round_ticks(double low, double high, int wanted);

}  // namespace trireme::base
