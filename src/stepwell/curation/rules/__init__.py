"""Rules by which data are left out, each in a file of its own; `use` names one in a selection."""

from typing import Annotated

from pydantic import Field

from stepwell.curation.rules.drift import Drift
from stepwell.curation.rules.duplicates import Duplicates
from stepwell.curation.rules.length import Length
from stepwell.curation.rules.logprobs import Logprobs
from stepwell.curation.rules.repetition import Repetition
from stepwell.curation.rules.score import Score
from stepwell.curation.rules.tool_calls import ToolCalls
from stepwell.curation.rules.truncation import Truncation
from stepwell.curation.rules.zero_advantage import ZeroAdvantage

AnyRule = Annotated[
    Drift | Duplicates | Length | Logprobs | Repetition | Score | ToolCalls | Truncation | ZeroAdvantage,
    Field(discriminator="use"),
]
"""One of them, chosen by its `use`."""
