"""The studies, one file each, and the table that names them."""

from collections.abc import Mapping
from typing import Final

from experiments.design import Study
from experiments.studies.rtpo import RTPO
from experiments.studies.staleness import STALENESS
from experiments.studies.stepopsd import STEPOPSD
from experiments.studies.steppo import STEPPO

STUDIES: Final[Mapping[str, Study]] = {study.name: study for study in (STEPPO, RTPO, STALENESS, STEPOPSD)}
"""By the name that `python -m experiments` takes."""
