"""Imported for its effect: `VERL_USE_EXTERNAL_MODULES=stepwell.adapters.verl.plugin` makes our estimators known."""

from stepwell.adapters.verl.registry import register

register()
