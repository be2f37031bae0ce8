"""`softrank download`."""

from softrank_ext.cli.main import main
from softrank_ext.tasks import data


def test_options_are_handed_over(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(data, "download", lambda *words: calls.append(words) or "there")
    assert main(["download", "mnist", "--root", "here"]) == 0
    assert main(["download", "cifar10"]) == 0
    assert calls == [("mnist", "here"), ("cifar10", None)]
    assert capsys.readouterr().out == "there\nthere\n"
