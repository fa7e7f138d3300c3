# What every part of ./dev uses: stages with their time, errors, the tools' paths.

cores=$(nproc)
venv=$root/.venv
python=$venv/bin/python
quiet_log=$root/build/dev.log

say() { printf '%s\n' "$*"; }
die() { printf 'dev: %s\n' "$*" >&2; exit 1; }
now_ms() { date +%s%3N; }
seconds_since() { local ms=$(($(now_ms) - $1)); printf '%d.%d s' $((ms / 1000)) $((ms % 1000 / 100)); }

# stage NAME COMMAND...: runs the command, then says how long it took. A failing command ends ./dev.
stage() {
  local name=$1 start status=0
  shift
  start=$(now_ms)
  say "== $name"
  "$@" || status=$?
  if ((status)); then
    say "== $name: failed ($status) after $(seconds_since "$start")"
    exit "$status"
  fi
  say "== $name: $(seconds_since "$start")"
}

# logged COMMAND...: shows output only when the command fails; people want to see stages, not ten thousand lines.
logged() {
  mkdir -p "$root/build"
  "$@" >"$quiet_log" 2>&1 </dev/null && return
  local status=$?
  tail -n 60 "$quiet_log" >&2
  return "$status"
}
