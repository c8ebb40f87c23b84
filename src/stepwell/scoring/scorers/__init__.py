"""The scorers, one file each, and the table that names them."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, SerializeAsAny

from stepwell.config import component_config
from stepwell.scoring.base import ScorerConfig
from stepwell.scoring.scorers.callable import CallableConfig
from stepwell.scoring.scorers.combined import CombinedConfig, Summand
from stepwell.scoring.scorers.exact_match import ExactMatchConfig
from stepwell.scoring.scorers.f1 import F1Config
from stepwell.scoring.scorers.feedback import FeedbackConfig
from stepwell.scoring.scorers.judge import JudgeConfig
from stepwell.scoring.scorers.math import MathConfig
from stepwell.scoring.scorers.regex import RegexConfig

SCORERS: Final[Mapping[str, type[ScorerConfig]]] = {
    "callable": CallableConfig,
    "combined": CombinedConfig,
    "exact_match": ExactMatchConfig,
    "f1": F1Config,
    "feedback": FeedbackConfig,
    "judge": JudgeConfig,
    "math": MathConfig,
    "regex": RegexConfig,
}
"""The scorers by the name that `use` gives."""


def _chosen(section: Any) -> Any:
    return component_config(SCORERS, ScorerConfig, section) if isinstance(section, Mapping) else section


AnyScorer = Annotated[SerializeAsAny[ScorerConfig], BeforeValidator(_chosen)]
"""One of them, or one of somebody's own, chosen by its `use`."""

# A combined scorer holds scorers, which is known only here, where all of them are.
Summand.model_rebuild(_types_namespace={"AnyScorer": AnyScorer})
CombinedConfig.model_rebuild()
