"""`time_bar`: shown on terminals alone, for long searches alone, and gone when the search ends."""

import sys
import time

import pytest

from softrank_ext.cli import time_bar as module
from softrank_ext.cli.main import main
from softrank_ext.cli.time_bar import time_bar


def be_terminal(monkeypatch):
    """Let stderr be one, inside the test: pytest changes it between a fixture and its test."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def test_it_fills_with_the_seconds(capsys, monkeypatch):
    be_terminal(monkeypatch)
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.5)
    with time_bar(0.6):
        time.sleep(1.0)  # a search may take a little longer
    shown = capsys.readouterr().err
    assert "100%" in shown and " left" in shown
    assert shown.endswith("\r"), "the line is left empty"


def test_nothing_is_shown_of_short_searches_or_without_a_terminal(capsys, monkeypatch):
    be_terminal(monkeypatch)
    with time_bar(2.0):
        time.sleep(0.3)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.1)
    with time_bar(0.2):
        time.sleep(0.3)
    assert capsys.readouterr().err == ""


def test_errors_pass_and_the_bar_ends(capsys, monkeypatch):
    be_terminal(monkeypatch)
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.1)
    with pytest.raises(ValueError, match="no such place"), time_bar(60.0):
        time.sleep(0.3)
        raise ValueError("no such place")
    before = capsys.readouterr().err
    time.sleep(0.3)
    assert "left" in before and capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ("tour", "schedule"))
def test_searches_of_the_command_line_have_it(command, capsys, monkeypatch, tmp_path):
    be_terminal(monkeypatch)
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.1)
    table = {"tour": "x,y\n0,0\n1,0\n1,1\n0,1\n", "schedule": "job,cut,drill\na,3,2\nb,1,4\nc,5,1\n"}[command]
    (tmp_path / "table.csv").write_text(table)
    assert main([command, str(tmp_path / "table.csv"), "--seconds", "0.6", "--model", "none"]) == 0
    assert "%|" in capsys.readouterr().err
