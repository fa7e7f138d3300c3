// Listings of a program: steps, memory, refusals.
#include <algorithm>
#include <cstdio>
#include <sstream>

#include "compile/program.h"

namespace trireme::compile {
namespace {

std::string human(double bytes) {
  char text[32];
  if (bytes >= 1 << 20) {
    std::snprintf(text, sizeof text, "%.2f MiB", bytes / (1 << 20));
  } else if (bytes >= 1024) {
    std::snprintf(text, sizeof text, "%.2f KiB", bytes / 1024);
  } else {
    std::snprintf(text, sizeof text, "%.0f B", bytes);
  }
  return text;
}

std::string slot_text(const Program& p, SlotId id) {
  if (id == kNoSlot) return "-";
  const Slot& s = p.slot(id);
  std::string text = "%" + std::to_string(index(id)) + ":" + std::string(tensor::name_of(s.dtype)) +
                     tensor::to_string(s.dims);
  if (s.root != id) text += "=%" + std::to_string(index(s.root));
  return text;
}

std::string list(const Program& p, const std::vector<SlotId>& ids) {
  std::string text;
  for (SlotId id : ids) text += (text.empty() ? "" : ", ") + slot_text(p, id);
  return text;
}

std::string_view op_name(const Step& step) {
  return step.op == nullptr ? std::string_view("copy") : step.op->schema.name;
}

/// Where steps run, and whether they can be recorded and replayed.
std::string device_line(const Program& p) {
  const auto on_host = std::count_if(p.steps.begin(), p.steps.end(), [](const Step& s) { return s.on_host; });
  if (on_host == 0) return base::concat("on ", tensor::name_of(p.on), ": all steps; recorded and replayed\n");
  return base::concat("on ", tensor::name_of(p.on), ": ", p.steps.size() - static_cast<size_t>(on_host),
                      " steps; on the host: ", on_host, " (", p.host_operators(), "), so not recorded\n");
}

}  // namespace

std::string_view to_string(SlotKind kind) {
  switch (kind) {
    case SlotKind::input: return "input";
    case SlotKind::output: return "output";
    case SlotKind::constant: return "const";
    case SlotKind::arena: return "arena";
    case SlotKind::state: return "state";
  }
  return "arena";
}

std::string print_steps(const Program& p) {
  std::ostringstream out;
  const ir::Cost total = p.cost();
  out << "program " << p.name << ": " << p.steps.size() << " steps, " << total.flop / 1e9 << " GFLOP, "
      << human(total.bytes) << " moved\n";
  if (p.on != tensor::DeviceKind::cpu && !p.steps.empty()) out << device_line(p);
  for (size_t i = 0; i < p.steps.size(); ++i) {
    const Step& s = p.steps[i];
    out << i << "\t" << list(p, s.out) << " = " << op_name(s) << "(" << list(p, s.in) << ")";
    if (!s.attrs.empty()) out << " {" << s.attrs << "}";
    out << "  kernel=" << s.kernel << " flop=" << s.cost.flop << " bytes=" << s.cost.bytes;
    if (s.is_aside) out << " aside until=" << s.until;
    if (s.after_aside >= 0) out << " after=" << s.after_aside;
    if (!s.from.empty()) out << "  # " << s.from;
    out << "\n";
  }
  return out.str();
}

std::string print_memory(const Program& p) {
  std::ostringstream out;
  const double saved =
      p.memory.sum_bytes == 0
          ? 0
          : 100.0 * (1 - static_cast<double>(p.memory.arena_bytes) / static_cast<double>(p.memory.sum_bytes));
  out << "planned peak " << human(static_cast<double>(p.memory.arena_bytes))
      << " (sum of all values and workspaces " << human(static_cast<double>(p.memory.sum_bytes)) << ", saved "
      << saved << " %), weights " << human(static_cast<double>(p.memory.constant_bytes)) << "\n";
  std::vector<size_t> roots;
  for (size_t i = 0; i < p.slots.size(); ++i) {
    if (p.slots[i].kind == SlotKind::arena && index(p.slots[i].root) == i) roots.push_back(i);
  }
  std::stable_sort(roots.begin(), roots.end(),
                   [&](size_t a, size_t b) { return p.slots[a].bytes > p.slots[b].bytes; });
  for (size_t i : roots) {
    const Slot& s = p.slots[i];
    out << "%" << i << "\t" << human(static_cast<double>(s.bytes)) << "\t[" << s.offset << ", "
        << s.offset + s.bytes << ")\tsteps " << s.first_step << ".." << s.last_step << "\t"
        << tensor::name_of(s.dtype) << tensor::to_string(s.dims) << (s.name.empty() ? "" : "\t" + s.name)
        << "\n";
  }
  return out.str();
}

std::string print_refusals(const Program& p) {
  std::ostringstream out;
  for (size_t i = 0; i < p.steps.size(); ++i) {
    const Step& s = p.steps[i];
    out << i << "\t" << op_name(s) << (s.from.empty() ? "" : " '" + s.from + "'") << ": " << s.kernel << "\n";
    for (const std::string& r : s.refusals) out << "\t\trefused " << r << "\n";
  }
  return out.str();
}

}  // namespace trireme::compile
