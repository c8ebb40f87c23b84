#!/usr/bin/env bash
# Makes the virtual environments in which no test of an environment is skipped: install.sh DIRECTORY (4 GB, some minutes).
#
# There are three below DIRECTORY, since verifiers 0.4 wants an older openai, and verifiers 0.2 an older mcp, than everything
# else does. What Stepwell itself pins holds in each of them, but for the packages of which something there needs another
# version. pip comes first: that of Python 3.11 cannot resolve the extra of math-verify that GEM and verifiers name.
set -euo pipefail

directory=${1:?usage: install.sh DIRECTORY}
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT

missing=()
command -v java >/dev/null || missing+=(default-jre-headless)  # TextWorldExpress
command -v bwrap >/dev/null || missing+=(bubblewrap)           # the sandbox of math_python and of black-box agents
command -v g++ >/dev/null || missing+=(build-essential)        # ALFWorld's planner and its interpreter of games
if [ ${#missing[@]} -gt 0 ]; then
  echo "the tests of environments need: apt-get install ${missing[*]}" >&2
  exit 1
fi

make_environment() {  # NAME UNPINNED (names of packages, with | between) REQUIREMENT...
  local python="$directory/$1/bin/python" unpinned=$2
  test -x "$python" || "${PYTHON:-python3}" -m venv "$directory/$1"
  "$python" -m pip install --quiet --upgrade pip
  grep -vE "^($unpinned)==" constraints.txt > "$pins"
  "$python" -m pip install --quiet -c "$pins" pytest pytest-asyncio pytest-xdist hypothesis "${@:3}"
}

others=alfworld,textworld-express,gymnasium,gem,agentdojo,bfcl,mcp,openenv,sandbox,math
make_environment others msgspec -e ".[train,envs,$others]" openai-agents datasets openenv==0.2.1 minigrid==3.2.0
"$directory/others/bin/python" -m pip install --quiet --no-deps bfcl-eval==2026.3.23  # its dependencies bring CUDA
make_environment verifiers-0.4 'mcp|mcp-types|openai' -e . verifiers==0.4.0
make_environment verifiers-0.2 'mcp|mcp-types' -e . verifiers==0.2.1
