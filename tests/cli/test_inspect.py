"""What `inspect` shows of single formats."""

import json

from tests.core.formats.finalfusion.test_finalfusion import ATTACKS

import weightmap as wm
from weightmap.cli import main


def test_dates_in_metadata_are_kept_and_shown(put, capsys):
    """Dates and times are objects; the command line prints them as texts, also as JSON."""
    path = put(ATTACKS["dates"].data, "t.fifu")
    with wm.open(path) as f:
        assert f.metadata["day"].year == 2020
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metadata"]["day"] == "2020-01-02"
