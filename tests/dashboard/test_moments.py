"""Times that people see: any number and any text has an answer, and what is read can be shown again."""

from datetime import UTC, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.dashboard.moments import calendar, moment, written
from stepwell.dashboard.visit import Visit

EAST, WEST = ZoneInfo("Asia/Kathmandu"), timezone(timedelta(hours=-11))
ZONES = st.sampled_from([UTC, EAST, WEST])


@given(st.floats(), ZONES)
def test_every_number_can_be_shown(seconds: float, zone: timezone) -> None:
    visit = Visit(pool=None, decoders={}, read_only="", path="/", zone=zone)  # type: ignore[arg-type]
    assert visit.time(seconds)
    assert bool(written(seconds, zone)) == (calendar(seconds, zone) is not None)


@given(st.datetimes().map(lambda at: at.replace(second=0, microsecond=0, fold=0)), st.sampled_from([UTC, WEST]))
def test_what_is_read_is_shown_as_it_was_written(at, zone: timezone) -> None:
    text = at.isoformat(timespec="minutes")
    seconds = moment(text, zone)
    assert written(seconds, zone) == ("" if seconds is None else text)


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("", UTC),
        ("yesterday", UTC),
        ("0001-01-01T00:00+05:45", UTC),
        ("9999-12-31T23:59-11:00", UTC),
        ("9999-12-31T23:59+00:00", EAST),
        ("0001-01-01T00:00+00:00", WEST),
    ],
)
def test_what_is_no_time_of_the_zone_is_none(text: str, zone: timezone) -> None:
    assert moment(text, zone) is None
