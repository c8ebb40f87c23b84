#!/usr/bin/env bash
# Makes a virtual environment with veRL on a CPU: install_verl.sh DIRECTORY (2 GB, some minutes).
#
# It cannot live beside Stepwell's own: veRL wants an older transformers. torch comes first, as the same CPU build that
# everything here uses, so that nothing asks for one with CUDA. veRL imports cachetools and pillow without requiring them,
# and its newer trainer needs TransferQueue.
set -euo pipefail

directory=${1:?usage: install_verl.sh DIRECTORY}
test -x "$directory/bin/python" || "${PYTHON:-python3}" -m venv "$directory"
pip=("$directory/bin/python" -m pip --quiet)
"${pip[@]}" install torch==2.13.0
"${pip[@]}" install -e . verl==0.9.1 'TransferQueue>=0.1.10' cachetools pillow
"${pip[@]}" install pytest pytest-asyncio hypothesis
