// SVG line plots: scales, ticks, polylines.
#include "base/report/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace trireme::base {
namespace {

// The drawing area inside a 640 x 300 picture, in user units.
constexpr double kWidth = 640, kHeight = 300;
constexpr double kLeft = 64, kRight = 624, kTop = 34, kBottom = 254;

struct Scale {
  double low = 0, high = 1;  // data (logarithms on a log axis)
  double from = 0, to = 1;   // user units
  bool log = false;
  double operator()(double v) const {
    const double x = log ? std::log10(v) : v;
    return from + (x - low) / (high - low) * (to - from);
  }
};

std::string tick_text(double v) {
  if (v == 0) return "0";
  const double size = std::fabs(v);
  return format_number(v, size >= 10 ? 0 : size >= 1 ? 1 : size >= 0.1 ? 2 : size >= 0.01 ? 3 : 4);
}

std::string number(double v) { return format_number(v, 1); }

bool drawable(const Plot& plot, double y) { return std::isfinite(y) && (!plot.log_y || y > 0); }

struct Extent {
  double low = INFINITY, high = -INFINITY;
  void take(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  bool empty() const { return low > high; }
};

struct Point {
  double x, y;
};

void line(std::string& out, const char* css, Point from, Point to) {
  out += std::string("<line class=\"") + css + "\" x1=\"" + number(from.x) + "\" y1=\"" + number(from.y) +
         "\" x2=\"" + number(to.x) + "\" y2=\"" + number(to.y) + "\"/>";
}

void label(std::string& out, double x, double y, const char* anchor, const std::string& text) {
  out += "<text class=\"label\" x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor +
         "\">" + html_escape(text) + "</text>";
}

void draw_y_axis(std::string& out, const Plot& plot, const Scale& y) {
  std::vector<double> ticks;
  if (plot.log_y) {
    for (double d = y.low; d <= y.high + 1e-9; ++d) ticks.push_back(std::pow(10.0, d));
  } else {
    ticks = round_ticks(y.low, y.high, 5);
  }
  for (const double t : ticks) {
    if (y(t) > kBottom + 0.5 || y(t) < kTop - 0.5) continue;
    line(out, "grid", {kLeft, y(t)}, {kRight, y(t)});
    label(out, kLeft - 6, y(t) + 4, "end", tick_text(t));
  }
  out += "<text class=\"label\" transform=\"translate(14," + number((kTop + kBottom) / 2) +
         ") rotate(-90)\" text-anchor=\"middle\">" + html_escape(plot.y_label) + "</text>";
}

void draw_x_axis(std::string& out, const Plot& plot, const Scale& x) {
  std::vector<std::pair<double, std::string>> ticks = plot.x_ticks;
  if (ticks.empty()) {
    for (const double t : round_ticks(x.low, x.high, 8)) ticks.emplace_back(t, tick_text(t));
  }
  for (const auto& [at, text] : ticks) {
    if (x(at) > kRight + 0.5 || x(at) < kLeft - 0.5) continue;
    line(out, "grid", {x(at), kTop}, {x(at), kBottom});
    label(out, x(at), kBottom + 16, "middle", text);
  }
  line(out, "axis", {kLeft, kBottom}, {kRight, kBottom});
  label(out, (kLeft + kRight) / 2, kBottom + 34, "middle", plot.x_label);
}

void draw_series(std::string& out, const Plot& plot, const Scale& x, const Scale& y) {
  double at = kLeft + 8;  // x position of the next legend entry
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const std::string css = "s" + std::to_string(i % 8);
    std::string points, dots;
    for (const auto& [px, py] : plot.series[i].points) {
      if (!drawable(plot, py)) continue;
      points += number(x(px)) + "," + number(y(py)) + " ";
      if (plot.markers) {
        dots += "<circle class=\"" + css + " dot\" cx=\"" + number(x(px)) + "\" cy=\"" + number(y(py)) +
                "\" r=\"3\"/>";
      }
    }
    out += "<polyline class=\"" + css + "\" points=\"" + points + "\"><title>" +
           html_escape(plot.series[i].name) + "</title></polyline>" + dots;
    if (plot.series.size() > 1) {  // a single series needs no legend: the title names it
      line(out, css.c_str(), {at, kTop - 8}, {at + 14, kTop - 8});
      label(out, at + 18, kTop - 4, "start", plot.series[i].name);
      at += std::max(70.0, 36 + 6.5 * static_cast<double>(plot.series[i].name.size()));
    }
  }
}

constexpr size_t kMaxPoints = 1000;  // more than the picture has columns

/// Replaces equal pieces of the points by their means. The pieces depend on the count only; a piece without
/// finite values is omitted.
void thin(PlotSeries& series) {
  const size_t count = series.points.size();
  if (count <= kMaxPoints) return;
  std::vector<std::pair<double, double>> kept;
  for (size_t piece = 0; piece < kMaxPoints; ++piece) {
    double x = 0, y = 0, finite = 0;
    for (size_t i = count * piece / kMaxPoints; i < count * (piece + 1) / kMaxPoints; ++i) {
      if (!std::isfinite(series.points[i].second)) continue;
      x += series.points[i].first;
      y += series.points[i].second;
      ++finite;
    }
    if (finite > 0) kept.emplace_back(x / finite, y / finite);
  }
  series.points = std::move(kept);
}

constexpr std::string_view kStyle =
    "<style>.grid{stroke:#ddd}.axis{stroke:#888}.label{fill:#555;font:11px sans-serif}"
    ".title{fill:#111;font:600 14px sans-serif}polyline{fill:none;stroke-width:1.5}"
    ".s0{stroke:#1f6fb4}.s1{stroke:#d9601a}.s2{stroke:#2a9d4a}.s3{stroke:#b23a8e}.s4{stroke:#7a6a1f}"
    ".s5{stroke:#4b4bb5}.s6{stroke:#b03a3a}.s7{stroke:#3a8f8f}</style>"
    "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>";

}  // namespace

