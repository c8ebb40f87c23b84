"""What bodies of the feed's routes are made of, beside leases and selections themselves."""

from typing import Final

from pydantic import ConfigDict, Field

from stepwell.config import Config
from stepwell.curation.selection import Selection
from stepwell.pool.lease import LeaseSpec, Unit


class ExtendWire(Config):
    """How much longer a lease is held, or a producer counts as alive."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"seconds": 600.0}]})

    seconds: float = Field(default=600.0, gt=0, le=1e9)
    """From now."""


class NackWire(Config):
    """Why a lease is given back; nothing needs to be said."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "out of memory"}]})

    reason: str = Field(default="", max_length=2000)
    """Written to the gateway's log."""


class DropWire(Config):
    """Why a group is given up."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "its environment is gone"}]})

    reason: str = Field(min_length=1, max_length=2000)
    """Counted among the reasons of dropped groups."""


class ConsumerWire(Config):
    """A consumer."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"consumer": "trainer"}]})

    consumer: str
    """Its name, as in its leases."""


class FreezeWire(Config):
    """What a dataset is made of."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "train", "selection": {"min_reward": 0.5}}]})

    name: str
    """Of the dataset."""
    selection: Selection | str = Selection()
    """What is wanted, or the name of a saved selection."""
    unit: Unit = "group"
    """What it consists of."""


SENT: Final = (LeaseSpec, ExtendWire, NackWire, DropWire, ConsumerWire, FreezeWire, Selection)
"""What bodies of this door are made of."""
