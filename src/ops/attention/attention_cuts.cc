// Cut rules of attention. Letters: b batch, s queries, h heads (key heads together with their query heads), g
// the query heads that share one key head.
#include "ops/attention/attention_cuts.h"

#include "ops/attention/attention_plan.h"
#include "ops/attention/paged.h"
#include "ops/cut_notation.h"

namespace trireme::ops {
namespace {

/// Whether results depend on the position of a query among the keys (causality or a window): then queries
/// stay whole.
bool reads_positions(const ir::Attrs& a) {
  return a.get_int("is_causal", 0) != 0 || a.get_int("left_window_size", -1) >= 0 ||
         a.get_int("right_window_size", -1) >= 0;
}

/// The letters that one rule uses for queries and heads; '.': not cut.
struct Cut {
  char queries, query_heads, key_heads;
};

/// Names the dimensions of the mask: [batch, heads, queries, keys] or [batch, keys].
void name_mask(CutNotation& notation, const ir::NodeView& n, size_t at, const Cut& c) {
  if (!n.present(at)) return;
  const bool is_padding = !tensor::is_float(n.in[at].dtype) && n.in[at].shape.rank() == 2;
  if (is_padding) return void(notation.in(at, "b."));
  notation.broadcast(at, {'b', c.query_heads, c.queries, '.'});
}

/// Two ways to cut heads: key heads with their query heads, or the query heads of one key head that every
/// rank holds.
ir::CutRule by_heads(const std::function<ir::CutRule(const Cut&)>& rule, const Cut& whole, int64_t heads,
                     int64_t kv_heads) {
  ir::CutRule by_key_heads = rule({whole.queries, 'h', 'h'});
  by_key_heads.units = {{'h', kv_heads}};
  if (heads == kv_heads) return by_key_heads;
  ir::CutRule by_group = rule({whole.queries, 'g', '.'});
  by_group.units = {{'g', heads / kv_heads}};
  by_key_heads.others.push_back(std::move(by_group));
  return by_key_heads;
}

}  // namespace

ir::CutRule attention_bsnd_cut(const ir::NodeView& n) {
  const auto rule = [&n](const Cut& c) {
    const std::string q{'b', c.queries, c.query_heads, '.'}, k{'b', '.', c.key_heads, '.'};
    CutNotation notation(n);
    notation.in(0, q).in(1, k).in(2, k).out(0, q).out(1, {'b', c.query_heads, c.queries});
    name_mask(notation, n, 3, c);
    notation.in(kBsndSinks, {c.query_heads});
    ir::CutRule r{.notation = notation.text()};
    if (c.key_heads == '.') r.single = {{1, 2}};
    return r;
  };
  const char s = reads_positions(n.attrs) ? '.' : 's';
  return by_heads(rule, {s, 'h', 'h'}, n.in_dims(0)[2], n.in_dims(1)[2]);
}

ir::CutRule attention_bsnd_grad_cut(const ir::NodeView& n) {
  const auto rule = [&n](const Cut& c) {
    const std::string q{'b', c.queries, c.query_heads, '.'}, k{'b', '.', c.key_heads, '.'};
    CutNotation notation(n);
    notation.in(0, q).in(1, k).in(2, k).in(3, q).in(4, {'b', c.query_heads, c.queries}).in(5, q);
    notation.out(0, q).out(1, k).out(2, k);
    if (n.out.size() > 3) notation.out(3, {'b', c.query_heads, c.queries, '.'});
    name_mask(notation, n, 6, c);
    ir::CutRule r{.notation = notation.text(), .linear = {1u << 5}};
    if (c.queries != '.') r.sums += c.queries;
    if (c.key_heads == '.') {
      r.sums += c.query_heads;
      r.single = {{1, 2}};
    }
    return r;
  };
  const char s = reads_positions(n.attrs) ? '.' : 's';
  return by_heads(rule, {s, 'h', 'h'}, n.in_dims(0)[2], n.in_dims(1)[2]);
}

void localise_bsnd(ir::LocalNode& n) {
  if (n.attrs.get_int("kv_heads", 0) != 0) n.attrs.set("kv_heads", n.in[1][2]);
}

namespace {

/// Cuts the equal sections q, k, v, which exist only if there are as many key heads as query heads.
ir::CutRule packed(const ir::NodeView& n, CutNotation& notation, bool is_backward) {
  const int64_t heads = n.attrs.get_int("heads", 0), kv = n.attrs.get_int("kv_heads", 0);
  const char h = kv == 0 || kv == heads ? 'h' : '.';
  const std::string qkv{'b', '.', h}, lse{'b', h, '.'};
  notation.in(0, qkv);
  if (is_backward) {
    notation.in(1, qkv).in(2, lse).in(3, qkv).out(0, qkv);
    if (n.out.size() > 1) notation.out(1, {'b', h, '.', '.'});
  } else {
    notation.out(0, qkv).out(1, lse);
  }
  name_mask(notation, n, is_backward ? 4 : 1, {'.', h, h});
  ir::CutRule r{.notation = notation.text()};
  if (h == '.') return r;
  r.units = {{'h', heads}};
  r.sections = {{false, 0, 2, 3}};
  if (is_backward) r.sections.push_back({true, 0, 2, 3});
  return r;
}

}  // namespace

/// Queries and result [..., tokens, heads * channels], pages [pages, kv_heads, page_tokens, elements].
ir::CutRule paged_attention_cut(const ir::NodeView& n) {
  const int64_t scale = row_elements(n.in[1].dtype, 0), dim = n.in_dims(1)[3] - scale;
  const int64_t kv_heads = n.in_dims(1)[1], heads = n.in_dims(0).back() / dim;
  const auto rule = [&n](const Cut& c) {
    const std::string q = dots(n.in[0].shape.rank() - 1) + c.query_heads;
    const std::string pages{'.', c.key_heads, '.', '.'};
    CutNotation notation(n);
    notation.in(0, q).in(1, pages).in(2, pages).in(kPagedSinks, {c.query_heads}).out(0, q);
    ir::CutRule r{.notation = notation.text()};
    if (c.key_heads == '.') r.single = {{1, 1}};
    return r;
  };
  return by_heads(rule, {'.', 'h', 'h'}, heads, kv_heads);
}

ir::CutRule kv_append_cut(const ir::NodeView& n) {
  const std::string fresh = dots(n.in[0].shape.rank() - 1) + "h", pages = ".h..";
  CutNotation notation(n);
  notation.in(0, fresh).in(1, fresh).in(2, pages).in(3, pages).out(0, pages).out(1, pages);
  return {.notation = notation.text(), .units = {{'h', n.in_dims(2)[1]}}};
}

ir::CutRule attention_qkv_cut(const ir::NodeView& n) {
  CutNotation notation(n);
  return packed(n, notation, false);
}

ir::CutRule attention_qkv_grad_cut(const ir::NodeView& n) {
  CutNotation notation(n);
  ir::CutRule r = packed(n, notation, true);
  r.linear = {1u << 3};
  return r;
}

void localise_qkv(ir::LocalNode& n) {
  const int64_t local = n.in[0][2], global = n.global.in_dims(0)[2];
  share_count(n, "heads", local, global);
  share_count(n, "kv_heads", local, global);
}

ir::CutRule attention_cut(const ir::NodeView& n) {
  const bool flat = n.in[0].shape.rank() == 3;
  const int64_t heads = flat ? n.attrs.get_int("q_num_heads", 0) : n.in_dims(0)[1];
  const int64_t kv_heads = flat ? n.attrs.get_int("kv_num_heads", 0) : n.in_dims(1)[1];
  const auto rule = [&n, flat](const Cut& c) {
    // [batch, seq, heads * channels] or [batch, heads, seq, channels]
    const auto projection = [flat](char seq, char h) {
      return flat ? std::string{'b', seq, h} : std::string{'b', h, seq, '.'};
    };
    const std::string q = projection(c.queries, c.query_heads), k = projection('.', c.key_heads);
    const std::string cache{'b', c.key_heads, '.', '.'};
    CutNotation notation(n);
    notation.in(0, q).in(1, k).in(2, k).in(4, cache).in(5, cache).in(6, "b");
    notation.out(0, q).out(1, cache).out(2, cache).out(3, {'b', c.query_heads, c.queries, '.'});
    name_mask(notation, n, 3, c);
    return ir::CutRule{.notation = notation.text()};
  };
  const char s = reads_positions(n.attrs) ? '.' : 's';
  ir::CutRule r = by_heads(rule, {s, 'h', 'h'}, heads, kv_heads);
  // In a flat projection, heads are not a dimension of their own.
  if (flat) r.others.clear();
  for (ir::CutRule& other : r.others) other.single = {{1, 1}};
  return r;
}

void localise_attention(ir::LocalNode& n) {
  if (n.in[0].size() != 3) return;
  share_count(n, "q_num_heads", n.in[0][2], n.global.in_dims(0)[2]);
  share_count(n, "kv_num_heads", n.in[1][2], n.global.in_dims(1)[2]);
}

/// x [batch, heads, seq, channels] or [batch, seq, heads * channels]; cos and sin [position, channels / 2]
/// with positions, else [batch, seq, channels / 2].
ir::CutRule rotary_cut(const ir::NodeView& n) {
  const bool flat = n.in[0].shape.rank() == 3;
  const std::string x = flat ? "bsh" : "bhs.";
  CutNotation notation(n);
  notation.in(0, x).out(0, x).in(3, "bs");
  for (size_t i : {1, 2}) {
    if (n.in[i].shape.rank() == 3) notation.broadcast(i, "bs.");
  }
  const int64_t heads = flat ? n.attrs.get_int("num_heads", 0) : n.in_dims(0)[1];
  return {.notation = notation.text(), .linear = {1}, .units = {{'h', heads}}};
}

void localise_rotary(ir::LocalNode& n) {
  if (n.in[0].size() == 3) share_count(n, "num_heads", n.in[0][2], n.global.in_dims(0)[2]);
}

}  // namespace trireme::ops
