"""veRL fed from a pool: a lease as its `DataProto`, and our credit assignment among its advantage estimators."""

from stepwell.errors import MissingDependency

try:
    from stepwell.adapters.verl.batch import to_dataproto
    from stepwell.adapters.verl.credit import advantages
    from stepwell.adapters.verl.registry import register
except ImportError as error:
    raise MissingDependency(f"veRL cannot be used: {error}; install it with: pip install 'stepwell[verl]'") from error

__all__ = ["advantages", "register", "to_dataproto"]
