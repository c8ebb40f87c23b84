"""Running code that a model wrote: backends behind one small protocol (`base`), one file each.

`monty` is an interpreter of its own for small computations; `bubblewrap` is CPython in namespaces of its own.
"""

from typing import Annotated, TypeAlias

from pydantic import Field

from stepwell.environments.sandbox.bubblewrap import BubblewrapConfig
from stepwell.environments.sandbox.monty import MontyConfig

__all__ = ["AnySandbox", "BubblewrapConfig", "MontyConfig"]

AnySandbox: TypeAlias = Annotated[MontyConfig | BubblewrapConfig, Field(discriminator="use")]
"""The settings of a sandbox; `use` names it."""
