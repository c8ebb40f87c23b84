"""Rows of a data set of the Hugging Face hub, for those who are online; `datasets` fetches and keeps them."""

from collections.abc import Iterator

from stepwell.environments.rows import Row
from stepwell.errors import MissingDependency


def hub_rows(hub: str, config: str | None, split: str, revision: str | None = None) -> Iterator[Row]:
    """The rows of one split, in their order.

    `revision` is a commit or tag of the set's repository; None takes what is newest.

    Raises:
        MissingDependency: the package `datasets` is not installed, or the hub cannot be reached.
    """
    try:
        import datasets  # noqa: PLC0415  # optional: only what comes from the hub needs it

        loaded = datasets.load_dataset(hub, config, split=split, revision=revision)
    except ImportError as error:
        raise MissingDependency(f"{hub} needs: pip install datasets; or give a file as `path`") from error
    except (OSError, ValueError, RuntimeError) as error:  # what that package raises for a hub out of reach
        raise MissingDependency(
            f"{hub} cannot be had from the hub ({error}); set HF_HUB_OFFLINE=0 if you are online, or give a `path`"
        ) from error
    return (Row(f"{hub}, {split}, row {number}", row) for number, row in enumerate(loaded))
