"""The catalogue of 48 rows: every fault has its row, every row a fault or a reason."""

import pytest

from tocsin.chaos.catalogue import (
    CatalogueRow,
    catalogue_markdown,
    catalogue_rows,
    catalogue_summary,
    catalogue_table,
)
from tocsin.chaos.catalogue_rows import ROWS
from tocsin.chaos.contract import faults

ROWS_NOW = catalogue_rows()


def test_the_catalogue_has_its_48_rows_and_one_of_kubernetes() -> None:
    """Numbered without a gap: nobody drops a row that is hard."""
    assert [row.number for row in ROWS_NOW] == [*map(str, range(1, 49)), "+"]
    assert len({row.name for row in ROWS_NOW}) == 49


@pytest.mark.parametrize("kind", list(faults()))
def test_every_declared_fault_is_in_exactly_one_row(kind: str) -> None:
    """A new fault says which row it makes."""
    assert len([row.number for row in ROWS_NOW if kind in row.kinds]) == 1


@pytest.mark.parametrize("row", ROWS_NOW, ids=lambda row: row.number)
def test_a_row_has_a_declared_fault_or_a_reason(row: CatalogueRow) -> None:
    """Never neither, and never a reason beside a fault that makes the row."""
    assert row.runnable != bool(row.reason)
    assert set(row.kinds) <= set(faults())


def test_without_faults_no_row_is_left_out() -> None:
    """The catalogue is what can go wrong, not what we have."""
    rows = catalogue_rows(declared=())
    assert len(rows) == 49
    assert not any(row.runnable for row in rows)
    assert catalogue_summary(rows) == "0 of 48 rows can be run here, by 0 faults."


def test_a_fault_that_appears_makes_its_row_and_hides_the_reason() -> None:
    """Also one that a pattern names: nothing else has to be edited."""
    before = next(row for row in catalogue_rows(["kv.bitflip"]) if row.number == "43")
    after = next(row for row in catalogue_rows(["kv.bitflip", "net.delay"]) if row.number == "43")
    assert before.reason
    assert (after.kinds, after.reason) == (("net.delay",), "")


def test_the_table_names_every_row_fault_and_reason() -> None:
    """For a terminal: aligned, and nothing is cut off."""
    table = catalogue_table()
    for row in ROWS_NOW:
        assert row.name in table
        assert all(kind in table for kind in row.kinds)
        assert all(word in table for word in row.reason.split())
    assert catalogue_summary(ROWS_NOW) in table
    lines = [line for line in table.splitlines() if line[:4].strip().isdecimal()]
    assert len(lines) == 48


def test_the_markdown_has_one_line_a_row_whose_faults_are_linked() -> None:
    """For the page of the faults."""
    text = catalogue_markdown()
    lines = [line for line in text.splitlines() if line.startswith("| ") and "# |" not in line]
    assert len(lines) == len(ROWS)
    assert "[kv.bitflip](#kvbitflip)" in text