std::string format_number(double value, int digits) {
  std::array<char, 64> text;
  const int bytes = std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return {text.data(), static_cast<size_t>(std::clamp(bytes, 0, 63))};
}

std::string html_escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::vector<double> round_ticks(double low, double high, int wanted) {
  if (!(high > low)) return {low};
  const double rough = (high - low) / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double lead = rough / power;
  const double step = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
  std::vector<double> ticks;
  for (double k = std::floor(low / step); k * step <= high + step * 0.999; ++k) ticks.push_back(k * step);
  return ticks;
}

std::string svg_of(const Plot& plot) {
  Extent xs, ys;
  for (const PlotSeries& s : plot.series) {
    for (const auto& [px, py] : s.points) {
      if (!drawable(plot, py)) continue;
      xs.take(px);
      ys.take(plot.log_y ? std::log10(py) : py);
    }
  }
  std::string out = "<svg viewBox=\"0 0 " + number(kWidth) + " " + number(kHeight) +
                    "\" role=\"img\" aria-label=\"" + html_escape(plot.title) +
                    "\"><text class=\"title\" x=\"" + number(kLeft) + "\" y=\"15\">" +
                    html_escape(plot.title) + "</text>";
  if (xs.empty()) {
    label(out, kWidth / 2, kHeight / 2, "middle", "no data");
    return out + "</svg>";
  }
  if (xs.high <= xs.low) xs.high = xs.low + 1;
  // Linear axes start at zero, so that half the height means half the value. Log axes cover whole decades.
  const double y_low = plot.log_y ? std::floor(ys.low) : std::min(0.0, ys.low);
  double y_high =
      plot.log_y ? std::ceil(ys.high) : round_ticks(y_low, std::max(ys.high, y_low + 1e-9), 5).back();
  if (y_high <= y_low) y_high = y_low + 1;
  const Scale x{xs.low, xs.high, kLeft, kRight, false};
  const Scale y{y_low, y_high, kBottom, kTop, plot.log_y};
  draw_y_axis(out, plot, y);
  draw_x_axis(out, plot, x);
  draw_series(out, plot, x, y);
  return out + "</svg>";
}

std::string svg_document(Plot plot) {
  for (PlotSeries& series : plot.series) thin(series);
  std::string svg = svg_of(plot);
  svg.insert(4, " xmlns=\"http://www.w3.org/2000/svg\" width=\"640\" height=\"300\"");  // after "<svg"
  svg.insert(svg.find('>') + 1, kStyle);
  return svg + "\n";
}

}  // namespace trireme::base
